"""One small Spark session for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.embedded.cluster import EmbeddedCluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from ottla.spark.session import session

    made = session("ottla tests", settings={"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))})
    yield made
    for query in made.streams.active:
        query.stop()
    made.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1) as running:
        yield running
