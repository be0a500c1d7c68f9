"""Requests that wait for something to happen to a partition: nothing is polled.

A `Parked` request is watched by each partition it waits for. A partition that changes (appended, committed, lost its leader)
wakes its watchers; each looks once, however many partitions woke it, and either finishes or goes on waiting until its deadline.
They look at the end of the current turn of the loop (`Agenda`), or before, when whoever woke them has work left that can wait: the
followers of a record begin to copy it before its producer's request is put aside.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

log = logging.getLogger("ottla.purgatory")
T = TypeVar("T")
Deliver = Callable[[Any, Exception | None], None]


class Wakeable(Protocol):
    """What a partition wakes when something happens to it: a parked request, or a coordinator that lives in it."""

    def wake(self) -> None: ...


class Follows(Wakeable, Protocol):
    """A follower's session, as one partition sees it."""

    def mark(self) -> None:
        """Something is to be told of the partition, but not at once."""


class Agenda:
    """Who is to look before the current turn of the loop ends, in order."""

    __slots__ = ("_due", "_is_scheduled")

    def __init__(self) -> None:
        self._due: deque[Parked[Any]] = deque()
        self._is_scheduled = False

    def add(self, parked: Parked[Any]) -> None:
        self._due.append(parked)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn_ends)

    def _turn_ends(self) -> None:
        self._is_scheduled = False
        self.run()

    def run(self) -> None:
        """Look now. Whoever calls this has changed everything that it was about to change: an answer may start another request."""
        while self._due:
            try:
                self._due.popleft().look()
            except Exception:
                log.exception("a parked request failed")


class Watchers:
    """Those that one partition can wake. Followers stay for as long as their sessions, everybody else for as long as they wait."""

    __slots__ = ("_followers", "_parked", "agenda")

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self._parked: dict[Wakeable, None] = {}  # in order of arrival: fair, and the same order in every run of a seed
        self._followers: dict[Follows, None] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def add(self, parked: Wakeable) -> None:
        self._parked[parked] = None

    def discard(self, parked: Wakeable) -> None:
        self._parked.pop(parked, None)

    def follow(self, follower: Follows) -> None:
        self._followers[follower] = None

    def unfollow(self, follower: Follows) -> None:
        self._followers.pop(follower, None)

    def wake(self) -> None:
        for follower in self._followers:
            follower.wake()
        for parked in self._parked:
            parked.wake()

    def committed(self) -> None:
        """Only the high watermark has moved: followers hear of it with their next records, as in Kafka."""
        for parked in self._parked:
            parked.wake()
        for follower in self._followers:
            follower.mark()


class Parked(Generic[T]):
    """`attempt(final)` gives the result, or None to go on waiting; with `final` it must give one.

    The result is delivered once, in the turn of the loop in which it is found; `future` is for those who would rather await it.
    """

    __slots__ = ("_agenda", "_attempt", "_deadline", "_deliver", "_is_done", "_scheduled", "_watched")

    def __init__(self, attempt: Callable[[bool], T | None], timeout_ms: float, watched: Iterable[Watchers]) -> None:
        self._attempt = attempt
        self._deliver: Deliver | None = None
        self._is_done = self._scheduled = False
        self._watched = list(watched)
        for watchers in self._watched:
            watchers.add(self)
            self._agenda = watchers.agenda  # all partitions of a node share it
        self._deadline = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._look, True)

    def deliver_to(self, deliver: Deliver) -> None:
        """Called once with the result, or with None and what went wrong."""
        self._deliver = deliver

    @property
    def future(self) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def deliver(result: T, error: Exception | None) -> None:
            if future.done():  # cancelled a moment ago
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.deliver_to(deliver)
        future.add_done_callback(lambda _: self.leave())
        return future

    def wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._agenda.add(self)

    def look(self) -> None:
        self._look(False)

    def hurry(self) -> None:
        """The time is up before it is up: the result is what there is."""
        asyncio.get_running_loop().call_soon(self._look, True)

    def _look(self, final: bool) -> None:
        self._scheduled = False
        if self._is_done:
            return
        result, error = None, None
        try:
            result = self._attempt(final)
        except Exception as raised:
            error = raised
        if result is not None or error is not None:
            self.leave()
            if self._deliver is not None:
                self._deliver(result, error)

    def leave(self) -> None:
        """Wait no longer."""
        self._is_done = True
        self._deadline.cancel()
        for watchers in self._watched:
            watchers.discard(self)
        self._watched = []
