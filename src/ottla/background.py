"""One loop in a thread of its own, for those who are not asyncio: `ottla.sync` and Spark's workers. On uvloop where it exists."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def background_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            loop = _loop = _new_loop()
            threading.Thread(target=loop.run_forever, name="ottla", daemon=True).start()
            atexit.register(loop.call_soon_threadsafe, loop.stop)
        return _loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait. Ctrl-C, or any other exception here, cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, background_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
