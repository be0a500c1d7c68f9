"""The real producer with small batches, several requests under way and deliveries that may time out; the real consumer; a topic that
grows meanwhile. What timed out is unknown: it may be in the log, once."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from ottla.client.admin import Admin
from ottla.host import World
from ottla.model.errors import ApiError, ErrorCode
from tests.histories import Recorder
from tests.simulation.workloads.stage import TROUBLE, Stage, Workload, all_of, note

TOPIC = "retries"
PACE_SECONDS = 0.05
MAX_PARTITIONS = 4


class Retries(Workload):
    name: ClassVar[str] = "retries"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.partitions = 2
        self._tasks: list[asyncio.Task[Any]] = []
        self._delivery_ms = self.chance.choice((2_000, 5_000, 60_000))
        self._numbers = 0

    async def prepare(self, admin: Admin) -> None:
        await admin.create_topic(TOPIC, self.partitions, self.stage.replication_factor)

    def start(self) -> None:
        self._tasks = [
            self.stage.machine("retrier").start(self._produce),
            self.stage.machine("follower").start(self._follow),
            self.stage.machine("grower").start(self._grow),
        ]

    async def finish(self) -> None:
        self.stopping = True
        await all_of(self._tasks)

    async def _produce(self, world: World) -> None:
        await self.lives(lambda number: self._live(world, number))

    async def _live(self, world: World, number: int) -> None:
        """One producer; a batch that is given up loses its place in the sequence, and the next one must still get in."""
        recorder = self.stage.recorder(f"retrier-{number}")
        producer = self.producer(
            world, batch_size=300, linger_ms=2, delivery_timeout_ms=self._delivery_ms, max_block_ms=5_000,
            request_timeout_ms=1_500, buffer_memory=20_000,
        )  # fmt: skip
        async with producer:
            for _ in range(self.chance.randrange(100, 600)):
                if self.stopping:
                    break
                await self._send(producer, recorder)
                await asyncio.sleep(self.chance.expovariate(1 / PACE_SECONDS))
            await producer.flush()

    async def _send(self, producer: Any, recorder: Recorder) -> None:
        self._numbers += 1
        value = f"retry {self._numbers}"
        partition = self.chance.randrange(self.partitions)
        send = recorder.sending(TOPIC, partition, value)

        def heard(metadata: Any, error: Exception | None) -> None:
            if error is None:
                recorder.sent(send, metadata.offset)

        await producer.send(TOPIC, value.encode(), partition=partition, on_delivery=heard)

    async def _follow(self, world: World) -> None:
        async def live(number: int) -> None:
            recorder = self.stage.recorder(f"follower-{number}", read_committed=False)
            known = self.partitions
            async with self.consumer(world, max_poll_records=self.chance.choice((3, 100))) as consumer:
                consumer.assign([(TOPIC, partition) for partition in range(known)])
                while not self.stopping and known == self.partitions:
                    note(recorder, await consumer.poll(500))

        await self.lives(live)

    async def _grow(self, world: World) -> None:
        while not self.stopping and self.partitions < MAX_PARTITIONS:
            await asyncio.sleep(self.chance.uniform(4, 16))
            try:
                async with self.admin(world) as admin:
                    await admin.create_partitions(TOPIC, self.partitions + 1)
            except ApiError as error:
                if error.code is not ErrorCode.INVALID_PARTITIONS:  # an attempt whose answer was lost had done it
                    continue
            except TROUBLE:
                continue
            self.partitions += 1
            self.stage.tell("growths", f"{TOPIC} has {self.partitions} partitions now")

    async def read(self, world: World) -> None:
        await self.read_to_the_end(world, self.stage.recorder("retries-at-the-end", read_committed=False), [TOPIC])
