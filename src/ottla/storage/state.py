"""What a log is and what keeps it true: its offsets, segments, epochs and producers; rolling, cutting, syncing, closing.

`log.Log` stands on this and adds what is done with it. Invariants: see there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self
from zlib import crc32

from ottla.host.disk import Disk
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import ZERO_UUID, TopicPartition
from ottla.storage import checkpoints, files, rolling
from ottla.storage.config import LONG_MAX, LogConfig
from ottla.storage.files import OpenFiles
from ottla.storage.flushing import FlushJob, storage_error
from ottla.storage.loading import Loaded, Loader
from ottla.storage.places import Places
from ottla.storage.producers import ProducerStates
from ottla.storage.segment import Segment
from ottla.storage.segments import Segments
from ottla.storage.types import OffsetAndEpoch


class LogState:
    __slots__ = (
        "_ceiling",
        "_disk",
        "_epochs",
        "_flush_wanted",
        "_jitter_seed",
        "_last_flush_ms",
        "_open_files",
        "_places",
        "_producers",
        "_recovery_point_lowered",
        "_segments",
        "_snapshots",
        "_swap",
        "_syncing",
        "_to_sync",
        "cleaner_offset",
        "config",
        "directory",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "recovery_point",
        "topic_id",
        "topic_partition",
        "truncations",
        "uncleanable",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        open_files: OpenFiles,
        loaded: Loaded,
        now_ms: int,
    ) -> None:
        """Use `open`."""
        self._disk = disk
        self._open_files = open_files
        self._recovery_point_lowered: Callable[[], None] | None = None
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = ZERO_UUID
        self.config = config  # assign a new one when the topic's settings change
        self._segments = loaded.segments
        self._epochs = loaded.epochs
        self._snapshots = loaded.snapshots
        self._producers = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.high_watermark = loaded.log_start_offset
        self.cleaner_offset = -1  # up to where it is compacted; -1: never
        self.uncleanable = False
        self.truncations = 0
        self._swap: Segment | None = None  # compaction's result on its way in, named `.swap`
        self._places = Places()
        self._ceiling: rolling.Ceiling | None = None  # made with the first append
        # Small files written since the last flush. A new segment's name is made durable with it.
        self._to_sync = loaded.unsynced
        self._syncing: set[str] = set()  # files that a job under way syncs; one that changes meanwhile is to be synced again
        self._flush_wanted = False
        self._last_flush_ms = now_ms
        self._jitter_seed = crc32(str(topic_partition).encode())

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: bytes,
        config: LogConfig,
        now_ms: int,
        *,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        cleaner_offset: int = -1,
        open_files: OpenFiles | None = None,
        recovery_point_lowered: Callable[[], None] | None = None,
    ) -> Self:
        """Opens the folder, or creates it. Unclean: everything from the recovery point on is checked and a torn tail cut.

        `recovery_point_lowered` is called when a truncation went below it, and must checkpoint it before anything is appended.
        """
        open_files = open_files if open_files is not None else OpenFiles()
        try:
            loader = Loader(disk, directory, config, open_files, now_ms, compacted=config.compact or cleaner_offset >= 0)
            loaded = loader.load(clean=clean, recovery_point=recovery_point, log_start_offset=log_start_offset)
            log = cls(disk, directory, topic_partition, config, open_files, loaded, now_ms)
            log._adopt_topic_id(topic_id)
        except OSError as error:
            raise storage_error(error, f"opening {directory}") from error
        log.cleaner_offset = cleaner_offset
        log._recovery_point_lowered = recovery_point_lowered
        log.set_high_watermark(high_watermark)
        return log

    def _adopt_topic_id(self, topic_id: bytes) -> None:
        path = f"{self.directory}/{files.PARTITION_METADATA}"
        known = checkpoints.read_partition_metadata(self._disk.read_all(path)) if self._disk.exists(path) else None
        if topic_id == ZERO_UUID:
            self.topic_id = known or ZERO_UUID
            return
        self.topic_id = topic_id
        if known is None:
            self._disk.replace(path, checkpoints.write_partition_metadata(topic_id), sync=False)
            self._to_sync.add(path)
        elif known != topic_id:
            raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{self.directory} belongs to another topic of the same name")

    # --- what it is

    @property
    def _state(self) -> ProducerStates:
        """Read when first needed: of ten thousand logs few are written to."""
        if self._producers is None:
            loader = Loader(self._disk, self.directory, self.config, self._open_files, self._last_flush_ms)
            self._producers = loader.replay(self._segments, self._snapshots, self.log_start_offset, self.log_end_offset)
            self._producers.high_watermark_moved(self.high_watermark)
        return self._producers

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided and replicated; never above the high watermark."""
        unstable = self._state.first_unstable
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._segments.size

    @property
    def segments(self) -> Segments:
        return self._segments

    @property
    def latest_epoch(self) -> int:
        """-1 when the log has never had one."""
        return self._epochs.latest

    @property
    def epoch_entries(self) -> list[tuple[int, int]]:
        """Leader epochs and where each began."""
        return list(self._epochs.entries)

    # --- rolling

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        """A new active segment. Whatever fails, the old one stays active and whole."""
        old = self._segments.active
        base_offset = max(base_offset, self.log_end_offset)
        if not old.size and old.base_offset == base_offset:
            return old
        self._sync_later(old.save_indexes(final=True))
        self._take_snapshot(base_offset)
        new = Segment.create(self._disk, self.directory, base_offset, self._open_files, now_ms, self.config.index_interval_bytes)
        old.seal()
        self._to_sync.add(new.path(files.LOG))
        self._segments.add(new)
        self._flush_wanted = True
        return new

    def roll(self, now_ms: int) -> int:
        """A new segment for whatever comes next, and the offset at which it begins."""
        return self._roll(self.log_end_offset, now_ms).base_offset

    def roll_if_due(self, now_ms: int) -> bool:
        """Rolls an idle log by time, so that retention and compaction get at its records."""
        segment = self._segments.active
        if rolling.due(segment, self.config, now_ms, self._jitter_seed):
            try:
                self._roll(self.log_end_offset, now_ms)
            except OSError as error:
                raise storage_error(error, f"rolling {self.directory}") from error
            return True
        return False

    def _take_snapshot(self, offset: int) -> None:
        """Not synced: it has a checksum, and a lost one is made up for by an older one and the batches after it."""
        self._snapshots.take(offset, self._state.entries)

    def _sync_later(self, path: str | None) -> None:
        if path is not None:
            self._to_sync.add(path)

    # --- watermarks and epochs

    def advance_high_watermark(self, offset: int) -> bool:
        """Raises it to `offset`, bounded by the log's end; whether it moved."""
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        if self._producers is not None and self._producers.unreplicated:
            self._producers.high_watermark_moved(offset)
        return True

    def set_high_watermark(self, offset: int) -> int:
        """Bounded to the log; a follower's may go down. Returns what it became."""
        self.high_watermark = min(max(offset, self.log_start_offset), self.log_end_offset)
        if self._producers is not None:
            self._producers.high_watermark_moved(self.high_watermark)
        return self.high_watermark

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """When this replica becomes leader (at its end offset), before the first append of the epoch."""
        try:
            self._epochs.assign(leader_epoch, start_offset)
        except OSError as error:
            raise storage_error(error, f"writing the leader epoch of {self.directory}") from error

    def epoch_of(self, offset: int) -> int:
        """-1 when unknown."""
        return self._epochs.epoch_of(offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> OffsetAndEpoch:
        """OffsetForLeaderEpoch: the largest epoch not above the one asked and where it ends; (-1, -1) when unknown."""
        return self._epochs.end_offset_for(leader_epoch, self.log_end_offset)

    # --- cutting

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Drops everything from `offset` on; whether there was anything.

        An epoch without a record of its own goes even so: a leader of that epoch who wrote nothing would otherwise be told for
        ever that its log parts from the next leader's.
        """
        if offset >= self.log_end_offset:
            try:
                self._epochs.truncate_end(offset)
            except OSError as error:
                raise storage_error(error, f"writing the leader epochs of {self.directory}") from error
            return False
        if offset <= self._segments.first.base_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        try:
            self._abandon_swap()
            self._lower_recovery_point(offset)
            self._segments.remove([segment for segment in self._segments if segment.base_offset > offset], now_ms, 0)
            segment = self._segments.active
            segment.active = True
            place = segment.locate(offset)
            if place is not None:
                segment.truncate(place.position, offset, now_ms)
            self._epochs.truncate_end(offset)
        except OSError as error:
            raise storage_error(error, f"truncating {self.directory}") from error
        self._after_truncation(offset, min(self.log_start_offset, offset), now_ms)
        return True

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Everything goes; the next record will have this offset."""
        try:
            self._abandon_swap()
            self._lower_recovery_point(offset)
            self._segments.remove(list(self._segments), now_ms, 0)
            self._segments.purge(now_ms)
            self._segments.add(
                Segment.create(self._disk, self.directory, offset, self._open_files, now_ms, self.config.index_interval_bytes)
            )
            self._epochs.clear()
        except OSError as error:
            raise storage_error(error, f"truncating {self.directory}") from error
        self._after_truncation(offset, offset, now_ms)
        self.recovery_point = offset

    def _abandon_swap(self) -> None:
        """Before anything is cut: after a crash a `.swap` would bring back what was cut."""
        swap, self._swap = self._swap, None
        if swap is not None:
            swap.close()
            for path in swap.paths():
                if self._disk.exists(path):
                    self._disk.remove(path)

    def _lower_recovery_point(self, offset: int) -> None:
        """Before anything is cut: a crash must not find a recovery point in the middle of what is written next."""
        if self.recovery_point > offset:
            self.recovery_point = offset
            if self._recovery_point_lowered is not None:
                self._recovery_point_lowered()

    def _after_truncation(self, end_offset: int, start_offset: int, now_ms: int) -> None:
        self._places.clear()
        self._ceiling = None
        self.truncations += 1
        self._segments.purge(now_ms)
        self.log_end_offset, self.log_start_offset = end_offset, start_offset
        self.high_watermark = min(max(self.high_watermark, start_offset), end_offset)
        self.cleaner_offset = min(self.cleaner_offset, end_offset)
        self._snapshots.drop([offset for offset in self._snapshots.offsets if offset > end_offset or offset <= start_offset])
        self._producers = None  # read again from the snapshots and batches that are left

    # --- durability

    def flush_due(self, now_ms: int) -> bool:
        """By flush.messages, flush.ms, or because a segment was rolled."""
        unflushed = self.log_end_offset - self.recovery_point
        if unflushed <= 0:
            return False
        return (
            self._flush_wanted
            or unflushed >= self.config.flush_messages
            or (self.config.flush_ms < LONG_MAX and now_ms - self._last_flush_ms >= self.config.flush_ms)
        )

    def prepare_flush(self) -> FlushJob:
        """Brings index files up to date and says what to sync. Run the job on a worker thread, then `complete_flush`."""
        try:
            for slot in range(self._segments.floor(self.recovery_point), len(self._segments)):
                self._sync_later(self._segments[slot].save_indexes())
            if self._epochs.dirty:
                self._to_sync.add(self._epochs.path)
                self._epochs.dirty = False
            self._syncing |= self._to_sync
            self._to_sync.clear()
            paths = [path for path in self._syncing if self._disk.exists(path)]
            to_sync = [
                self._segments[slot].file for slot in range(self._segments.floor(self.recovery_point), len(self._segments))
            ]
            to_sync += [self._disk.open(path) for path in paths]
        except OSError as error:
            raise storage_error(error, f"flushing {self.directory}") from error
        self._flush_wanted = False
        return FlushJob(self._disk, self.directory, to_sync, self.log_end_offset, frozenset(self._syncing))

    def complete_flush(self, job: FlushJob, now_ms: int) -> None:
        """The job ran: the recovery point moves up."""
        self._syncing -= job.paths
        self.recovery_point = max(self.recovery_point, min(job.end_offset, self.log_end_offset))
        self._last_flush_ms = now_ms

    def flush(self, now_ms: int) -> None:
        """Prepare, run and complete at once. Blocks: only at start, stop and in tests; `flushing.flush` is the loop's way."""
        job = self.prepare_flush()
        job.run()
        self.complete_flush(job, now_ms)

    def moved(self, directory: str) -> None:
        """Its folder was renamed: it is no longer part of the node. Slices on their way stay valid."""
        self.directory = directory
        for segment in self._segments:
            segment.close()
        self._places.clear()

    def close(self, now_ms: int) -> None:
        """Flushes, trims and writes the producer snapshot, so that the next open with clean=True scans nothing."""
        try:
            self._sync_later(self._segments.active.save_indexes(final=True))
            if self.log_end_offset > self.recovery_point or self._to_sync or self._syncing or self._epochs.dirty:
                self._take_snapshot(self.log_end_offset)
                self.flush(now_ms)
        except OSError as error:
            raise storage_error(error, f"closing {self.directory}") from error
        for segment in self._segments:
            segment.close()
        self._places.clear()
