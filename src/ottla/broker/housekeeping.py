"""What a node does on its own from time to time: retention, compaction, flushing, checkpoints, closing idle connections.

Each is a small loop of its own with Kafka's setting for its interval. Work that blocks goes to a worker; a failure is logged
and tried again at the next turn, because a node that cannot clean must still serve.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ottla.model.errors import ApiError
from ottla.storage.cleaner import clean_next

if TYPE_CHECKING:
    from ottla.broker.node import Node
    from ottla.broker.replicas import Replica

log = logging.getLogger("ottla.housekeeping")
FLUSH_CHECK_MS = 1_000
IDLE_CHECK_MS = 100  # at least
IDLE_CHECKS = 10  # in the time after which a connection is idle: it may stay so much longer


class Housekeeping:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        settings = self._node.settings
        self._every(lambda: settings["log.retention.check.interval.ms"], self._retention)
        self._every(lambda: settings["log.flush.offset.checkpoint.interval.ms"], self._recovery_points)
        self._every(lambda: settings["log.flush.start.offset.checkpoint.interval.ms"], self._log_start_offsets)
        self._every(lambda: settings["replica.high.watermark.checkpoint.interval.ms"], self._high_watermarks)
        self._every(lambda: settings["replica.lag.time.max.ms"] // 2, self._in_sync_sets)
        self._every(lambda: FLUSH_CHECK_MS, self._flush)
        self._every(lambda: max(IDLE_CHECK_MS, settings["connections.max.idle.ms"] // IDLE_CHECKS), self._idle_connections)
        if settings["log.cleaner.enable"]:
            self._every(lambda: settings["log.cleaner.backoff.ms"], self._compact)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _every(self, interval_ms: Callable[[], int], work: Callable[[], Awaitable[None]]) -> None:
        async def loop() -> None:
            while True:
                await asyncio.sleep(interval_ms() / 1000)
                try:
                    await work()
                except ApiError as error:  # mostly a full disk
                    log.error("housekeeping failed work=%s error=%s", work.__name__.removeprefix("_"), error)
                except Exception:
                    log.exception("housekeeping failed work=%s", work.__name__.removeprefix("_"))

        self._tasks.append(asyncio.get_running_loop().create_task(loop()))

    async def _retention(self) -> None:
        for replica in list(self._node.replicas):
            try:
                self._retain(replica, self._node.world.clock.wall_ms())
            except ApiError as error:  # the others' turn all the same: what they delete may be the room that is missing
                log.error("retention failed topic=%s partition=%d error=%s", *replica.topic_partition, error)
            await asyncio.sleep(0)  # ten thousand partitions must not hold up the loop
        self._node.directory.housekeeping(self._node.world.clock.wall_ms())

    def _retain(self, replica: Replica, now_ms: int) -> None:
        """What makes room comes first, because a full disk refuses the rest."""
        replica.log.housekeeping(now_ms)
        if replica.log.apply_retention(now_ms):
            replica.watchers.wake()
        replica.log.roll_if_due(now_ms)

    async def _compact(self) -> None:
        """One log after the other, in a worker process, until all are clean enough."""
        world, map_bytes = self._node.world, self._node.settings["log.cleaner.dedupe.buffer.size"]
        while True:
            logs = [replica.log for replica in self._node.replicas if replica.log.config.compact]
            if await clean_next(logs, world.disk, world.workers, world.clock.wall_ms(), map_bytes) is None:
                return
            self._node.directory.checkpoint_cleaner_offsets()

    async def _in_sync_sets(self) -> None:
        now_ms = int(self._node.world.clock.monotonic_ms())
        for replica in self._node.replicas:
            if replica.leader is not None:
                replica.progress(replica.leader.tick(now_ms))

    async def _flush(self) -> None:
        for replica in list(self._node.replicas):
            if replica.log.flush_due(self._node.world.clock.wall_ms()):
                await self._node.replicas.sync(replica)

    async def _recovery_points(self) -> None:
        self._node.directory.checkpoint_recovery_points()

    async def _log_start_offsets(self) -> None:
        self._node.directory.checkpoint_log_start_offsets()

    async def _high_watermarks(self) -> None:
        self._node.directory.checkpoint_high_watermarks()

    async def _idle_connections(self) -> None:
        self._node.server.close_silent(self._node.world.clock.monotonic_ms())
