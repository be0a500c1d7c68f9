"""Requests that wait for something to happen to a partition: nothing is polled.

A `Parked` request is watched by each partition it waits for. A partition that changes (appended, committed, lost its leader)
wakes its watchers; each looks once at the end of the current turn of the loop, however many partitions woke it, and either
finishes or goes on waiting until its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Wakeable(Protocol):
    """What a partition wakes when something happens to it: a parked request, or a coordinator that lives in it."""

    def wake(self) -> None: ...


class Watchers:
    """Those that one partition can wake."""

    __slots__ = ("_parked",)

    def __init__(self) -> None:
        self._parked: dict[Wakeable, None] = {}  # in order of arrival: fair, and the same order in every run of a seed

    def __len__(self) -> int:
        return len(self._parked)

    def add(self, parked: Wakeable) -> None:
        self._parked[parked] = None

    def discard(self, parked: Wakeable) -> None:
        self._parked.pop(parked, None)

    def wake(self) -> None:
        for parked in self._parked:
            parked.wake()


class Parked(Generic[T]):
    """`attempt(final)` gives the result, or None to go on waiting; with `final` it must give one."""

    __slots__ = ("_attempt", "_deadline", "_scheduled", "_watched", "future")

    def __init__(self, attempt: Callable[[bool], T | None], timeout_ms: float, watched: Iterable[Watchers]) -> None:
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = loop.create_future()
        self._attempt = attempt
        self._scheduled = False
        self._watched = list(watched)
        for watchers in self._watched:
            watchers.add(self)
        self._deadline = loop.call_later(timeout_ms / 1000, self._look, True)
        self.future.add_done_callback(self._leave)

    def wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._look, False)

    def _look(self, final: bool) -> None:
        self._scheduled = False
        if self.future.done():
            return
        try:
            result = self._attempt(final)
        except Exception as error:
            self.future.set_exception(error)
            return
        if result is not None:
            self.future.set_result(result)
            self._leave(self.future)

    def _leave(self, _: asyncio.Future[T]) -> None:
        self._deadline.cancel()
        for watchers in self._watched:
            watchers.discard(self)
        self._watched = []
