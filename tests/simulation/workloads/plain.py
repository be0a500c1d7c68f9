"""Idempotent producers with acks=all, as plain as can be, and a reader for each partition. Everything that was begun is acknowledged."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from ottla.client.admin import Admin
from ottla.host import World
from ottla.model.ids import TopicPartition
from tests.simulation.clients import PlainProducer, PlainReader
from tests.simulation.workloads.stage import Stage, Workload, all_of

TOPIC = "orders"
MIN_RECORDS = 2_400  # of all producers together


class Plain(Workload):
    name: ClassVar[str] = "plain"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.partitions = self.chance.randrange(1, 4)
        self.producers = self.chance.randrange(1, 3)
        self._running: list[PlainProducer | PlainReader] = []
        self._writing: list[asyncio.Task[Any]] = []
        self._reading: list[asyncio.Task[Any]] = []

    async def prepare(self, admin: Admin) -> None:
        await admin.create_topic(TOPIC, self.partitions, self.stage.replication_factor)

    def start(self) -> None:
        for partition in range(self.partitions):
            self._reading.append(self._reader(TopicPartition(TOPIC, partition)))
        for number in range(self.producers):
            self._writing.append(self._producer(f"p{number}"))

    def _producer(self, name: str) -> asyncio.Task[Any]:
        async def main(world: World) -> None:
            stage = self.stage
            producer = PlainProducer(name, world, stage.cluster.bootstrap, stage.history, f"{name} {stage.simulation.seed}")
            self._running.append(producer)
            producer.stopping = self.stopping
            await producer.run(TOPIC, self.partitions, MIN_RECORDS // self.producers)

        return self.stage.machine(name).start(main)

    def _reader(self, topic_partition: TopicPartition) -> asyncio.Task[Any]:
        name = f"r{topic_partition.partition}"

        async def main(world: World) -> None:
            reader = PlainReader(name, world, self.stage.cluster.bootstrap, self.stage.history)
            self._running.append(reader)
            await reader.follow(topic_partition)

        return self.stage.machine(name).start(main)

    async def finish(self) -> None:
        self._stop(PlainProducer)
        await all_of(self._writing)
        self._stop(PlainReader)
        await all_of(self._reading)

    def _stop(self, kind: type) -> None:
        for client in self._running:
            if isinstance(client, kind):
                client.stopping = True

    async def read(self, world: World) -> None:
        reader = PlainReader("end", world, self.stage.cluster.bootstrap, self.stage.history)
        for partition in range(self.partitions):
            topic_partition = TopicPartition(TOPIC, partition)
            self.stage.history.final[topic_partition] = await reader.everything(topic_partition)
