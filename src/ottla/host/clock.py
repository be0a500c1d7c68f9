"""Time and chance.

Timers are the event loop's own (`loop.call_later`): the simulator replaces the loop, so they need no door. What the loop
cannot give is the wall clock, which goes into records, and randomness.
"""

from __future__ import annotations

import random
import secrets
import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump."""

    def monotonic_ms(self) -> float:
        """Milliseconds since some moment; never goes back."""


class Randomness(Protocol):
    def uniform(self, low: float, high: float) -> float: ...

    def below(self, limit: int) -> int:
        """A whole number from 0 to limit - 1."""

    def bytes(self, size: int) -> bytes:
        """Unguessable in the real world; from the seed in the simulated one."""


class RealClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1_000_000


class RealRandomness:
    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def below(self, limit: int) -> int:
        return random.randrange(limit)

    def bytes(self, size: int) -> bytes:
        return secrets.token_bytes(size)
