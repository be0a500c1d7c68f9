"""The loop: virtual time, order within a process, drawn order among processes, the dead and the paused."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import Coroutine

import pytest

from tests.simulation.loop import SimulatedLoop, SimulationError


def test_hours_pass_in_no_time_and_timers_fire_in_order() -> None:
    loop = SimulatedLoop(1)
    fired: list[float] = []

    async def main() -> None:
        for seconds in (3600.0, 5.0, 86400.0):
            loop.call_later(seconds, fired.append, seconds)
        async with asyncio.timeout(100_000):
            await asyncio.sleep(90_000)

    started = time.monotonic()
    loop.run(main())
    assert fired == [5.0, 3600.0, 86400.0]
    assert 90_000 <= loop.time() < 90_001
    assert time.monotonic() - started < 60
    loop.close()


def interleaving(seed: int) -> list[str]:
    loop = SimulatedLoop(seed)
    seen: list[str] = []

    async def worker(name: str) -> None:
        for step in range(5):
            seen.append(f"{name}{step}")
            await asyncio.sleep(0)

    tasks = [loop.process(name).spawn(worker(name)) for name in "abc"]

    async def main() -> None:
        await asyncio.wait(tasks)

    loop.run(main())
    loop.close()
    return seen


def test_each_process_keeps_its_order_while_their_interleaving_is_drawn() -> None:
    runs = [interleaving(seed) for seed in range(20)]
    for seen in runs:
        for name in "abc":
            assert [step for step in seen if step[0] == name] == [f"{name}{step}" for step in range(5)]
    assert len({tuple(seen) for seen in runs}) > 10
    assert interleaving(7) == interleaving(7)


def test_a_deadlock_is_told_with_who_waits() -> None:
    loop = SimulatedLoop(1)

    async def wait_for_ever() -> None:
        await loop.create_future()

    with pytest.raises(SimulationError, match=r"deadlock(.|\n)*wait_for_ever"):
        loop.run(wait_for_ever())
    loop.close()


def test_a_spinning_process_is_told() -> None:
    loop = SimulatedLoop(1)

    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(SimulationError, match="spins"):
        loop.run(spin())
    loop.close()


def test_a_paused_process_goes_on_later_and_a_dead_one_never() -> None:
    loop = SimulatedLoop(1)
    beats: list[tuple[str, float]] = []

    async def beat(name: str) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                beats.append((name, loop.time()))
        finally:
            beats.append((name, -1.0))

    paused, dead = loop.process("paused"), loop.process("dead")
    paused.spawn(beat("paused"))
    dead.spawn(beat("dead"))

    async def main() -> None:
        await asyncio.sleep(2.5)
        paused.paused = True
        loop.bury(dead)
        await asyncio.sleep(10)
        paused.paused = False
        await asyncio.sleep(2)

    loop.run(main())
    assert [int(when) for name, when in beats if name == "paused"] == [1, 2, 12, 13]
    assert [int(when) for name, when in beats if name == "dead"] == [1, 2]
    loop.close()


def test_the_real_world_is_out_of_reach() -> None:
    loop = SimulatedLoop(1)

    async def main() -> None:
        with pytest.raises(SimulationError):
            await asyncio.to_thread(time.time)
        with pytest.raises(SimulationError):
            await asyncio.open_connection("localhost", 1)

    loop.run(main())
    loop.close()


def test_what_a_machine_was_about_to_begin_when_it_died_leaves_no_warning() -> None:
    """asyncio warns of coroutines that nobody awaited; here death did that, not forgetfulness."""

    async def patiently(inner: Coroutine[None, None, None]) -> None:
        await inner

    async def work() -> None:
        await asyncio.sleep(1)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loop = SimulatedLoop("warnings")
        machine = loop.process("machine")
        machine.spawn(patiently(work()))
        loop.bury(machine)
        loop.close()
        del loop, machine
        gc.collect()
    assert [str(each.message) for each in told] == []
