"""One suite, two systems: a test that takes `bootstrap` runs against ottla and against Apache Kafka 4.3 and must see the same.

`OTTLA_TEST_KAFKA=host:port` uses an Apache Kafka that runs already (with the settings below) instead of starting one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import count
from uuid import uuid4

import pytest

from ottla import Admin, Consumer, Producer
from ottla.embedded.cluster import EmbeddedCluster
from tests.client.waiting import eventually
from tests.compatibility.kafka import KafkaPeer

# Groups of tests must not take seconds to notice things.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "auto.create.topics.enable": "false",
}
_serial = count()


@pytest.fixture(scope="session")
def ottla_system() -> Iterator[str]:
    with EmbeddedCluster(1, settings=SETTINGS) as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="session")
def kafka_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if running := os.environ.get("OTTLA_TEST_KAFKA"):
        yield running
        return
    with KafkaPeer(tmp_path_factory.mktemp("kafka"), settings=SETTINGS) as peer:
        yield peer.bootstrap


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.kafka)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(f"{request.param}_system")
    return address


@pytest.fixture
def name() -> str:
    """A name that no other test uses, nor an earlier run."""
    return f"{uuid4().hex[:8]}-{next(_serial)}"


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        yield admin


@pytest.fixture
async def topic(admin: Admin, name: str) -> str:
    """A topic with three partitions, led."""
    made = f"topic-{name}"
    await admin.create_topic(made, 3)
    await eventually(lambda: admin.latest_offsets((made, number) for number in range(3)))
    return made


@pytest.fixture
async def clients() -> AsyncIterator[AsyncExitStack]:
    """Closes what a test opens."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def producer(bootstrap: str, clients: AsyncExitStack) -> Callable[..., Awaitable[Producer]]:
    async def make(**settings) -> Producer:
        return await clients.enter_async_context(Producer(bootstrap_servers=bootstrap, **settings))

    return make


@pytest.fixture
def consumer(bootstrap: str, clients: AsyncExitStack) -> Callable[..., Awaitable[Consumer]]:
    async def make(**settings) -> Consumer:
        settings = {"auto_offset_reset": "earliest"} | settings
        return await clients.enter_async_context(Consumer(bootstrap_servers=bootstrap, **settings))

    return make
