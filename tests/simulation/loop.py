"""An asyncio event loop without a world: virtual time, and an order drawn from a seed.

Every callback belongs to a process (a simulated machine, or the test that drives them), found through a context variable that
asyncio itself hands from task to task. Within a process callbacks run first in, first out, as asyncio promises its users;
which process runs next is drawn. Time moves only when nobody can run, to the next timer, and by a few drawn microseconds for
each callback, so that equal delays do not always end in the same order.

A paused process keeps its callbacks for later. A dead one loses them, and whatever its leftovers schedule.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import inspect
import random
import traceback
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.simulation.journal import Journal

T = TypeVar("T")
MAX_EVENTS = 50_000_000  # a run that needs more is stuck
MAX_EVENTS_AT_ONCE = 200_000  # callbacks without a timer between them: somebody spins
MAX_ENDINGS = 20  # awaits in the `finally` blocks of one coroutine
CALLBACK_SECONDS = 20e-6  # a callback takes up to this long

_PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


class SimulationError(Exception):
    """The simulated code got stuck, or did what it may not do here."""


class Process:
    """A queue of callbacks with a name; one simulated machine's worth of concurrency."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.name = name
        self.loop = loop
        self.ready: deque[asyncio.Handle] = deque()
        self.paused = False
        self.dead = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Start a task inside this process."""
        return self.context.run(self.loop.create_task, coroutine, name=name)

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self.loop.call_soon(callback, *arguments, context=self.context)

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        return self.loop.call_later(delay, callback, *arguments, context=self.context)

    def die(self) -> None:
        self.dead = True
        self.ready.clear()


class SimulatedTask(asyncio.Task[Any]):
    """Hashed by a number, not by its address, so that sets of tasks have the same order in every run of a seed."""

    def __hash__(self) -> int:
        return self.number  # type: ignore[attr-defined, no-any-return]

    def __init__(self, coro: Any, *, loop: SimulatedLoop, name: str | None = None, context: Any = None) -> None:
        self.number = loop.next_number()
        super().__init__(coro, loop=loop, name=name, context=context)


class SimulatedFuture(asyncio.Future[Any]):
    def __hash__(self) -> int:
        return self.number  # type: ignore[attr-defined, no-any-return]

    def __init__(self, *, loop: SimulatedLoop) -> None:
        self.number = loop.next_number()
        super().__init__(loop=loop)


def current_process() -> Process:
    return _PROCESS.get()


class SimulatedLoop(asyncio.BaseEventLoop):
    def __init__(self, seed: int | str, journal: Journal | None = None) -> None:
        super().__init__()
        self.journal = journal or Journal()
        self.random = random.Random(f"loop {seed}")
        self.errors: list[str] = []
        self.watcher: Callable[[Process], None] | None = None  # called after each event with the process that took it
        self.broken: Exception | None = None  # a promise that somebody found broken; it ends the run
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._sequence = 0
        self._numbers = 0
        self._cancelled_timers = 0
        self._at_once = 0
        self._graveyard: list[Process] = []  # the dead are kept, so that garbage collection does not run their `finally` blocks
        self._processes: list[Process] = []
        self.outside = self.process("outside")
        self.set_exception_handler(_note_error)

    # -- processes

    def process(self, name: str) -> Process:
        process = Process(self, name)
        self._processes.append(process)
        return process

    def bury(self, process: Process) -> None:
        process.die()
        for task in process.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._processes.remove(process)
        self._graveyard.append(process)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a test's own coroutine to its end."""
        return self.run_until_complete(self.outside.spawn(coroutine))

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task = SimulatedTask(coro, loop=self, **options)
        process = _PROCESS.get(self.outside)
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
        return task

    def create_future(self) -> asyncio.Future[Any]:
        return SimulatedFuture(loop=self)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- time

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        handle = events.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon  # there is one thread

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, timer))
        timer._scheduled = True
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > 1000 and self._cancelled_timers * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2]._cancelled]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def _enqueue(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(_PROCESS, self.outside)
        if not process.dead:
            process.ready.append(handle)

    # -- the heart

    def _run_once(self) -> None:
        runnable = [process for process in self._processes if process.ready and not process.paused]
        if not runnable:
            self._advance()
            return
        process = runnable[0] if len(runnable) == 1 else runnable[int(self.random.random() * len(runnable))]
        handle = process.ready.popleft()
        if handle._cancelled:
            return
        self._now += self.random.random() * CALLBACK_SECONDS
        if self._timers and self._timers[0][0] <= self._now:
            self._release_timers()
        self._at_once += 1
        if self._at_once > MAX_EVENTS_AT_ONCE or self.journal.events > MAX_EVENTS:
            raise SimulationError(f"{process.name} spins without waiting: {handle!r}")
        self.journal.step(process.name, self._now)
        handle._run()
        if self.broken is not None:
            raise self.broken
        if self.watcher is not None:
            self.watcher(process)

    def _release_timers(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            if not timer._cancelled:
                self._enqueue(timer)

    def _advance(self) -> None:
        while self._timers and self._timers[0][2]._cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            raise SimulationError("deadlock: nobody can run and no timer is set\n" + "\n".join(self.waiting()))
        self._now = max(self._now, self._timers[0][0])
        self._at_once = 0
        self._release_timers()

    def waiting(self) -> list[str]:
        """Who waits for what, for people."""
        tasks = [(process.name, task) for process in self._processes for task in process.tasks if not task.done()]
        return [
            f"  {name}: {task.get_name()} {_where(task)}"
            for name, task in sorted(tasks, key=lambda pair: (pair[0], pair[1].get_name()))
        ]

    def close(self) -> None:
        """Whatever was under way is put away here, while there is a loop. If it were left to garbage collection, `finally` blocks
        would run without one, fail, and leave coroutines behind that nobody awaited."""
        events._set_running_loop(self)
        try:
            for process in (*self._graveyard, *self._processes):
                process.die()
                while process.tasks:  # what is put away may begin something new
                    task = process.tasks.pop()
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    process.context.run(_put_away, task.get_coro())
        finally:
            events._set_running_loop(None)
        super().close()
        self._graveyard.clear()
        self._processes.clear()
        self._timers.clear()

    # -- what there is not

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise SimulationError("threads have no place in the simulator: use the workers' door")

    async def create_connection(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        raise SimulationError("sockets have no place in the simulator: use the network's door")

    async def create_server(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        raise SimulationError("sockets have no place in the simulator: use the network's door")

    async def getaddrinfo(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        raise SimulationError("names are not looked up in the simulator")

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""


def _put_away(coroutine: object) -> None:
    """What had begun ends as if it were cancelled, from the innermost call outwards, however often it tries to go on; what had not
    begun is put away together with what it would have awaited."""
    calls = []
    while inspect.iscoroutine(coroutine):
        calls.append(coroutine)
        coroutine = coroutine.cr_await
    for call in reversed(calls):
        begun = inspect.getcoroutinestate(call) != inspect.CORO_CREATED
        awaited = [] if begun else list(call.cr_frame.f_locals.values())
        for _ in range(MAX_ENDINGS):
            try:
                call.close()
                break
            except Exception:
                continue
        for each in awaited:
            _put_away(each)


def _where(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    return f"at {frames[0].f_code.co_qualname}:{frames[0].f_lineno}" if frames else ""


def _note_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception that nobody caught is a finding, unless it comes out of a process that was killed.

    asyncio tells of a task's only when the task is collected, so the process of that moment may be another one.
    """
    assert isinstance(loop, SimulatedLoop)
    error = context.get("exception")
    if not _PROCESS.get(loop.outside).dead:
        where = "".join(traceback.format_exception(error)[-8:]) if error is not None else ""
        loop.errors.append(f"{loop.time():.6f} {context.get('message')}: {error!r}\n{where}")
        loop.journal.tell("uncaught exceptions", f"{_PROCESS.get(loop.outside).name}: {error!r}")
