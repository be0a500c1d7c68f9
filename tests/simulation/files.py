"""Whether what lies on a node's disk is sound: read from the bytes alone, as a stranger would."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ottla.broker.node import Node
from ottla.broker.replicas import Replica
from ottla.records.batch import HEADER_SIZE, BatchHeader, crc_of, headers
from tests.simulation.checks import Violation
from tests.simulation.disk import SimulatedDisk

_INDEX_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


def check_files(disk: SimulatedDisk) -> None:
    """Every segment of a node that was stopped: batches end to end, with right checksums, in the order of their offsets; indexes that
    point at batches, unless the machine once lost power: they are not synced, because whoever reads them checks them."""
    for path in disk.files():
        # What was set aside is read by nobody any more; a power cut may tear it, and no start repairs it.
        if path.endswith(".log") and "-stray/" not in path:
            _check_segment(disk, path)


def _check_segment(disk: SimulatedDisk, path: str) -> None:
    content = disk.read_all(path)
    base_offset = int(path.rpartition("/")[2].removesuffix(".log"))
    next_offset, end, positions = base_offset, 0, {0: base_offset}
    for position, header in headers(content):
        if position != end or header.base_offset < next_offset or header.last_offset < header.base_offset:
            raise _unsound(disk, path, f"offset {header.base_offset} at byte {position}, expected {next_offset} at {end}")
        if crc_of(content, position, header.size) != header.crc:
            raise _unsound(disk, path, f"the batch at offset {header.base_offset} has a wrong checksum")
        positions[position] = header.base_offset
        next_offset, end = header.next_offset, position + header.size
    if end != len(content):
        raise _unsound(disk, path, f"{len(content) - end} bytes after the last batch")
    if disk.lost_power:
        return
    _check_index(disk, path.removesuffix(".log") + ".index", base_offset, positions, next_offset)
    _check_time_index(disk, path.removesuffix(".log") + ".timeindex", next_offset - base_offset)


def _check_index(disk: SimulatedDisk, path: str, base_offset: int, positions: dict[int, int], next_offset: int) -> None:
    before = (-1, -1)
    for relative, position in _entries(disk, path, _INDEX_ENTRY):
        if (relative, position) <= before or position not in positions or not relative + base_offset < next_offset:
            raise _unsound(disk, path, f"entry {relative} -> {position} after {before}")
        if relative + base_offset < positions[position]:
            raise _unsound(disk, path, f"entry {relative} points past its batch, at {positions[position] - base_offset}")
        before = relative, position


def _check_time_index(disk: SimulatedDisk, path: str, limit: int) -> None:
    before = (-1, -1)
    for timestamp, relative in _entries(disk, path, _TIME_ENTRY):
        if timestamp < before[0] or relative < before[1] or relative >= max(limit, 1):
            raise _unsound(disk, path, f"entry {timestamp} -> {relative} after {before}")
        before = timestamp, relative


def _entries(disk: SimulatedDisk, path: str, entry: struct.Struct) -> Iterator[tuple[int, ...]]:
    """Up to the first one of zeros, which a file that is allocated in advance ends in."""
    if disk.exists(path):
        content = disk.read_all(path)
        for position in range(0, len(content) - entry.size + 1, entry.size):
            found = entry.unpack_from(content, position)
            if position and not any(found):
                return
            yield found


def _unsound(disk: SimulatedDisk, path: str, text: str) -> Violation:
    return Violation("files_are_sound", f"{disk.name}: {path}: {text}")


# -- producers


def check_producers(name: str, node: Node) -> None:
    """What a node that has started knows of producers is what its logs say: the last batch of each is known by its sequence."""
    for replica in node.replicas:
        known = replica.log._state.entries
        for producer_id, header in _last_batches(node, replica).items():
            entry = known.get(producer_id)
            if entry is None or (entry.producer_epoch, entry.last_sequence) != (header.producer_epoch, header.last_sequence):
                told = None if entry is None else (entry.producer_epoch, entry.last_sequence)
                wrote = header.producer_epoch, header.last_sequence
                text = f"{name}: {replica.topic_partition}: producer {producer_id} wrote {wrote} last; remembered is {told}"
                raise Violation("producers_are_remembered", text)


def _last_batches(node: Node, replica: Replica) -> dict[int, BatchHeader]:
    """Of each producer, unless a transaction's marker came after it: that may carry a newer epoch, and begins the sequence anew."""
    last: dict[int, BatchHeader] = {}
    for segment in replica.log.segments:
        content = node.world.disk.read_all(f"{replica.log.directory}/{segment.base_offset:020d}.log")
        for _, header in headers(content[: segment.size]):
            if header.is_control:
                last.pop(header.producer_id, None)
            elif header.producer_id >= 0 and header.last_offset >= replica.log.log_start_offset and header.size >= HEADER_SIZE:
                last[header.producer_id] = header
    return last
