"""`ordering`: keys over three partitions; order holds within each and not across."""

from __future__ import annotations

import secrets
from collections import defaultdict

from ottla.cli.demos.stage import Stage
from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.positions import ConsumerRecord
from ottla.client.producer import Producer
from ottla.embedded.cluster import EmbeddedCluster

TOPIC = "ordering_demo"
PARTITIONS = 3
KEYS = [f"customer-{secrets.token_hex(2)}" for _ in range(12)]
COUNT = 120


async def play(stage: Stage) -> None:
    await stage.scene(
        "Three partitions",
        why="A topic is cut into partitions so that several machines share the work. Each is a log of its own.",
    )
    async with EmbeddedCluster(1) as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await stage.create_topic(admin, TOPIC, PARTITIONS)
        await stage.show_topic(admin, TOPIC)
        await _produce(stage, cluster.bootstrap)
        await stage.show_topic(admin, TOPIC)
        read = await _consume(stage, cluster.bootstrap)
        _judge(stage, read)


async def _produce(stage: Stage, bootstrap: str) -> None:
    await stage.scene(
        f"{COUNT} numbered messages with keys",
        why=f"The partition is murmur2(key) modulo {PARTITIONS}, in every Kafka client alike: one key, one partition, whoever sends it.",
    )
    where: dict[str, set[int]] = defaultdict(set)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        deliveries = [
            (KEYS[number % len(KEYS)], await producer.send(TOPIC, b"%d" % number, key=KEYS[number % len(KEYS)].encode()))
            for number in range(COUNT)
        ]
        for key, delivery in deliveries:
            where[key].add((await delivery).partition)
    stage.table(["key", "partition"], [{"key": key, "partition": sorted(places)} for key, places in sorted(where.items())])
    stage.check("every key has exactly one partition", all(len(places) == 1 for places in where.values()))
    stage.check("more than one partition is used", len(set.union(*where.values())) > 1)


async def _consume(stage: Stage, bootstrap: str) -> list[ConsumerRecord]:
    await stage.scene("One consumer reads them all", why="It fetches from all partitions and takes what comes.")
    read: list[ConsumerRecord] = []
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=20) as consumer:
        consumer.assign([(TOPIC, number) for number in range(PARTITIONS)])
        while len(read) < COUNT:
            records = await consumer.poll(5_000)
            if not records:
                break
            read += records
    stage.lines(
        [
            f"key {record.key.decode()}, number {record.value.decode():>3}, partition {record.partition}, offset {record.offset}"
            for record in read[:24]
        ]
    )
    stage.lines(["…"])
    return read


def _judge(stage: Stage, read: list[ConsumerRecord]) -> None:
    numbers = [int(record.value) for record in read]
    stage.check("every message arrived once", sorted(numbers) == list(range(COUNT)))
    by_partition: dict[int, list[int]] = defaultdict(list)
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for record in read:
        by_partition[record.partition].append(int(record.value))
        by_key[record.key].append(int(record.value))
    stage.check(
        "within each partition they arrived in the order they were sent",
        all(found == sorted(found) for found in by_partition.values()),
    )
    stage.check("so they did for each key", all(found == sorted(found) for found in by_key.values()))
    stage.check("across partitions they did not: there is no order of a whole topic", numbers != sorted(numbers))
