"""Exactly once: read one topic, write another, and commit the positions in the same transaction; copiers die and come back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, ClassVar

from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.host import World
from ottla.model.ids import TopicPartition
from tests.histories import Recorder
from tests.simulation.checks import Violation
from tests.simulation.workloads.stage import TROUBLE, Stage, Workload, all_of, note, patiently

SOURCE, TARGET, GROUP = "drafts", "copies", "copiers"
PARTITIONS = 2
PACE_SECONDS = 0.15
BATCH = 20


class Copies(Workload):
    name: ClassVar[str] = "copies"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._producing: asyncio.Task[Any] | None = None
        self._copiers: list[asyncio.Task[Any]] = []
        self._written: set[str] = set()  # acknowledged drafts
        self._copied: Counter[str] = Counter()  # drafts, by their committed copies
        self._done = False

    async def prepare(self, admin: Admin) -> None:
        for topic in (SOURCE, TARGET):
            await admin.create_topic(topic, PARTITIONS, self.stage.replication_factor)

    def start(self) -> None:
        self._producing = self.stage.machine("drafter").start(self._produce)
        for number in range(2):
            name = f"copier{number}"
            self._copiers.append(asyncio.create_task(self._copier(name), name=name))

    async def _produce(self, world: World) -> None:
        recorder = self.stage.recorder("drafter")
        producer = self.producer(world, batch_size=400, delivery_timeout_ms=600_000, max_block_ms=600_000)
        await patiently(producer.start)
        number = 0
        while not self.stopping:
            value, partition = f"draft {number}", self.chance.randrange(PARTITIONS)
            send = recorder.sending(SOURCE, partition, value)
            delivery = await producer.send_and_wait(SOURCE, value.encode(), partition=partition)
            recorder.sent(send, delivery.offset)
            self._written.add(value)
            number += 1
            await asyncio.sleep(self.chance.expovariate(1 / PACE_SECONDS))
        await producer.close()

    async def _copier(self, name: str) -> None:
        machine, life = self.stage.machine(name), 0
        while not self._done:
            life += 1
            chance = random.Random(f"{name} {life} {self.stage.simulation.seed}")
            main = machine.start(lambda world, life=life: self._live(world, name, f"{name}-{life}"))  # type: ignore[misc]
            if chance.random() < 0.5 and not self.stopping:
                await asyncio.wait([main], timeout=chance.uniform(2, 20))
                if machine.running:
                    machine.kill()
            else:
                await asyncio.wait([main])
            await asyncio.sleep(chance.uniform(0.01, 1))

    async def _live(self, world: World, transactional_id: str, life: str) -> None:
        recorder = self.stage.recorder(life)
        producer = self.producer(
            world,
            transactional_id=transactional_id,
            transaction_timeout_ms=6_000,
            delivery_timeout_ms=5_000,
            request_timeout_ms=2_000,
        )
        settings = {
            "group_id": GROUP,
            "group_protocol": "consumer",
            "isolation_level": "read_committed",
            "max_poll_records": BATCH,
        }
        try:
            async with producer, self.consumer(world, **settings) as consumer:
                await producer.init_transactions()
                consumer.subscribe([SOURCE])
                attempt = 0
                while not self._done:
                    records = await consumer.poll(500)
                    if records:
                        attempt += 1
                        await self._copy(consumer, producer, recorder, records, f"{life}-{attempt}")
        except TROUBLE:
            await asyncio.sleep(0.3)

    async def _copy(self, consumer: Consumer, producer: Producer, recorder: Recorder, records: list[Any], attempt: str) -> None:
        recorder.reassigned()  # each life's polls are judged by the group's own workload; here the copies are
        note(recorder, records)
        transaction = recorder.beginning()
        await producer.begin_transaction()
        deliveries = []
        for record in records:
            value = f"{(record.value or b'').decode()} copied by {attempt}"
            send = recorder.sending(TARGET, record.partition, value, transaction)
            deliveries.append((send, await producer.send(TARGET, value.encode(), partition=record.partition)))
        positions = {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}
        await producer.send_offsets_to_transaction(positions, consumer.group_metadata())
        await producer.flush()
        for send, delivery in deliveries:
            recorder.sent(send, (await delivery).offset)
        recorder.ending(transaction, commit=True)
        await producer.commit_transaction()
        recorder.ended(transaction, committed=True)

    async def finish(self) -> None:
        assert self._producing is not None
        self.stopping = True
        await self._producing
        await self.stage.machine("copies-end").start(self._until_copied)
        self._done = True
        await all_of(self._copiers)

    async def _until_copied(self, world: World) -> None:
        partitions = [TopicPartition(SOURCE, number) for number in range(PARTITIONS)]

        async def attempt() -> None:
            async with self.admin(world) as admin:
                while True:
                    ends = await admin.latest_offsets(partitions)
                    offsets = await admin.group_offsets(GROUP)
                    if all(not ends[each] or (each in offsets and offsets[each].offset >= ends[each]) for each in partitions):
                        return
                    await asyncio.sleep(0.5)

        await patiently(attempt)

    async def read(self, world: World) -> None:
        for topic in (SOURCE, TARGET):
            recorder = self.stage.recorder(f"{topic}-at-the-end")
            records = await self.read_to_the_end(world, recorder, [topic], isolation_level="read_committed")
            if topic == TARGET:
                self._copied.update((record.value or b"").decode().partition(" copied by ")[0] for record in records)

    def judge(self) -> None:
        twice = sorted(draft for draft, count in self._copied.items() if count > 1)
        never = sorted(self._written - set(self._copied))
        if twice or never:
            raise Violation("copied_exactly_once", f"twice: {twice[:5]}, never: {never[:5]}")
