"""Staying awake: after a reply the loop looks for the next request for a moment before it goes to sleep.

To wake a sleeping process takes longer than to serve a small request, so a client that waits for each reply before it sends
the next would mostly wait for us to wake. Looking costs processor time, therefore it is done only while it pays (`MAX_SCORE`),
and never while another thread wants this core: giving way then takes noticeably long, and the looking ends.

Who was answered last is mostly who asks next. So its connection is asked first what has come (`Look`), and the loop, which takes a few
microseconds to ask all of them and to hear of the one, afterwards: one request at most before everybody else's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import perf_counter

WINDOW_S = 100e-6  # how long to look for a next request
CONTENDED_S = 15e-6  # a pass of the loop that took longer, with nothing to do, ran somebody else
MAX_SCORE = 8  # so many misses in a row, and looking stops
PROBE_EVERY = 256  # replies without looking, until it is tried again
Look = Callable[[], bool]  # serves what has come over a connection already, if anything has: whether it did


class Attention:
    """`answered` is called with every reply sent; it keeps the loop awake for a moment if that has paid lately."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._looking = False
        self._score = MAX_SCORE
        self._unlooked = 0
        self._until = 0.0
        self._last = 0.0
        self._look_first: Look | None = None

    def answered(self, look_first: Look | None = None) -> None:
        """What was looked for has come, and more is expected, from there perhaps."""
        if self._looking and self._score < MAX_SCORE:
            self._score += 1
        self.expect(look_first)

    def expect(self, look_first: Look | None = None) -> None:
        """Something was sent to which an answer is expected, that of another than was answered last perhaps: this says nothing of
        whether looking pays."""
        if not self._looking:
            if self._score <= 0 and self._unlooked < PROBE_EVERY:
                self._unlooked += 1
                return
            self._looking = True
            self._unlooked = 0
            self._loop.call_soon(self._look)
        self._look_first = look_first
        self._last = perf_counter()
        self._until = self._last + WINDOW_S

    def _look(self) -> None:
        """Once in every pass of the loop, which meanwhile asks for events without waiting."""
        served = self._look_first is not None and self._look_first()
        if not served:
            os.sched_yield()
        now = perf_counter()
        if now < self._until and (served or now - self._last < CONTENDED_S):
            self._last = now
            self._loop.call_soon(self._look)
            return
        self._looking = False
        self._look_first = None
        self._score = max(0, self._score - 1)
