"""The clients: they write unlike values and read everything, all the time, and write down what they see.

Writers are idempotent and use acks=all: librdkafka, and ottla's own producer. A delivery that fails is *unknown*: the record may be
there or not. Readers are librdkafka's: one reads from leaders, one from the replica of its own rack (KIP-392).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ottla.client.delivery import RecordMetadata
from ottla.client.producer import Producer as OwnProducer
from ottla.model.errors import OttlaError
from tests.histories import Recorder

TOPIC = "chaos"
PARTITIONS = 6
PAUSE_S = 0.02  # between two rounds of one writer: a record to each partition
DELIVERY_LIMIT_MS = 60_000
CLIENT = {
    "log_level": 0,
    "socket.timeout.ms": 5_000,
    "socket.connection.setup.timeout.ms": 2_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2_000,
}


class Writer:
    """A thread with a client. `last[p]` is when partition p last acknowledged something to it; `longest[p]` its longest silence."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.recorder = Recorder(name)
        self.errors: list[str] = []
        self.last = [time.monotonic()] * PARTITIONS
        self.longest = [0.0] * PARTITIONS
        self.number = 0
        self._told_to_stop = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True, name=name)

    def _main(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns once everything under way is acknowledged or given up."""
        self._told_to_stop.set()
        self._thread.join(2 * DELIVERY_LIMIT_MS / 1000)
        assert not self._thread.is_alive(), f"{self.name} does not end"

    def _next(self, partition: int) -> tuple[int, str]:
        self.number += 1
        value = f"{self.name}-{self.number}"
        return self.recorder.sending(TOPIC, partition, value), value

    def _acknowledged(self, send: int, partition: int, offset: int) -> None:
        self.recorder.sent(send, offset, partition)
        now = time.monotonic()
        self.longest[partition] = max(self.longest[partition], now - self.last[partition])
        self.last[partition] = now

    def forget_silence(self) -> None:
        self.last = [time.monotonic()] * PARTITIONS


class LibrdkafkaWriter(Writer):
    def __init__(self, name: str, bootstrap: str) -> None:
        super().__init__(name)
        self._settings = CLIENT | {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": DELIVERY_LIMIT_MS,
        }

    def _main(self) -> None:
        producer = Producer(self._settings)
        while not self._told_to_stop.is_set():
            for partition in range(PARTITIONS):
                send, value = self._next(partition)
                try:
                    producer.produce(TOPIC, value, partition=partition, on_delivery=self._report(send))
                except (BufferError, KafkaException) as error:
                    self.recorder.failed(send)  # it never left
                    self.errors.append(str(error))
                    if isinstance(error, KafkaException):  # a fatal error: this client is done for
                        producer.flush(DELIVERY_LIMIT_MS / 1000)
                        producer = Producer(self._settings)
            producer.poll(0)
            time.sleep(PAUSE_S)
        producer.flush(2 * DELIVERY_LIMIT_MS / 1000)

    def _report(self, send: int) -> Callable[[Any, Any], None]:
        def reported(error: Any, message: Any) -> None:
            if error is not None:
                self.errors.append(str(error))
            else:
                self._acknowledged(send, message.partition(), message.offset())

        return reported


class OwnWriter(Writer):
    def __init__(self, name: str, bootstrap: str) -> None:
        super().__init__(name)
        self._bootstrap = bootstrap

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        while not self._told_to_stop.is_set():
            try:
                async with OwnProducer(
                    bootstrap_servers=self._bootstrap,
                    delivery_timeout_ms=DELIVERY_LIMIT_MS,
                    request_timeout_ms=5_000,
                    metadata_max_age_ms=2_000,
                ) as producer:
                    await self._write(producer)
            except OttlaError as error:
                self.errors.append(repr(error))

    async def _write(self, producer: OwnProducer) -> None:
        while not self._told_to_stop.is_set():
            for partition in range(PARTITIONS):
                send, value = self._next(partition)
                await producer.send(TOPIC, value.encode(), partition=partition, on_delivery=self._report(send))
            await asyncio.sleep(PAUSE_S)

    def _report(self, send: int) -> Callable[[RecordMetadata | None, Exception | None], None]:
        def reported(metadata: RecordMetadata | None, error: Exception | None) -> None:
            if metadata is None:
                self.errors.append(repr(error))
            else:
                self._acknowledged(send, metadata.partition, metadata.offset)

        return reported


class Reader:
    """Reads every partition from its beginning, for as long as it lives. Positions are its own, not a group's."""

    def __init__(self, name: str, bootstrap: str, rack: str = "") -> None:
        self.recorder = Recorder(name)
        self.positions = [0] * PARTITIONS  # the next offset of each
        self._settings = CLIENT | {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",  # to be told to start again would hide a loss
            **({"client.rack": rack} if rack else {}),
        }
        self.errors: list[str] = []
        self._told_to_stop = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True, name=name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._told_to_stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _main(self) -> None:
        consumer = Consumer(self._settings)
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        while not self._told_to_stop.is_set():
            self.read(consumer)
        consumer.close()

    def read(self, consumer: Consumer) -> None:
        seen = []
        for message in consumer.consume(1000, 0.2):
            if message.error():
                self.errors.append(str(message.error()))
                continue
            seen.append((TOPIC, message.partition(), message.offset(), message.value().decode()))
            self.positions[message.partition()] = message.offset() + 1
        if seen:
            self.recorder.polled(seen)
