"""Fixtures for tests that need a Kafka: a real one, in this process, in milliseconds, without containers.

    def test_orders_are_billed(ottla_broker):
        producer = AnyKafkaClient(bootstrap_servers=ottla_broker.bootstrap)

    async def test_failover(ottla_cluster):
        cluster = ottla_cluster(3)
        cluster.nodes[0].kill()

Every test gets brokers and folders of its own, and they are gone when it ends. pytest finds this module by its entry point once
ottla is installed; nothing of the broker is imported until a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ottla.embedded.cluster import EmbeddedCluster


@pytest.fixture
def ottla_settings() -> dict[str, str]:
    """Broker settings for `ottla_broker` and `ottla_cluster`, by Kafka's names; override it in a module, a class or a conftest."""
    return {}


@pytest.fixture
def ottla_cluster(ottla_settings: Mapping[str, str]) -> Iterator[Callable[..., EmbeddedCluster]]:
    """A function: `ottla_cluster(n, settings={…})` starts a cluster of n brokers, which ends with the test."""
    from ottla.embedded.cluster import EmbeddedCluster

    started: list[EmbeddedCluster] = []

    def start(brokers: int = 1, settings: Mapping[str, str] | None = None) -> EmbeddedCluster:
        cluster = EmbeddedCluster(brokers, settings={**ottla_settings, **(settings or {})})
        started.append(cluster)
        return cluster.start()

    yield start
    for cluster in started:
        cluster.stop()


@pytest.fixture
def ottla_broker(ottla_cluster: Callable[..., EmbeddedCluster]) -> EmbeddedCluster:
    """One broker; `ottla_broker.bootstrap` is where clients find it."""
    return ottla_cluster(1)
