"""Embedded brokers: real ones, that start at once, stop, crash, stand still and come back with what they had."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.broker.node import Node
from ottla.client.admin import Admin
from ottla.client.errors import NetworkError
from ottla.embedded.cluster import EmbeddedCluster

HOUR_MS = 3_600_000


def impatient(bootstrap: str) -> Admin:
    return Admin(
        bootstrap_servers=bootstrap, request_timeout_ms=200, default_api_timeout_ms=300, socket_connection_setup_timeout_ms=200
    )


async def test_a_broker_of_the_fixture_serves(ottla_broker: EmbeddedCluster) -> None:
    async with Admin(bootstrap_servers=ottla_broker.bootstrap) as admin:
        await admin.create_topic("orders", 3)
        assert len((await admin.describe_topic("orders")).partitions) == 3


async def test_two_brokers_of_one_test_are_two_clusters(ottla_cluster: Callable[..., EmbeddedCluster]) -> None:
    one, other = ottla_cluster(1), ottla_cluster(1)
    async with Admin(bootstrap_servers=one.bootstrap) as first, Admin(bootstrap_servers=other.bootstrap) as second:
        await first.create_topic("orders")
        assert set(await first.list_topics()) == {"orders"}
        assert set(await second.list_topics()) == set()


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_broker_comes_back_at_once_with_its_topics(ottla_cluster: Callable[..., EmbeddedCluster], end: str) -> None:
    """At once: an hour's session time-out must not be waited for, since nobody else can be that broker."""
    cluster = ottla_cluster(1, {"broker.session.timeout.ms": str(HOUR_MS)})
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topic("orders", 2)
    node = cluster.nodes[0]
    await cluster.wait(getattr(node, end))
    with pytest.raises(NetworkError):
        async with impatient(cluster.bootstrap):
            pass
    await cluster.wait(node.start)
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert len((await admin.describe_topic("orders")).partitions) == 2


async def test_a_paused_broker_is_there_and_does_not_answer(ottla_broker: EmbeddedCluster) -> None:
    node = ottla_broker.nodes[0]
    node.pause()
    with pytest.raises(NetworkError):
        async with impatient(ottla_broker.bootstrap):
            pass
    node.resume()
    async with Admin(bootstrap_servers=ottla_broker.bootstrap) as admin:
        assert await admin.list_topics() == {}


def test_a_hundred_brokers_one_after_another_leave_nothing_behind(tmp_path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("open files are counted through /proc, which this system does not have")
    with EmbeddedCluster() as cluster:  # what is made once stays: imports, caches
        assert cluster.nodes[0].is_running
    threads, files, nodes = threading.active_count(), len(list(descriptors.iterdir())), _nodes()
    for _ in range(100):
        with EmbeddedCluster() as cluster:
            assert cluster.nodes[0].is_running
        assert not Path(cluster.directory).exists()
    assert _nodes() <= nodes
    assert threading.active_count() <= threads  # fewer, when one of an earlier test has ended meanwhile
    assert len(list(descriptors.iterdir())) <= files + 2


def _nodes() -> int:
    gc.collect()  # a node is full of cycles: what the collector takes is no leak
    return sum(isinstance(each, Node) for each in gc.get_objects())


async def test_data_in_a_given_directory_outlives_the_cluster(tmp_path: Path) -> None:
    async with EmbeddedCluster(directory=str(tmp_path)) as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topic("orders")
        cluster_id = (await admin.describe_cluster()).id
    async with EmbeddedCluster(directory=str(tmp_path)) as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert set(await admin.list_topics()) == {"orders"}
        assert (await admin.describe_cluster()).id == cluster_id
    assert (tmp_path / "node-1" / "meta.properties").exists()
