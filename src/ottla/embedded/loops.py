"""An event loop on a thread of its own: where a node of this process lives.

A loop of its own is what makes a node stoppable, like a process: `freeze` blocks it, timers and all, until `thaw`. Calls from
other threads come in by `call`, with a limit on how long they may take.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")
FREEZE_LIMIT_S = 600.0  # a test that forgets to thaw ends all the same
JOIN_LIMIT_S = 10.0
CANCEL_ROUNDS = 10


def new_loop() -> asyncio.AbstractEventLoop:
    """The fast loop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    def __init__(self, name: str) -> None:
        self.loop = new_loop()
        self._thawed = threading.Event()
        self._thawed.set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Coroutine[Any, Any, Result], limit_s: float) -> Result:
        """Run on the loop and wait for the result. Raises TimeoutError after the limit, and the work is cancelled."""
        future: Future[Result] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(limit_s)
        except TimeoutError:
            future.cancel()
            raise

    def soon(self, action: Callable[..., object], *arguments: object) -> None:
        self.loop.call_soon_threadsafe(action, *arguments)

    @property
    def is_frozen(self) -> bool:
        return not self._thawed.is_set()

    def freeze(self) -> None:
        """Returns once nothing runs on the loop any more."""
        if self.is_frozen:
            return
        self._thawed.clear()
        reached = threading.Event()

        def hold() -> None:
            reached.set()
            self._thawed.wait(FREEZE_LIMIT_S)

        self.soon(hold)
        reached.wait(JOIN_LIMIT_S)

    def thaw(self) -> None:
        self._thawed.set()

    def close(self) -> None:
        """Cancel what is left and end the thread."""
        self.thaw()
        if self.loop.is_closed():
            return

        async def cancel_all() -> None:
            # What was under way when a node is taken away has nobody left to tell.
            self.loop.set_exception_handler(lambda *_: None)
            for _ in range(CANCEL_ROUNDS):  # a task that is cancelled may start another
                others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
                if not others:
                    break
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0)  # transports that were closed call connection_lost now

        try:
            self.call(cancel_all(), JOIN_LIMIT_S)
        finally:
            self.soon(self.loop.stop)
            self._thread.join(JOIN_LIMIT_S)
            if not self._thread.is_alive():
                self.loop.close()
