"""A consumer's commits: those the application asks for, and the automatic ones.

Invariants
- A commit in the background makes one attempt, and at most one automatic commit is under way: a late retry would undo a newer.
- Automatic commits happen inside poll, of what an earlier poll returned: that has been dealt with by then.
- Before partitions are given up, commits in the background end first, then what is still uncommitted is committed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ottla.client.admin.types import CommittedOffset
from ottla.client.cluster import Cluster
from ottla.client.coordination import Member
from ottla.client.offsets import Offsets
from ottla.client.positions import Position
from ottla.client.settings import ConsumerSettings
from ottla.model.errors import OttlaError
from ottla.model.ids import TopicPartition

log = logging.getLogger("ottla.consumer")

CommitCallback = Callable[[Mapping[TopicPartition, CommittedOffset], "Exception | None"], Any]
Commitable = Mapping[tuple[str, int], "int | CommittedOffset"]
Rows = dict[TopicPartition, CommittedOffset]


class Commits:
    def __init__(
        self,
        cluster: Cluster,
        offsets: Offsets,
        settings: ConsumerSettings,
        positions: Mapping[TopicPartition, Position],
        member: Callable[[], Member | None],
    ) -> None:
        self._cluster = cluster
        self._offsets = offsets
        self._settings = settings
        self._positions = positions
        self._member = member
        self._under_way: set[asyncio.Task[Any]] = set()
        self._committed: dict[TopicPartition, int] = {}  # automatically, so far
        self._next_ms = cluster.now_ms() + settings["auto_commit_interval_ms"]

    # Asked for ---------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Commitable | None, timeout_ms: float | None) -> None:
        await self._offsets.commit(self._rows(offsets), self._member(), timeout_ms)

    def commit_async(self, offsets: Commitable | None, callback: CommitCallback | None) -> None:
        _ = self._offsets.group_id  # refuses at once without a group
        self._start(self._rows(offsets), callback)

    def _rows(self, offsets: Commitable | None) -> Rows:
        if offsets is None:
            return {
                key: CommittedOffset(position.offset, position.epoch)
                for key, position in self._positions.items()
                if position.offset is not None
            }
        return {
            TopicPartition(*key): value if isinstance(value, CommittedOffset) else CommittedOffset(value)
            for key, value in offsets.items()
        }

    def _start(self, rows: Rows, callback: CommitCallback | None) -> None:
        task = self._cluster.spawn(self._commit_and_tell(rows, callback), "commit")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _commit_and_tell(self, rows: Rows, callback: CommitCallback | None) -> None:
        error: Exception | None = None
        try:
            await self._offsets.commit_once(rows, self._member())
        except OttlaError as raised:
            error = raised
            log.info("commit_failed error=%s", raised)
        if callback is not None:
            try:
                result = callback(rows, error)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                log.exception("commit_callback_raised")

    # Automatic ---------------------------------------------------------------------------------------------------------

    def now_and_then(self) -> None:
        """Called by every poll."""
        if not self._settings["enable_auto_commit"] or self._cluster.now_ms() < self._next_ms or self._under_way:
            return
        self._next_ms = self._cluster.now_ms() + self._settings["auto_commit_interval_ms"]
        rows = self._uncommitted()
        if rows:
            self._note(rows)
            self._start(rows, self._try_sooner)

    def _try_sooner(self, rows: Mapping[TopicPartition, CommittedOffset], error: Exception | None) -> None:
        if error is not None:
            for key in rows:
                self._committed.pop(key, None)
            self._next_ms = self._cluster.now_ms() + self._settings["retry_backoff_ms"]

    def _uncommitted(self) -> Rows:
        return {key: row for key, row in self._rows(None).items() if self._committed.get(key) != row.offset}

    def _note(self, rows: Rows) -> None:
        self._committed |= {key: row.offset for key, row in rows.items()}

    async def before_giving_up(self) -> None:
        """Wait for it, but not at any price."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        if not self._settings["enable_auto_commit"]:
            return
        rows = self._uncommitted()
        try:
            await self._offsets.commit(rows, self._member(), self._settings["request_timeout_ms"])
            self._note(rows)
        except OttlaError as error:
            log.warning("automatic_commit_failed error=%s", error)

    def forget(self, partition: TopicPartition) -> None:
        """Whoever has it next may commit something else."""
        self._committed.pop(partition, None)

    def cancel(self) -> None:
        for task in self._under_way:
            task.cancel()
