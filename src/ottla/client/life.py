"""What `Producer`, `Consumer` and `Admin` have in common: a cluster, a start, an end, and refusals before the one and after the other.

new ──start──▶ running ──close──▶ closed
 └─────────────close────────────────▲
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientClosed


class Client:
    _cluster: Cluster
    _started = False
    _closed = False

    async def start(self) -> None:
        """Reach the cluster. Raises a `NetworkError` at once when no bootstrap server answers."""
        self._check_not_closed()
        await self._cluster.start()
        self._begin()
        self._started = True

    def _begin(self) -> None:
        """What there is to do once the cluster is reached."""

    async def close(self) -> None:
        self._closed = True
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def _check_not_closed(self) -> None:
        if self._closed:
            raise ClientClosed(f"this {type(self).__name__} is closed")

    def _check_running(self) -> None:
        self._check_not_closed()
        if not self._started:
            name = type(self).__name__
            raise ClientClosed(
                f"this {name} is not started; use `async with {name}(…) as {name.lower()}`, or `await {name.lower()}.start()`"
            )
