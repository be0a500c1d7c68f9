"""librdkafka (confluent-kafka) against both systems: the same script, the same results."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka import admin as ck

from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import wait_until

System = KafkaPeer | OttlaNode
T0 = 1_900_000_000_000 - 300_000_000_000  # a fixed moment that is neither future nor too old for any default
WAIT_S = 20.0


def admin_of(system: System) -> Any:
    return ck.AdminClient({"bootstrap.servers": system.bootstrap})


def done(futures: dict[Any, Any]) -> Any:
    [future] = futures.values()
    return future.result(WAIT_S)


def code_of(futures: dict[Any, Any]) -> int:
    with pytest.raises(KafkaException) as raised:
        done(futures)
    return int(raised.value.args[0].code())


def partition_count(admin: Any, topic: str) -> int:
    found = admin.list_topics(timeout=WAIT_S).topics.get(topic)  # to ask for it by name would create it
    return 0 if found is None else sum(part.leader >= 0 for part in found.partitions.values())


def created(system: System, topic: str, partitions: int = 1, **config: str) -> Any:
    admin = admin_of(system)
    settings = {"retention.ms": "-1"} | {name.replace("_", "."): value for name, value in config.items()}
    done(admin.create_topics([ck.NewTopic(topic, partitions, 1, config=settings)]))
    wait_until("leaders", lambda: partition_count(admin, topic) == partitions)  # Kafka answers before its brokers have heard
    return admin


def read(system: System, topic: str, count: int, partition: int = 0, offset: int = 0, **config: Any) -> list[Any]:
    settings = {"bootstrap.servers": system.bootstrap, "group.id": "reader", "enable.auto.commit": False} | config
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, offset)])
    found: list[Any] = []
    while len(found) < count:
        some = consumer.consume(count - len(found), WAIT_S)
        assert some, f"only {len(found)} of {count} came"
        assert not [each.error() for each in some if each.error()]
        found += some
    consumer.close()
    return found


def write(system: System, topic: str, rows: list[dict[str, Any]], **config: Any) -> list[int]:
    """The offsets that the delivery reports tell."""
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": system.bootstrap, "linger.ms": 20} | config)

    def report(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for row in rows:
        producer.produce(topic, on_delivery=report, **row)
    assert producer.flush(WAIT_S) == 0
    return offsets


def test_a_topic_is_created_described_altered_and_deleted(system: System, topic: str) -> None:
    admin = created(system, topic, 3, segment_bytes="2000000")
    described = done(admin.describe_topics(TopicCollection([topic])))
    assert [(part.id, part.leader.id, len(part.isr)) for part in described.partitions] == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
    assert not described.is_internal

    resource = ck.ConfigResource("topic", topic)
    entries = done(admin.describe_configs([resource]))
    assert (entries["segment.bytes"].value, entries["segment.bytes"].source) == ("2000000", 1)
    assert (entries["cleanup.policy"].value, entries["cleanup.policy"].is_default) == ("delete", True)
    change = ck.ConfigEntry("cleanup.policy", "compact", incremental_operation=ck.AlterConfigOpType.APPEND)
    done(admin.incremental_alter_configs([ck.ConfigResource("topic", topic, incremental_configs=[change])]))
    wait_until("the change", lambda: done(admin.describe_configs([resource]))["cleanup.policy"].value == "delete,compact")

    done(admin.create_partitions([ck.NewPartitions(topic, 5)]))
    wait_until("five partitions", lambda: partition_count(admin, topic) == 5)
    assert topic in admin.list_topics(timeout=WAIT_S).topics
    done(admin.delete_topics([topic]))
    wait_until("its end", lambda: partition_count(admin, topic) == 0)
    assert code_of(admin.describe_topics(TopicCollection([topic]))) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_mistakes_are_told_with_kafkas_codes(system: System, topic: str) -> None:
    admin = created(system, topic)
    assert code_of(admin.create_topics([ck.NewTopic(topic, 1, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    assert code_of(admin.create_topics([ck.NewTopic("a/b", 1, 1)])) == KafkaError.TOPIC_EXCEPTION
    assert code_of(admin.create_topics([ck.NewTopic(topic + "x", 1, 3)])) == KafkaError.INVALID_REPLICATION_FACTOR
    assert code_of(admin.create_topics([ck.NewTopic(topic + "y", 0, 1)])) == KafkaError.INVALID_PARTITIONS
    bad = ck.NewTopic(topic + "z", 1, 1, config={"retention.ms": "soon"})
    assert code_of(admin.create_topics([bad])) == KafkaError.INVALID_CONFIG
    assert code_of(admin.delete_topics([topic + "absent"])) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert code_of(admin.create_partitions([ck.NewPartitions(topic, 1)])) == KafkaError.INVALID_PARTITIONS
    with pytest.raises(KafkaException) as raised:
        Producer({"bootstrap.servers": system.bootstrap, "message.max.bytes": 3_000_000}).produce(topic, b"x" * 4_000_000)
    assert raised.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_records_come_back_as_they_were_sent(system: System, topic: str, codec: str, idempotent: bool) -> None:
    created(system, topic)
    rows = [
        {"key": b"k1", "value": b"v" * 500, "timestamp": T0, "headers": [("a", b"1"), ("a", b"2"), ("none", None)]},
        {"key": None, "value": b"", "timestamp": T0 + 1},
        {"key": b"", "value": None, "timestamp": T0 + 2},
        *[{"key": b"%d" % index, "value": b"value %d" % index, "timestamp": T0 + 10 + index} for index in range(200)],
    ]
    offsets = write(system, topic, rows, **{"compression.type": codec, "enable.idempotence": idempotent})
    assert offsets == list(range(len(rows)))
    found = read(system, topic, len(rows))
    for row, message in zip(rows, found, strict=True):
        assert (message.key(), message.value(), message.timestamp()) == (row["key"], row["value"], (1, row["timestamp"]))
        assert (message.headers() or []) == row.get("headers", [])


def test_offsets_are_found_by_place_and_by_time_and_a_consumer_seeks(system: System, topic: str) -> None:
    admin = created(system, topic)
    for index in range(5):
        write(system, topic, [{"value": b"%d" % index, "timestamp": T0 + index * 1000}])
    consumer = Consumer({"bootstrap.servers": system.bootstrap, "group.id": "seeker", "enable.auto.commit": False})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S) == (0, 5)
    for delta, expected in ((0, 0), (1, 1), (1000, 1), (3999, 4), (4000, 4), (4001, -1)):
        [found] = consumer.offsets_for_times([TopicPartition(topic, 0, T0 + delta)], timeout=WAIT_S)
        assert found.offset == expected
    specs = {"latest": (5, -1), "earliest": (0, -1), "max_timestamp": (4, T0 + 4000)}
    for name, (offset, timestamp) in specs.items():
        result = done(admin.list_offsets({TopicPartition(topic, 0): getattr(ck.OffsetSpec, name)()}))
        assert (result.offset, result.timestamp) == (offset, timestamp)
    consumer.assign([TopicPartition(topic, 0, 3)])
    assert consumer.poll(WAIT_S).value() == b"3"
    consumer.seek(TopicPartition(topic, 0, 1))
    assert [each.value() for each in consumer.consume(4, WAIT_S)] == [b"1", b"2", b"3", b"4"]
    consumer.close()


def test_deleted_records_are_gone_and_a_reader_starts_behind_them(system: System, topic: str) -> None:
    admin = created(system, topic)
    write(system, topic, [{"value": b"%d" % index} for index in range(10)], **{"linger.ms": 0, "batch.num.messages": 1})
    assert done(admin.delete_records([TopicPartition(topic, 0, 4)])).low_watermark == 4
    found = read(system, topic, 6, offset=0, **{"auto.offset.reset": "earliest"})
    assert [each.value() for each in found] == [b"%d" % index for index in range(4, 10)]
    assert code_of(admin.delete_records([TopicPartition(topic, 0, 11)])) == KafkaError.OFFSET_OUT_OF_RANGE


def test_a_group_commits_and_goes_on_where_it_was(system: System, topic: str) -> None:
    created(system, topic, 2)
    for partition in (0, 1):
        write(system, topic, [{"value": b"%d-%d" % (partition, index), "partition": partition} for index in range(5)])
    config = {
        "bootstrap.servers": system.bootstrap,
        "group.id": f"group-of-{topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    first = Consumer(config)
    first.subscribe([topic])
    seen = [first.poll(WAIT_S) for _ in range(6)]
    committed = first.commit(asynchronous=False)
    assert sum(each.offset for each in committed if each.offset > 0) == 6
    first.close()
    second = Consumer(config)
    second.subscribe([topic])
    rest = [second.poll(WAIT_S) for _ in range(4)]
    second.close()
    values = sorted(each.value() for each in seen + rest)
    assert values == sorted(b"%d-%d" % (partition, index) for partition in (0, 1) for index in range(5))


def test_the_cluster_describes_itself(system: System) -> None:
    admin = admin_of(system)
    found = admin.describe_cluster(include_authorized_operations=True).result(WAIT_S)
    assert [(node.id, node.host) for node in found.nodes] == [(1, "127.0.0.1")]
    assert (found.controller.id, len(found.cluster_id)) == (1, 22)
    assert len(found.authorized_operations) == 7
