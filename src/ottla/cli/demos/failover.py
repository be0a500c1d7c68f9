"""`failover`: three brokers, three copies: kill the leader, another serves, the dead one returns and catches up."""

from __future__ import annotations

import asyncio
import time

from ottla.cli.demos.stage import Stage
from ottla.client.admin import Admin, PartitionDescription
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.errors import OttlaError

TOPIC = "replicated_topic"
PAUSE_S = 0.005  # between two records
LIMIT_S = 20.0


class Steady:
    """Sends numbered records, one after the other, and notes which were acknowledged and how long the longest wait was."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.acknowledged: list[int] = []
        self.failed: list[OttlaError] = []
        self.longest_s = 0.0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while True:
            started_s = time.perf_counter()
            try:
                await self._producer.send_and_wait(TOPIC, b"%d" % number)
                self.acknowledged.append(number)
            except OttlaError as error:
                self.failed.append(error)
            self.longest_s = max(self.longest_s, time.perf_counter() - started_s)
            number += 1
            await asyncio.sleep(PAUSE_S)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def play(stage: Stage) -> None:
    await stage.scene(
        "Three brokers",
        why="Each is a whole node of its own, with its own folder. They elect a controller among themselves; no ZooKeeper.",
    )
    async with EmbeddedCluster(3) as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        found = await admin.describe_cluster()
        stage.table(["broker", "address"], [{"broker": each.id, "address": f"{each.host}:{each.port}"} for each in found.brokers])
        stage.check("all three are there", [each.id for each in found.brokers] == [1, 2, 3])
        await stage.scene(
            "Three copies", why="min.insync.replicas=2 and acks=all: a record counts only when two brokers have it."
        )
        await stage.create_topic(admin, TOPIC, 1, 3, min_insync_replicas="2")
        await stage.show_topic(admin, TOPIC)
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            steady = Steady(producer)
            try:
                await _kill_and_return(stage, cluster, admin, steady)
            finally:
                await steady.stop()
        await _read_back(stage, cluster.bootstrap, steady)


async def _kill_and_return(stage: Stage, cluster: EmbeddedCluster, admin: Admin, steady: Steady) -> None:
    async def has_sent_some() -> bool:
        return len(steady.acknowledged) >= 20

    await stage.wait_for("a producer is sending, and every record is acknowledged", has_sent_some)
    before = await _partition(admin)
    leader = cluster.node(before.leader)
    await stage.scene(
        f"Broker {before.leader}, the leader, dies",
        why="At once, in the middle of the stream: nothing is handed over, no log is closed.",
    )
    died_s = time.perf_counter()
    await cluster.wait(leader.kill)

    async def has_another() -> bool:
        now = await _partition(admin)
        return now.leader not in (-1, before.leader) and before.leader not in now.in_sync_replicas

    await stage.wait_for("another broker leads, and the dead one is out of the in-sync set", has_another, LIMIT_S)
    stage.say(f"That took {(time.perf_counter() - died_s) * 1000:.0f} ms.")
    await stage.show_topic(admin, TOPIC)
    now = await _partition(admin)
    stage.check("the new leader was in sync, so it has every acknowledged record", now.leader in before.in_sync_replicas)
    mark = len(steady.acknowledged)

    async def goes_on() -> bool:
        return len(steady.acknowledged) >= mark + 20

    await stage.wait_for("the producer goes on as if nothing had happened", goes_on, LIMIT_S)
    stage.say(f"The longest that a record had to wait was {steady.longest_s * 1000:.0f} ms.")
    await stage.scene(
        f"Broker {before.leader} returns",
        why="It cuts off what was never acknowledged, copies what it missed, and is in sync again.",
    )
    await cluster.wait(leader.start)

    async def is_whole() -> bool:
        return sorted((await _partition(admin)).in_sync_replicas) == [1, 2, 3]

    await stage.wait_for("all three copies are in sync again", is_whole, LIMIT_S)
    await stage.show_topic(admin, TOPIC)


async def _read_back(stage: Stage, bootstrap: str, steady: Steady) -> None:
    await stage.scene("The proof", why="Read the topic from its beginning and compare with what was acknowledged.")
    read: list[int] = []
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, 0)])
        end = (await consumer.end_offsets([(TOPIC, 0)]))[next(iter(consumer.assignment()))]
        while await consumer.position((TOPIC, 0)) < end:
            records = await consumer.poll(5_000)
            if not records:
                break
            read += [int(record.value) for record in records]
    stage.say(f"{len(steady.acknowledged)} records were acknowledged, {len(read)} were read.")
    stage.check("no send failed", not steady.failed, steady.failed[:1])
    stage.check("every acknowledged record is there", set(steady.acknowledged) <= set(read))
    stage.check("in the order they were sent, none of them twice", read == sorted(set(read)))


async def _partition(admin: Admin) -> PartitionDescription:
    return (await admin.describe_topic(TOPIC)).partitions[0]
