"""Aborted transactions of a segment (`.txnindex`): those whose abort marker lies in it.

    34 bytes an entry: version 0 (int16) · producer id · first offset · last offset (the marker's) · last stable offset (int64 each)

The last stable offset is what it became with this abort: a reader whose range ends below it need not look at later entries.
The file exists only where something was aborted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ottla.host.disk import Disk

ENTRY = struct.Struct(">hqqqq")


class AbortedEntry(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Entries live in memory and reach the file when the log is flushed, rolled or closed, as the other indexes do."""

    __slots__ = ("_disk", "_entries", "_saved", "exists", "path")

    def __init__(self, disk: Disk, path: str, exists: bool) -> None:
        self._disk = disk
        self.path = path
        self.exists = exists
        self._entries: list[AbortedEntry] | None = None if exists else []
        self._saved = 0  # entries that are in the file

    @property
    def entries(self) -> list[AbortedEntry]:
        """Read on first use: most segments are never asked."""
        if self._entries is None:
            self._entries = list(parse(self._disk.read_all(self.path)))
            self._saved = len(self._entries)
        return self._entries

    def append(self, entry: AbortedEntry) -> None:
        self.entries.append(entry)

    def truncate(self, offset: int) -> None:
        """Drops entries whose marker is at or above an offset."""
        self._entries = [entry for entry in self.entries if entry.last_offset < offset]
        self._saved = min(self._saved, len(self._entries))

    def reset(self) -> None:
        self._entries, self._saved = [], 0

    def save(self) -> bool:
        """Brings the file up to date; whether that took anything."""
        if self._entries is None or (self._saved == len(self._entries) and not self.exists):
            return False
        file = self._disk.open(self.path, create=True)
        self.exists = True
        if file.size < self._saved * ENTRY.size:
            self._saved = 0
        if file.size == self._saved * ENTRY.size and self._saved == len(self._entries):
            return False
        file.truncate(self._saved * ENTRY.size)
        file.append(b"".join([ENTRY.pack(0, *entry) for entry in self._entries[self._saved :]]))
        self._saved = len(self._entries)
        return True

    def sane(self, base_offset: int) -> bool:
        """Whether the file can have been written by a log: whole entries, markers inside the segment and in order."""
        if not self.exists:
            return True
        if self._disk.size(self.path) != len(self.entries) * ENTRY.size:
            return False
        last = base_offset - 1
        for entry in self.entries:
            if not last < entry.last_offset >= entry.first_offset:
                return False
            last = entry.last_offset
        return True


def parse(content: bytes) -> Iterator[AbortedEntry]:
    for version, *fields in ENTRY.iter_unpack(content[: len(content) // ENTRY.size * ENTRY.size]):
        if version == 0:
            yield AbortedEntry(*fields)
