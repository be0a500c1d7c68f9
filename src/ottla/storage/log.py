"""One partition's log (surface; bodies land next)."""

from __future__ import annotations

from ottla.host.disk import Disk, File
from ottla.model.ids import TopicPartition
from ottla.records.batch import BatchHeader
from ottla.storage.config import LogConfig
from ottla.storage.types import (
    AbortedTransaction,
    AppendResult,
    LogSlice,
    OffsetAndEpoch,
    Origin,
    ProducerSummary,
    TimestampOffset,
)


class VerificationGuard:
    """Identity is all it has: it ties an append to the verification that allowed it (KIP-890)."""

    __slots__ = ()


class FlushJob:
    """Files to sync. `run` blocks and belongs on a worker thread; it touches nothing else of the log."""

    __slots__ = ("end_offset", "files")

    def __init__(self, files: list[File], end_offset: int) -> None:
        self.files = files
        self.end_offset = end_offset

    def run(self) -> None:
        for file in self.files:
            file.sync()


class Log:
    """Synchronous and single-threaded: every method is called on the loop, none awaits. ApiError is the only refusal."""

    directory: str
    topic_partition: TopicPartition
    topic_id: bytes
    config: LogConfig  # assign a new one when the topic's settings change
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int

    @classmethod
    def open(cls, disk: Disk, directory: str, topic_partition: TopicPartition, topic_id: bytes, config: LogConfig, now_ms: int, *, clean: bool = False, recovery_point: int = 0, log_start_offset: int = 0, high_watermark: int = 0) -> Log:  # fmt: skip
        """Opens or creates the folder. Unclean: everything from the recovery point on is checked and a torn tail cut."""
        raise NotImplementedError

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided and replicated; never above the high watermark."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        raise NotImplementedError

    @property
    def latest_epoch(self) -> int:
        """-1 when the log has never had one."""
        raise NotImplementedError

    def append_as_leader(self, buffer: bytearray | memoryview, batches: list[tuple[int, BatchHeader]], leader_epoch: int, now_ms: int, *, origin: Origin = Origin.CLIENT, guard: VerificationGuard | None = None, transaction_version: int = 0) -> AppendResult:  # fmt: skip
        """Stamps offsets and the leader epoch into `buffer` in place and appends it whole, or raises and appends nothing.

        `batches` comes from `records.check_batches` (positions and headers before stamping). Checked here: max.message.bytes
        (MESSAGE_TOO_LARGE), segment.bytes (RECORD_LIST_TOO_LARGE), producer epoch and sequences, transaction state and guard.
        Not checked here: what is inside the batches (timestamps of records, keys in compacted topics): the produce handler's.
        """
        raise NotImplementedError

    def append_control(self, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool, leader_epoch: int, now_ms: int, *, transaction_version: int = 0) -> AppendResult:  # fmt: skip
        """WriteTxnMarkers: appends the commit or abort marker, updates producer state, transaction index, last stable offset."""
        raise NotImplementedError

    def append_as_follower(self, buffer: bytes | bytearray | memoryview) -> AppendResult | None:
        """Batches as the leader stamped them; None when `buffer` holds no whole batch (a partial tail is dropped).

        Raises ApiError CORRUPT_MESSAGE, or UNKNOWN_SERVER_ERROR (an offset below our end: replication asked for the wrong one).
        """
        raise NotImplementedError

    def read(self, offset: int, max_bytes: int, upper_offset: int, min_one: bool = True) -> LogSlice:
        """Whole batches from the one that holds `offset`, below `upper_offset` (high watermark, last stable or end offset).

        Empty when `offset` is at or past `upper_offset`. Raises OFFSET_OUT_OF_RANGE below the start or past the end.
        One segment at most: the rest comes with the next read.
        """
        raise NotImplementedError

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """For read_committed: transactions with records in [start, end) that were aborted. Pass a slice's `end_offset`."""
        raise NotImplementedError

    def advance_high_watermark(self, offset: int) -> bool:
        """Bounded to [start, end]; whether it moved. Followers may lower it, too (`set_high_watermark`)."""
        raise NotImplementedError

    def set_high_watermark(self, offset: int) -> int:
        raise NotImplementedError

    def lookup_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record with this timestamp or a later one."""
        raise NotImplementedError

    def max_timestamp_offset(self) -> TimestampOffset | None:
        raise NotImplementedError

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """When this replica becomes leader (at its end offset), before the first append of the epoch."""
        raise NotImplementedError

    def epoch_of(self, offset: int) -> int:
        """-1 when unknown."""
        raise NotImplementedError

    def end_offset_for_epoch(self, leader_epoch: int) -> OffsetAndEpoch:
        """OffsetForLeaderEpoch: the largest epoch not above the one asked and where it ends; (-1, -1) when unknown."""
        raise NotImplementedError

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        raise NotImplementedError

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        raise NotImplementedError

    def delete_records(self, offset: int) -> int:
        """Moves the start offset up to `offset` (-1: the high watermark) and returns it. OFFSET_OUT_OF_RANGE past the watermark."""
        raise NotImplementedError

    def advance_log_start_offset(self, offset: int) -> bool:
        """A follower's way to follow its leader's start offset."""
        raise NotImplementedError

    def roll_if_due(self, now_ms: int) -> bool:
        raise NotImplementedError

    def apply_retention(self, now_ms: int) -> int:
        """Deletes segments by time, size and start offset, per the cleanup policy; how many went."""
        raise NotImplementedError

    def housekeeping(self, now_ms: int) -> None:
        """Every few minutes: remove files whose delete delay has passed, forget expired producers."""
        raise NotImplementedError

    def active_producers(self) -> list[ProducerSummary]:
        raise NotImplementedError

    def start_verification(self, producer_id: int, sequence: int, epoch: int, now_ms: int, *, supports_epoch_bump: bool) -> VerificationGuard | None:  # fmt: skip
        """Before a transactional append: None when a transaction is already ongoing here and nothing needs verifying."""
        raise NotImplementedError

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        raise NotImplementedError

    def flush_due(self, now_ms: int) -> bool:
        """By flush.messages, flush.ms, or because a segment was rolled."""
        raise NotImplementedError

    def prepare_flush(self) -> FlushJob:
        raise NotImplementedError

    def complete_flush(self, job: FlushJob, now_ms: int) -> None:
        """The job ran: the recovery point moves up."""
        raise NotImplementedError

    def flush(self, now_ms: int) -> None:
        """Prepare, run and complete at once. Blocks: only at start, stop and in tests; `flushing.flush` is the loop's way."""
        raise NotImplementedError

    def close(self, now_ms: int) -> None:
        """Flushes, trims and writes the producer snapshot, so that the next open with clean=True scans nothing."""
        raise NotImplementedError
