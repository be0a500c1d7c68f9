"""One simulated machine: its doors, and what may happen to it."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.host import World
from tests.simulation.checks import Violation
from tests.simulation.disk import SimulatedDisk
from tests.simulation.doors import SimulatedClock, SimulatedRandomness, SimulatedWorkers
from tests.simulation.journal import Journal
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import Internet, SimulatedNetwork

Main = Callable[[World], Awaitable[Any]]


class SimulatedNode:
    """A machine with a name (its host name too), a disk that stays, and a process that comes and goes.

    | from | event | to |
    |---|---|---|
    | off | start | running |
    | running | kill, cut_power, or its main function ends | off |
    | running | pause | paused (time passes it by, its connections stay) |
    | paused | resume | running |
    | paused | kill, cut_power | off |
    """

    def __init__(self, loop: SimulatedLoop, internet: Internet, name: str, seed: int | str) -> None:
        self.name = name
        self.loop = loop
        self._seed = f"{name} {seed}"
        self._starts = 0
        self.clock = SimulatedClock(loop)
        self.network = SimulatedNetwork(internet, name)
        self.disk = SimulatedDisk(name, f"disk {self._seed}", loop.journal, self.clock.wall_ms)
        self.workers: SimulatedWorkers | None = None
        self.process: Process | None = None
        self.main: asyncio.Task[Any] | None = None
        self.crashes: list[str] = []  # exceptions that ended its main function

    @property
    def journal(self) -> Journal:
        return self.loop.journal

    @property
    def running(self) -> bool:
        return self.process is not None

    def start(self, main: Main) -> asyncio.Task[Any]:
        """Run `main` with fresh doors over the old disk."""
        assert self.process is None, f"{self.name} runs already"
        self._starts += 1
        self.process = self.loop.process(self.name)
        self.network.process = self.process
        self.network.internet.machine_up(self.name)
        self.workers = SimulatedWorkers(self.loop, f"workers {self._seed} {self._starts}")
        randomness = SimulatedRandomness(f"random {self._seed} {self._starts}")
        world = World(self.clock, randomness, self.network, self.disk, self.workers)
        self.journal.tell("starts", f"{self.name} starts")
        self.main = self.process.spawn(self._run(main, world), f"{self.name} main")
        return self.main

    async def _run(self, main: Main, world: World) -> Any:
        process = self.process
        try:
            return await main(world)
        except Violation as found:
            self.loop.broken = found
            raise
        except Exception as error:
            if process is not None and not process.dead:
                self.crashes.append(f"{self.name} crashed: {error!r}\n{traceback.format_exc()}")
                self.journal.tell("crashes", f"{self.name} crashed: {error!r}")
            raise
        finally:
            if process is not None and not process.dead:
                self.loop.outside.call_soon(self._ended, process)

    def _ended(self, process: Process) -> None:
        if self.process is process:
            self.journal.tell("ends", f"{self.name} ended by itself")
            self._bury(quietly=False)

    def kill(self) -> None:
        """kill -9: what it wrote is in the page cache and stays; its peers see resets."""
        self.journal.tell("kills", f"{self.name} is killed")
        self._bury(quietly=False)

    def cut_power(self) -> None:
        """What was not synced may be lost; nobody is told."""
        self.journal.tell("power cuts", f"{self.name} loses power")
        self._bury(quietly=True)
        self.network.internet.up.discard(self.name)
        self.disk.cut_power()

    def _bury(self, *, quietly: bool) -> None:
        assert self.process is not None, f"{self.name} is off"
        process, self.process = self.process, None
        self.disk.read_flips = self.disk.sync_errors = 0
        self.network.drop_everything(quietly=quietly)
        self.network.process = None
        self.disk.end_era()
        self.loop.bury(process)

    def pause(self) -> None:
        assert self.process is not None
        self.journal.tell("pauses", f"{self.name} is paused")
        self.process.paused = True

    def resume(self) -> None:
        if self.process is not None and self.process.paused:
            self.journal.tell("resumes", f"{self.name} goes on")
            self.process.paused = False
