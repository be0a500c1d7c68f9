"""Python's clients beside ottla's: the same broker, the same topic, by turns, each in a process of its own.

A client is written here as its users write it: `send` in a loop and a flush, `async for`, a `poll` a message. Figures are records
by the second: for a producer from the first call until everything is acknowledged, for a consumer from its first record to its last.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from bench.clients import PARTITIONS, QUIET_S

VALUE = b"x" * 100
LIMIT_S = 300
Coming = Coroutine[Any, Any, float]


def run(client: str, work: str, bootstrap: str, topic: str, count: int) -> float:
    """One measurement in a fresh process: no threads, caches or event loops of another client."""
    command = [sys.executable, "-m", "bench.python_clients", client, work, bootstrap, topic, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"{client} {work} failed: {done.stderr[-2000:]}"
    return float(done.stdout)


def seconds_to_import(statement: str) -> float:
    """In a fresh interpreter, whose own start does not count."""
    code = f"import time; started = time.perf_counter(); {statement}; print(time.perf_counter() - started)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout)


# Producers -------------------------------------------------------------------------------------------------------------------


async def produce_ottla(bootstrap: str, topic: str, count: int) -> float:
    from ottla import Producer

    async with Producer(bootstrap_servers=bootstrap, acks="all", linger_ms=5) as producer:
        return await _send_records(producer, topic, count)


def produce_sync(bootstrap: str, topic: str, count: int) -> float:
    from ottla.sync import Producer

    with Producer(bootstrap_servers=bootstrap, acks="all", linger_ms=5) as producer:
        producer.send(topic, VALUE).result(QUIET_S)
        return _send_records_waiting(producer, topic, count)


async def produce_arrow(bootstrap: str, topic: str, count: int) -> float:
    import pyarrow

    from ottla import Producer

    rows = min(count, 50_000)
    batch = pyarrow.RecordBatch.from_pydict({"value": pyarrow.array([VALUE] * rows, pyarrow.binary())})
    async with Producer(bootstrap_servers=bootstrap, acks="all", linger_ms=5) as producer:
        await producer.send_and_wait(topic, VALUE)
        started = time.perf_counter()
        for _ in range(count // rows):
            await producer.send_arrow(topic, batch)
        await producer.flush()
        return count // rows * rows / (time.perf_counter() - started)


async def produce_aiokafka(bootstrap: str, topic: str, count: int) -> float:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5) as producer:
        return await _send_records(producer, topic, count)


async def _send_records(producer: Any, topic: str, count: int) -> float:
    """The same lines for both."""
    await producer.send_and_wait(topic, VALUE)
    started = time.perf_counter()
    for _ in range(count):
        await producer.send(topic, VALUE)
    await producer.flush()
    return count / (time.perf_counter() - started)


def produce_kafka_python(bootstrap: str, topic: str, count: int) -> float:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5)
    producer.send(topic, VALUE).get(QUIET_S)
    rate = _send_records_waiting(producer, topic, count)
    producer.close()
    return rate


def _send_records_waiting(producer: Any, topic: str, count: int) -> float:
    """The same lines for both who know no asyncio."""
    started = time.perf_counter()
    for _ in range(count):
        producer.send(topic, VALUE)
    producer.flush()
    return count / (time.perf_counter() - started)


def produce_confluent(bootstrap: str, topic: str, count: int) -> float:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
    producer.produce(topic, VALUE)
    producer.flush()
    started = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, VALUE)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(LIMIT_S) == 0
    return count / (time.perf_counter() - started)


# Consumers -------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _reader(bootstrap: str, topic: str) -> AsyncIterator[Any]:
    from ottla import Consumer

    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, number) for number in range(PARTITIONS)])
        yield consumer


async def consume_ottla(bootstrap: str, topic: str, count: int) -> float:
    async with _reader(bootstrap, topic) as consumer:
        return await _count_records(consumer, count)


async def consume_aiokafka(bootstrap: str, topic: str, count: int) -> float:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        return await _count_records(consumer, count)


async def _count_records(consumer: Any, count: int) -> float:
    """`async for`, the same lines for both."""
    seen, started = 0, 0.0
    async for record in consumer:
        assert record.value is not None
        seen += 1
        if seen == 1:
            started = time.perf_counter()
        elif seen == count:
            break
    return count / (time.perf_counter() - started)


async def consume_poll(bootstrap: str, topic: str, count: int) -> float:
    """ottla's `poll`, which gives a list."""
    async with _reader(bootstrap, topic) as consumer:
        seen = len(await consumer.poll(QUIET_S * 1000))
        started = time.perf_counter()
        while seen < count:
            for record in await consumer.poll(QUIET_S * 1000):
                assert record.value is not None
                seen += 1
        return count / (time.perf_counter() - started)


async def consume_arrow(bootstrap: str, topic: str, count: int) -> float:
    """From the first batch of columns on; that batch does not count."""
    async with _reader(bootstrap, topic) as consumer:
        first, seen, started = 0, 0, 0.0
        async for batch in consumer.arrow():
            assert batch.column("value").null_count == 0
            seen += batch.num_rows
            if not first:
                first, started = seen, time.perf_counter()
            if seen >= count:
                break
        return (seen - first) / (time.perf_counter() - started)


def consume_confluent(bootstrap: str, topic: str, count: int, **more: int) -> float:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, **more})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    seen, started = 0, 0.0
    while seen < count:
        message = consumer.poll(QUIET_S)
        assert message is not None, f"only {seen} of {count} messages came"
        assert message.error() is None, message.error()
        assert message.value() is not None
        seen += 1
        if seen == 1:
            started = time.perf_counter()
    rate = count / (time.perf_counter() - started)
    consumer.close()
    return rate


def consume_confluent_restless(bootstrap: str, topic: str, count: int) -> float:
    """By default librdkafka rests for a second whenever 100,000 messages wait in it, which is most of what is seen above."""
    return consume_confluent(bootstrap, topic, count, **{"fetch.queue.backoff.ms": 1})


def consume_kafka_python(bootstrap: str, topic: str, count: int) -> float:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
    started = 0.0
    for seen, record in enumerate(consumer, 1):
        assert record.value is not None
        if seen == 1:
            started = time.perf_counter()
        elif seen == count:
            break
    rate = count / (time.perf_counter() - started)
    consumer.close()
    return rate


PRODUCERS: dict[str, Callable[[str, str, int], float | Coming]] = {
    "ottla": produce_ottla,
    "ottla.sync": produce_sync,
    "ottla, Arrow": produce_arrow,
    "aiokafka": produce_aiokafka,
    "kafka-python": produce_kafka_python,
    "confluent-kafka": produce_confluent,
}
CONSUMERS: dict[str, Callable[[str, str, int], float | Coming]] = {
    "ottla": consume_ottla,
    "ottla, poll": consume_poll,
    "ottla, Arrow": consume_arrow,
    "aiokafka": consume_aiokafka,
    "kafka-python": consume_kafka_python,
    "confluent-kafka": consume_confluent,
    "confluent-kafka without its rests": consume_confluent_restless,
}


def main(client: str, work: str, bootstrap: str, topic: str, count: str) -> None:
    chosen = {"produce": PRODUCERS, "consume": CONSUMERS}[work][client]
    measured = chosen(bootstrap, topic, int(count))
    print(measured if isinstance(measured, float) else asyncio.run(measured))


if __name__ == "__main__":
    main(*sys.argv[1:])
