"""The header of a record batch (magic 2): 61 bytes that say everything a broker needs to know.

A broker never looks past the header unless a topic demands it. The first 21 bytes (base offset, length, leader epoch, magic,
crc) are outside the checksum, so a leader stamps its offset and epoch without touching the crc.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from ottla.model.errors import ApiError, ErrorCode

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size  # 61
LENGTH_PREFIX = 12  # base offset and length, which `batch_length` does not count
CRC_START = 21
MAGIC = 2
MAX_SEQUENCE = 0x7FFFFFFF
_PREFIX = struct.Struct(">qi")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_CRC_POSITION = 17
_ATTRIBUTES_POSITION = CRC_START
_MAX_TIMESTAMP_POSITION = 35
STAMP = struct.Struct(">qii")  # base offset, length, leader epoch: where a batch's place in the log is written
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POSITION = 43
_new = tuple.__new__  # what BatchHeader._make calls, without the call: headers are made for every batch that passes

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08  # set: LogAppendTime
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40  # base_timestamp is the delete horizon of a compacted batch (KIP-534)

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + LENGTH_PREFIX

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return next_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon(self) -> int | None:
        """When the tombstones and markers of a compacted batch may go (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def has_producer(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID


def next_sequence(sequence: int, count: int = 1) -> int:
    """The sequence `count` records later. After 2^31 - 1 comes 0 (KIP-98)."""
    return (sequence + count) & MAX_SEQUENCE


def read_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The caller has made sure that 61 bytes are there."""
    return _new(BatchHeader, HEADER.unpack_from(buffer, position))


def crc_of(buffer: bytes | bytearray | memoryview, position: int, size: int) -> int:
    """The checksum that the batch of `size` bytes at `position` should carry."""
    return crc32c(memoryview(buffer)[position + CRC_START : position + size])


def check_batches(buffer: bytes | bytearray | memoryview, *, may_be_cut: bool = False) -> list[tuple[int, BatchHeader]]:
    """Positions and headers of the whole batches that make up `buffer`; each has a right length, magic and crc.

    With `may_be_cut` what follows the last whole batch is not looked at (a fetch ends anywhere). Raises ApiError CORRUPT_MESSAGE, as
    a broker answers a producer. What the headers claim is `check_produced`'s affair, whether the records inside are well formed
    `validation`'s.
    """
    found = []
    view = memoryview(buffer)
    position, end = 0, len(view)
    while position < end:
        if end - position < HEADER_SIZE:
            if may_be_cut:
                break
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{end - position} bytes are too few for a record batch")
        fields = HEADER.unpack_from(view, position)
        size, magic = fields[1] + LENGTH_PREFIX, fields[3]
        is_whole = HEADER_SIZE <= size <= end - position
        if may_be_cut and not is_whole:
            break
        if magic != MAGIC:
            raise ApiError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT if 0 <= magic < MAGIC else ErrorCode.CORRUPT_MESSAGE,
                f"record batch magic {magic}",
            )
        if not is_whole:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"a record batch claims {size} bytes of {end - position}")
        if crc32c(view[position + CRC_START : position + size]) != fields[4]:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a record batch has a wrong checksum")
        found.append((position, _new(BatchHeader, fields)))
        position += size
    return found


def headers(buffer: bytes | bytearray | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of bytes whose checksums are somebody else's affair; stops before a batch that is not whole."""
    position, end = 0, len(buffer)
    while end - position >= HEADER_SIZE:
        header = read_header(buffer, position)
        size = header.batch_length + LENGTH_PREFIX
        if position + size > end or size < HEADER_SIZE:
            return
        yield position, header
        position += size


def stamp(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Give a batch its place in the log. Outside the crc, so nothing else changes."""
    length = _PREFIX.unpack_from(buffer, position)[1]
    STAMP.pack_into(buffer, position, base_offset, length, leader_epoch)


def stamp_producer(
    buffer: bytearray | memoryview, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
) -> None:
    """Make the batch that fills `buffer` one of this producer. The crc is computed anew."""
    attributes = _ATTRIBUTES.unpack_from(buffer, _ATTRIBUTES_POSITION)[0] & ~TRANSACTIONAL_BIT
    _ATTRIBUTES.pack_into(buffer, _ATTRIBUTES_POSITION, attributes | (TRANSACTIONAL_BIT if transactional else 0))
    _PRODUCER.pack_into(buffer, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(buffer, _CRC_POSITION, crc_of(buffer, 0, len(buffer)))


def check_produced(header: BatchHeader) -> None:
    """What a leader demands of a batch from a client, besides its bytes being whole. Raises ApiError INVALID_RECORD.

    A follower must not ask: compacted batches have fewer records than offsets, and the log's own batches are control batches.
    """
    delta = header.last_offset_delta
    if delta < 0:
        raise ApiError(ErrorCode.INVALID_RECORD, f"a batch whose last offset delta is {delta}")
    if header.record_count != delta + 1:
        raise ApiError(ErrorCode.INVALID_RECORD, f"a batch of {header.record_count} records for {delta + 1} offsets")
    if header.attributes & CONTROL_BIT:
        raise ApiError(ErrorCode.INVALID_RECORD, "clients are not allowed to write control records")
    if header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0:
        raise ApiError(ErrorCode.INVALID_RECORD, f"a batch of producer {header.producer_id} with sequence {header.base_sequence}")


def stamp_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Make a batch one of LogAppendTime: the maximum timestamp stands for all its records. The crc is computed anew."""
    header = read_header(buffer, position)
    _ATTRIBUTES.pack_into(buffer, position + _ATTRIBUTES_POSITION, header.attributes | TIMESTAMP_TYPE_BIT)
    _MAX_TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, now_ms)
    _CRC.pack_into(buffer, position + _CRC_POSITION, crc_of(buffer, position, header.size))


def clear_append_time(buffer: bytearray | memoryview, position: int) -> None:
    """Make a batch one whose records have the timestamps their producer gave them."""
    header = read_header(buffer, position)
    _ATTRIBUTES.pack_into(buffer, position + _ATTRIBUTES_POSITION, header.attributes & ~TIMESTAMP_TYPE_BIT)
    _CRC.pack_into(buffer, position + _CRC_POSITION, crc_of(buffer, position, header.size))
