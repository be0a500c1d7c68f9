"""Where the records of a batch lie, and of each only what compaction asks: its key, and whether it has a value.

Half the work of decoding: values and headers are stepped over, and a record that stays is copied as it is. Its offset and timestamp
are relative to the batch's, which do not change.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import BatchHeader
from ottla.records.builder import assemble
from ottla.records.compression import compress
from ottla.records.varint import read_varint

_NULL = 1  # the varint of -1


class Outline(NamedTuple):
    offset: int
    timestamp_delta: int
    key: bytes | None
    has_value: bool
    start: int  # in the unpacked records, its length in front
    end: int


def outline(header: BatchHeader, data: bytes) -> list[Outline]:
    """Of all records in `data` (`records.unpack`). Raises ApiError CORRUPT_MESSAGE."""
    try:
        found, end = _outline(header, data)
    except IndexError:
        end = -1
    if end != len(data):
        raise ApiError(
            ErrorCode.CORRUPT_MESSAGE, f"the records of the batch at offset {header.base_offset} are not as long as it says"
        )
    return found


def _outline(header: BatchHeader, data: bytes) -> tuple[list[Outline], int]:
    """Numbers of one and two bytes are read in place, as in `records.record`."""
    make, base_offset, position = tuple.__new__, header.base_offset, 0
    found: list[Outline] = []
    add = found.append
    for _ in range(header.record_count):
        start = position
        number = data[position]
        position += 1
        if number < 0x80:
            end = position + (number >> 1)
        elif (second := data[position]) < 0x80:
            position += 1
            end = position + (((number & 0x7F) | second << 7) >> 1)
        else:
            number, position = read_varint(data, start)
            end = position + number
        number = data[position + 1]  # behind the attributes, which are unused
        position += 2
        if number < 0x80:
            timestamp_delta = (number >> 1) ^ -(number & 1)
        elif (second := data[position]) < 0x80:
            number = (number & 0x7F) | second << 7
            timestamp_delta = (number >> 1) ^ -(number & 1)
            position += 1
        else:
            timestamp_delta, position = read_varint(data, position - 1)
        number = data[position]
        position += 1
        if number < 0x80:
            offset_delta = number >> 1
        elif (second := data[position]) < 0x80:
            offset_delta = ((number & 0x7F) | second << 7) >> 1
            position += 1
        else:
            offset_delta, position = read_varint(data, position - 1)
        key: bytes | None = None
        number = data[position]
        position += 1
        if number != _NULL:
            size = number >> 1
            if number >= 0x80:
                size, position = read_varint(data, position - 1)
            key = data[position : position + size]
            position += size
        if not start < position < end:
            raise IndexError
        add(make(Outline, (base_offset + offset_delta, timestamp_delta, key, data[position] != _NULL, start, end)))
        position = end
    return found, position


def keep(header: BatchHeader, data: bytes, kept: list[Outline]) -> tuple[bytes, int]:
    """The batch with only these of its records, and its largest timestamp. Range, sequence and everything else stay."""
    timestamp = header.max_timestamp
    if not header.is_log_append_time:
        timestamp = header.base_timestamp + max([record.timestamp_delta for record in kept])
    batch = assemble(
        compress(header.codec, b"".join([data[record.start : record.end] for record in kept])),
        record_count=len(kept),
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=timestamp,
        base_offset=header.base_offset,
        attributes=header.attributes,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    return batch, timestamp
