"""Compaction: of records with the same key only the last is kept. The part that reads and writes, run in a worker process.

In: a plan made on the loop (`cleaner.plan`): the sealed segments of one log, what is dirty, how transactions ended, who still
produces. Out: for each group of segments one new segment in `.cleaned` files, synced; the loop swaps them in.

1. Map each key in the dirty part to its last offset. The part that was cleaned before has no duplicates within itself.
2. Copy every segment up to the end of the map, leaving out what the map says is overwritten. Small neighbours become one segment.

What stays although its key was overwritten or it never had one to show (KIP-98, KIP-534):
- a batch that carries a live producer's last sequence stays, empty if need be; so does the last batch of the cleaned range;
- a tombstone stays until its batch's delete horizon, which the first cleaning that meets it sets `delete.retention.ms` ahead;
- a transaction's marker stays until all records of the transaction are gone, and then for as long as a tombstone would;
- records of aborted transactions go at once, and count for no key.
Offsets, and the sequence range a batch stands for, never change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heapify, heappop

from ottla.host.disk import Disk
from ottla.model.errors import ApiError
from ottla.records.batch import BatchHeader
from ottla.records.builder import build_batch, empty_batch
from ottla.records.control import ControlType, read_control_type
from ottla.records.record import Record, decode_batch, decode_records, unpack
from ottla.storage import files
from ottla.storage.files import OpenFiles
from ottla.storage.outline import Outline, keep, outline
from ottla.storage.segment import Segment
from ottla.storage.transaction_index import AbortedEntry

WRITE_BYTES = 1 << 20
MAP_ENTRY_BYTES = 192  # what a key costs in a Python dictionary, measured
KEY_DIGEST_BYTES = 16  # longer keys are mapped by a digest, as Kafka does


Kept = tuple["bytes | memoryview", int] | None  # a batch and its largest timestamp; None: nothing of it


class UncleanableLog(Exception):
    """A batch in it is damaged: rewriting would give the damage a right checksum."""


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """Everything the worker needs; pickles."""

    directory: str
    truncations: int  # of the log when the plan was made: cut and written anew, a segment may look the same
    segments: tuple[tuple[int, int, int], ...]  # base offset, size, end offset: sealed, in order, all below `end_offset`
    first_dirty_offset: int
    end_offset: int  # first uncleanable offset, the start of a segment
    aborted: tuple[AbortedEntry, ...]  # with records below `end_offset`
    producers: dict[int, tuple[int, int]]  # live ones: last data offset (-1: only a marker), epoch
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval: int
    map_bytes: int


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    bases: tuple[int, ...]  # of the segments it replaces
    size: int
    has_transactions: bool

    @property
    def base_offset(self) -> int:
        return self.bases[0]


@dataclass(frozen=True, slots=True)
class Cleaned:
    groups: tuple[CleanedGroup, ...]
    end_offset: int  # everything below is clean now
    bytes_read: int
    bytes_written: int


class Transactions:
    """How the transaction ended that a batch belongs to, as the log is read from its start."""

    def __init__(self, aborted: tuple[AbortedEntry, ...]) -> None:
        self._waiting = [(entry.first_offset, entry) for entry in aborted]
        heapify(self._waiting)
        self._aborted: dict[int, AbortedEntry] = {}  # ongoing, by producer
        self._seen: set[int] = set()  # producers with a batch of the ongoing aborted transaction still in the log
        self._committed: set[int] = set()  # the same of transactions that were committed

    def _advance(self, offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset:
            _, entry = heappop(self._waiting)
            self._aborted.setdefault(entry.producer_id, entry)

    def is_aborted(self, header: BatchHeader) -> bool:
        """For a data batch."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def marker(self, header: BatchHeader, records: list[Record]) -> tuple[bool, AbortedEntry | None]:
        """Whether nothing is left of the transaction a marker ends, and the index entry to keep if it is an abort with a rest."""
        self._advance(header.last_offset)
        if not records:
            return True, None
        kind, producer_id = read_control_type(records[0].key), header.producer_id
        if kind is ControlType.ABORT:
            entry = self._aborted.pop(producer_id, None)
            if entry is not None and producer_id in self._seen:
                self._seen.discard(producer_id)
                return False, entry
            return True, None
        if kind is ControlType.COMMIT:
            if producer_id in self._committed:
                self._committed.discard(producer_id)
                return False, None
            return True, None
        return False, None


def compact(disk: Disk, plan: CleaningPlan) -> Cleaned:
    """Runs in a worker. Raises UncleanableLog or OSError, having removed what it had written."""
    try:
        return _Compaction(disk, plan).run()
    except ApiError as error:  # a right checksum around records that are none
        raise UncleanableLog(f"{plan.directory}: {error}") from error


class _Compaction:
    def __init__(self, disk: Disk, plan: CleaningPlan) -> None:
        self._disk = disk
        self._plan = plan
        self._open_files = OpenFiles(limit=8)
        self._latest: dict[bytes, int] = {}
        self._mapped_end = plan.first_dirty_offset
        self._read = self._written = 0

    def run(self) -> Cleaned:
        self._map_keys()
        transactions = Transactions(self._plan.aborted)
        try:
            groups = tuple([self._clean(group, transactions) for group in self._groups()])
        except BaseException:
            self._remove_written()
            raise
        return Cleaned(groups, self._mapped_end, self._read, self._written)

    def _remove_written(self) -> None:
        for base, _, _ in self._plan.segments:
            for kind in files.SEGMENT_SUFFIXES:
                path = f"{self._plan.directory}/{files.file_name(base, kind)}{files.CLEANED}"
                if self._disk.exists(path):
                    self._disk.remove(path)

    def _segment(self, base: int, size: int) -> Segment:
        return Segment(
            self._disk,
            self._plan.directory,
            base,
            self._open_files,
            size=size,
            created_ms=self._plan.now_ms,
            index_interval=self._plan.index_interval,
        )

    def _batches(self, base: int, size: int, position: int = 0) -> Iterator[tuple[BatchHeader, memoryview]]:
        segment = self._segment(base, size)
        for place, content in segment.verified_batches(position):
            position = place.position + place.header.size
            yield place.header, content
        segment.close()
        if position != size:
            raise UncleanableLog(f"{segment.path(files.LOG)} is damaged at {position}")

    # --- what is overwritten

    def _map_keys(self) -> None:
        """Stops when the map is full; what lies behind is left for the next time."""
        plan, limit = self._plan, max(1, self._plan.map_bytes // MAP_ENTRY_BYTES)
        transactions = Transactions(plan.aborted)
        latest = self._latest
        for base, size, end in plan.segments:
            if end <= plan.first_dirty_offset:
                continue
            for header, content in self._batches(base, size):
                if header.is_control:
                    transactions.marker(header, decode_batch(content))
                elif not transactions.is_aborted(header) and header.last_offset >= plan.first_dirty_offset:
                    for record in outline(header, unpack(content, 0, header)):
                        if record.key is not None and record.offset >= plan.first_dirty_offset:
                            key = _digest(record.key)
                            if len(latest) >= limit and key not in latest:
                                return
                            latest[key] = record.offset
                self._mapped_end = max(self._mapped_end, header.next_offset)
            self._mapped_end = end

    def _groups(self) -> Iterator[list[tuple[int, int, int]]]:
        """Neighbours that fit into one segment, by size, by the size of their indexes and by the range of an index."""
        group: list[tuple[int, int, int]] = []
        size = index_bytes = 0
        for segment in self._plan.segments:
            base, segment_size, end = segment
            if base >= self._mapped_end:
                break
            index_size = 12 * (segment_size // max(1, self._plan.index_interval) + 1)  # an upper bound, without opening it
            fits = size + segment_size <= self._plan.segment_bytes and index_bytes + index_size <= self._plan.index_bytes
            if group and not (fits and (not segment_size or end - 1 - group[0][0] <= 2**31 - 1)):
                yield group
                group, size, index_bytes = [], 0, 0
            group.append(segment)
            size += segment_size
            index_bytes += index_size
        if group:
            yield group

    # --- what stays

    def _clean(self, group: list[tuple[int, int, int]], transactions: Transactions) -> CleanedGroup:
        plan = self._plan
        target = Segment.create(
            self._disk, plan.directory, group[0][0], self._open_files, plan.now_ms, plan.index_interval, suffix=files.CLEANED
        )
        buffer, placed = bytearray(), []
        for base, size, _ in group:
            for header, content in self._batches(base, size):
                self._read += header.size
                kept, entry = self._filter(header, content, transactions)
                if entry is not None:
                    target.transactions.append(entry)
                if kept is None:
                    continue
                buffer += kept[0]
                placed.append((len(kept[0]), header.last_offset, kept[1]))
                if len(buffer) >= WRITE_BYTES:
                    target.append(buffer, placed)
                    buffer, placed = bytearray(), []
        if placed:
            target.append(buffer, placed)
        self._written += target.size
        target.seal()
        for path in target.paths():
            if self._disk.exists(path):
                self._disk.open(path).sync()
        target.close()
        return CleanedGroup(tuple(base for base, _, _ in group), target.size, bool(target.transactions.entries))

    def _filter(self, header: BatchHeader, content: memoryview, transactions: Transactions) -> tuple[Kept, AbortedEntry | None]:
        """The batch as it stays; and an entry for the transaction index."""
        if header.is_control:
            records = decode_batch(content)
            ends_nothing, entry = transactions.marker(header, records)
            return self._filter_marker(header, content, records, ends_nothing), entry
        if transactions.is_aborted(header):
            return self._empty(header), None
        return self._filter_data(header, content), None

    def _filter_marker(self, header: BatchHeader, content: memoryview, records: list[Record], ends_nothing: bool) -> Kept:
        horizon = header.delete_horizon
        if not records or (ends_nothing and horizon is not None and horizon <= self._plan.now_ms):
            return self._empty(header)
        if not ends_nothing or horizon is not None:
            return content, header.max_timestamp
        return _rewrite(header, records, self._plan.now_ms + self._plan.delete_retention_ms), header.max_timestamp

    def _filter_data(self, header: BatchHeader, content: memoryview) -> Kept:
        data, horizon = unpack(content, 0, header), header.delete_horizon
        records = outline(header, data)
        kept = [record for record in records if self._is_kept(record, horizon)]
        if not kept:
            return self._empty(header)
        if horizon is None and any(not record.has_value for record in kept):
            offsets = {record.offset for record in kept}
            whole = [record for record in decode_records(header, data) if record.offset in offsets]
            timestamp = header.max_timestamp if header.is_log_append_time else max([record.timestamp for record in whole])
            return _rewrite(header, whole, self._plan.now_ms + self._plan.delete_retention_ms), timestamp
        if len(kept) == len(records):
            return content, header.max_timestamp
        return keep(header, data, kept)

    def _empty(self, header: BatchHeader) -> Kept:
        """What stays of a batch without records: nothing, unless its sequence or its offset is still needed."""
        if self._is_last_of_producer(header) or header.next_offset == self._plan.end_offset:
            return empty_batch(header), header.max_timestamp
        return None

    def _is_kept(self, record: Outline, horizon: int | None) -> bool:
        if record.offset >= self._mapped_end:
            return True
        if record.key is None:
            return False
        if record.offset < self._latest.get(_digest(record.key), -1):
            return False
        return record.has_value or horizon is None or self._plan.now_ms < horizon

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        live = self._plan.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if live is None:
            return False
        last_data_offset, epoch = live
        if last_data_offset >= 0:
            return header.last_offset == last_data_offset
        return header.is_control and header.producer_epoch == epoch


def _digest(key: bytes) -> bytes:
    return key if len(key) <= KEY_DIGEST_BYTES else b"\x00" + blake2b(key, digest_size=KEY_DIGEST_BYTES).digest()


def _rewrite(header: BatchHeader, records: list[Record], horizon: int) -> bytes:
    """With a delete horizon, which takes the place of the base timestamp: every record is written anew."""
    return build_batch(
        records,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        codec=header.codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        log_append_time=header.max_timestamp if header.is_log_append_time else None,
        delete_horizon=horizon,
        leader_epoch=header.leader_epoch,
    )
