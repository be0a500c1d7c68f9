"""Opening a log folder: leftovers resolved, segments found, and after a crash everything past the recovery point checked.

What a crash can leave, and what becomes of it (as Kafka does):

- `.deleted`, `.tmp`: removed. A segment renamed to `.deleted` had left the log.
- `.cleaned`: an unfinished compaction: removed, together with any `.swap` at or past the lowest `.cleaned` offset (the rename
  of a group of segments had not finished).
- `.swap`: a finished compaction: the segments it covers are removed, then it takes its name.
- an index without its `.log`: removed. A missing or garbled index: rebuilt, a transaction index by recovering its segment.
- a batch that is torn, has a wrong checksum or goes backwards: it and everything after it is cut.
- a snapshot that fails its checksum: removed; an older one is read and the batches after it replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ottla.host.disk import Bytes, Disk
from ottla.records.batch import BatchHeader
from ottla.records.control import read_end_transaction
from ottla.records.record import decode_batch
from ottla.storage import files
from ottla.storage.config import LogConfig
from ottla.storage.epochs import LeaderEpochs
from ottla.storage.files import OpenFiles, file_name, offset_of
from ottla.storage.index import OffsetIndex, TimeIndex
from ottla.storage.producers import ProducerStates, Staging, expired
from ottla.storage.segment import NO_TIMESTAMP, REBUILD_BYTES, Segment
from ottla.storage.segments import Segments
from ottla.storage.snapshots import Snapshots
from ottla.storage.types import Origin

_LEFTOVERS = (files.DELETED, files.CLEANED, files.SWAP, files.TEMPORARY)


class Loaded(NamedTuple):
    segments: Segments
    epochs: LeaderEpochs
    snapshots: Snapshots
    producers: ProducerStates | None  # None: not read yet, `replay` does it when asked
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    unsynced: set[str]  # files written while loading, to be synced with the next flush


class Loader:
    def __init__(
        self, disk: Disk, directory: str, config: LogConfig, open_files: OpenFiles, now_ms: int, *, compacted: bool = False
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._open_files = open_files
        self._now_ms = now_ms
        self._compacted = compacted  # now or ever: its offsets may have gaps
        self._unsynced: set[str] = set()

    def load(self, *, clean: bool, recovery_point: int, log_start_offset: int) -> Loaded:
        names = self._disk.list(self._directory)
        if not names:
            self._disk.make_directory(self._directory)
        elif any(name.endswith(_LEFTOVERS) for name in names):
            names = self._resolve_leftovers(names)
        segments = Segments(self._disk, self._find_segments(names))
        epochs = LeaderEpochs(self._disk, f"{self._directory}/{files.LEADER_EPOCHS}")
        taken = self._find_snapshots(names, segments)
        producers = None
        damaged = next((segment for segment in segments if not segment.transactions.sane(segment.base_offset)), None)
        if damaged is not None:  # nobody could tell from it which records were aborted
            clean, recovery_point = False, min(recovery_point, damaged.base_offset)
        if not clean and len(segments):
            if not epochs.readable():
                recovery_point = 0  # they are noted again from the batches
            producers = self._recover(segments, epochs, taken, recovery_point, log_start_offset)
        end_offset = segments.active.next_offset() if len(segments) else log_start_offset
        if len(segments) and end_offset < log_start_offset:
            # Files were taken away under us: what is left lies before the start and must not be served.
            segments.remove(list(segments), self._now_ms, 0)
            segments.purge(self._now_ms)
            end_offset, producers = log_start_offset, None
            taken.drop(list(taken.offsets))
            epochs.clear()
        if not len(segments):
            segments.add(self._create(end_offset))
            self._unsynced.add(segments.active.path(files.LOG))
        segments.active.active = True
        log_start_offset = max(log_start_offset, segments.first.base_offset)
        if not clean:
            epochs.truncate_end(end_offset)
            epochs.truncate_start(log_start_offset)
        recovery_point = end_offset if clean else min(recovery_point, end_offset)
        return Loaded(segments, epochs, taken, producers, log_start_offset, end_offset, recovery_point, self._unsynced)

    def _path(self, offset: int, kind: str) -> str:
        return f"{self._directory}/{file_name(offset, kind)}"

    def _create(self, base_offset: int) -> Segment:
        return Segment.create(
            self._disk, self._directory, base_offset, self._open_files, self._now_ms, self._config.index_interval_bytes
        )

    # --- leftovers

    def _resolve_leftovers(self, names: list[str]) -> list[str]:
        remove, rename = resolve(names, self._swap_range)
        for name in remove:
            self._disk.remove(f"{self._directory}/{name}")
        for name in rename:
            self._disk.rename(f"{self._directory}/{name}", f"{self._directory}/{name.removesuffix(files.SWAP)}")
        return self._disk.list(self._directory) if remove or rename else names

    def _swap_range(self, base_offset: int) -> int:
        """Where a swapped segment ends: it replaces every segment that begins before."""
        segment = self._segment(base_offset, suffix=files.SWAP)
        ends = [header.next_offset for _, header in segment.batches(0, REBUILD_BYTES)]
        segment.close()
        return ends[-1] if ends else base_offset + 1

    # --- segments

    def _segment(self, base_offset: int, *, has_transactions: bool = False, suffix: str = "") -> Segment:
        return Segment(
            self._disk,
            self._directory,
            base_offset,
            self._open_files,
            size=self._disk.size(self._path(base_offset, files.LOG) + suffix),
            created_ms=self._now_ms,
            index_interval=self._config.index_interval_bytes,
            has_transactions=has_transactions,
            suffix=suffix,
        )

    def _find_segments(self, names: list[str]) -> Iterator[Segment]:
        present = set(names)
        for name in names:
            offset = offset_of(name)
            if offset is None:
                continue
            if name.endswith(files.LOG):
                has_transactions = file_name(offset, files.TRANSACTION_INDEX) in present
                segment = self._segment(offset, has_transactions=has_transactions)
                if not {file_name(offset, files.INDEX), file_name(offset, files.TIME_INDEX)} <= present:
                    segment.rebuild_indexes()
                yield segment
            elif name.endswith(files.SEGMENT_SUFFIXES) and file_name(offset, files.LOG) not in present:
                self._disk.remove(f"{self._directory}/{name}")

    def _find_snapshots(self, names: list[str], segments: Segments) -> Snapshots:
        """Those at a segment's start, and the last of all, which a clean stop left at the end of the log."""
        found = [offset for name in names if name.endswith(files.SNAPSHOT) and (offset := offset_of(name)) is not None]
        bases = {segment.base_offset for segment in segments}
        latest = max(bases, default=0)
        taken = Snapshots(self._disk, self._directory, found)
        taken.drop([offset for offset in found if offset not in bases and (offset != found[-1] or offset < latest)])
        return taken

    # --- recovery

    def _recover(
        self, segments: Segments, epochs: LeaderEpochs, taken: Snapshots, recovery_point: int, log_start_offset: int
    ) -> ProducerStates:
        slot = segments.floor(recovery_point)
        start = segments[slot].base_offset
        taken.drop([offset for offset in taken.offsets if offset > start])  # they may describe what is cut now
        producers = self.replay(segments, taken, log_start_offset, start)
        noted = False
        while slot < len(segments):
            segment = segments[slot]
            taken.take(segment.base_offset, producers.entries)
            segment.active = slot == len(segments) - 1
            torn, new_epochs, hole = self._recover_segment(segment, producers, epochs)
            noted |= new_epochs
            if torn or (hole is not None and slot + 1 < len(segments) and hole < segments[slot + 1].base_offset):
                segments.remove([later for later in segments if later.base_offset > segment.base_offset], self._now_ms, 0)
                segments.purge(self._now_ms)
                segment.active = True
            slot += 1
        if noted:
            epochs.save()
        return producers

    def _recover_segment(
        self, segment: Segment, producers: ProducerStates, epochs: LeaderEpochs
    ) -> tuple[bool, bool, int | None]:
        """Checks every batch and indexes the segment anew. Whether something had to be cut, and whether an epoch was new.

        And the offset after its last record, if the segment has every offset up to there, so that the next segment must begin
        with it. A power cut may take the unsynced end of a segment and leave the next one, which was synced by chance: what
        comes after such a hole is cut, too, because a replica with a hole would pass for one in sync. None where compaction
        may have left gaps.
        """
        index, times = OffsetIndex(segment.base_offset), TimeIndex(segment.base_offset)
        segment.transactions.reset()
        largest, end, last_entry, noted = (NO_TIMESTAMP, segment.base_offset), 0, 0, False
        next_offset: int | None = None if self._compacted else segment.base_offset
        for (position, header), content in segment.verified_batches():
            if header.max_timestamp > largest[0]:
                largest = header.max_timestamp, header.last_offset
            if position - last_entry > segment.index_interval:
                index.append(header.last_offset, position)
                times.append(*largest)
                last_entry = position
            end = position + header.size
            whole = header.base_offset == next_offset and header.record_count == header.last_offset_delta + 1
            next_offset = header.next_offset if whole else None
            noted |= epochs.note(header.leader_epoch, header.base_offset)
            self._follow(producers, header, content, segment)
        torn = segment.size - end
        if torn:
            segment.file.truncate(end)
            segment.size = end
        times.append(*largest)
        changed = segment.adopt_indexes(index, times, largest)
        if changed is not None:
            self._unsynced.add(changed)
        return torn > 0, noted, next_offset

    def _follow(self, producers: ProducerStates, header: BatchHeader, content: memoryview, segment: Segment | None) -> None:
        if header.producer_id < 0:
            return
        staging = Staging(producers, Origin.REPLICATION, self._config)
        stage_stored(staging, header, content)
        for entry in producers.commit(staging):
            if segment is not None:
                segment.transactions.append(entry)

    def replay(self, segments: Segments, taken: Snapshots, log_start_offset: int, end_offset: int) -> ProducerStates:
        """The producers' state at `end_offset`: the newest sound snapshot, and the batches after it."""
        producers = ProducerStates()
        start, after_ms = log_start_offset, self._config.producer_id_expiration_ms
        latest = taken.latest(end_offset)
        if latest is not None:
            start = max(start, latest[0])
            producers.load({key: entry for key, entry in latest[1].items() if not expired(entry, self._now_ms, after_ms)})
        if start >= end_offset:
            return producers
        for segment in segments:
            if segments.end_offset(segment, end_offset) <= start or segment.base_offset >= end_offset:
                continue
            place = segment.locate(start)
            for position, header in segment.batches(place.position if place else segment.size, REBUILD_BYTES):
                if header.base_offset >= end_offset:
                    break
                if header.producer_id >= 0:
                    content = segment.file.read(position, header.size) if header.is_control else b""
                    self._follow(producers, header, memoryview(content), None)
        producers.expire(self._now_ms, after_ms)
        return producers


def resolve(names: list[str], swap_end: Callable[[int], int]) -> tuple[list[str], list[str]]:
    """Which files of a folder to remove, and which `.swap` files to rename. `swap_end`: where a swapped segment ends."""
    remove = [
        name for name in names if name.endswith((files.DELETED, files.CLEANED, files.TEMPORARY)) and offset_of(name) is not None
    ]
    remove += [
        name
        for name in names
        if name == files.LEADER_EPOCHS + files.TEMPORARY or name == files.PARTITION_METADATA + files.TEMPORARY
    ]
    lowest_cleaned = min((_offset(name) for name in names if name.endswith(files.CLEANED)), default=None)
    rename = []
    covered: list[range] = []
    for name in names:
        if not name.endswith(files.SWAP) or offset_of(name) is None:
            continue
        if lowest_cleaned is not None and _offset(name) >= lowest_cleaned:
            remove.append(name)
            continue
        rename.append(name)
        if name.endswith(files.LOG + files.SWAP):
            covered.append(range(_offset(name), swap_end(_offset(name))))
    for name in names:
        if (
            name.endswith(files.SEGMENT_SUFFIXES)
            and offset_of(name) is not None
            and any(_offset(name) in span for span in covered)
        ):
            remove.append(name)
    return remove, rename


def _offset(name: str) -> int:
    offset = offset_of(name)
    assert offset is not None, name
    return offset


def stage_stored(staging: Staging, header: BatchHeader, content: Bytes, transaction_version: int = 0) -> None:
    """Stage a batch with the offset its header says; `content` is needed for a marker only."""
    if not header.is_control:
        staging.data(header, header.base_offset, header.max_timestamp)
        return
    records = decode_batch(content)
    end = read_end_transaction(records[0]) if records else None  # an empty one: compaction has removed the transaction
    if end is not None:
        staging.marker(header, end, header.base_offset, records[0].timestamp, transaction_version)
