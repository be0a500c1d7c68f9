"""Records out of a batch, one Python object each: for clients, coordinators, compaction, tools. `columns` does it by the million.

In: whole batches as bytes. Out: `Record`s, exactly as many as the header says, each exactly as long as its length says; bytes
that break this raise ApiError CORRUPT_MESSAGE, whatever they are. Offsets and timestamps are absolute: for LogAppendTime the
header's maximum timestamp stands for every record's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import HEADER_SIZE, BatchHeader, crc_of, headers, read_header
from ottla.records.compression import DEFAULT_LIMIT, decompress
from ottla.records.varint import read_varint

Headers = tuple[tuple[str, bytes | None], ...]
MIN_RECORD_SIZE = 7  # length, attributes, two deltas, two lengths, header count: a byte each


class Record(NamedTuple):
    """A tuple, because that is the fastest immutable thing Python makes.

    Keys of headers that are not UTF-8 survive a round trip through Python's surrogate escapes.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def unpack(buffer: bytes | bytearray | memoryview, position: int, header: BatchHeader, limit: int = DEFAULT_LIMIT) -> bytes:
    """What lies behind the header of the batch at `position`, decompressed."""
    return decompress(header.codec, memoryview(buffer)[position + HEADER_SIZE : position + header.size], limit)


def decode_batch(buffer: bytes | bytearray | memoryview, position: int = 0, *, limit: int = DEFAULT_LIMIT) -> list[Record]:
    """The records of the one batch at `position`. Its crc is the caller's affair (`batch.check_batches`)."""
    header = read_header(buffer, position)
    return decode_records(header, unpack(buffer, position, header, limit))


def decode_batches(
    buffer: bytes | bytearray | memoryview, *, from_offset: int = 0, check_crc: bool = True, limit: int = DEFAULT_LIMIT
) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """Every whole batch of a fetched buffer (the last may be cut off), control batches too, without records before `from_offset`."""
    for position, header in headers(buffer):
        if header.last_offset < from_offset:
            continue
        if check_crc and crc_of(buffer, position, header.size) != header.crc:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"the record batch at offset {header.base_offset} has a wrong checksum")
        records = decode_records(header, unpack(buffer, position, header, limit))
        if header.base_offset < from_offset:
            records = [record for record in records if record.offset >= from_offset]
        yield header, records


def decode_records(header: BatchHeader, data: bytes) -> list[Record]:
    """The records in `data`, which has been unpacked already."""
    if header.record_count < 0 or header.record_count * MIN_RECORD_SIZE > len(data):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{header.record_count} records cannot be in {len(data)} bytes")
    try:
        records, position = _decode(header, data)
    except IndexError:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a record runs past the end of its batch") from None
    if position != len(data):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{len(data) - position} bytes are left over behind the last record")
    return records


def _decode(header: BatchHeader, data: bytes) -> tuple[list[Record], int]:
    """The hot loop. Numbers of one and two bytes are read in place: a call each would double the time."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    make, end = tuple.__new__, len(data)
    records: list[Record] = []
    add = records.append
    position = 0
    for _ in range(header.record_count):
        number = data[position]
        position += 1
        if number >= 0x80:
            if (second := data[position]) < 0x80:
                number = (number & 0x7F) | second << 7
                size = (number >> 1) ^ -(number & 1)
                position += 1
            else:
                size, position = read_varint(data, position - 1)
        else:
            size = (number >> 1) ^ -(number & 1)
        record_end = position + size
        if record_end > end or size < 0:
            raise IndexError
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
            offset_delta = (number >> 1) ^ -(number & 1)
        elif (second := data[position]) < 0x80:
            number = (number & 0x7F) | second << 7
            offset_delta = (number >> 1) ^ -(number & 1)
            position += 1
        else:
            offset_delta, position = read_varint(data, position - 1)
        key: bytes | None = None
        number = data[position]
        position += 1
        if number != 1:
            size = number >> 1
            if number >= 0x80 or number & 1:
                size, position = _length(data, position - 1)
            key = data[position : position + size]
            position += size
        value: bytes | None = None
        number = data[position]
        position += 1
        if number != 1:
            size = number >> 1
            if number >= 0x80 or number & 1:
                if number >= 0x80 and (second := data[position]) < 0x80 and not number & 1:
                    size = ((number & 0x7F) | second << 7) >> 1
                    position += 1
                else:
                    size, position = _length(data, position - 1)
            value = data[position : position + size]
            position += size
        header_list: Headers = ()
        if data[position]:
            header_list, position = _decode_headers(data, position)
        else:
            position += 1
        if position != record_end:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"a record of {len(records)} is not as long as it says")
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        add(make(Record, (base_offset + offset_delta, timestamp, key, value, header_list)))
    return records, position


def _length(data: bytes, position: int) -> tuple[int, int]:
    """A length that may not be null."""
    size, position = read_varint(data, position)
    if size < 0:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"a length of {size} inside a record")
    return size, position


def _decode_headers(data: bytes, position: int) -> tuple[Headers, int]:
    count, position = read_varint(data, position)
    if count < 0 or count > len(data) - position:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"a record with {count} headers")
    found: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, position = _length(data, position)
        key = str(data[position : position + size], "utf-8", "surrogateescape")
        position += size
        size, position = read_varint(data, position)
        if size < -1:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"a length of {size} inside a record")
        if size == -1:
            found.append((key, None))
        else:
            found.append((key, data[position : position + size]))
            position += size
    return tuple(found), position
