"""When a consumer's fetch is answered: with enough bytes at once, when enough have come, or when its time is over with what there is.
Told in virtual time, over connections of the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.client.admin import Admin
from ottla.client.connection import Connection, connect
from ottla.host import World
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.produce import ProduceRequest
from ottla.records.builder import build_batch
from ottla.records.record import Record
from tests.simulation.cluster import BROKER_PORT, SimulatedCluster
from tests.simulation.simulation import Simulation

TOPIC = "t"
BATCH = build_batch([Record(0, 0, None, bytes(100), ())])
FOREVER_MS = 3_600_000
MOMENT_MS = 1_000  # more than the network takes, and far less than anybody waits here


class Play:
    """A consumer and a producer, each with a connection of its own to the only broker."""

    def __init__(self, consumer: Connection, producer: Connection) -> None:
        self._consumer = consumer
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self.answered_after_ms = 0.0

    def poll(self, *, min_bytes: int, max_wait_ms: int) -> asyncio.Task[list[int]]:
        """How many batches came of each partition."""
        return asyncio.ensure_future(self._poll(min_bytes, max_wait_ms))

    async def _poll(self, min_bytes: int, max_wait_ms: int) -> list[int]:
        row = FetchRequest.FetchTopic.FetchPartition
        rows = [row(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in (0, 1)]
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=1 << 20,
            topics=[FetchRequest.FetchTopic(topic=TOPIC, partitions=rows)],
        )
        began = self._loop.time()
        answer: FetchResponse = await self._consumer.request(request, version=11, timeout_ms=2 * FOREVER_MS)
        self.answered_after_ms = (self._loop.time() - began) * 1000
        partitions = {part.partition_index: part for topic in answer.responses for part in topic.partitions}
        assert not any(part.error_code for part in partitions.values())
        sizes = [len(partitions[index].records or b"") if index in partitions else 0 for index in (0, 1)]
        assert not any(size % len(BATCH) for size in sizes)
        return [size // len(BATCH) for size in sizes]

    async def produce(self, partition: int = 0) -> None:
        data = ProduceRequest.TopicProduceData(
            name=TOPIC,
            partition_data=[ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=BATCH)],
        )
        answer = await self._producer.request(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data]), version=9)
        assert answer.responses[0].partition_responses[0].error_code == 0


Scene = Callable[[Play], Awaitable[None]]


def play(seed: int, scene: Scene) -> None:
    with Simulation(seed) as simulation:
        cluster = SimulatedCluster(simulation, 1)

        async def main(world: World) -> None:
            host = cluster.brokers[0].name
            async with Admin(bootstrap_servers=f"{host}:{BROKER_PORT}", world=world) as admin:
                await admin.create_topic(TOPIC, 2, 1)
            consumer, producer = [await connect(world.network, host, BROKER_PORT) for _ in range(2)]
            try:
                await scene(Play(consumer, producer))
            finally:
                consumer.close()
                producer.close()

        async def scenario() -> None:
            await cluster.start()
            await simulation.node("clients").start(main)

        simulation.run(scenario())


seeds = pytest.mark.parametrize("seed", range(3))


@seeds
def test_a_poll_is_answered_when_enough_bytes_have_come_and_not_before(seed: int) -> None:
    async def scene(play: Play) -> None:
        poll = play.poll(min_bytes=2 * len(BATCH) + 1, max_wait_ms=FOREVER_MS)
        for partition in (0, 1):
            await play.produce(partition)
            await asyncio.sleep(60)
            assert not poll.done()
        await play.produce(1)
        await asyncio.sleep(MOMENT_MS / 1000)
        assert poll.done()
        assert await poll == [1, 2]

    play(seed, scene)


@seeds
def test_a_poll_whose_time_is_over_is_answered_with_what_there_is(seed: int) -> None:
    async def scene(play: Play) -> None:
        poll = play.poll(min_bytes=1 << 20, max_wait_ms=20_000)
        await play.produce()
        assert await poll == [1, 0]
        assert 20_000 <= play.answered_after_ms < 20_000 + MOMENT_MS

    play(seed, scene)


@seeds
def test_a_poll_of_nothing_is_answered_with_nothing_when_its_time_is_over(seed: int) -> None:
    async def scene(play: Play) -> None:
        assert await play.poll(min_bytes=1, max_wait_ms=20_000) == [0, 0]
        assert 20_000 <= play.answered_after_ms < 20_000 + MOMENT_MS

    play(seed, scene)


@seeds
@pytest.mark.parametrize(("min_bytes", "max_wait_ms"), [(2 * len(BATCH), FOREVER_MS), (1, FOREVER_MS), (1 << 20, 0)])
def test_a_poll_that_finds_enough_or_has_no_time_is_answered_at_once(seed: int, min_bytes: int, max_wait_ms: int) -> None:
    async def scene(play: Play) -> None:
        await play.produce(0)
        await play.produce(1)
        assert await play.poll(min_bytes=min_bytes, max_wait_ms=max_wait_ms) == [1, 1]
        assert play.answered_after_ms < MOMENT_MS

    play(seed, scene)
