"""The clients, the same for both systems: librdkafka through confluent-kafka, a blocking socket, and Kafka's own perf tools."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.compatibility.kafka import run_tool
from tests.compatibility.wire import Wire, wait_until

from ottla.protocol.framing import request_frame
from ottla.protocol.messages.produce import ProduceRequest
from ottla.records.builder import build_batch
from ottla.records.record import Record

PARTITIONS = 4
BATCH = 10_000  # messages handed to librdkafka at once, and asked of it at once
QUIET_S = 30.0  # the longest wait for a consumer's next message
TOOL_LIMIT_S = 300.0


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def create(bootstrap: str, topic: str, partitions: int, config: dict[str, str] | None = None, limit_s: float = 120.0) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config or {})], request_timeout=limit_s)[topic].result(limit_s)

    def led() -> bool:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        return len(found) == partitions and all(each.leader >= 0 for each in found.values())

    wait_until(f"{topic} being led", led, limit_s=limit_s)


def produce(bootstrap: str, topic: str, count: int, size: int, partitions: int, keys: int = 0) -> float:
    """Messages a second, acks=all, from the first call until the last acknowledgement."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 512 * 1024,
        }
    )
    producer.list_topics(topic, timeout=10)
    value = b"x" * size
    plain = [{"value": value} for _ in range(BATCH)]
    started = time.perf_counter()
    for first in range(0, count, BATCH):
        rows = plain if not keys else [{"value": value, "key": b"%d" % ((first + i) % keys)} for i in range(BATCH)]
        kept = {} if keys else {"partition": (first // BATCH) % partitions}
        _enqueue(producer, topic, rows[: count - first], kept)
    left = producer.flush(TOOL_LIMIT_S)
    assert left == 0, f"{left} messages were not acknowledged"
    return count / (time.perf_counter() - started)


def _enqueue(producer: Producer, topic: str, rows: list[dict[str, bytes]], options: dict[str, int]) -> None:
    while rows:
        try:
            queued = producer.produce_batch(topic, rows, **options)
        except BufferError:
            queued = 0
        rows = rows[queued:]
        producer.poll(0.01 if rows else 0)


def consume(bootstrap: str, topic: str, count: int, partitions: int, *, rests: bool = False) -> float:
    """Messages a second, from the first message until the last.

    By default librdkafka `rests` for a second whenever 100,000 messages or 64 MB wait in it: the rests, which a faster broker brings on
    the sooner, are then most of what there is to see. Larger bounds only make it spend its time on memory.
    """
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings if rests else settings | {"fetch.queue.backoff.ms": 1})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    seen = len(consumer.consume(1, QUIET_S))
    started = time.perf_counter()
    while seen < count:
        found = len(consumer.consume(min(BATCH, count - seen), QUIET_S))
        assert found, f"only {seen} of {count} messages came"
        seen += found
    spent = time.perf_counter() - started
    consumer.close()
    return seen / spent


def synchronous_latencies(address: tuple[str, int], topic: str, count: int, size: int = 100) -> list[float]:
    """Microseconds of each produce request of one record, acks=all, one after the other over one plain socket."""
    batch = build_batch([Record(0, int(time.time() * 1000), None, b"x" * size)])
    data = ProduceRequest.TopicProduceData(
        name=topic, partition_data=[ProduceRequest.TopicProduceData.PartitionProduceData(records=batch)]
    )
    request = ProduceRequest(acks=-1, timeout_ms=30000, topic_data=[data])
    frame = b"".join(bytes(part) for part in request_frame(request, 8, 1, "bench"))
    with Wire(address) as wire:
        return [_timed(lambda: _exchange(wire, frame)) for _ in range(count)]


def _exchange(wire: Wire, frame: bytes) -> None:
    wire.socket.sendall(frame)
    wire.read_frame()


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e6


def librdkafka_latencies(bootstrap: str, topic: str, count: int, size: int = 100) -> list[float]:
    """Microseconds from produce() to the delivery report, one message at a time, without linger."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    producer.list_topics(topic, timeout=10)
    value = b"x" * size

    def one() -> None:
        producer.produce(topic, value, partition=0)
        producer.flush(30)

    one()
    return [_timed(one) for _ in range(count)]


def java_produce(bootstrap: str, topic: str, count: int, size: int) -> float:
    """Messages a second, as Kafka's ProducerPerformance says."""
    amounts = ("--num-records", str(count), "--record-size", str(size), "--throughput", "-1")
    properties = ("--producer-props", f"bootstrap.servers={bootstrap}", "acks=all")
    done = run_tool("ProducerPerformance", "--topic", topic, *amounts, *properties, options=("-Xmx512m",), limit_s=TOOL_LIMIT_S)
    found = re.findall(r"([\d.]+) records/sec", done.stdout)
    assert found, done.stdout + done.stderr
    return float(found[-1])


def java_consume(bootstrap: str, topic: str, count: int) -> float:
    """Messages a second of fetching, as Kafka's ConsumerPerformance says."""
    arguments = (
        "--bootstrap-server",
        bootstrap,
        "--topic",
        topic,
        "--messages",
        str(count),
        "--hide-header",
        "--timeout",
        "30000",
    )
    done = run_tool("ConsumerPerformance", *arguments, options=("-Xmx512m",), limit_s=TOOL_LIMIT_S)
    rows = [line.split(", ") for line in done.stdout.splitlines() if line.count(",") >= 9]
    assert rows, done.stdout + done.stderr
    return float(rows[-1][9])
