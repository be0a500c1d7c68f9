"""The twins of clock, randomness and workers."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Callable
from typing import Any, TypeVar

from tests.simulation.loop import SimulatedLoop

T = TypeVar("T")
EPOCH_MS = 1_700_000_000_000  # the moment at which every run begins


class SimulatedClock:
    """A wall clock with an offset and a drift of its own. The monotonic clock drifts too, but never jumps."""

    def __init__(self, loop: SimulatedLoop, offset_ms: int = 0, drift: float = 0.0) -> None:
        self._loop = loop
        self._drift = drift
        self.offset_ms = offset_ms

    def wall_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + int(self._loop.time() * 1000 * (1 + self._drift))

    def monotonic_ms(self) -> float:
        return self._loop.time() * 1000 * (1 + self._drift)

    def skew(self, offset_ms: int, drift: float) -> None:
        """Before the machine first starts."""
        self.offset_ms, self._drift = offset_ms, drift

    def jump(self, by_ms: int) -> None:
        self.offset_ms += by_ms


class SimulatedRandomness:
    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)


class SimulatedWorkers:
    """Work takes virtual time and happens at its start or at its end, whichever is drawn.

    Both can be so in the real world: a sync covers what was written before it began, and may cover what came while it ran.
    """

    def __init__(self, loop: SimulatedLoop, seed: str) -> None:
        self._loop = loop
        self._random = random.Random(seed)
        self.slowness = 1.0
        self._closed = False

    async def thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self._run(self._random.expovariate(1 / 0.002), function, arguments)

    async def process(self, function: Callable[..., T], *arguments: Any) -> T:
        pickle.dumps((function, arguments))  # what does not pickle here would not in the real world
        return await self._run(self._random.expovariate(1 / 0.02), function, arguments)

    async def _run(self, seconds: float, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        if self._closed:
            raise RuntimeError("the workers have been closed")
        if self._random.random() < 0.5:
            await asyncio.sleep(seconds * self.slowness)
            return function(*arguments)
        result, error = None, None
        try:
            result = function(*arguments)
        except Exception as caught:
            error = caught
        await asyncio.sleep(seconds * self.slowness)
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def close(self) -> None:
        self._closed = True
