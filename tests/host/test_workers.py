"""Clock, randomness and workers of the real world."""

from __future__ import annotations

import os
import threading

import pytest

from ottla.host.clock import RealClock, RealRandomness
from ottla.host.workers import RealWorkers


def _where() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


def _fail() -> None:
    raise ValueError("from far away")


async def test_threads_and_processes_are_where_they_should_be() -> None:
    workers = RealWorkers()
    here = _where()
    thread, process = await workers.thread(_where), await workers.process(_where)
    assert thread[0] == here[0]
    assert thread[1] != here[1]
    assert process[0] != here[0]
    for run in (workers.thread, workers.process):
        with pytest.raises(ValueError, match="far away"):
            await run(_fail)
    workers.close()


def test_the_monotonic_clock_never_goes_back_and_chance_keeps_its_bounds() -> None:
    clock, chance = RealClock(), RealRandomness()
    moments = [clock.monotonic_ms() for _ in range(100)]
    assert moments == sorted(moments)
    assert clock.wall_ms() > 1_600_000_000_000
    assert {chance.below(3) for _ in range(200)} == {0, 1, 2}
    assert all(1.0 <= chance.uniform(1, 2) <= 2.0 for _ in range(100))
    assert len({chance.bytes(16) for _ in range(100)}) == 100
