"""Keys that are written again and again, and deleted, while the cleaner runs: the last word on every key must stay."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from ottla.client.admin import Admin
from ottla.host import World
from ottla.model.ids import TopicPartition
from tests.simulation.checks import Violation
from tests.simulation.workloads.stage import Stage, Workload, all_of, patiently

TOPIC = "states"
KEYS = 20
PACE_SECONDS = 0.03
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
}


class Compacted(Workload):
    name: ClassVar[str] = "compacted"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._tasks: list[asyncio.Task[Any]] = []
        self._at: dict[int, tuple[bytes, bytes | None]] = {}  # offset → what was acknowledged there
        self._last: dict[bytes, tuple[int, bytes | None]] = {}  # key → where and what was written last
        self._seen: list[list[tuple[int, bytes, bytes | None]]] = []
        self.final: dict[bytes, tuple[int, bytes | None]] = {}

    async def prepare(self, admin: Admin) -> None:
        await admin.create_topic(TOPIC, 1, self.stage.replication_factor, configs=CONFIGS)

    def start(self) -> None:
        self._tasks = [
            self.stage.machine("keeper").start(self._produce),
            self.stage.machine("table").start(self._read_again_and_again),
        ]

    async def finish(self) -> None:
        self.stopping = True
        await all_of(self._tasks)

    async def _produce(self, world: World) -> None:
        producer = self.producer(world, batch_size=300, delivery_timeout_ms=600_000, max_block_ms=600_000)
        await patiently(producer.start)
        number = 0
        while not self.stopping:
            key = b"key %d" % self.chance.randrange(KEYS)
            value = None if self.chance.random() < 0.1 else b"state %d" % number
            number += 1

            def heard(metadata: Any, error: Exception | None, key: bytes = key, value: bytes | None = value) -> None:
                assert error is None, error
                self._at[metadata.offset] = key, value
                self._last[key] = metadata.offset, value

            await producer.send(TOPIC, value, key=key, partition=0, on_delivery=heard)
            await asyncio.sleep(self.chance.expovariate(1 / PACE_SECONDS))
        await producer.flush()
        await producer.close()

    async def _read_again_and_again(self, world: World) -> None:
        """A table is read from its start to where its leader says it ends; what was the last word up to there must be in it, or be
        overruled. A leader that is cut off from the others may not know of the newest words, and nobody promises that it does."""

        async def live(_: int) -> None:
            known = dict(self._last)
            table, end = await self._table(world)
            for key, (offset, value) in known.items():
                found = table.get(key)
                if offset >= end:
                    continue
                if (found is None and value is not None) or (found is not None and found[0] < offset):
                    raise Violation(
                        "the_last_word_stays", f"{key!r}: {value!r} at {offset} was acknowledged, a reader found {found}"
                    )
            await asyncio.sleep(self.chance.uniform(1, 5))

        await self.lives(live)

    async def _table(self, world: World) -> tuple[dict[bytes, tuple[int, bytes | None]], int]:
        table: dict[bytes, tuple[int, bytes | None]] = {}
        seen: list[tuple[int, bytes, bytes | None]] = []
        self._seen.append(seen)
        place = TopicPartition(TOPIC, 0)
        async with self.consumer(world) as consumer:
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            while await consumer.position(place) < end:
                for record in await consumer.poll(500):
                    seen.append((record.offset, record.key or b"", record.value))
                    table[record.key or b""] = record.offset, record.value
        return table, end

    async def read(self, world: World) -> None:
        self.final, _ = await self._table(world)

    def judge(self) -> None:
        for key, (offset, value) in self._last.items():
            found = self.final.get(key)
            if found != (offset, value) and not (value is None and found is None):
                raise Violation("the_last_word_stays", f"{key!r}: {value!r} at {offset} was the last word; there is {found}")
        for seen in self._seen:
            offsets = [offset for offset, _, _ in seen]
            if offsets != sorted(set(offsets)):
                raise Violation("reading_is_monotonic_without_skips", f"{TOPIC}: {offsets[:20]}")
            for offset, key, value in seen:
                if self._at.get(offset, (key, value)) != (key, value):
                    raise Violation(
                        "readers_agree_with_the_log", f"{TOPIC} offset {offset}: {value!r} was read, {self._at[offset]} sent"
                    )
