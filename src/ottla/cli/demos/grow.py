"""`grow`: a topic goes from 3 to 4 partitions under a live consumer."""

from __future__ import annotations

import asyncio

from ottla.cli.demos.stage import Stage
from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.listener import RebalanceListener
from ottla.client.positions import ConsumerRecord
from ottla.client.producer import Producer
from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.ids import TopicPartition

TOPIC = "ordering_demo"
TICK = b"tick"
KEYS = [f"key-{number}" for number in range(24)]


class Watcher(RebalanceListener):
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._stage.lines([f"(the consumer is given {', '.join(map(str, sorted(partitions))) or 'nothing'})"])


async def play(stage: Stage) -> None:
    await stage.scene(
        "Three partitions and a consumer",
        why="The consumer subscribes to the topic, not to partitions: which ones it reads is the group's affair.",
    )
    async with EmbeddedCluster(1) as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await stage.create_topic(admin, TOPIC, 3)
        # A client looks for new partitions every five minutes by default; an audience will not wait so long.
        live = Consumer(
            bootstrap_servers=cluster.bootstrap, group_id="live", auto_offset_reset="earliest", metadata_max_age_ms=500
        )
        async with live as consumer, Producer(bootstrap_servers=cluster.bootstrap, metadata_max_age_ms=500) as producer:
            consumer.subscribe([TOPIC], listener=Watcher(stage))
            read: list[ConsumerRecord] = []
            reading = asyncio.create_task(_read(consumer, read))
            try:
                await _play(stage, admin, producer, consumer, read)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)


async def _read(consumer: Consumer, read: list[ConsumerRecord]) -> None:
    while True:
        read += [record for record in await consumer.poll(1_000) if record.value != TICK]


async def _play(stage: Stage, admin: Admin, producer: Producer, consumer: Consumer, read: list[ConsumerRecord]) -> None:
    before = await _send(producer)

    async def has_read_all() -> bool:
        return len(read) >= len(KEYS)

    await stage.wait_for(f"the consumer read all {len(KEYS)} records", has_read_all)
    await stage.show_topic(admin, TOPIC)
    ends = await admin.latest_offsets([(TOPIC, number) for number in range(3)])
    await stage.scene("A fourth", why="Partitions can be added while everything runs, and never taken away.")
    stage.command(f"ottla topics alter {TOPIC} --partitions 4")
    await admin.create_partitions(TOPIC, 4)

    async def has_four() -> bool:
        return len(consumer.assignment()) == 4

    await stage.wait_for("the running consumer was given the new partition, without a restart", has_four)
    after_growth = await admin.latest_offsets([(TOPIC, number) for number in range(4)])
    stage.check(
        "no record moved: the old partitions are as they were, the new one is empty",
        after_growth == {**ends, TopicPartition(TOPIC, 3): 0},
    )

    async def knows_four() -> bool:
        await producer.send_and_wait(TOPIC, TICK, partition=0)  # a producer looks around when it has something to send
        return len((await producer.partitions_for(TOPIC)).partitions) == 4

    await stage.wait_for("the running producer learned of it too", knows_four)
    await stage.scene(
        "The same keys again",
        why="The hash is now taken modulo 4: some keys go elsewhere, which is why one grows a keyed topic with care.",
    )
    after = await _send(producer)

    async def has_read_both() -> bool:
        return len(read) >= 2 * len(KEYS)

    await stage.wait_for("the consumer read the second round, too", has_read_both)
    await stage.show_topic(admin, TOPIC)
    moved = [key for key in KEYS if before[key] != after[key]]
    stage.say(f"{len(moved)} of {len(KEYS)} keys have another partition now: {', '.join(moved[:6])} …")
    stage.check("some keys moved, and some of them to the new partition", any(after[key] == 3 for key in moved))
    stage.check("records of the new partition were read", any(record.partition == 3 for record in read))


async def _send(producer: Producer) -> dict[str, int]:
    deliveries = {key: await producer.send(TOPIC, b"value", key=key.encode()) for key in KEYS}
    return {key: (await delivery).partition for key, delivery in deliveries.items()}
