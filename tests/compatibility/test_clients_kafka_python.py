"""kafka-python against both systems: the same script, the same results."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka import admin as kp
from kafka.errors import InvalidTopicError, KafkaError, OffsetOutOfRangeError, TopicAlreadyExistsError

from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import wait_until

System = KafkaPeer | OttlaNode
T0 = 1_600_000_000_000
WAIT_MS = 20_000
WAIT_S = WAIT_MS / 1000


@pytest.fixture
def admin(system: System) -> Any:
    client = KafkaAdminClient(bootstrap_servers=system.bootstrap)
    yield client
    client.close()


@pytest.fixture
def producer(system: System) -> Any:
    client = KafkaProducer(bootstrap_servers=system.bootstrap)
    yield client
    client.close()


def created(admin: Any, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {"retention.ms": "-1"} | {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([kp.NewTopic(topic, partitions, 1, topic_configs=settings)])
    wait_until("its partitions", lambda: partition_count(admin, topic) == partitions)


def partition_count(admin: Any, topic: str) -> int:
    [found] = admin.describe_topics([topic])
    return 0 if found["error_code"] else sum(part["leader_id"] >= 0 for part in found["partitions"])


def setting(admin: Any, topic: str, name: str) -> Any:
    resource = kp.ConfigResource(kp.ConfigResourceType.TOPIC, topic)
    return admin.describe_configs([resource], config_filter="all")["topic"][topic][name]["value"]


def read(system: System, topic: str, count: int, offset: int = 0, **config: Any) -> list[Any]:
    consumer = KafkaConsumer(bootstrap_servers=system.bootstrap, consumer_timeout_ms=WAIT_MS, **config)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek(TopicPartition(topic, 0), offset)
    found = [next(consumer) for _ in range(count)]
    consumer.close()
    return found


def test_a_topic_is_created_described_altered_and_deleted(admin: Any, topic: str) -> None:
    created(admin, topic, 3, segment_bytes="2000000")
    [described] = admin.describe_topics([topic])
    assert [(part["partition_index"], part["leader_id"], part["isr_nodes"]) for part in described["partitions"]] == [
        (0, 1, [1]), (1, 1, [1]), (2, 1, [1]),
    ]  # fmt: skip
    assert setting(admin, topic, "segment.bytes") == "2000000"
    admin.alter_configs([kp.ConfigResource(kp.ConfigResourceType.TOPIC, topic, {"retention.bytes": "1000000"})])
    wait_until("the change", lambda: setting(admin, topic, "retention.bytes") == "1000000")
    admin.create_partitions({topic: kp.NewPartitions(5)})
    wait_until("five partitions", lambda: partition_count(admin, topic) == 5)
    assert topic in admin.list_topics()
    admin.delete_topics([topic])
    wait_until("its end", lambda: topic not in admin.list_topics())


def test_mistakes_are_told_as_kafka_tells_them(admin: Any, topic: str) -> None:
    created(admin, topic)
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([kp.NewTopic(topic, 1, 1)])
    with pytest.raises(InvalidTopicError):
        admin.create_topics([kp.NewTopic("a/b", 1, 1)])
    for bad in (
        kp.NewTopic(topic + "x", 0, 1),
        kp.NewTopic(topic + "y", 1, 3),
        kp.NewTopic(topic + "z", 1, 1, topic_configs={"no.such": "1"}),
    ):
        with pytest.raises(KafkaError):
            admin.create_topics([bad])


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_were_sent(system: System, admin: Any, topic: str, codec: str | None) -> None:
    created(admin, topic)
    rows = [
        {"key": b"k1", "value": b"v" * 500, "timestamp_ms": T0, "headers": [("a", b"1"), ("a", b"2")]},
        {"key": None, "value": b"", "timestamp_ms": T0 + 1},
        {"key": b"", "value": None, "timestamp_ms": T0 + 2},
        *[{"key": b"%d" % index, "value": b"value %d" % index, "timestamp_ms": T0 + 10 + index} for index in range(100)],
    ]
    producer = KafkaProducer(bootstrap_servers=system.bootstrap, compression_type=codec, linger_ms=20)
    sent = [producer.send(topic, partition=0, **row) for row in rows]
    assert [future.get(WAIT_S).offset for future in sent] == list(range(len(rows)))
    producer.close()
    for row, record in zip(rows, read(system, topic, len(rows)), strict=True):
        assert (record.key, record.value, record.timestamp) == (row["key"], row["value"], row["timestamp_ms"])
        assert list(record.headers) == row.get("headers", [])


def test_offsets_are_found_by_place_and_by_time_and_a_consumer_seeks(
    system: System, admin: Any, producer: Any, topic: str
) -> None:
    created(admin, topic)
    for index in range(5):
        producer.send(topic, b"%d" % index, partition=0, timestamp_ms=T0 + index * 1000).get(WAIT_S)
    partition = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=system.bootstrap, consumer_timeout_ms=WAIT_MS)
    assert (consumer.beginning_offsets([partition]), consumer.end_offsets([partition])) == ({partition: 0}, {partition: 5})
    for delta, expected in ((0, 0), (1, 1), (3999, 4), (4001, None)):
        found = consumer.offsets_for_times({partition: T0 + delta})[partition]
        assert (None if found is None else found.offset) == expected
    consumer.assign([partition])
    consumer.seek(partition, 3)
    assert next(consumer).value == b"3"
    consumer.seek(partition, 1)
    assert [next(consumer).value for _ in range(4)] == [b"1", b"2", b"3", b"4"]
    consumer.close()


def test_deleted_records_are_gone(system: System, admin: Any, producer: Any, topic: str) -> None:
    created(admin, topic)
    for index in range(10):
        producer.send(topic, b"%d" % index, partition=0).get(WAIT_S)
    admin.delete_records({TopicPartition(topic, 0): 4})
    found = read(system, topic, 6, auto_offset_reset="earliest")
    assert [record.value for record in found] == [b"%d" % index for index in range(4, 10)]
    with pytest.raises(OffsetOutOfRangeError):
        admin.delete_records({TopicPartition(topic, 0): 11})


def test_a_group_commits_and_goes_on_where_it_was(system: System, admin: Any, producer: Any, topic: str) -> None:
    created(admin, topic)
    for index in range(10):
        producer.send(topic, b"%d" % index, partition=0).get(WAIT_S)
    config = {"group_id": f"group-of-{topic}", "auto_offset_reset": "earliest", "enable_auto_commit": False}

    def some(count: int) -> list[bytes]:
        consumer = KafkaConsumer(
            topic, bootstrap_servers=system.bootstrap, consumer_timeout_ms=WAIT_MS, max_poll_records=1, **config
        )
        values = [next(consumer).value for _ in range(count)]
        consumer.commit()
        consumer.close()
        return values

    assert some(6) == [b"%d" % index for index in range(6)]
    assert some(4) == [b"%d" % index for index in range(6, 10)]
