"""The clients of this process, kept from one question to the next, on one loop in the background.

Spark asks often: several times for each micro-batch on the driver's side, and once for each task in executors, whose Python
processes it uses again. A fresh connection each time would cost more than the answer.

What failed is not used again: `using` closes a client when the work with it raises, and the next one starts afresh.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ottla import background
from ottla.client.cluster import Cluster
from ottla.client.errors import NetworkError
from ottla.client.settings import AdminSettings, resolve
from ottla.spark.client_settings import of_kind
from ottla.spark.options import Options

if TYPE_CHECKING:
    from ottla.client.admin import Admin

PATIENCE_S = 30.0  # of executors, and of the driver once a batch is written
RETRY_S = 0.25
MOST_KEPT = 8  # one process seldom serves more clusters, or more ways to use one


class Client(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


T = TypeVar("T")
C = TypeVar("C", bound=Client)
_kept: dict[Any, asyncio.Task[Any]] = {}


def run(work: Coroutine[Any, Any, T]) -> T:
    """On the loop of this process, from any other thread."""
    return background.run(work)


def common_settings(options: Options) -> dict[str, Any]:
    """What every client takes: where the cluster is, and how to be let in."""
    return of_kind(AdminSettings, options.client) | {"bootstrap_servers": options.bootstrap_servers}


def cluster(**settings: Any) -> Cluster:
    """For `using`: connections alone, to whom no client of ours is near enough to the wire."""
    return Cluster(resolve(AdminSettings, settings))


def admin(**settings: Any) -> Admin:
    """Loaded when it is needed: executors that only read never pay for it (a tenth of a second)."""
    from ottla.client.admin import Admin

    return Admin(**settings)


@asynccontextmanager
async def using(make: Callable[..., C], settings: Mapping[str, Any], patience_s: float = 0.0) -> AsyncIterator[C]:
    """A client with these settings, running; kept for the next one who asks unless the work with it raises."""
    key = (make, *sorted(settings.items()))
    if key not in _kept:
        while len(_kept) >= MOST_KEPT:
            await _forget(next(iter(_kept)))
        _kept[key] = asyncio.ensure_future(started(make, settings, patience_s))
    try:
        yield await asyncio.shield(_kept[key])
    except BaseException:
        await _forget(key)
        raise


async def started(make: Callable[..., C], settings: Mapping[str, Any], patience_s: float = 0.0) -> C:
    """A client of one's own. With patience a cluster that cannot be reached is tried again: in mid-query a broker may be on its
    way back, and Spark gives up a task that fails four times within a moment."""
    deadline = time.monotonic() + patience_s
    while True:
        made = make(**settings)
        try:
            await made.start()
            return made
        except BaseException as error:
            await made.close()
            if not isinstance(error, NetworkError) or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(RETRY_S)


async def _forget(key: Any) -> None:
    task = _kept.pop(key, None)
    if task is None:
        return
    if not task.done():
        task.cancel()
    elif not task.cancelled() and task.exception() is None:
        await task.result().close()
