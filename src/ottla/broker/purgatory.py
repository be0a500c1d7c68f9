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
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

log = logging.getLogger("ottla.purgatory")
MOST_LEFT = 64  # who have left, in the heap of deadlines, besides as many as wait
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
    """Who is to look before the current turn of the loop ends, in order; and whose time is up when (`deadlines`).

    Whoever is about to wake others, and will then run the agenda itself, attends to it meanwhile: the loop need not be asked to.
    """

    __slots__ = ("_due", "_is_attended", "_is_scheduled", "deadlines")

    def __init__(self) -> None:
        self._due: deque[Parked[Any]] = deque()
        self._is_scheduled = self._is_attended = False
        self.deadlines = Deadlines()

    def add(self, parked: Parked[Any]) -> None:
        self._due.append(parked)
        if not self._is_scheduled and not self._is_attended:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._turn_ends)

    def _turn_ends(self) -> None:
        self._is_scheduled = False
        self.run()

    def attend(self) -> None:
        """Until `leave`, which must follow whatever happens."""
        self._is_attended = True

    def leave(self) -> None:
        self._is_attended = False
        if self._due and not self._is_scheduled:
            self._schedule()

    def run(self) -> None:
        """Look now. Whoever calls this has changed everything that it was about to change: an answer may start another request."""
        while self._due:
            try:
                self._due.popleft().look()
            except Exception:
                log.exception("a parked request failed")


class Deadlines:
    """When the time of parked requests is up. Nearly all are answered long before: so one timer serves them all, which ends when the
    first of them might, and who leaves is only struck off; the heap is made anew when most in it have left."""

    __slots__ = ("_added", "_due", "_heap", "_loop", "_timer", "_until")

    def __init__(self) -> None:
        self._until: dict[Parked[Any], float] = {}  # of those who wait
        self._heap: list[tuple[float, int, Parked[Any]]] = []  # with those who have left, and in the order of their coming
        self._added = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when the timer ends

    def add(self, parked: Parked[Any], timeout_ms: float) -> None:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        self._until[parked] = until = loop.time() + timeout_ms / 1000
        self._added += 1
        heappush(self._heap, (until, self._added, parked))
        if len(self._heap) > MOST_LEFT + 2 * len(self._until):
            self._heap = [entry for entry in self._heap if self._until.get(entry[2]) == entry[0]]
            heapify(self._heap)
        if self._timer is None or until < self._due:
            self._arm(loop, until)

    def discard(self, parked: Parked[Any]) -> None:
        self._until.pop(parked, None)

    def _arm(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = until
        self._timer = loop.call_at(until, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while self._heap and (self._heap[0][0] <= now or self._until.get(self._heap[0][2]) != self._heap[0][0]):
            until, _, parked = heappop(self._heap)
            if self._until.get(parked) == until:
                self.discard(parked)
                self._expire(parked)
        if self._heap and (self._timer is None or self._heap[0][0] < self._due):
            self._arm(loop, self._heap[0][0])

    def _expire(self, parked: Parked[Any]) -> None:
        try:
            parked.expire()
        except Exception:
            log.exception("a parked request failed")


class Watchers:
    """Those that one partition can wake. Followers stay for as long as their sessions, everybody else for as long as they wait."""

    __slots__ = ("_followers", "_parked")

    def __init__(self) -> None:
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

    __slots__ = ("_agenda", "_attempt", "_deliver", "_is_done", "_scheduled", "_watched")

    def __init__(
        self, agenda: Agenda, attempt: Callable[[bool], T | None], timeout_ms: float, watched: Iterable[Watchers]
    ) -> None:
        self._agenda = agenda
        self._attempt = attempt
        self._deliver: Deliver | None = None
        self._is_done = self._scheduled = False
        self._watched = list(watched)
        for watchers in self._watched:
            watchers.add(self)
        agenda.deadlines.add(self, timeout_ms)

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

    def expire(self) -> None:
        """The time is up: the result is what there is."""
        self._look(True)

    def hurry(self) -> None:
        """The same before it is up."""
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
        self._agenda.deadlines.discard(self)
        for watchers in self._watched:
            watchers.discard(self)
        self._watched = []
