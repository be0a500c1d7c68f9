"""One seed from its first event to its verdict."""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla.client.admin import Admin
from ottla.host import World
from ottla.model.ids import TopicPartition
from tests.simulation.checks import Violation, judge
from tests.simulation.clients import PlainProducer, PlainReader
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.faults import Faults
from tests.simulation.history import History
from tests.simulation.invariants import Invariants
from tests.simulation.loop import SimulationError
from tests.simulation.node import Main, SimulatedNode
from tests.simulation.simulation import Simulation

TOPIC = "orders"
MIN_RECORDS = 2400  # of all producers together
START_SECONDS = 60.0  # virtual; a cluster without faults must be up by then
LIVENESS_SECONDS = 300.0  # virtual; once faults have ended, every client must be done by then
STORM_SECONDS = (15.0, 40.0)


@dataclass(slots=True)
class Outcome:
    seed: int
    failure: str | None
    digest: str
    events: int
    virtual_seconds: float
    acknowledged: int
    faults: int
    counts: Counter[str]
    story: list[str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed makes of the world."""

    brokers: int
    partitions: int
    producers: int
    records: int  # of each producer, at least
    power: bool
    storm_seconds: float
    focus: str  # "raft": the metadata quorum is shaken, above all

    @classmethod
    def draw(cls, seed: int, brokers: int, focus: str = "") -> Plan:
        chance = random.Random(f"plan {seed}")
        producers = chance.randrange(1, 4)
        return cls(
            brokers=brokers,
            partitions=chance.randrange(1, 5),
            producers=producers,
            records=MIN_RECORDS // producers,
            power=chance.random() < 0.5,
            storm_seconds=chance.uniform(*STORM_SECONDS),
            focus=focus,
        )

    def settings(self) -> dict[str, str]:
        settings = {"log.retention.ms": "-1", "log.roll.ms": "5000", "replica.lag.time.max.ms": "3000"}
        if self.power and self.brokers == 1:
            settings["log.flush.interval.messages"] = "1"
        return settings


def run_seed(seed: int, *, brokers: int = 1, focus: str = "") -> Outcome:
    plan = Plan.draw(seed, brokers, focus)
    history = History()
    failure = None
    logging.disable(logging.CRITICAL)
    with Simulation(seed) as simulation:
        play = _Play(simulation, plan, history)
        try:
            simulation.run(play.run())
            judge(history)
        except (Violation, SimulationError) as error:
            failure = str(error)
        except Exception:
            failure = traceback.format_exc()
        crashes = [crash for node in simulation.nodes.values() for crash in node.crashes]
        if crashes:
            failure = "\n".join([failure or "no_node_crashes", *crashes])
        journal = simulation.journal
        faults = 0 if play.faults is None else play.faults.count
        return Outcome(
            seed,
            failure,
            journal.digest(),
            journal.events,
            simulation.loop.time(),
            history.acknowledged,
            faults,
            journal.counts,
            journal.story,
        )


def play(task: tuple[int, int, str]) -> Outcome:
    """For worker processes: a seed, how many brokers, the focus."""
    return run_seed(task[0], brokers=task[1], focus=task[2])


class _Play:
    def __init__(self, simulation: Simulation, plan: Plan, history: History) -> None:
        self._simulation = simulation
        self._plan = plan
        self._history = history
        self._cluster = SimulatedCluster(simulation, plan.brokers, plan.settings())
        self.faults: Faults | None = None
        self.invariants = Invariants(self._cluster)
        simulation.loop.watcher = self.invariants.after

    async def run(self) -> None:
        await _within(START_SECONDS, "the cluster did not start", self._cluster.start())
        await _within(START_SECONDS, "the topic was not created", self._create_topic())
        readers = [self._reader(TopicPartition(TOPIC, partition)) for partition in range(self._plan.partitions)]
        producers = [self._producer(f"p{number}") for number in range(self._plan.producers)]
        await self._storm()
        await self._finish("producers", producers)
        await self._finish("readers", readers)
        await _within(LIVENESS_SECONDS, "the log could not be read at the end", self._read_everything())
        await self._stop()

    async def _stop(self) -> None:
        brokers = self._cluster.brokers
        await _within(
            LIVENESS_SECONDS, "nodes were not up at the end", _all([asyncio.create_task(b.ready.wait()) for b in brokers])
        )
        assert self.faults is not None
        await _within(LIVENESS_SECONDS, "replicas were not all in sync at the end", self.faults.until_in_sync())
        await _within(LIVENESS_SECONDS, "nodes did not stop", _all([asyncio.create_task(b.stop()) for b in brokers]))

    async def _create_topic(self) -> None:
        async def create(world: World) -> None:
            servers = ",".join(f"{host}:{port}" for host, port in self._cluster.bootstrap)
            async with Admin(bootstrap_servers=servers, world=world) as admin:
                await admin.create_topic(TOPIC, self._plan.partitions, min(3, self._plan.brokers))

        await self._simulation.node("admin").start(create)

    async def _storm(self) -> None:
        self.faults = Faults(self._cluster, f"faults {self._simulation.seed}", power=self._plan.power, focus=self._plan.focus)
        storm = asyncio.create_task(self.faults.run())
        await asyncio.sleep(self._plan.storm_seconds)
        storm.cancel()
        await self.faults.heal()

    async def _finish(self, who: str, clients: list[Client]) -> None:
        for client in clients:
            client.stop()
        work = _all([client.main for client in clients])
        await _within(LIVENESS_SECONDS, f"{who} did not finish after the faults had ended", work)

    def _producer(self, name: str) -> Client:
        async def main(world: World) -> None:
            producer = PlainProducer(name, world, self._cluster.bootstrap, self._history, f"{name} {self._simulation.seed}")
            client.running = producer
            await producer.run(TOPIC, self._plan.partitions, self._plan.records)

        client = Client(self._simulation.node(name), main)
        return client

    def _reader(self, topic_partition: TopicPartition) -> Client:
        async def main(world: World) -> None:
            reader = PlainReader(machine.name, world, self._cluster.bootstrap, self._history)
            client.running = reader
            await reader.follow(topic_partition)

        machine = self._simulation.node(f"r{topic_partition.partition}")
        client = Client(machine, main)
        return client

    async def _read_everything(self) -> None:
        async def main(world: World) -> None:
            reader = PlainReader("end", world, self._cluster.bootstrap, self._history)
            for partition in range(self._plan.partitions):
                topic_partition = TopicPartition(TOPIC, partition)
                self._history.final[topic_partition] = await reader.everything(topic_partition)

        await self._simulation.node("end").start(main)


class Client:
    """A client on a machine of its own."""

    def __init__(self, machine: SimulatedNode, main: Main) -> None:
        self.running: PlainProducer | PlainReader | None = None  # once its machine has got so far
        self.main = machine.start(main)

    def stop(self) -> None:
        assert self.running is not None
        self.running.stopping = True


async def _all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        await task


async def _within(seconds: float, complaint: str, work: object) -> None:
    try:
        await asyncio.wait_for(work, seconds)  # type: ignore[arg-type]
    except TimeoutError:
        raise Violation("liveness", complaint) from None
