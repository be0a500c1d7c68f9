"""The clients of this process, kept from one question to the next, on one loop in the background.

Spark asks often: several times for each micro-batch on the driver's side, and once for each task in executors, whose Python
processes it uses again. A fresh connection each time would cost more than the answer.

What failed is not used again: `using` closes a client when the work with it raises, and the next one starts afresh.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from ottla import sync
from ottla.client.admin import Admin
from ottla.client.cluster import Cluster
from ottla.client.settings import AdminSettings, resolve, table
from ottla.spark.options import Options

MOST_KEPT = 8  # one process seldom serves more clusters, or more ways to use one


class Client(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


T = TypeVar("T")
C = TypeVar("C", bound=Client)
_kept: dict[Any, asyncio.Task[Any]] = {}


def run(work: Coroutine[Any, Any, T]) -> T:
    """On the loop of this process, from any other thread."""
    return sync.run(work)


def common_settings(options: Options) -> dict[str, Any]:
    """What every client takes: where the cluster is, and how to be let in."""
    known = table(AdminSettings)
    return {name: value for name, value in options.client.items() if name in known} | {
        "bootstrap_servers": options.bootstrap_servers
    }


def cluster(**settings: Any) -> Cluster:
    """For `using`: connections alone, to whom no client of ours is near enough to the wire."""
    return Cluster(resolve(AdminSettings, settings))


def admin(**settings: Any) -> Admin:
    return Admin(**settings)


@asynccontextmanager
async def using(make: Callable[..., C], settings: Mapping[str, Any]) -> AsyncIterator[C]:
    """A client with these settings, running; kept for the next one who asks unless the work with it raises."""
    key = (make, *sorted(settings.items()))
    if key not in _kept:
        while len(_kept) >= MOST_KEPT:
            await _forget(next(iter(_kept)))
        _kept[key] = asyncio.ensure_future(_started(make, settings))
    try:
        yield await asyncio.shield(_kept[key])
    except BaseException:
        await _forget(key)
        raise


async def _started(make: Callable[..., C], settings: Mapping[str, Any]) -> C:
    made = make(**settings)
    try:
        await made.start()
    except BaseException:
        await made.close()
        raise
    return made


async def _forget(key: Any) -> None:
    task = _kept.pop(key, None)
    if task is None:
        return
    if not task.done():
        task.cancel()
    elif not task.cancelled() and task.exception() is None:
        await task.result().close()
