"""Clients of a run: the real `ottla.client.cluster` on simulated machines, with a producer and a reader as plain as can be.

The producer is idempotent with one batch under way per partition; it retries a batch until it is acknowledged, so everything it
began ends up in the log exactly once. The reader follows one partition and notes what it is shown.
"""

from __future__ import annotations

import asyncio
import random

from ottla.client.cluster import Cluster
from ottla.client.errors import VersionUnsupported
from ottla.client.settings import CommonSettings, resolve
from ottla.host import World
from ottla.model.errors import ApiError, ErrorCode, OttlaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.transactions import InitProducerIdRequest
from ottla.records.builder import BatchBuilder
from ottla.records.record import decode_batches
from tests.simulation.checks import Violation
from tests.simulation.history import History, Sent

REQUEST_TIMEOUT_MS = 5_000
RETRY_SECONDS = 0.1
PACE_SECONDS = 0.1
PRODUCE_VERSION = 9
FETCH_VERSION = 12
FETCH_BYTES = 1 << 20


def cluster_of(world: World, bootstrap: list[tuple[str, int]], name: str) -> Cluster:
    servers = ",".join(f"{host}:{port}" for host, port in bootstrap)
    settings = {
        "bootstrap_servers": servers,
        "client_id": name,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
        "metadata_max_age_ms": 30_000,
    }
    return Cluster(resolve(CommonSettings, settings), world)


async def patiently(cluster: Cluster, attempt: object, *, retried: tuple[ErrorCode, ...] = ()) -> object:
    """Try for ever: the run's own bound on time is the judge of liveness."""
    while True:
        try:
            return await attempt()  # type: ignore[operator]
        except ApiError as error:
            if not (error.code.retriable or error.code in retried):
                raise
            await _learn(cluster, error)
        except (OttlaError, OSError) as error:
            if not isinstance(error, OSError) and not getattr(error, "retriable", True):
                raise
            if isinstance(error, OttlaError):
                await _learn(cluster, error)
        await asyncio.sleep(RETRY_SECONDS)


async def _learn(cluster: Cluster, error: OttlaError) -> None:
    try:
        await cluster.learn(error)
        if cluster.view.topics:
            await cluster.refresh(set(cluster.view.topics))
    except (OttlaError, OSError):
        return


class PlainProducer:
    def __init__(self, name: str, world: World, bootstrap: list[tuple[str, int]], history: History, seed: str) -> None:
        self.name = name
        self._cluster = cluster_of(world, bootstrap, name)
        self._clock = world.clock
        self._history = history
        self._random = random.Random(seed)
        self.stopping = False
        self._numbers: dict[TopicPartition, int] = {}  # the next of our own numbers, which is the sequence too

    async def run(self, topic: str, partitions: int, records: int) -> None:
        """Write at least so many records, spread over the partitions, and on until told to stop; all are acknowledged then."""
        await patiently(self._cluster, self._cluster.start)
        self._producer_id, self._epoch = await self._identity()
        await asyncio.gather(
            *(self._fill(TopicPartition(topic, partition), records // partitions) for partition in range(partitions))
        )
        await self._cluster.close()

    async def _identity(self) -> tuple[int, int]:
        async def attempt() -> tuple[int, int]:
            reply = await self._cluster.ask(None, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000))
            if reply.error_code:
                raise ApiError(ErrorCode(reply.error_code))
            return reply.producer_id, reply.producer_epoch

        try:
            return await patiently(self._cluster, attempt)  # type: ignore[return-value]
        except VersionUnsupported:
            return int(self.name[1:]) + 1000, 0

    async def _fill(self, topic_partition: TopicPartition, records: int) -> None:
        while records > 0 or not self.stopping:
            size = self._random.randrange(1, 20)
            await self._write(topic_partition, size)
            records -= size
            await asyncio.sleep(self._random.expovariate(1 / PACE_SECONDS))

    async def _write(self, topic_partition: TopicPartition, size: int) -> None:
        first = self._numbers.get(topic_partition, 0)
        builder, batch = BatchBuilder(self._random.choice((0, 0, 1, 2, 3, 4))), []
        for number in range(first, first + size):
            value = f"{self.name} {topic_partition} {number} ".encode() + bytes(self._random.randrange(200))
            batch.append(self._history.send(self.name, number, topic_partition, value))
            builder.append(self._clock.wall_ms(), None, value)
        data = builder.build(producer_id=self._producer_id, producer_epoch=self._epoch, base_sequence=first)
        base_offset = await patiently(self._cluster, lambda: self._produce(topic_partition, data, batch))
        self._numbers[topic_partition] = first + size
        for index, sent in enumerate(batch):
            sent.offset = base_offset + index  # type: ignore[operator]

    async def _produce(self, topic_partition: TopicPartition, data: bytes, batch: list[Sent]) -> int:
        leader = await self._cluster.leader(*topic_partition)
        connection = await self._cluster.connection(leader)
        part = ProduceRequest.TopicProduceData.PartitionProduceData(index=topic_partition.partition, records=data)
        topic = ProduceRequest.TopicProduceData(name=topic_partition.topic, partition_data=[part])
        request = ProduceRequest(acks=-1, timeout_ms=REQUEST_TIMEOUT_MS, topic_data=[topic])
        reply = await connection.request(request, version=PRODUCE_VERSION)
        answer = reply.responses[0].partition_responses[0]
        code = ErrorCode(answer.error_code)
        if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH):
            raise Violation("producers_are_remembered", f"{batch[0].value[:24]!r} was refused with {code.name}")
        if code:
            raise ApiError(code, answer.error_message)
        return int(answer.base_offset)


class PlainReader:
    """Follows one partition from its start until told to stop."""

    def __init__(self, name: str, world: World, bootstrap: list[tuple[str, int]], history: History) -> None:
        self.name = name
        self._cluster = cluster_of(world, bootstrap, name)
        self._history = history
        self.stopping = False

    async def follow(self, topic_partition: TopicPartition) -> None:
        await patiently(self._cluster, self._cluster.start)
        session = self._history.session(self.name, topic_partition, 0)
        position = 0
        while not self.stopping:
            records = await patiently(self._cluster, lambda at=position: self.fetch(topic_partition, at, 500))  # type: ignore[misc]
            session.seen.extend(records)  # type: ignore[arg-type]
            position = records[-1][0] + 1 if records else position  # type: ignore[index]
        await self._cluster.close()

    async def everything(self, topic_partition: TopicPartition) -> list[tuple[int, bytes | None]]:
        """The whole partition up to its high watermark at this moment."""
        await patiently(self._cluster, self._cluster.start)
        found: list[tuple[int, bytes | None]] = []
        while True:
            position = found[-1][0] + 1 if found else 0
            records = await patiently(self._cluster, lambda at=position: self.fetch(topic_partition, at, 0))  # type: ignore[misc]
            if not records:
                return found
            found.extend(records)  # type: ignore[arg-type]

    async def fetch(self, topic_partition: TopicPartition, offset: int, wait_ms: int) -> list[tuple[int, bytes | None]]:
        leader = await self._cluster.leader(*topic_partition)
        connection = await self._cluster.connection(leader, "fetch")
        part = FetchRequest.FetchTopic.FetchPartition(
            partition=topic_partition.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
        )
        topic = FetchRequest.FetchTopic(topic=topic_partition.topic, partitions=[part])
        request = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=FETCH_BYTES, topics=[topic])
        reply = await connection.request(request, version=FETCH_VERSION)
        if reply.error_code:
            raise ApiError(ErrorCode(reply.error_code))
        answer = reply.responses[0].partitions[0]
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise Violation("readers_agree_with_the_log", f"{self.name}: offset {offset} of {topic_partition} is out of range")
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code))
        data = bytes(answer.records or b"")
        batches = decode_batches(data, from_offset=offset)  # a flipped bit raises CORRUPT_MESSAGE, which is tried again
        return [(record.offset, record.value) for header, batch in batches if not header.is_control for record in batch]
