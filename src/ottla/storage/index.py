"""The sparse indexes of a segment: offset → position, and timestamp → offset.

    .index      8 bytes an entry:  last offset of a batch, relative (int32) · position of that batch (int32)
    .timeindex 12 bytes an entry:  largest timestamp so far (int64) · last offset of the batch that has it, relative (int32)

Both are sorted in both columns. A batch gets entries when more than `index.interval.bytes` were written since the last one.
Entries of the segment being written are kept in arrays and reach their file when the log is flushed, rolled or closed: after
a crash, everything past the recovery point is indexed anew anyway, so writing them with each append would buy nothing.
Indexes of older segments stay on disk; a lookup bisects the file itself and holds no memory.

An index is a hint. Whoever follows an entry checks that the batch it points at is the one it names, and has the index
rebuilt when it is not.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from ottla.host.disk import Disk, File

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_SWAP = sys.byteorder == "little"
NO_TIMESTAMP = -1


class _Column(Sequence[int]):
    """One column of an index file, read an entry at a time: enough for `bisect`."""

    def __init__(self, file: File, entry_size: int, start: int, kind: struct.Struct) -> None:
        self._file, self._entry_size, self._start, self._kind = file, entry_size, start, kind
        self._count = file.size // entry_size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        position = (index % self._count) * self._entry_size + self._start
        value: int = self._kind.unpack(self._file.read(position, self._kind.size))[0]
        return value


class OffsetIndex:
    """Columns are arrays (a segment being written) or views of the file (any other)."""

    __slots__ = ("base_offset", "offsets", "positions", "saved", "stale")

    def __init__(self, base_offset: int, offsets: Sequence[int] | None = None, positions: Sequence[int] | None = None) -> None:
        self.base_offset = base_offset
        self.offsets: Sequence[int] = array("i") if offsets is None else offsets
        self.positions: Sequence[int] = array("i") if positions is None else positions
        self.saved = 0  # entries that are in the file
        self.stale = True  # the file is absent, or holds more than that

    @classmethod
    def view(cls, base_offset: int, file: File) -> OffsetIndex:
        return cls(base_offset, _Column(file, 8, 0, _INT), _Column(file, 8, 4, _INT))

    @classmethod
    def load(cls, base_offset: int, content: bytes) -> OffsetIndex:
        both = array("i", content[: len(content) // 8 * 8])
        if _SWAP:
            both.byteswap()
        index = cls(base_offset, both[0::2], both[1::2])
        index.saved, index.stale = len(index.offsets), len(content) % 8 != 0
        return index

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, offset: int, position: int) -> None:
        self.offsets.append(offset - self.base_offset)  # type: ignore[attr-defined]
        self.positions.append(position)  # type: ignore[attr-defined]

    def lookup(self, offset: int) -> tuple[int, int] | None:
        """The entry (offset, position) with the largest offset not above the one asked."""
        slot = bisect_right(self.offsets, offset - self.base_offset) - 1
        return (self.base_offset + self.offsets[slot], self.positions[slot]) if slot >= 0 else None

    def before(self, position: int) -> tuple[int, int] | None:
        """The entry with the largest position not above the one asked."""
        slot = bisect_right(self.positions, position) - 1
        return (self.base_offset + self.offsets[slot], self.positions[slot]) if slot >= 0 else None

    def last(self) -> tuple[int, int] | None:
        return (self.base_offset + self.offsets[-1], self.positions[-1]) if len(self.offsets) else None

    def truncate(self, offset: int) -> None:
        """Drops entries at and above an offset. Only for arrays."""
        keep = bisect_left(self.offsets, offset - self.base_offset)
        del self.offsets[keep:], self.positions[keep:]
        self.saved, self.stale = min(self.saved, keep), self.stale or keep < self.saved

    def unsaved(self) -> bytes:
        both = array("i", bytes(8 * (len(self.offsets) - self.saved)))
        both[0::2], both[1::2] = self.offsets[self.saved :], self.positions[self.saved :]  # type: ignore[call-overload]
        if _SWAP:
            both.byteswap()
        return both.tobytes()


class TimeIndex:
    __slots__ = ("base_offset", "offsets", "saved", "stale", "timestamps")

    def __init__(self, base_offset: int, timestamps: Sequence[int] | None = None, offsets: Sequence[int] | None = None) -> None:
        self.base_offset = base_offset
        self.timestamps: Sequence[int] = array("q") if timestamps is None else timestamps
        self.offsets: Sequence[int] = array("i") if offsets is None else offsets
        self.saved = 0
        self.stale = True

    @classmethod
    def view(cls, base_offset: int, file: File) -> TimeIndex:
        return cls(base_offset, _Column(file, 12, 0, _LONG), _Column(file, 12, 8, _INT))

    @classmethod
    def load(cls, base_offset: int, content: bytes) -> TimeIndex:
        timestamps, offsets = array("q"), array("i")
        for timestamp, offset in TIME_ENTRY.iter_unpack(content[: len(content) // 12 * 12]):
            timestamps.append(timestamp)
            offsets.append(offset)
        index = cls(base_offset, timestamps, offsets)
        index.saved, index.stale = len(timestamps), len(content) % 12 != 0
        return index

    def __len__(self) -> int:
        return len(self.timestamps)

    def append(self, timestamp: int, offset: int) -> None:
        """Only a timestamp above the last one makes an entry."""
        if timestamp > (self.timestamps[-1] if len(self.timestamps) else NO_TIMESTAMP):
            self.timestamps.append(timestamp)  # type: ignore[attr-defined]
            self.offsets.append(offset - self.base_offset)  # type: ignore[attr-defined]

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The entry (timestamp, offset) with the largest timestamp not above the one asked; (-1, base offset) when none is."""
        slot = bisect_right(self.timestamps, timestamp) - 1
        return (self.timestamps[slot], self.base_offset + self.offsets[slot]) if slot >= 0 else (NO_TIMESTAMP, self.base_offset)

    def last(self) -> tuple[int, int]:
        if not len(self.timestamps):
            return NO_TIMESTAMP, self.base_offset
        return self.timestamps[-1], self.base_offset + self.offsets[-1]

    def truncate(self, offset: int) -> None:
        keep = bisect_left(self.offsets, offset - self.base_offset)
        del self.timestamps[keep:], self.offsets[keep:]
        self.saved, self.stale = min(self.saved, keep), self.stale or keep < self.saved

    def unsaved(self) -> bytes:
        pairs = zip(self.timestamps[self.saved :], self.offsets[self.saved :])
        return b"".join([TIME_ENTRY.pack(timestamp, offset) for timestamp, offset in pairs])


def save(disk: Disk, path: str, index: OffsetIndex | TimeIndex, entry_size: int) -> bool:
    """Brings the file up to date; whether that took anything."""
    if index.saved == len(index) and not index.stale:
        return False
    file = disk.open(path, create=True)
    index.saved = min(index.saved, file.size // entry_size)
    if file.size != index.saved * entry_size:
        file.truncate(index.saved * entry_size)
    content = index.unsaved()
    if content:
        file.append(content)
    index.saved, index.stale = len(index), False
    return True
