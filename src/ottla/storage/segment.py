"""One segment: a file of batches and its three indexes.

The last segment of a log is *active*: it is appended to and keeps its indexes in memory. All others are sealed: they hold no
memory but their name and size, open their file when somebody reads, and look into their indexes on disk.

Reading goes through `SegmentReader`, all that a log asks of a segment it serves from: a segment that was moved to remote
storage may stand in the same list later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from ottla.host.disk import Bytes, Disk, File, FileRange
from ottla.records.batch import HEADER, HEADER_SIZE, LENGTH_PREFIX, MAGIC, BatchHeader, crc_of, read_header
from ottla.storage import files
from ottla.storage.files import OpenFiles, file_name
from ottla.storage.index import OffsetIndex, TimeIndex, save
from ottla.storage.transaction_index import TransactionIndex

SCAN_BYTES = 8 << 10  # a look-up reads on from an index entry in such steps
REBUILD_BYTES = 64 << 10
VERIFY_BYTES = 1 << 20
MAX_RELATIVE_OFFSET = 2**31 - 1
NO_TIMESTAMP = -1


class Place(NamedTuple):
    """Where a batch is."""

    position: int
    header: BatchHeader


class SegmentReader(Protocol):
    base_offset: int

    @property
    def size(self) -> int: ...

    def slice(self, position: int, size: int) -> FileRange: ...

    def locate(self, offset: int) -> Place | None:
        """The first batch whose last offset is not below `offset`; None when all are."""

    def cut(self, position: int, limit: int) -> Place | None:
        """The last batch that begins at or below `limit`, looking from the batch at `position` on."""

    def batches(self, position: int) -> Iterator[Place]: ...


class Segment:
    __slots__ = (
        "_disk",
        "_file",
        "_first_timestamp",
        "_index",
        "_max_timestamp",
        "_open_files",
        "_time_index",
        "active",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "directory",
        "index_interval",
        "size",
        "suffix",
        "transactions",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        open_files: OpenFiles,
        *,
        size: int,
        created_ms: int,
        index_interval: int,
        has_transactions: bool = False,
        suffix: str = "",
    ) -> None:
        self._disk = disk
        self._open_files = open_files
        self._file: File | None = None
        self._index: OffsetIndex | None = None  # both: loaded only while active
        self._time_index: TimeIndex | None = None
        self._max_timestamp: tuple[int, int] | None = None  # (timestamp, last offset of its batch); None: not read yet
        self._first_timestamp: int | None = None
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix  # "" unless on its way in or out (.cleaned, .swap, .deleted)
        self.size = size
        self.created_ms = created_ms
        self.index_interval = index_interval
        self.bytes_since_index = 0
        self.active = False
        self.transactions = TransactionIndex(disk, self.path(files.TRANSACTION_INDEX), has_transactions)

    @classmethod
    def create(cls, disk: Disk, directory: str, base_offset: int, open_files: OpenFiles, now_ms: int, index_interval: int, suffix: str = "") -> Segment:  # fmt: skip
        """A new, empty and active segment. Whatever lay there under its name is gone."""
        segment = cls(
            disk, directory, base_offset, open_files, size=0, created_ms=now_ms, index_interval=index_interval, suffix=suffix
        )
        for kind in files.SEGMENT_SUFFIXES:
            if disk.exists(segment.path(kind)):
                disk.remove(segment.path(kind))
        segment._file = disk.open(segment.path(files.LOG), create=True)
        open_files.opened(id(segment), segment.forget_file)
        segment.activate_empty()
        return segment

    def path(self, kind: str) -> str:
        return f"{self.directory}/{file_name(self.base_offset, kind)}{self.suffix}"

    @property
    def file(self) -> File:
        file = self._file
        if file is None:
            file = self._file = self._disk.open(self.path(files.LOG))
            self._open_files.opened(id(self), self.forget_file)
        return file

    def forget_file(self) -> None:
        self._file = None

    def close(self) -> None:
        """Drops the file and whatever is held in memory; nothing is written."""
        self._open_files.closed(id(self))
        self._file = self._index = self._time_index = None

    # --- indexes

    def activate_empty(self) -> None:
        self.active = True
        self._index, self._time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self._max_timestamp = (NO_TIMESTAMP, self.base_offset)
        self.transactions.reset()

    @property
    def index(self) -> OffsetIndex:
        """Loaded for the active segment, a view of the file otherwise."""
        if self._index is not None:
            return self._index
        if self.active:
            self._load_indexes()
            assert self._index is not None
            return self._index
        return OffsetIndex.view(self.base_offset, self._index_file(files.INDEX, 8))

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is not None:
            return self._time_index
        if self.active:
            self._load_indexes()
            assert self._time_index is not None
            return self._time_index
        return TimeIndex.view(self.base_offset, self._index_file(files.TIME_INDEX, 12))

    def _index_file(self, kind: str, entry_size: int) -> File:
        file = self._disk.open(self.path(kind))
        if file.size % entry_size:  # never written whole: its last entry, the largest timestamp, may be missing
            self.rebuild_indexes()
            file = self._disk.open(self.path(kind))
        return file

    def _load_indexes(self) -> None:
        self._index = OffsetIndex.load(self.base_offset, self._disk.read_all(self.path(files.INDEX)))
        self._time_index = TimeIndex.load(self.base_offset, self._disk.read_all(self.path(files.TIME_INDEX)))

    def save_indexes(self, *, final: bool = False) -> str | None:
        """Brings the index files up to date. `final`: the largest timestamp gets its entry, as when sealing.

        Returns the transaction index's path when it changed, for syncing: it alone is not checked by whoever reads it, and without
        an entry aborted records would show. The other two are hints that a reader checks and rebuilds.
        """
        if self._index is None or self._time_index is None:
            return None
        if final:
            self._time_index.append(*self.max_timestamp)
        save(self._disk, self.path(files.INDEX), self._index, 8)
        save(self._disk, self.path(files.TIME_INDEX), self._time_index, 12)
        return self.path(files.TRANSACTION_INDEX) if self.transactions.save() else None

    def seal(self) -> None:
        """It is no longer the last segment: indexes go to disk, memory is given back."""
        self.save_indexes(final=True)
        self.active = False
        self._index = self._time_index = None

    def rebuild_indexes(self) -> None:
        """From the headers of the batches. For an index that is missing, garbled, or was never written."""
        index, times = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        largest, largest_offset, last_entry = NO_TIMESTAMP, self.base_offset, 0
        for position, header in self.batches(0, REBUILD_BYTES):
            if header.max_timestamp > largest:
                largest, largest_offset = header.max_timestamp, header.last_offset
            if position - last_entry > self.index_interval:
                index.append(header.last_offset, position)
                times.append(largest, largest_offset)
                last_entry = position
        times.append(largest, largest_offset)
        self.adopt_indexes(index, times, (largest, largest_offset))

    def adopt_indexes(self, index: OffsetIndex, times: TimeIndex, max_timestamp: tuple[int, int]) -> str | None:
        """Replaces whatever was there. An active segment's reach the disk with the next flush. Returns as `save_indexes`."""
        self._max_timestamp = max_timestamp
        self.bytes_since_index = 0
        self._index, self._time_index = index, times
        if self.active:
            return None
        changed = self.save_indexes()
        self._index = self._time_index = None
        return changed

    def index_full(self, limit_bytes: int) -> bool:
        # The time index never has more entries than the other; its last slot is kept for sealing.
        return len(self.index.offsets) >= limit_bytes // 12 - 1 and (
            len(self.index) >= limit_bytes // 8 or len(self.time_index) >= limit_bytes // 12 - 1
        )

    def index_room(self, limit_bytes: int) -> int:
        """So many entries, at least, until `index_full`."""
        return limit_bytes // 12 - 1 - len(self.index.offsets)

    # --- times

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """The largest timestamp and the last offset of the (first) batch that has it; (-1, base offset) when none has one."""
        if self._max_timestamp is None:
            self._max_timestamp = self._read_max_timestamp()
        return self._max_timestamp

    def _read_max_timestamp(self) -> tuple[int, int]:
        if not self.size:
            return NO_TIMESTAMP, self.base_offset
        timestamp, offset = self.time_entry(TimeIndex.last)
        if self.active:  # a sealed segment's last entry is its largest; an active one may have a larger one behind it
            start = self._near(lambda index, entry=offset: index.lookup(entry))  # type: ignore[misc]
            for _, header in self.batches(start, REBUILD_BYTES):
                if header.max_timestamp > timestamp:
                    timestamp, offset = header.max_timestamp, header.last_offset
        return timestamp, offset

    def time_entry(self, find: Callable[[TimeIndex], tuple[int, int]]) -> tuple[int, int]:
        """An entry of the time index that is true: retention would delete records on the word of a garbled one."""
        timestamp, offset = find(self.time_index)
        if timestamp != NO_TIMESTAMP or (len(self.time_index) == 0 and not self.active):
            place = self.locate(offset) if timestamp != NO_TIMESTAMP else None
            if place is None or place.header.max_timestamp != timestamp or place.header.base_offset > offset:
                self.rebuild_indexes()
                return find(self.time_index)
        return timestamp, offset

    def retention_timestamp(self) -> int:
        """What its age counts from: the largest timestamp of its records, or when the file was last written."""
        timestamp = self.max_timestamp[0]
        return timestamp if timestamp >= 0 else self._disk.modified_ms(self.path(files.LOG))

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, from which segment.ms counts; -1 while empty."""
        if self._first_timestamp is None and self.size:
            self._first_timestamp = next(self.batches(0), Place(0, _NOTHING)).header.max_timestamp
        return NO_TIMESTAMP if self._first_timestamp is None else self._first_timestamp

    # --- writing

    def append(self, content: Bytes, batches: list[tuple[int, int, int]]) -> None:
        """`batches`: size, last offset and largest timestamp of each batch in `content`. OSError leaves everything as it was."""
        (self._file or self.file).append(content)
        position = self.size
        if not position:
            self._first_timestamp = batches[0][2]
        for size, last_offset, timestamp in batches:
            if timestamp > (self._max_timestamp or self.max_timestamp)[0]:
                self._max_timestamp = (timestamp, last_offset)
            if self.bytes_since_index > self.index_interval:
                self.index.append(last_offset, position)
                self.time_index.append(*self.max_timestamp)
                self.bytes_since_index = 0
            position += size
            self.bytes_since_index += size
        self.size = position

    def truncate(self, position: int, offset: int, now_ms: int) -> None:
        """Cuts the batch at `position`, which holds `offset`, and all after it. Only the active segment is cut."""
        self.index.truncate(offset)
        self.time_index.truncate(offset)
        self.transactions.truncate(offset)
        self.file.truncate(position)
        self.size = position
        self.bytes_since_index = 0
        self._max_timestamp = None
        if not position:
            self._first_timestamp = None
            self.created_ms = now_ms

    # --- reading

    def slice(self, position: int, size: int) -> FileRange:
        return FileRange(self.file, position, size)

    def batches(self, position: int, step: int = SCAN_BYTES) -> Iterator[Place]:
        """Batches from a position on, headers only, up to the first that is not whole."""
        chunk, start = b"", position
        while position + HEADER_SIZE <= self.size:
            if position + HEADER_SIZE > start + len(chunk):
                chunk, start = self.file.read(position, min(step, self.size - position)), position
                if len(chunk) < HEADER_SIZE:
                    return
            header = read_header(chunk, position - start)
            size = header.batch_length + LENGTH_PREFIX
            if size < HEADER_SIZE or position + size > self.size:
                return
            yield Place(position, header)
            position += size

    def _near(self, find: Callable[[OffsetIndex], tuple[int, int] | None]) -> int:
        """The position of an index entry's batch, or 0. An entry that names another batch than it points at is a lie: rebuild."""
        entry = find(self.index)
        if entry is None:
            return 0
        place = next(self.batches(entry[1]), None) if 0 <= entry[1] < self.size else None
        if place is None or place.header.last_offset != entry[0] or place.header.magic != MAGIC:
            self.rebuild_indexes()
            entry = find(self.index)
        return entry[1] if entry else 0

    def locate(self, offset: int) -> Place | None:
        for place in self.batches(self._near(lambda index: index.lookup(offset))):
            if place.header.last_offset >= offset:
                return place
        return None

    def cut(self, position: int, limit: int) -> Place | None:
        found = None
        for place in self.batches(max(position, self._near(lambda index: index.before(limit)))):
            if place.position > limit:
                break
            found = place
        return found

    def next_offset(self) -> int:
        """One past the last record; the base offset when empty."""
        found = self.base_offset
        if self.size:
            for _, header in self.batches(self._near(OffsetIndex.last), REBUILD_BYTES):
                found = header.next_offset
        return found

    def verified_batches(self, position: int = 0) -> Iterator[tuple[Place, memoryview]]:
        """Whole batches with their bytes, each checked: size, magic, checksum, offsets that grow. Ends at the first that is wrong."""
        chunk, start = b"", position
        expected = self.base_offset
        while position + HEADER_SIZE <= self.size:
            if position + HEADER_SIZE > start + len(chunk):
                chunk, start = self.file.read(position, min(VERIFY_BYTES, self.size - position)), position
                if len(chunk) < HEADER_SIZE:
                    return
            header = read_header(chunk, position - start)
            size = header.batch_length + LENGTH_PREFIX
            if size < HEADER_SIZE or position + size > self.size or header.magic != MAGIC:
                return
            if position + size > start + len(chunk):
                chunk, start = self.file.read(position, max(size, min(VERIFY_BYTES, self.size - position))), position
                if len(chunk) < size:
                    return
            in_order = expected <= header.base_offset <= header.last_offset <= self.base_offset + MAX_RELATIVE_OFFSET
            if not in_order or crc_of(chunk, position - start, size) != header.crc:
                return
            yield Place(position, header), memoryview(chunk)[position - start : position - start + size]
            expected = header.last_offset + 1
            position += size

    # --- moving

    def rename(self, suffix: str) -> None:
        """Changes the suffix of all its files; open slices stay valid."""
        names = [(self.path(kind), kind) for kind in files.SEGMENT_SUFFIXES]
        self.suffix = suffix
        for old, kind in names:
            if self._disk.exists(old):
                self._disk.rename(old, self.path(kind))
        self.transactions.path = self.path(files.TRANSACTION_INDEX)

    def paths(self) -> list[str]:
        return [self.path(kind) for kind in files.SEGMENT_SUFFIXES]


_NOTHING = BatchHeader._make(HEADER.unpack(bytes(HEADER_SIZE)))
