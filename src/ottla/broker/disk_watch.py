"""A disk that refuses writes: the node asks to be fenced, so that others lead what it led, until the disk takes writes again.

Whoever finds that the disk refuses says so here. From then on the heartbeats say `want_fence`, as long as another broker is there to
lead: the last one goes on, answers KAFKA_STORAGE_ERROR to what it cannot write, and serves what it has. Now and then something is written
to see whether there is room again, and much of it: a disk with room for a few records would fence the broker again at once.

A disk that takes the trial and refuses the logs all the same (one of its files is damaged, say) is tried more and more seldom.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.model.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from ottla.broker.node import Node

log = logging.getLogger("ottla.disk")
TRIAL = "trial.tmp"
TRIAL_BYTES = 1 << 20
TRIAL_MS = 1_000
MAX_TRIAL_MS = 60_000


class DiskWatch:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._trying: asyncio.Task[None] | None = None
        self._pause_ms = TRIAL_MS
        self._cleared_ms: float | None = None
        self._stopped = False

    @property
    def refuses(self) -> bool:
        return self._trying is not None

    def refused(self, error: Exception) -> None:
        """A write failed; whether it was the disk's doing is seen here."""
        if self.refuses or self._stopped or not is_of_disk(error):
            return
        log.error("disk refuses writes node=%d error=%s", self._node.node_id, error)
        since_ms = None if self._cleared_ms is None else self._node.world.clock.monotonic_ms() - self._cleared_ms
        self._pause_ms = TRIAL_MS if since_ms is None or since_ms > MAX_TRIAL_MS else min(2 * self._pause_ms, MAX_TRIAL_MS)
        self._trying = asyncio.get_running_loop().create_task(self._try_until_taken())
        self._node.lifecycle.beat_now()

    def stop(self) -> None:
        """What the disk refuses to a node that stops is of no concern to others."""
        self._stopped = True
        if self._trying is not None:
            self._trying.cancel()

    async def _try_until_taken(self) -> None:
        while True:
            await asyncio.sleep(self._pause_ms / 1000)
            try:
                await self._node.world.workers.thread(self._write)
                break
            except OSError:
                continue
        log.info("disk takes writes again node=%d", self._node.node_id)
        self._cleared_ms = self._node.world.clock.monotonic_ms()
        self._trying = None
        self._node.lifecycle.beat_now()

    def _write(self) -> None:
        disk, config = self._node.world.disk, self._node.config
        for folder in {config.directory, config.metadata_directory}:
            path = f"{folder}/{TRIAL}"
            try:
                file = disk.open(path, create=True)
                try:
                    file.append(bytes(TRIAL_BYTES))
                finally:
                    file.close()
            finally:
                if disk.exists(path):
                    disk.remove(path)


def is_of_disk(error: Exception) -> bool:
    return isinstance(error, OSError) or (isinstance(error, ApiError) and error.code == ErrorCode.KAFKA_STORAGE_ERROR)
