"""Somebody who never leaves the cluster alone: topics come, go and come back under their old names, replicas and leaders move,
settings change. A topic that is created again must be empty, whatever was in the one before."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from ottla.client.admin import Admin
from ottla.host import World
from ottla.model.errors import ApiError, ErrorCode
from tests.simulation.checks import Violation
from tests.simulation.workloads.stage import TROUBLE, Stage, Workload, patiently

NAMES = 2
RECORDS = 10
SETTINGS: tuple[dict[str, str | None], ...] = (
    {"segment.ms": "1000"},
    {"segment.ms": None},
    {"min.insync.replicas": "2"},
    {"min.insync.replicas": None},
    {"max.message.bytes": "500000"},
    {"flush.messages": "1"},
    {"flush.messages": None},
    {"compression.type": "zstd"},
    {"compression.type": None},
)


class Administration(Workload):
    name: ClassVar[str] = "administration"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._task: asyncio.Task[Any] | None = None
        self._incarnations = dict.fromkeys((f"fleeting-{number}" for number in range(NAMES)), 0)
        self._lives: dict[str, bool] = dict.fromkeys(self._incarnations, False)

    def start(self) -> None:
        self._task = self.stage.machine("administrator").start(self._main)

    async def finish(self) -> None:
        assert self._task is not None
        self.stopping = True
        await self._task

    async def _main(self, world: World) -> None:
        deeds = [self._come_or_go, self._come_or_go, self._move_replicas, self._move_leaders, self._change_settings]
        while not self.stopping:
            await asyncio.sleep(self.chance.expovariate(1 / 1.5))
            deed = self.chance.choice(deeds)
            try:
                async with self.admin(world) as admin:
                    await deed(world, admin)
            except TROUBLE:
                continue

    # -- topics that come and go

    async def _come_or_go(self, world: World, admin: Admin) -> None:
        topic = self.chance.choice(sorted(self._incarnations))
        if self._lives[topic]:
            await self._delete(topic, admin)
        else:
            await self._create(world, topic, admin)

    async def _create(self, world: World, topic: str, admin: Admin) -> None:
        self._incarnations[topic] += 1
        self._lives[topic] = True  # perhaps: if the answer is lost, deleting it finds out

        async def attempt() -> None:
            try:
                await admin.create_topic(topic, self.chance.randrange(1, 3), self.stage.replication_factor)
            except ApiError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise

        await patiently(attempt)
        self.stage.tell("topics created", f"{topic} is created for the {self._incarnations[topic]}. time")
        await self._use(world, topic)

    async def _use(self, world: World, topic: str) -> None:
        """Write to it and read it: nothing of an earlier topic of this name may be there."""
        mine = {f"{topic} {self._incarnations[topic]} {number}".encode() for number in range(RECORDS)}
        async with self.producer(world, delivery_timeout_ms=8_000, max_block_ms=8_000) as producer:
            for value in sorted(mine):
                await producer.send(topic, value, partition=0)
            await producer.flush()
        async with self.consumer(world) as consumer:
            consumer.assign([(topic, 0)])
            for record in await consumer.poll(2_000):
                if record.value not in mine:
                    raise Violation(
                        "a_new_topic_is_empty", f"{topic} for the {self._incarnations[topic]}. time: {record.value!r}"
                    )

    async def _delete(self, topic: str, admin: Admin) -> None:
        async def attempt() -> None:
            try:
                await admin.delete_topic(topic)
            except ApiError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise

        await patiently(attempt)
        self._lives[topic] = False
        self.stage.tell("topics deleted", f"{topic} is deleted")

    # -- what happens to the topics of the others

    async def _somewhere(self, admin: Admin) -> tuple[str, int]:
        """A partition of any topic, internal ones too."""
        topics = await admin.describe_topics(sorted(await admin.list_topics(internal=True)))
        places = [(name, row.partition) for name, topic in sorted(topics.items()) for row in topic.partitions]
        return self.chance.choice(places)

    async def _move_replicas(self, world: World, admin: Admin) -> None:
        """To two or three brokers in another order; never to one, whose loss of power would be a loss of records."""
        brokers = [broker.node_id for broker in self.stage.cluster.brokers]
        if len(brokers) < 2:
            return
        place = await self._somewhere(admin)
        count = 2 if self.chance.random() < 0.5 else min(3, len(brokers))
        target = self.chance.sample(brokers, count)
        self.stage.tell("reassignments", f"{place[0]}-{place[1]} is to move to {target}")
        await admin.alter_partition_reassignments({place: target})

    async def _move_leaders(self, world: World, admin: Admin) -> None:
        self.stage.tell("preferred elections", "preferred leaders are asked for")
        await admin.elect_leaders()

    async def _change_settings(self, world: World, admin: Admin) -> None:
        names = [name for name in sorted(await admin.list_topics()) if name != "states"]
        topic, configs = self.chance.choice(names), self.chance.choice(SETTINGS)
        self.stage.tell("config changes", f"{topic}: {configs}")
        await admin.set_topic_configs(topic, configs)
