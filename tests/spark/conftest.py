"""One small Spark session for all tests of this folder, with Spark's own Kafka connector beside ottla where it can be had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.embedded.cluster import EmbeddedCluster
from tests.compatibility.connector import NoConnector, connector_jars


@pytest.fixture(scope="session")
def _jars() -> str | NoConnector:
    try:
        return ",".join(map(str, connector_jars()))
    except NoConnector as error:
        return error


@pytest.fixture(scope="session")
def connector(_jars: str | NoConnector) -> None:
    """For tests that need the connector."""
    if isinstance(_jars, NoConnector):
        pytest.skip(str(_jars))


@pytest.fixture(scope="session")
def spark(_jars: str | NoConnector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from ottla.spark.session import session

    settings = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    made = session("ottla tests", settings=settings | ({} if isinstance(_jars, NoConnector) else {"spark.jars": _jars}))
    yield made
    for query in made.streams.active:
        query.stop()
    made.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1) as running:
        yield running
