"""Three embedded brokers: replicated topics through a stop, a crash, a pause and a cut of the network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.client.admin import Admin, PartitionDescription
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.embedded.cluster import EmbeddedCluster

LIMIT_S = 40.0
FAST = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "200",
    "replica.lag.time.max.ms": "1500",
    "controller.quorum.fetch.timeout.ms": "800",
}


async def until(what: str, check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await check():  # noqa: ASYNC110 - the answer is in another process or thread
            await asyncio.sleep(0.02)


async def partition(admin: Admin) -> PartitionDescription:
    return (await admin.describe_topic("orders")).partitions[0]


@pytest.mark.parametrize("trouble", ["stop", "kill", "pause", "isolate"])
async def test_a_replicated_topic_outlives_trouble_with_its_leader(
    ottla_cluster: Callable[..., EmbeddedCluster], trouble: str
) -> None:
    cluster = await asyncio.to_thread(ottla_cluster, 3, FAST)
    impatient = Producer(bootstrap_servers=cluster.bootstrap, request_timeout_ms=1_000)
    async with Admin(bootstrap_servers=cluster.bootstrap, request_timeout_ms=1_000) as admin, impatient as producer:
        await admin.create_topic("orders", 1, 3, configs={"min.insync.replicas": "2"})
        for number in range(5):
            await producer.send_and_wait("orders", b"%d" % number)
        leader = (await partition(admin)).leader
        node = cluster.node(leader)
        if trouble == "isolate":
            cluster.isolate(leader)
        else:
            await cluster.wait(getattr(node, trouble))

        async def is_replaced() -> bool:
            other = cluster.node(leader % 3 + 1)
            async with Admin(bootstrap_servers=other.bootstrap, request_timeout_ms=1_000) as second:
                found = await partition(second)
            return found.leader not in (-1, leader) and leader not in found.in_sync_replicas

        await until("another leader", is_replaced)
        # A client that can still reach an isolated leader may go on believing it, so this one begins elsewhere.
        async with Producer(bootstrap_servers=cluster.node(leader % 3 + 1).bootstrap, request_timeout_ms=1_000) as second:
            for number in range(5, 10):
                await second.send_and_wait("orders", b"%d" % number)
        cluster.heal()
        await cluster.wait(node.resume)
        await cluster.wait(node.start)

        async def is_whole() -> bool:
            return len((await partition(admin)).in_sync_replicas) == 3

        await until("the whole in-sync set", is_whole)
    async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([("orders", 0)])
        read: list[bytes] = []
        async with asyncio.timeout(LIMIT_S):
            while len(read) < 10:
                read += [record.value for record in await consumer.poll(200)]
    assert read == [b"%d" % number for number in range(10)]
