"""Which leader epoch began at which offset (`leader-epoch-checkpoint`), so that replicas agree where to cut (KIP-101, KIP-279).

Entries are sorted and grow in both epoch and offset. The file is written when an epoch begins, without waiting for the disk;
a flush syncs it before the recovery point moves, and what lies past the recovery point is read from the batches again.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from ottla.host.disk import Disk
from ottla.storage import checkpoints
from ottla.storage.types import OffsetAndEpoch

NO_EPOCH = -1
UNKNOWN = OffsetAndEpoch(-1, NO_EPOCH)


class LeaderEpochs:
    __slots__ = ("_disk", "_entries", "dirty", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._entries: list[tuple[int, int]] | None = None  # (epoch, start offset); read on first use
        self.dirty = False  # written but not synced

    @property
    def entries(self) -> list[tuple[int, int]]:
        if self._entries is None:
            self._entries = self._read() or []
        return self._entries

    def readable(self) -> bool:
        return self._read() is not None

    def _read(self) -> list[tuple[int, int]] | None:
        if not self._disk.exists(self.path):
            return None
        lines = checkpoints.read_lines(self._disk.read_all(self.path))
        if lines is None:
            return None
        try:
            entries = [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines)]
        except ValueError:
            return None
        return entries if all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(entries)) else None

    def _write(self) -> None:
        content = checkpoints.write_lines(f"{epoch} {offset}" for epoch, offset in self.entries)
        self._disk.replace(self.path, content, sync=False)
        self.dirty = True

    @property
    def latest(self) -> int:
        entries = self._entries
        if entries is None:
            entries = self.entries
        return entries[-1][0] if entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """An epoch begins. Entries that contradict it (same or later epoch, same or later offset) were never true."""
        before = self.entries
        if before and before[-1][0] == epoch and start_offset >= before[-1][1]:
            return
        self._entries = [entry for entry in before if entry[0] < epoch and entry[1] < start_offset] + [(epoch, start_offset)]
        try:
            self._write()
        except OSError:
            self._entries = before
            raise

    def note(self, epoch: int, offset: int) -> bool:
        """From a batch read during recovery: remembered in memory, written by `save`."""
        if epoch > self.latest:
            self.entries.append((epoch, offset))
            return True
        return False

    def save(self) -> None:
        self._write()

    def truncate_end(self, end_offset: int) -> None:
        if self.entries and self.entries[-1][1] >= end_offset:
            self._entries = [entry for entry in self.entries if entry[1] < end_offset]
            self._write()

    def truncate_start(self, start_offset: int) -> None:
        """The epoch in which the log now starts, starts there."""
        below = [entry for entry in self.entries if entry[1] <= start_offset]
        if below and below != [(below[-1][0], start_offset)]:
            self._entries = [(below[-1][0], start_offset), *self.entries[len(below) :]]
            self._write()

    def clear(self) -> None:
        if self.entries:
            self._entries = []
            self._write()

    def epoch_of(self, offset: int) -> int:
        slot = bisect_right(self.entries, offset, key=lambda entry: entry[1]) - 1
        return self.entries[slot][0] if slot >= 0 else NO_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> OffsetAndEpoch:
        if epoch == NO_EPOCH:
            return UNKNOWN
        entries = self.entries
        if entries and entries[-1][0] == epoch:
            return OffsetAndEpoch(log_end_offset, epoch)
        slot = bisect_right(entries, epoch, key=lambda entry: entry[0])
        if slot == len(entries):
            return UNKNOWN
        # An epoch older than all we know of: its records are gone, and the first known epoch's start is where to continue.
        return OffsetAndEpoch(entries[slot][1], entries[slot - 1][0] if slot else epoch)
