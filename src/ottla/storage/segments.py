"""The segments of a log in offset order, and the files on their way out.

There is always at least one segment, and only the last is active. A segment that leaves is renamed to `.deleted` at once, so
that a crash cannot bring it back, and its files go after file.delete.delay.ms.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from ottla.host.disk import Disk
from ottla.storage import files
from ottla.storage.segment import Segment, SegmentReader


class Segments:
    __slots__ = ("_bases", "_disk", "_list", "_outgoing", "active")

    active: Segment

    def __init__(self, disk: Disk, segments: Iterable[Segment]) -> None:
        self._disk = disk
        self._list = sorted(segments, key=lambda segment: segment.base_offset)
        self._bases = [segment.base_offset for segment in self._list]
        self._outgoing: list[tuple[int, str]] = []  # (due, path)
        if self._list:
            self.active = self._list[-1]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._list)

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, slot: int) -> Segment:
        return self._list[slot]

    @property
    def first(self) -> Segment:
        return self._list[0]

    @property
    def size(self) -> int:
        return sum([segment.size for segment in self._list])

    def floor(self, offset: int) -> int:
        """The slot of the segment in which an offset would lie; 0 for one before all."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def end_offset(self, segment: SegmentReader, log_end_offset: int) -> int:
        """Where the next segment begins, or the log ends."""
        if segment is self.active:
            return log_end_offset
        slot = bisect_right(self._bases, segment.base_offset)
        return self._bases[slot]

    def after(self, segment: SegmentReader) -> Segment | None:
        slot = bisect_right(self._bases, segment.base_offset)
        return self._list[slot] if slot < len(self._list) else None

    def sealed(self, slot: int = 0) -> list[Segment]:
        """All but the active one, from a slot on."""
        return self._list[slot:-1]

    def at(self, base_offset: int) -> Segment | None:
        slot = bisect_right(self._bases, base_offset) - 1
        return self._list[slot] if slot >= 0 and self._bases[slot] == base_offset else None

    def add(self, segment: Segment) -> None:
        slot = bisect_right(self._bases, segment.base_offset)
        self._list.insert(slot, segment)
        self._bases.insert(slot, segment.base_offset)
        self.active = self._list[-1]

    def remove(self, leaving: list[Segment], now_ms: int, delay_ms: int) -> None:
        """Renames and forgets segments. The caller keeps at least one, or adds one."""
        for segment in leaving:
            slot = bisect_right(self._bases, segment.base_offset) - 1
            segment.close()
            segment.rename(files.DELETED)
            del self._list[slot], self._bases[slot]
            self.discard([path for path in segment.paths() if self._disk.exists(path)], now_ms, delay_ms)
        if self._list:
            self.active = self._list[-1]

    def discard(self, paths: list[str], now_ms: int, delay_ms: int) -> None:
        """Files already renamed to `.deleted`."""
        self._outgoing += [(now_ms + delay_ms, path) for path in paths]

    def purge(self, now_ms: int) -> None:
        due = [path for when, path in self._outgoing if when <= now_ms]
        if due:
            self._outgoing = [entry for entry in self._outgoing if entry[0] > now_ms]
            for path in due:
                if self._disk.exists(path):
                    self._disk.remove(path)
