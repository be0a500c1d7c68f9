"""Producer snapshots (`<offset>.snapshot`): the producers' state as of an offset, so that opening a log replays little.

    version 1 (int16) · crc-32c of what follows (uint32) · count (int32) · entries of 46 bytes

Only the last batch of each producer is kept: a retry that reaches back further over a restart is answered as out of order, as
Kafka does.
"""

from __future__ import annotations

import struct
from bisect import insort

from crc32c import crc32c

from ottla.host.disk import Disk
from ottla.records.batch import NO_SEQUENCE
from ottla.storage.files import DELETED, SNAPSHOT, file_name
from ottla.storage.producers import MAX_SEQUENCE, ProducerEntry, SentBatch

VERSION = 1
_HEAD = struct.Struct(">hIi")
_CRC_END = 6
# producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, first offset of the transaction
_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshot(ValueError):
    """It is deleted and an older one, or the log, is read instead."""


def encode(entries: dict[int, ProducerEntry]) -> bytes:
    parts = [struct.pack(">i", len(entries))]
    for producer_id, entry in entries.items():
        last = entry.batches[-1] if entry.batches else None
        sequence, offset, delta = (
            (last.last_sequence, last.last_offset, last.last_offset - last.first_offset) if last else (NO_SEQUENCE, -1, 0)
        )
        parts.append(
            _ENTRY.pack(
                producer_id,
                entry.producer_epoch,
                sequence,
                offset,
                delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_start,
            )
        )
    body = b"".join(parts)
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def decode(content: bytes) -> dict[int, ProducerEntry]:
    if len(content) < _HEAD.size:
        raise CorruptSnapshot(f"{len(content)} bytes")
    version, crc, count = _HEAD.unpack_from(content)
    if version != VERSION or crc32c(content[_CRC_END:]) != crc or len(content) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"version {version}, {count} producers in {len(content)} bytes")
    found = {}
    for producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, start in _ENTRY.iter_unpack(
        content[_HEAD.size :]
    ):
        batches: tuple[SentBatch, ...] = ()
        if offset >= 0:
            first_sequence = (sequence - delta) & MAX_SEQUENCE if sequence != NO_SEQUENCE else NO_SEQUENCE
            batches = (SentBatch(first_sequence, sequence, offset - delta, offset, timestamp),)
        found[producer_id] = ProducerEntry(epoch, batches, coordinator_epoch, timestamp, start)
    return found


class Snapshots:
    """The snapshot files of one log, by offset: one at each segment's start, and one at its end after a clean stop."""

    __slots__ = ("_disk", "directory", "offsets")

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self.directory = directory
        self.offsets = sorted(offsets)

    def path(self, offset: int) -> str:
        return f"{self.directory}/{file_name(offset, SNAPSHOT)}"

    def take(self, offset: int, entries: dict[int, ProducerEntry]) -> str | None:
        """Returns the path of a new file, not yet synced; None when there was one, or nothing can have happened yet."""
        if offset in self.offsets or offset == 0:
            return None
        self._disk.replace(self.path(offset), encode(entries), sync=False)
        insort(self.offsets, offset)
        return self.path(offset)

    def latest(self, end_offset: int) -> tuple[int, dict[int, ProducerEntry]] | None:
        """The newest sound one at or below an offset. Unsound ones are removed."""
        for offset in [offset for offset in reversed(self.offsets) if offset <= end_offset]:
            try:
                return offset, decode(self._disk.read_all(self.path(offset)))
            except (CorruptSnapshot, FileNotFoundError):
                self.drop([offset])
        return None

    def drop(self, offsets: list[int]) -> None:
        for offset in offsets:
            self.offsets.remove(offset)
            if self._disk.exists(self.path(offset)):
                self._disk.remove(self.path(offset))

    def retire(self, offsets: list[int]) -> list[str]:
        """Renames to `.deleted` those that belong to leaving segments; returns the new paths."""
        gone = []
        for offset in [offset for offset in offsets if offset in self.offsets]:
            self.offsets.remove(offset)
            if self._disk.exists(self.path(offset)):
                self._disk.rename(self.path(offset), self.path(offset) + DELETED)
                gone.append(self.path(offset) + DELETED)
        return gone
