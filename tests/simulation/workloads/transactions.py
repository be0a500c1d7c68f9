"""Transactional producers, two for each id, so that they fence each other all the time; read_committed and read_uncommitted consumers."""

from __future__ import annotations

import asyncio
import random
from typing import Any, ClassVar

from ottla.client.admin import Admin
from ottla.client.producer import Producer
from ottla.host import World
from tests.histories import Recorder
from tests.simulation.workloads.stage import TROUBLE, Stage, Workload, all_of, note

TOPIC = "moves"
PARTITIONS = 2
IDS = 2
TRANSACTION_TIMEOUT_MS = 8_000


class Transactions(Workload):
    name: ClassVar[str] = "transactions"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._tasks: list[asyncio.Task[Any]] = []

    async def prepare(self, admin: Admin) -> None:
        await admin.create_topic(TOPIC, PARTITIONS, self.stage.replication_factor)

    def start(self) -> None:
        for number in range(IDS):
            for which in "ab":
                self._tasks.append(self._start_producer(f"id{number}", which))
        for isolation in ("read_committed", "read_uncommitted"):
            self._tasks.append(self._start_reader(isolation))

    async def finish(self) -> None:
        self.stopping = True
        await all_of(self._tasks)

    def _start_producer(self, transactional_id: str, which: str) -> asyncio.Task[Any]:
        name = f"{transactional_id}{which}"

        async def main(world: World) -> None:
            dice = random.Random(f"{name} {self.stage.simulation.seed}")
            await self.lives(lambda life: self._live(world, transactional_id, f"{name}-{life}", dice))

        return self.stage.machine(name).start(main)

    async def _live(self, world: World, transactional_id: str, process: str, dice: random.Random) -> None:
        recorder = self.stage.recorder(process)
        producer = self.producer(
            world, transactional_id=transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, delivery_timeout_ms=6_000,
            request_timeout_ms=2_000,
        )  # fmt: skip
        try:
            await producer.start()
            await producer.init_transactions()
            for number in range(dice.randrange(1, 12)):
                if self.stopping:
                    return
                await self._transact(producer, recorder, f"{process}-{number}", dice)
                await asyncio.sleep(dice.expovariate(5))
        finally:
            try:
                await producer.close(0)
            except TROUBLE:
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

    def _start_reader(self, isolation: str) -> asyncio.Task[Any]:
        async def main(world: World) -> None:
            async def live(number: int) -> None:
                """From the start; after trouble of its own it begins again."""
                recorder = self.stage.recorder(f"{isolation}-{number}", read_committed=isolation == "read_committed")
                async with self.consumer(world, isolation_level=isolation) as consumer:
                    consumer.assign([(TOPIC, partition) for partition in range(PARTITIONS)])
                    while not self.stopping:
                        note(recorder, await consumer.poll(500))

            await self.lives(live)

        return self.stage.machine(isolation.replace("_", "-")).start(main)

    async def read(self, world: World) -> None:
        """Until nothing holds readers back: every transaction has ended, by its producer or by its time-out."""
        recorder = self.stage.recorder("moves-at-the-end")
        await self.read_to_the_end(world, recorder, [TOPIC], isolation_level="read_committed")
