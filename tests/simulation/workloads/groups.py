"""A group whose members come, go, are killed, sleep for longer than their session and wake up, while records keep coming.

Promised: every acknowledged record is polled by somebody before it counts as committed, in no generation two members own the
same partition, and once all is quiet nobody loses what it has. What the coordinator writes down is judged in `coordinators.py`.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, ClassVar

from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.listener import RebalanceListener
from ottla.host import World
from ottla.model.ids import TopicPartition
from tests.histories import Recorder
from tests.simulation.checks import Violation
from tests.simulation.node import SimulatedNode
from tests.simulation.workloads.stage import TROUBLE, Stage, Workload, all_of, note, patiently

PARTITIONS = 3
PACE_SECONDS = 0.1
SLEEP_SECONDS = (6.5, 9.0)  # longer than a session
SETTLED_SECONDS = 12.0  # after the last fault everybody who was given up has found out
QUIET_SECONDS = 8.0  # longer than a session


class _Group(Workload):
    protocol: ClassVar[str]

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.topic = f"watched-{self.protocol}"
        self.group = f"watchers-{self.protocol}"
        self._owners: dict[tuple[int, TopicPartition], str] = {}  # (generation, partition) → member
        self._producing: asyncio.Task[Any] | None = None
        self._members: list[asyncio.Task[Any]] = []
        self._acknowledged: set[str] = set()
        self._polled: set[str] = set()
        self._losses: list[tuple[float, str]] = []  # when, and whose
        self._done = False  # everything is read and committed

    async def prepare(self, admin: Admin) -> None:
        await admin.create_topic(self.topic, PARTITIONS, self.stage.replication_factor)

    def start(self) -> None:
        self._producing = self.stage.machine(f"{self.name}-producer").start(self._produce)
        for number in range(self.chance.randrange(2, 4)):
            name = f"{self.name}-{number}"
            self._members.append(asyncio.create_task(self._member(name), name=name))

    async def _produce(self, world: World) -> None:
        recorder = self.stage.recorder(f"{self.name}-producer")
        producer = self.producer(world, batch_size=400, delivery_timeout_ms=600_000, max_block_ms=600_000)
        await patiently(producer.start)
        number = 0
        while not self.stopping:
            value, partition = f"{self.name} {number}", self.chance.randrange(PARTITIONS)
            send = recorder.sending(self.topic, partition, value)

            def heard(metadata: Any, error: Exception | None, send: int = send, value: str = value) -> None:
                if error is None:
                    recorder.sent(send, metadata.offset)
                    self._acknowledged.add(value)

            await producer.send(self.topic, value.encode(), partition=partition, on_delivery=heard)
            number += 1
            await asyncio.sleep(self.chance.expovariate(1 / PACE_SECONDS))
        await producer.flush()
        await producer.close()

    # -- members: a machine each, which is killed now and then

    async def _member(self, name: str) -> None:
        machine, life = self.stage.machine(name), 0
        while not self._done:
            life += 1
            chance = random.Random(f"{name} {life} {self.stage.simulation.seed}")
            main = machine.start(lambda world, life=life, chance=chance: self._live(world, f"{name}-{life}", chance))  # type: ignore[misc]
            await asyncio.wait([main], timeout=chance.uniform(1, 20))
            fate = chance.random()
            if fate < 0.3 and machine.running and not self.stopping:
                machine.kill()
            else:
                if fate < 0.6 and machine.running and not self.stopping:
                    await self._sleep(machine, chance.uniform(*SLEEP_SECONDS))
                await asyncio.wait([main])
            await asyncio.sleep(chance.uniform(0.01, 2))

    @staticmethod
    async def _sleep(machine: SimulatedNode, seconds: float) -> None:
        """The group goes on without it, and then it wakes up and commits what it had polled."""
        machine.pause()
        await asyncio.sleep(seconds)
        machine.resume()

    async def _live(self, world: World, life: str, chance: random.Random) -> None:
        recorder = self.stage.recorder(life, read_committed=False)
        settings = {"group_id": self.group, "group_protocol": self.protocol, "max_poll_records": chance.choice((2, 10, 100))}
        if self.protocol == "classic":
            strategy = ("range", "cooperative-sticky") if self.stage.simulation.seed % 2 else ("cooperative-sticky",)  # type: ignore[operator]
            settings |= {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000, "partition_assignment_strategy": strategy}
        polls = chance.randrange(10, 80)
        try:
            async with self.consumer(world, **settings) as consumer:
                consumer.subscribe([self.topic], listener=_Watcher(self, recorder, consumer, life))
                while not self._done and (self.stopping or polls > 0):
                    polls -= 1
                    await self._poll(consumer, recorder, chance)
        except TROUBLE:
            await asyncio.sleep(chance.uniform(0.1, 1))

    async def _poll(self, consumer: Consumer, recorder: Recorder, chance: random.Random) -> None:
        records = await consumer.poll(500)
        note(recorder, records)
        self._polled.update((record.value or b"").decode() for record in records)
        if self.stopping or (records and chance.random() < 0.7):
            await consumer.commit(timeout_ms=2_000)

    def assigned(self, life: str, generation: int, owned: frozenset[TopicPartition]) -> None:
        """Classic generations are the group's own: whoever owns a partition in one owns it alone."""
        if self.protocol != "classic":
            return
        for partition in owned:
            owner = self._owners.setdefault((generation, partition), life)
            if owner != life:
                text = f"{partition} in generation {generation}: {owner} and {life}"
                raise Violation("a_partition_has_one_owner", text)

    def lost(self, life: str, partitions: frozenset[TopicPartition]) -> None:
        self._losses.append(
            (self.stage.simulation.loop.time(), f"{life} was told that it had lost {sorted(map(str, partitions))}")
        )

    # -- the end

    async def finish(self) -> None:
        assert self._producing is not None
        self.stopping = True
        healed = self.stage.simulation.loop.time()
        await self._producing
        await self.stage.machine(f"{self.name}-end").start(self._until_committed)
        settled = max(healed + SETTLED_SECONDS, self.stage.simulation.loop.time())
        await asyncio.sleep(settled + QUIET_SECONDS - self.stage.simulation.loop.time())
        if lost := [text for when, text in self._losses if when > settled]:
            raise Violation("a_live_member_stays", f"{self.group}: all was quiet, and {lost[0]}")
        self._done = True
        await all_of(self._members)

    async def _until_committed(self, world: World) -> None:
        partitions = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]

        async def attempt() -> None:
            async with self.admin(world) as admin:
                while True:
                    ends = await admin.latest_offsets(partitions)
                    offsets = await admin.group_offsets(self.group)
                    if all(not ends[each] or (each in offsets and offsets[each].offset >= ends[each]) for each in partitions):
                        return
                    await asyncio.sleep(0.5)

        await patiently(attempt)

    def judge(self) -> None:
        missing = self._acknowledged - self._polled
        if missing:
            raise Violation(
                "a_group_sees_everything", f"{self.group} has committed past {sorted(missing)[:5]}, which no member saw"
            )


class _Watcher(RebalanceListener):
    def __init__(self, group: _Group, recorder: Recorder, consumer: Consumer, life: str) -> None:
        self._group, self._recorder, self._consumer, self._life = group, recorder, consumer, life

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._recorder.reassigned()
        self._group.assigned(self._life, self._consumer.group_metadata().generation, self._consumer.assignment())

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self._recorder.reassigned()

    async def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._recorder.reassigned()
        self._group.lost(self._life, partitions)


class ClassicGroup(_Group):
    name: ClassVar[str] = "classic"
    protocol: ClassVar[str] = "classic"


class ConsumerGroup(_Group):
    name: ClassVar[str] = "consumer"
    protocol: ClassVar[str] = "consumer"
