"""Transactions in the simulated world: `python -m tests.transactions.simulated SEED [COUNT] [--brokers N]`.

Real brokers under kills, walls, pauses, full disks and clock jumps; real producers, two for each transactional id, so that they
fence each other all the time; real read_committed consumers. What they saw is judged by the history checker.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import traceback
from dataclasses import dataclass

from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.host import World
from ottla.model.errors import OttlaError
from tests.histories import History, Recorder, Report, check
from tests.simulation.checks import Violation
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.faults import Faults
from tests.simulation.loop import SimulationError
from tests.simulation.node import SimulatedNode
from tests.simulation.simulation import Simulation

TOPIC = "moves"
PARTITIONS = 3
IDS = 2
STORM_SECONDS = 25.0
QUIET_SECONDS = 300.0  # virtual: once faults have ended, everything must be readable by then
TRANSACTION_TIMEOUT_MS = 8_000


@dataclass
class Outcome:
    seed: int
    failure: str | None
    report: Report | None
    faults: int
    committed: int
    story: list[str]


class Play:
    def __init__(self, simulation: Simulation, brokers: int) -> None:
        self.simulation = simulation
        self.brokers = brokers
        settings = {
            "log.retention.ms": "-1",
            "replica.lag.time.max.ms": "3000",
            "transaction.state.log.num.partitions": "3",
            "offsets.topic.num.partitions": "3",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        }
        self.cluster = SimulatedCluster(simulation, brokers, settings)
        self.servers = ",".join(f"{host}:{port}" for host, port in self.cluster.bootstrap)
        self.recorders: list[Recorder] = []
        self.stopping = False
        self.faults: Faults | None = None

    def recorder(self, process: str) -> Recorder:
        loop = self.simulation.loop
        made = Recorder(process, clock=lambda: int(loop.time() * 1e9))
        self.recorders.append(made)
        return made

    async def run(self) -> None:
        await asyncio.wait_for(self.cluster.start(), QUIET_SECONDS)
        await self._machine("admin").start(self._create_topic)
        producers = [self._start_producer(f"id{number}", which) for number in range(IDS) for which in "ab"]
        readers = [self._start_reader(f"reader{number}") for number in range(2)]
        # What a voter does that cannot write its metadata log is the quorum's story, and told by its own runs.
        self.faults = Faults(self.cluster, f"faults {self.simulation.seed}", power=False, full_disks=self.brokers == 1)
        storm = asyncio.create_task(self.faults.run())
        await asyncio.sleep(STORM_SECONDS)
        storm.cancel()
        await self.faults.heal()
        self.stopping = True
        _, late = await asyncio.wait([*producers, *readers], timeout=QUIET_SECONDS)
        if late:
            raise Violation("liveness", f"{len(late)} clients did not finish after the faults had ended")
        await asyncio.wait_for(self._machine("end").start(self._read_everything), QUIET_SECONDS)

    def _machine(self, name: str) -> SimulatedNode:
        return self.simulation.node(name)

    async def _create_topic(self, world: World) -> None:
        async with Admin(bootstrap_servers=self.servers, world=world) as admin:
            await admin.create_topic(TOPIC, PARTITIONS, min(3, self.brokers))

    # Producers: one life after the other, each with a name of its own ------------------------------------------------------

    def _start_producer(self, transactional_id: str, which: str) -> asyncio.Task[None]:
        async def main(world: World) -> None:
            dice = random.Random(f"{transactional_id}{which} {self.simulation.seed}")
            life = 0
            while not self.stopping:
                life += 1
                try:
                    await self._live(world, transactional_id, f"{transactional_id}{which}-{life}", dice)
                except (OttlaError, OSError, TimeoutError):
                    await asyncio.sleep(dice.uniform(0.1, 2))

        return self._machine(f"{transactional_id}{which}").start(main)

    async def _live(self, world: World, transactional_id: str, process: str, dice: random.Random) -> None:
        recorder = self.recorder(process)
        producer = Producer(
            bootstrap_servers=self.servers,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            delivery_timeout_ms=6_000,
            request_timeout_ms=2_000,
            world=world,
        )
        try:
            await producer.start()
            await producer.init_transactions()
            for number in range(dice.randrange(1, 12)):
                if self.stopping:
                    return
                await self._transact(producer, recorder, f"{process}-{number}", dice)
                await asyncio.sleep(dice.expovariate(10))
        finally:
            try:
                await producer.close(0)
            except (OttlaError, OSError, TimeoutError):
                pass

    async def _transact(self, producer: Producer, recorder: Recorder, name: str, dice: random.Random) -> None:
        transaction = recorder.beginning()
        await producer.begin_transaction()
        deliveries = []
        for number in range(dice.randrange(1, 6)):
            partition = dice.randrange(PARTITIONS)
            send = recorder.sending(TOPIC, partition, f"{name}-{number}", transaction)
            delivery = await producer.send(TOPIC, f"{name}-{number}".encode(), partition=partition)
            deliveries.append((send, delivery))
        if dice.random() < 0.2:
            recorder.ending(transaction, commit=False)
            await producer.abort_transaction()
            recorder.ended(transaction, committed=False)
            return
        await producer.flush()
        for send, delivery in deliveries:
            recorder.sent(send, (await delivery).offset)
        recorder.ending(transaction, commit=True)
        await producer.commit_transaction()
        recorder.ended(transaction, committed=True)

    # Readers -----------------------------------------------------------------------------------------------------------------

    def _consumer(self, world: World) -> Consumer:
        return Consumer(
            bootstrap_servers=self.servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            request_timeout_ms=2_000,
            world=world,
        )

    def _start_reader(self, name: str) -> asyncio.Task[None]:
        """Follows everything from the start; after trouble of its own it starts again from the beginning."""

        async def main(world: World) -> None:
            lives = 0
            while not self.stopping:
                lives += 1
                recorder = self.recorder(f"{name}-{lives}")
                try:
                    async with self._consumer(world) as consumer:
                        consumer.assign([(TOPIC, partition) for partition in range(PARTITIONS)])
                        while not self.stopping:
                            self._note(recorder, await consumer.poll(500))
                except (OttlaError, OSError, TimeoutError):
                    await asyncio.sleep(0.5)

        return self._machine(name).start(main)

    async def _read_everything(self, world: World) -> None:
        """Until nothing holds the readers back: every transaction has ended, by its producer or by its time-out."""
        recorder = self.recorder("reader-at-the-end")
        partitions = [(TOPIC, partition) for partition in range(PARTITIONS)]
        async with self._consumer(world) as consumer:
            consumer.assign(partitions)
            async with Admin(bootstrap_servers=self.servers, world=world) as admin:
                while True:
                    self._note(recorder, await consumer.poll(1000))
                    ends = await admin.latest_offsets(partitions)
                    positions = {partition: await consumer.position(partition) for partition in partitions}
                    if all(positions[partition] >= ends[partition] for partition in partitions):
                        return

    def _note(self, recorder: Recorder, records: list) -> None:  # type: ignore[type-arg]
        if records:
            recorder.polled([(record.topic, record.partition, record.offset, record.value.decode()) for record in records])


def run_seed(seed: int, brokers: int) -> Outcome:
    logging.disable(logging.CRITICAL)
    report, failure = None, None
    with Simulation(seed) as simulation:
        play = Play(simulation, brokers)
        try:
            simulation.run(play.run())
            report = check(History.of(*play.recorders))
            failure = None if report.clean else str(report)
        except (Violation, SimulationError) as error:
            failure = str(error)
        except Exception:
            failure = traceback.format_exc()
        crashes = [crash for node in simulation.nodes.values() for crash in node.crashes]
        if crashes:
            failure = "\n".join([failure or "a machine crashed", *crashes])
        history = History.of(*play.recorders)
        committed = sum(transaction.outcome == "committed" for transaction in history.transactions)
        return Outcome(seed, failure, report, play.faults.count if play.faults else 0, committed, list(simulation.journal.story))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--brokers", type=int, default=3)
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + options.count):
        outcome = run_seed(seed, options.brokers)
        if outcome.failure is not None:
            print("\n".join(outcome.story[-60:]))
        print(
            f"seed {seed}: {outcome.failure or 'sound'}; {outcome.faults} faults, {outcome.committed} transactions committed",
            flush=True,
        )
        if outcome.failure is not None:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
