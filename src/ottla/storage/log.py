"""One partition's log: Kafka's files, offsets stamped by the leader, whole batches in and out, records never decoded.

Synchronous and single-threaded: every method is called on the loop, none awaits, and the only refusal is ApiError. A disk that
fails an append answers KAFKA_STORAGE_ERROR and leaves the log as it was, so that it serves again once there is space.

Invariants:
- log_start_offset ≤ last_stable_offset ≤ high_watermark ≤ log_end_offset, recovery_point ≤ log_end_offset;
- batches are in offset order, each whole, with gaps only where compaction or truncation left them;
- everything below the recovery point has been synced, its transaction indexes and leader epochs included;
- a producer's state is that of the batches below the log end offset, no more and no less.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.host.disk import Bytes
from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import CONTROL_BIT, LENGTH_PREFIX, STAMP, BatchHeader, check_batches, headers, stamp_append_time
from ottla.records.control import AbortedTransaction, EndTransaction, end_transaction_batch
from ottla.storage import files, retention, rolling, timestamps
from ottla.storage.flushing import FlushJob, storage_error
from ottla.storage.loading import stage_stored
from ottla.storage.producers import Duplicate, Staging, VerificationGuard
from ottla.storage.segment import Segment, SegmentReader
from ottla.storage.state import LogState
from ottla.storage.transaction_index import AbortedEntry
from ottla.storage.types import (
    CLIENT,
    COORDINATOR,
    RAFT_LEADER,
    REPLICATION,
    AppendResult,
    LogSlice,
    Origin,
    ProducerSummary,
    TimestampOffset,
)

__all__ = ["FlushJob", "Log", "VerificationGuard"]
_new = tuple.__new__  # what AppendResult calls, without the call


class Log(LogState):
    __slots__ = ()

    # --- appending

    def append_as_leader(
        self,
        buffer: bytearray | memoryview,
        batches: list[tuple[int, BatchHeader]],
        leader_epoch: int,
        now_ms: int,
        origin: Origin = CLIENT,
        guard: VerificationGuard | None = None,
        transaction_version: int = 0,
    ) -> AppendResult:
        """Stamps offsets and the leader epoch into `buffer` in place and appends it whole, or raises and appends nothing.

        `batches` comes from `records.check_batches` (positions and headers before stamping). Checked here: max.message.bytes
        (MESSAGE_TOO_LARGE), segment.bytes (RECORD_LIST_TOO_LARGE), producer epoch and sequences, transaction state and guard.
        Not checked here: what is inside the batches (timestamps of records, keys in compacted topics): the produce handler's.
        The caller flushes before it answers when `flush_due` says so (flush.messages).
        """
        config = self.config
        first_offset = offset = self.log_end_offset
        append_time = now_ms if config.log_append_time and origin is not RAFT_LEADER else -1
        staging: Staging | None = None
        placed = []
        try:
            for position, header in batches:
                size = header.batch_length + LENGTH_PREFIX
                if size > config.max_message_bytes:
                    raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"The record batch size in the append to {self.topic_partition} is {size} bytes which exceeds the maximum configured value of {config.max_message_bytes}.")  # fmt: skip
                timestamp = header.max_timestamp if append_time < 0 else append_time
                if header.producer_id >= 0:
                    if staging is None:
                        staging = Staging(self._state, origin, config, guard)
                    if header.attributes & CONTROL_BIT:
                        content = memoryview(buffer)[position : position + size]
                        stage_stored(staging, header._replace(base_offset=offset), content, transaction_version)
                    else:
                        staging.data(header, offset, timestamp)
                last_offset = offset + header.last_offset_delta
                placed.append((size, last_offset, timestamp))
                offset = last_offset + 1
        except Duplicate as duplicate:
            sent = duplicate.batch
            return AppendResult(sent.first_offset, sent.last_offset, sent.timestamp, self.log_start_offset, True)
        if len(buffer) > config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE, f"{len(buffer)} bytes exceed the segment size of {config.segment_bytes}"
            )
        if origin is RAFT_LEADER:
            self._check_stamps(batches, leader_epoch)
        else:
            offset = first_offset
            for position, header in batches:
                STAMP.pack_into(buffer, position, offset, header.batch_length, leader_epoch)
                if append_time >= 0:
                    stamp_append_time(buffer, position, append_time)
                offset += header.last_offset_delta + 1
        if leader_epoch != self._epochs.latest:
            self.assign_epoch(leader_epoch, first_offset)
        self._write(buffer, placed, first_offset, now_ms, staging)
        return _new(AppendResult, (first_offset, offset - 1, append_time, self.log_start_offset, False))

    def _check_stamps(self, batches: list[tuple[int, BatchHeader]], leader_epoch: int) -> None:
        offset = self.log_end_offset
        for _, header in batches:
            assert header.base_offset == offset, "the quorum stamps its own offsets"
            assert header.leader_epoch == leader_epoch, "the quorum stamps its own epoch"
            offset += header.last_offset_delta + 1

    def append_control(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        leader_epoch: int,
        now_ms: int,
        *,
        transaction_version: int = 0,
    ) -> AppendResult:
        """WriteTxnMarkers: appends the commit or abort marker, updates producer state, transaction index, last stable offset."""
        end = EndTransaction(commit, coordinator_epoch)
        batch = end_transaction_batch(end, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        buffer = bytearray(batch)
        return self.append_as_leader(
            buffer,
            list(headers(buffer)),
            leader_epoch,
            now_ms,
            origin=COORDINATOR,
            transaction_version=transaction_version,
        )

    def append_as_follower(self, buffer: Bytes, now_ms: int = 0) -> AppendResult | None:
        """Batches as the leader stamped them; None when `buffer` holds no whole batch (a partial tail is dropped).

        Raises ApiError CORRUPT_MESSAGE, or UNKNOWN_SERVER_ERROR (an offset below our end: replication asked for the wrong one).
        """
        found = check_batches(buffer, may_be_cut=True)
        if not found:
            return None
        end = found[-1][0] + found[-1][1].batch_length + LENGTH_PREFIX
        content = memoryview(buffer)[:end]
        first = found[0][1]
        if first.base_offset < self.log_end_offset <= first.last_offset and self.log_end_offset == self.log_start_offset:
            # The leader's start lies inside this batch (DeleteRecords): an empty log begins where the batch does.
            self.truncate_fully_and_start_at(first.base_offset, now_ms)
        offset, staging, placed = self.log_end_offset, None, []
        latest = self._epochs.latest
        epochs = []
        for position, header in found:
            base_offset, delta = header.base_offset, header.last_offset_delta
            if base_offset < offset or delta < 0:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{self.topic_partition}: offset {base_offset} after {offset - 1}")
            size = header.batch_length + LENGTH_PREFIX
            if header.producer_id >= 0:
                staging = staging or Staging(self._state, REPLICATION, self.config)
                stage_stored(staging, header, content[position : position + size])
            if header.leader_epoch > latest:
                latest = header.leader_epoch
                epochs.append((latest, base_offset))
            offset = base_offset + delta
            placed.append((size, offset, header.max_timestamp))
            offset += 1
        for epoch, base_offset in epochs:
            self.assign_epoch(epoch, base_offset)
        self._write(content, placed, first.base_offset, now_ms, staging)
        return AppendResult(first.base_offset, offset - 1, -1, self.log_start_offset, False)

    def _write(
        self, content: Bytes, placed: list[tuple[int, int, int]], first_offset: int, now_ms: int, staging: Staging | None
    ) -> None:
        segment, ceiling = self._segments.active, self._ceiling
        last_offset = placed[-1][1]
        timestamp = placed[0][2] if len(placed) == 1 else max([batch[2] for batch in placed])
        try:
            if (
                ceiling is None
                or ceiling.segment is not segment
                or ceiling.config is not self.config
                or timestamp > ceiling.timestamp
                or last_offset > ceiling.last_offset
                or segment.size + len(content) > ceiling.size
            ):
                if rolling.needed(segment, self.config, len(content), last_offset, timestamp, now_ms, self._jitter_seed):
                    segment = self._roll(first_offset, now_ms)
                self._ceiling = rolling.Ceiling(segment, self.config, self._jitter_seed)
            segment.append(content, placed)
        except OSError as error:
            raise storage_error(error, f"appending to {self.directory}") from error
        self.log_end_offset = last_offset + 1
        if staging is not None:
            for entry in self._state.commit(staging):
                segment.transactions.append(entry)
        self._places.remember(last_offset + 1, segment, segment.size)

    # --- reading

    def read(self, offset: int, max_bytes: int, upper_offset: int, min_one: bool = True) -> LogSlice:
        """Whole batches from the one that holds `offset`, below `upper_offset` (high watermark, last stable or end offset).

        Empty when `offset` is at or past `upper_offset`. Raises OFFSET_OUT_OF_RANGE below the start or past the end.
        One segment at most: the rest comes with the next read.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic_partition} is outside {self.log_start_offset} to {self.log_end_offset}",
            )
        if offset >= upper_offset or offset == self.log_end_offset:
            return LogSlice([], 0, offset, offset)
        try:
            return self._read(offset, max_bytes, upper_offset, min_one)
        except OSError as error:
            raise storage_error(error, f"reading {self.directory}") from error

    def _read(self, offset: int, max_bytes: int, upper_offset: int, min_one: bool) -> LogSlice:
        segment, start = self._place(offset)
        end_offset = self._segments.end_offset(segment, self.log_end_offset)
        limit = segment.size
        if upper_offset < end_offset:
            upper_segment, limit = self._place(upper_offset)
            end_offset = upper_offset
            if upper_segment is not segment:
                limit = segment.size
        if limit <= start:
            return LogSlice([], 0, offset, offset)
        if limit - start > max_bytes:
            last = segment.cut(start, start + max(max_bytes, 0))
            if last is None:
                raise OSError(f"no batch at {start} of segment {segment.base_offset} of {self.directory}")
            limit, end_offset = last.position, last.header.base_offset
            if limit == start:  # the first batch alone is larger
                if not min_one:
                    return LogSlice([], 0, offset, offset)
                limit, end_offset = start + last.header.size, last.header.next_offset
            self._places.remember(end_offset, segment, limit)
        return LogSlice([segment.slice(start, limit - start)], limit - start, offset, end_offset)

    def _place(self, offset: int) -> tuple[SegmentReader, int]:
        """Segment and position of the first batch with a last offset at or above `offset`; the end of the log when there is none."""
        known = self._places.get(offset)
        active = self._segments.active
        if known is not None and (known[1] < known[0].size or known[0] is active):
            return known
        for slot in range(self._segments.floor(offset), len(self._segments)):
            place = self._segments[slot].locate(offset)
            if place is not None:
                return self._segments[slot], place.position
        return active, active.size  # what is left of the offset's segment, and all after it, was compacted away

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """For read_committed: transactions with records in [start, end) that were aborted. Pass a slice's `end_offset`."""
        return [AbortedTransaction(entry[0], entry[1]) for entry in self.aborted_entries(start_offset, end_offset)]

    def aborted_entries(self, start_offset: int, end_offset: int) -> list[AbortedEntry]:
        found = []
        for slot in range(self._segments.floor(start_offset), len(self._segments)):
            for entry in self._segments[slot].transactions.entries:
                if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                    found.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return found
        return found

    def lookup_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record with this timestamp or a later one; not after it where finding it would unpack too much."""
        return timestamps.lookup(self._segments, timestamp, self.log_start_offset, self.config.max_message_bytes)

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The (first) record with the largest timestamp; the last of its batch where finding it would unpack too much."""
        return timestamps.largest(self._segments, self.log_start_offset, self.config.max_message_bytes)

    # --- deleting

    def delete_records(self, offset: int) -> int:
        """Moves the start offset up to `offset` (-1: the high watermark) and returns it. OFFSET_OUT_OF_RANGE past the watermark.

        The segments below go with the next `apply_retention`.
        """
        if not self.config.delete:
            raise ApiError(ErrorCode.POLICY_VIOLATION, f"Records of partition {self.topic_partition} can not be deleted due to the configured policy")  # fmt: skip
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} of {self.topic_partition} is past its high watermark {self.high_watermark}")  # fmt: skip
        self.advance_log_start_offset(target)
        return self.log_start_offset

    def advance_log_start_offset(self, offset: int) -> bool:
        """A follower's way to follow its leader's start offset."""
        target = min(offset, self.high_watermark)
        if target <= self.log_start_offset:
            return False
        self.log_start_offset = target
        try:
            self._epochs.truncate_start(target)
        except OSError as error:
            raise storage_error(error, f"writing the leader epochs of {self.directory}") from error
        return True

    def apply_retention(self, now_ms: int) -> int:
        """Deletes segments by time, size and start offset, per the cleanup policy; how many went."""
        count = retention.deletable(self._segments, self.config, self.log_start_offset, self.high_watermark, self.log_end_offset, now_ms)  # fmt: skip
        if not count:
            return 0
        try:
            if count == len(self._segments):
                count = self._rolled_or_less(count, now_ms)
            leaving = [self._segments[slot] for slot in range(count)]
            self._places.clear()
            self._segments.remove(leaving, now_ms, self.config.file_delete_delay_ms)
            gone = self._snapshots.retire([segment.base_offset for segment in leaving])
            self._segments.discard(gone, now_ms, self.config.file_delete_delay_ms)
        except OSError as error:
            raise storage_error(error, f"deleting segments of {self.directory}") from error
        self.advance_log_start_offset(self._segments.first.base_offset)
        return count

    def _rolled_or_less(self, count: int, now_ms: int) -> int:
        """Nothing is to be left but a new segment. Where there is no room for one, the last stays until those before it have made some."""
        try:
            self._roll(self.log_end_offset, now_ms)
        except OSError:
            if count == 1:
                raise
            return count - 1
        return count

    def housekeeping(self, now_ms: int) -> None:
        """Every few minutes: remove files whose delete delay has passed, forget expired producers."""
        try:
            self._segments.purge(now_ms)
        except OSError as error:
            raise storage_error(error, f"deleting files of {self.directory}") from error
        if self._producers is not None:
            self._producers.expire(now_ms, self.config.producer_id_expiration_ms)

    # --- compaction (decided in `cleaner`)

    def last_records_of_producers(self) -> dict[int, tuple[int, int]]:
        """Last data offset (-1: only a marker) and epoch of every live producer: what compaction must not lose."""
        entries = self._state.entries.items()
        return {key: (entry.batches[-1].last_offset if entry.batches else -1, entry.producer_epoch) for key, entry in entries}

    def segment_at(self, base_offset: int) -> Segment | None:
        return self._segments.at(base_offset)

    def begin_swap(self, bases: Sequence[int], size: int, has_transactions: bool, now_ms: int) -> None:
        """The `.cleaned` segment at the first base is complete: from here on, after the next flush, a crash puts it in its place."""
        new = Segment(
            self._disk,
            self.directory,
            bases[0],
            self._open_files,
            size=size,
            created_ms=now_ms,
            index_interval=self.config.index_interval_bytes,
            has_transactions=has_transactions,
            suffix=files.CLEANED,
        )
        try:
            new.rename(files.SWAP)
        except OSError as error:
            raise storage_error(error, f"compacting {self.directory}") from error
        self._swap = new
        self._to_sync.add(new.path(files.LOG))

    def finish_swap(self, bases: Sequence[int], now_ms: int) -> bool:
        """Puts it in the place of the segments at `bases`. The flush between has made `.swap` durable: only now may they go.

        False when a truncation came between and took it away.
        """
        new, delay_ms = self._swap, self.config.file_delete_delay_ms
        if new is None:
            return False
        old = [segment for base in bases if (segment := self._segments.at(base)) is not None]
        try:
            self._places.clear()
            self._segments.remove(old, now_ms, delay_ms)
            new.rename("")
            self._segments.add(new)
            self._segments.discard(self._snapshots.retire(list(bases[1:])), now_ms, delay_ms)
        except OSError as error:
            raise storage_error(error, f"compacting {self.directory}") from error
        self._swap = None
        return True

    def discard_cleaned(self) -> None:
        """The log changed while it was being compacted."""
        self._abandon_swap()
        for name in self._disk.list(self.directory):
            if name.endswith(files.CLEANED):
                self._disk.remove(f"{self.directory}/{name}")

    # --- producers

    def active_producers(self) -> list[ProducerSummary]:
        return self._state.summaries()

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, now_ms: int, *, supports_epoch_bump: bool
    ) -> VerificationGuard | None:
        """Before a transactional append: None when a transaction is already ongoing here and nothing needs verifying."""
        return self._state.start_verification(producer_id, sequence, epoch, now_ms, supports_epoch_bump)

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        return self._state.has_ongoing(producer_id, producer_epoch)
