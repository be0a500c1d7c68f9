"""Fixtures of the two systems. A test that takes `system` runs against both and must see the same from each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.node import OttlaNode

_serial = count()


@pytest.fixture(scope="session")
def kafka_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaPeer]:
    """One Apache Kafka 4.3 node for the whole session, with the id ottla's has; tests use topics of their own."""
    with KafkaPeer(tmp_path_factory.mktemp("kafka"), first_id=1) as peer:
        yield peer


@pytest.fixture(scope="session")
def ottla_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    """One ottla node for the whole session; tests use topics of their own."""
    with OttlaNode(tmp_path_factory.mktemp("ottla")) as node:
        yield node
    assert not node.tracebacks(), node.tracebacks()[0]


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.kafka)])
def system(request: pytest.FixtureRequest) -> KafkaPeer | OttlaNode:
    """Each of the two systems in turn: `bootstrap`, `address` and `name`."""
    peer: KafkaPeer | OttlaNode = request.getfixturevalue("ottla_node" if request.param == "ottla" else "kafka_peer")
    return peer


@pytest.fixture
def topic() -> str:
    """A name no other test of this session uses."""
    return f"topic-{next(_serial)}"
