"""The two systems with short sessions for consumer groups too, so that a dead member is missed within seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.node import OttlaNode

QUICK = {
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="session")
def quick_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaPeer]:
    with KafkaPeer(tmp_path_factory.mktemp("quick-kafka"), settings=QUICK) as peer:
        yield peer


@pytest.fixture(scope="session")
def quick_ottla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    with OttlaNode(tmp_path_factory.mktemp("quick-ottla"), settings=QUICK) as node:
        yield node
    assert not node.tracebacks(), node.tracebacks()[0]


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.kafka)])
def quick_system(request: pytest.FixtureRequest) -> KafkaPeer | OttlaNode:
    peer: KafkaPeer | OttlaNode = request.getfixturevalue("quick_ottla" if request.param == "ottla" else "quick_kafka")
    return peer
