"""A worker process of Spark's is made ready for much data and many small tasks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable
from typing import Any

_DAEMON = "pyspark.daemon"
# Names and numbers of glibc's mallopt.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 128 << 20  # of free memory that is not given back to the system
LARGE_BYTES = 32 << 20  # an allocation from this size on has pages of its own
SETTLINGS = 3  # a worker's first task loads what it needs; but each freezing keeps for ever what it finds
_settlings = 0


def _daemon() -> Any:
    """The module that runs this process, if Spark's daemon has forked it."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return main if spec is not None and spec.name == _DAEMON else None


def _part_quietly() -> None:
    """In every worker that comes to know of us. Spark ends one that was idle for a minute by closing its end; over a unix socket the
    worker's farewell then fails, and the daemon would print a stack trace of it."""
    daemon = _daemon()
    worker = getattr(daemon, "worker", None)  # its own function, which another release may call otherwise
    if worker is not None:
        daemon.worker = _ending_quietly(worker)  # looked up anew for every task


def _ending_quietly(worker: Callable[..., int]) -> Callable[..., int]:
    def work(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except BrokenPipeError:
            os._exit(0)  # as the daemon ends its workers: what it had before the fork is not this process's to clean up

    return work


def settle() -> None:
    """At the beginning of every task and question; what it does it does at the first ones.

    Spark's daemon has a worker collect garbage after each. Looking through the modules takes 30 ms, a read of a topic has some eight of
    those and a micro-batch ten; modules stay as long as the process, so there is nothing to find. And what fetches are received
    into is allocated and freed again some megabytes at a time: glibc would give the pages back, and the kernel clear new ones, each
    time, which is a fifth of a reader's processor time.
    """
    global _settlings
    if _settlings == SETTLINGS or _daemon() is None:
        return
    _settlings += 1
    gc.freeze()
    if _settlings == 1:
        _keep_freed_memory()


def _keep_freed_memory() -> None:
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such function, and its own ways
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


_part_quietly()
