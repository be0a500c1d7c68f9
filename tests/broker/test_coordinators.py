"""The shell around coordinating machines: its timers, and shards that load while clients already ask."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.broker import coordinators
from ottla.broker.coordinators import Timers
from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.errors import ErrorCode
from tests.compatibility.groups import plays
from tests.compatibility.groups.stage import Stage
from tests.compatibility.wire import Wire, address_of, wait_until


class Log:
    """Which timers went off, in order."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._enough = asyncio.Event()
        self._wanted = 0

    def __call__(self, key: str) -> None:
        self.keys.append(key)
        if len(self.keys) >= self._wanted:
            self._enough.set()

    async def first(self, count: int) -> list[str]:
        self._wanted = count
        if len(self.keys) < count:
            await asyncio.wait_for(self._enough.wait(), 10)
        return self.keys


async def test_a_timer_fires_once_at_its_last_setting() -> None:
    seen = Log()
    timers = Timers(seen)
    timers.set("later", 60)
    timers.set("moved back", 1)
    timers.set("moved back", 90)
    timers.set("moved forward", 10_000)
    timers.set("moved forward", 20)
    timers.set("cancelled", 5)
    timers.set("cancelled", None)
    assert await seen.first(3) == ["moved forward", "later", "moved back"]


async def test_a_timer_that_is_moved_back_needs_no_new_alarm() -> None:
    """Heartbeats do this all the time."""
    timers = Timers(lambda key: None)
    timers.set("session", 10_000)
    alarm = timers._armed["session"][1]
    for _ in range(100):
        timers.set("session", 10_000)
    assert timers._armed["session"][1] is alarm
    timers.cancel_all()
    assert alarm.cancelled()


async def test_a_timer_may_be_set_again_while_it_fires() -> None:
    seen = Log()

    def fire(key: str) -> None:
        seen(key)
        if len(seen.keys) < 3:
            timers.set(key, 1)

    timers = Timers(fire)
    timers.set("again", 1)
    assert await seen.first(3) == ["again"] * 3


def test_a_shard_that_loads_in_many_steps_answers_right_or_not_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "LOAD_BYTES", 1)  # one batch a step
    monkeypatch.setattr(coordinators, "LOAD_AT_ONCE_BYTES", 0)
    with EmbeddedCluster(1, directory=str(tmp_path)) as cluster:
        stage = Stage(address_of(cluster.bootstrap))
        for number in range(500):
            stage.quietly("ann", plays.commit(stage, offset=number), 9)
        stage.close()
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        seen: set[tuple[int, int]] = set()

        def answered() -> bool:
            with Wire(address_of(cluster.bootstrap)) as wire:
                found = wire.ask(plays.fetch(stage, 0), 9).groups[0]
            offset = found.topics[0].partitions[0].committed_offset if found.topics else -1
            seen.add((found.error_code, offset))
            return bool(found.error_code == ErrorCode.NONE)

        wait_until("an answer", answered)
        assert (ErrorCode.NONE, 499) in seen
        assert seen <= {(ErrorCode.NONE, 499), (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1), (ErrorCode.NOT_COORDINATOR, -1)}
