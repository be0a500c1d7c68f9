"""The real producer, consumer and group in the simulated world: a cluster under a storm of faults, time that costs nothing.

python -c "from tests.client.test_simulated import play; print(play(SEED, brokers=3, groups='classic'))"
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from ottla import Admin, Consumer, OttlaError, Producer
from ottla.host import World
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.faults import Faults
from tests.simulation.simulation import Simulation

TOPIC = "orders"
PARTITIONS = 3
RECORDS = 400
STORM_SECONDS = 20.0
LIVENESS_SECONDS = 300.0
QUICK = {"retry_backoff_ms": 50, "request_timeout_ms": 5_000, "socket_connection_setup_timeout_ms": 3_000}


@dataclass
class Story:
    acknowledged: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    failed: list[Exception] = field(default_factory=list)
    polled: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    log: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    faults: int = 0


async def patiently(client) -> None:
    while True:
        try:
            return await client.start()
        except OttlaError:
            await asyncio.sleep(0.2)


class Play:
    def __init__(self, simulation: Simulation, brokers: int, groups: str | None) -> None:
        self.simulation = simulation
        self.groups = groups
        self.story = Story()
        # Without transactions or groups a single broker is enough of a cluster.
        settings = {"offsets.topic.replication.factor": str(min(3, brokers)), "group.initial.rebalance.delay.ms": "0"}
        self.cluster = SimulatedCluster(simulation, brokers, settings)
        self.brokers = brokers
        self.servers = ",".join(f"{host}:{port}" for host, port in self.cluster.bootstrap)
        self.sent = asyncio.Event()

    async def run(self) -> None:
        await asyncio.wait_for(self.cluster.start(), LIVENESS_SECONDS)
        await self.simulation.node("admin").start(self.create)
        work = [self.simulation.node("producer").start(self.produce), self.simulation.node("consumer").start(self.consume)]
        faults = Faults(self.cluster, f"faults {self.simulation.seed}", power=False)
        # What a broker makes of a full disk is its own affair and tested with it; a client sees an error like any other.
        faults._weights[faults._kinds.index(faults._full_disk)] = 0
        if not any(faults._weights):
            faults._weights[0] = 1
        storm = asyncio.create_task(faults.run())
        await asyncio.sleep(STORM_SECONDS)
        storm.cancel()
        await asyncio.wait_for(faults.heal(), LIVENESS_SECONDS)
        self.story.faults = faults.count
        await asyncio.wait_for(asyncio.gather(*work), LIVENESS_SECONDS)
        await asyncio.wait_for(self.simulation.node("end").start(self.read), LIVENESS_SECONDS)

    async def create(self, world: World) -> None:
        async with Admin(bootstrap_servers=self.servers, world=world, **QUICK) as admin:
            await admin.create_topic(TOPIC, PARTITIONS, min(3, self.brokers))

    async def produce(self, world: World) -> None:
        producer = Producer(
            bootstrap_servers=self.servers,
            world=world,
            batch_size=200,
            buffer_memory=5_000,
            max_block_ms=600_000,
            delivery_timeout_ms=600_000,
            **QUICK,
        )
        await patiently(producer)
        for number in range(RECORDS):
            partition = number % PARTITIONS

            def heard(metadata, error, number=number, partition=partition):
                if error is None:
                    self.story.acknowledged[partition].append(number)
                else:
                    self.story.failed.append(error)

            await producer.send(TOPIC, b"%d" % number, partition=partition, on_delivery=heard)
            assert producer._accumulator.used <= 5_000
            await asyncio.sleep(STORM_SECONDS / RECORDS)
        await producer.flush()
        await producer.close()

    async def consume(self, world: World) -> None:
        settings = {} if self.groups is None else {"group_id": "g", "group_protocol": self.groups, "enable_auto_commit": False}
        consumer = Consumer(bootstrap_servers=self.servers, world=world, auto_offset_reset="earliest", **settings, **QUICK)
        await patiently(consumer)
        if self.groups is None:
            consumer.assign([(TOPIC, number) for number in range(PARTITIONS)])
        else:
            consumer.subscribe([TOPIC])
        while sum(len(set(numbers)) for numbers in self.story.polled.values()) < RECORDS:
            try:
                for record in await consumer.poll(1000):
                    self.story.polled[record.partition].append(int(record.value))
                if self.groups is not None:
                    await consumer.commit(timeout_ms=2000)
            except OttlaError:
                await asyncio.sleep(0.1)
        await consumer.close()

    async def read(self, world: World) -> None:
        async with Consumer(bootstrap_servers=self.servers, world=world, auto_offset_reset="earliest", **QUICK) as consumer:
            parts = [(TOPIC, number) for number in range(PARTITIONS)]
            consumer.assign(parts)
            ends = await consumer.end_offsets(parts)
            while any([await consumer.position(part) < end for part, end in ends.items()]):
                for record in await consumer.poll(500):
                    self.story.log[record.partition].append(int(record.value))


def play(seed: int, *, brokers: int, groups: str | None) -> Story:
    logging.disable(logging.CRITICAL)
    try:
        with Simulation(seed) as simulation:
            told = Play(simulation, brokers, groups)
            simulation.run(told.run())
            crashes = [crash for node in simulation.nodes.values() for crash in node.crashes]
            assert not crashes, crashes[0]
            return told.story
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("seed", "brokers"), [(1, 1), (3, 3), pytest.param(22, 3, marks=pytest.mark.slow)])
def test_what_is_acknowledged_is_there_once_and_in_order(seed, brokers):
    story = play(seed, brokers=brokers, groups=None)
    assert story.faults > 3
    assert not story.failed
    for partition in range(PARTITIONS):
        expected = list(range(partition, RECORDS, PARTITIONS))
        assert story.acknowledged[partition] == expected  # callbacks come in order, too
        assert story.log[partition] == expected
        assert story.polled[partition] == expected


@pytest.mark.parametrize("groups", [pytest.param("classic", marks=pytest.mark.slow), "consumer"])
@pytest.mark.parametrize("seed", [13])
def test_group_sees_everything_at_least_once(seed, groups):
    story = play(seed, brokers=3, groups=groups)
    assert story.faults > 3
    for partition in range(PARTITIONS):
        assert sorted(set(story.polled[partition])) == list(range(partition, RECORDS, PARTITIONS))


def test_repetition_that_a_restarted_broker_no_longer_knows_is_settled():
    """Found by this seed: two batches written, both answers lost, a restart that remembers the second only."""
    story = play(3, brokers=1, groups="consumer")
    assert not story.failed
    for partition in range(PARTITIONS):
        assert story.log[partition] == list(range(partition, RECORDS, PARTITIONS))
