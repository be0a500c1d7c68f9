"""aiokafka against both systems: the same script, the same results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from ottla.model.errors import ErrorCode
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.node import OttlaNode

System = KafkaPeer | OttlaNode
T0 = 1_600_000_000_000
WAIT_S = 20.0


@asynccontextmanager
async def admin_of(system: System) -> AsyncIterator[Any]:
    client = AIOKafkaAdminClient(bootstrap_servers=system.bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def started(client: Any) -> AsyncIterator[Any]:
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def until(what: str, condition: Any) -> None:
    """Kafka answers an admin before its brokers have heard; there is nothing to wait on but to ask again."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.05)


async def leaders(admin: Any, topic: str) -> int:
    found = {each["topic"]: each for each in await admin.describe_topics()}
    return sum(part["leader"] >= 0 for part in found[topic]["partitions"]) if topic in found else 0


async def created(admin: Any, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {"retention.ms": "-1"} | {name.replace("_", "."): value for name, value in config.items()}
    answer = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=settings)])
    assert [row[1] for row in answer.topic_errors] == [0]

    async def led() -> bool:
        return await leaders(admin, topic) == partitions

    await until("leaders", led)


async def settings_of(admin: Any, topic: str) -> dict[str, str]:
    [answer] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return {row[0]: row[1] for row in answer.resources[0][4]}


async def test_a_topic_is_created_described_altered_and_deleted(system: System, topic: str) -> None:
    async with admin_of(system) as admin:
        await created(admin, topic, 3, segment_bytes="2000000")
        assert (await settings_of(admin, topic))["segment.bytes"] == "2000000"
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.bytes": "1000000"})])

        async def altered() -> bool:
            found = await settings_of(admin, topic)
            return (found["retention.bytes"], found["segment.bytes"]) == ("1000000", "1073741824")

        await until("the change", altered)
        await admin.create_partitions({topic: NewPartitions(5)})

        async def widened() -> bool:
            return await leaders(admin, topic) == 5

        await until("five partitions", widened)
        await admin.delete_topics([topic])

        async def gone() -> bool:
            return topic not in await admin.list_topics()

        await until("its end", gone)


async def test_mistakes_are_told_with_kafkas_codes(system: System, topic: str) -> None:
    async with admin_of(system) as admin:
        await created(admin, topic)
        wrong = {
            topic: (NewTopic(topic, 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS),
            "a/b": (NewTopic("a/b", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
            topic + "x": (NewTopic(topic + "x", 0, 1), ErrorCode.INVALID_PARTITIONS),
            topic + "y": (NewTopic(topic + "y", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
        }
        answer = await admin.create_topics([each for each, _ in wrong.values()])
        assert {row[0]: row[1] for row in answer.topic_errors} == {name: int(code) for name, (_, code) in wrong.items()}


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
async def test_records_come_back_as_they_were_sent(system: System, topic: str, codec: str | None, idempotent: bool) -> None:
    async with admin_of(system) as admin:
        await created(admin, topic)
    rows: list[dict[str, Any]] = [
        {"key": b"k1", "value": b"v" * 500, "timestamp_ms": T0, "headers": [("a", b"1"), ("a", b"2")]},
        {"key": None, "value": b"", "timestamp_ms": T0 + 1},
        {"key": b"", "value": None, "timestamp_ms": T0 + 2},
        *[{"key": b"%d" % index, "value": b"value %d" % index, "timestamp_ms": T0 + 10 + index} for index in range(100)],
    ]
    client = AIOKafkaProducer(
        bootstrap_servers=system.bootstrap, compression_type=codec, enable_idempotence=idempotent, linger_ms=20
    )
    async with started(client) as producer:
        sent = [await producer.send(topic, partition=0, **row) for row in rows]
        assert [(await future).offset for future in sent] == list(range(len(rows)))
    async with started(AIOKafkaConsumer(bootstrap_servers=system.bootstrap)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        for row in rows:
            record = await asyncio.wait_for(consumer.getone(), WAIT_S)
            assert (record.key, record.value, record.timestamp) == (row["key"], row["value"], row["timestamp_ms"])
            assert list(record.headers) == row.get("headers", [])


async def test_offsets_are_found_and_deleted_and_a_consumer_seeks(system: System, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    async with admin_of(system) as admin:
        await created(admin, topic)
        async with started(AIOKafkaProducer(bootstrap_servers=system.bootstrap)) as producer:
            for index in range(10):
                await producer.send_and_wait(topic, b"%d" % index, partition=0, timestamp_ms=T0 + index * 1000)
        async with started(AIOKafkaConsumer(bootstrap_servers=system.bootstrap, auto_offset_reset="earliest")) as consumer:
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: 10}
            for delta, expected in ((0, 0), (1, 1), (8999, 9), (9001, None)):
                found = (await consumer.offsets_for_times({partition: T0 + delta}))[partition]
                assert (None if found is None else found.offset) == expected
            consumer.assign([partition])
            consumer.seek(partition, 7)
            assert [(await asyncio.wait_for(consumer.getone(), WAIT_S)).value for _ in range(3)] == [b"7", b"8", b"9"]
            await admin.delete_records({partition: RecordsToDelete(before_offset=4)})
            consumer.seek(partition, 0)
            assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == b"4"


async def test_a_group_commits_and_goes_on_where_it_was(system: System, topic: str) -> None:
    async with admin_of(system) as admin:
        await created(admin, topic)
    async with started(AIOKafkaProducer(bootstrap_servers=system.bootstrap)) as producer:
        for index in range(10):
            await producer.send_and_wait(topic, b"%d" % index, partition=0)
    config = {"group_id": f"group-of-{topic}", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    values = []
    for count in (6, 4):
        async with started(AIOKafkaConsumer(topic, bootstrap_servers=system.bootstrap, **config)) as consumer:
            for _ in range(count):
                record = await asyncio.wait_for(consumer.getone(), WAIT_S)
                values.append(record.value)
                await consumer.commit({TopicPartition(topic, 0): record.offset + 1})
    assert values == [b"%d" % index for index in range(10)]
