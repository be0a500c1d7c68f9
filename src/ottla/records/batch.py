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
_PREFIX = struct.Struct(">qi")
_STAMP = struct.Struct(">qii")

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08  # set: LogAppendTime
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40  # base_timestamp is the delete horizon of a compacted batch (KIP-534)

NO_PRODUCER_ID = -1
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
        """Sequences wrap at 2^31 (KIP-98)."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

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
    def has_producer(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID


def read_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The caller has made sure that 61 bytes are there."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def crc_of(buffer: bytes | bytearray | memoryview, position: int, size: int) -> int:
    """The checksum that the batch of `size` bytes at `position` should carry."""
    return crc32c(memoryview(buffer)[position + CRC_START : position + size])


def check_batches(buffer: bytes | bytearray | memoryview) -> list[tuple[int, BatchHeader]]:
    """Positions and headers of the whole batches that make up `buffer`; each has a right length, magic and crc.

    Raises ApiError CORRUPT_MESSAGE, as a broker answers a producer. Whether the *records* inside are well formed is not
    looked at, but that there are as many as the offsets claim is.
    """
    found = []
    position, end = 0, len(buffer)
    while position < end:
        if end - position < HEADER_SIZE:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{end - position} bytes are too few for a record batch")
        header = read_header(buffer, position)
        if header.magic != MAGIC:
            raise ApiError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT if 0 <= header.magic < MAGIC else ErrorCode.CORRUPT_MESSAGE,
                f"record batch magic {header.magic}",
            )
        size = header.batch_length + LENGTH_PREFIX
        if size < HEADER_SIZE or position + size > end:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"a record batch claims {size} bytes of {end - position}")
        if crc_of(buffer, position, size) != header.crc:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a record batch has a wrong checksum")
        found.append((position, header))
        position += size
    return found


def headers(buffer: bytes | bytearray | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of trusted bytes (our own log); stops before a batch that is not whole."""
    position, end = 0, len(buffer)
    while end - position >= HEADER_SIZE:
        header = read_header(buffer, position)
        size = header.batch_length + LENGTH_PREFIX
        if position + size > end:
            return
        yield position, header
        position += size


def stamp(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Give a batch its place in the log. Outside the crc, so nothing else changes."""
    length = _PREFIX.unpack_from(buffer, position)[1]
    _STAMP.pack_into(buffer, position, base_offset, length, leader_epoch)
