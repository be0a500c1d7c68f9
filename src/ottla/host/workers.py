"""Work that must not run on the event loop.

Threads are only for calls that release the GIL (fsync, large reads): one busy Python thread moves an echo's p99 from 0.15 to
5.5 ms. Python CPU work (compaction, recovery scans, recompression of big batches) runs in a process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
MAX_THREADS = 8


class Workers(Protocol):
    async def thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """For a call that releases the GIL."""

    async def process(self, function: Callable[..., T], *arguments: Any) -> T:
        """For Python work: `function` and `arguments` must pickle. A disk is passed as an argument, so that its twin can be."""

    def close(self) -> None: ...


class RealWorkers:
    """One worker process, started on first use and kept: compaction and recovery are rare and one at a time is enough."""

    def __init__(self, processes: int = 1) -> None:
        self._processes = processes
        self._threads: Executor | None = None
        self._pool: Executor | None = None

    async def thread(self, function: Callable[..., T], *arguments: Any) -> T:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MAX_THREADS, "ottla-disk")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def process(self, function: Callable[..., T], *arguments: Any) -> T:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self._processes, mp_context=get_context("spawn"), initializer=os.nice, initargs=(5,))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)
        except BrokenProcessPool:
            self._pool = None  # its process was killed (out of memory, say); the next call starts another
            raise OSError("the worker process died") from None

    def close(self) -> None:
        for executor in (self._threads, self._pool):
            if executor is not None:
                executor.shutdown(wait=False, cancel_futures=True)
