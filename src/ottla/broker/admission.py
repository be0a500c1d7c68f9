"""What a leader demands of record batches before it appends them (Kafka's LogValidator).

In: the `records` field of a Produce request, a view into the frame. Out: a buffer of our own that is one whole batch, and its
header. Records are unpacked only where a topic demands it: a compacted topic needs keys, a topic with its own
`compression.type` packs anew, and timestamps outside the topic's limits must be named one by one.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import (
    CODEC_MASK,
    CRC_START,
    HEADER_SIZE,
    LENGTH_PREFIX,
    MAGIC,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    check_batches,
    check_produced,
    clear_append_time,
    read_header,
)
from ottla.records.builder import build_batch
from ottla.records.compression import ZSTD
from ottla.records.record import Record, decode_batch
from ottla.records.validation import RecordRules, check_records
from ottla.storage.config import LogConfig

FIRST_WITH_ZSTD = 7
_UP_TO_MAGIC = struct.Struct(">qiib")
_LEAST_LENGTH = 14  # of the oldest format; Kafka calls less corrupt before it looks at anything else
Buffer = bytearray | memoryview


def one_batch(records: memoryview | bytes | None, version: int) -> BatchHeader:
    """What a request must hold for a partition, whatever the partition: exactly one whole batch that its version allows."""
    if records is None or len(records) < HEADER_SIZE:
        raise _not_one_batch(records)
    header = read_header(records)
    size = header.batch_length + LENGTH_PREFIX
    if size != len(records) or header.magic != MAGIC or crc32c(records[CRC_START:]) != header.crc:
        raise _not_one_batch(records)
    codec = header.attributes & CODEC_MASK
    if codec > ZSTD or (codec == ZSTD and version < FIRST_WITH_ZSTD):
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {codec} in a produce request of version {version}")
    return header


def _not_one_batch(records: memoryview | bytes | None) -> ApiError:
    """What is wrong with them."""
    if not records:
        return ApiError(ErrorCode.INVALID_RECORD, "a produce request must hold one record batch for each partition")
    try:
        check_batches(records)
    except ApiError as error:
        return ApiError(ErrorCode.INVALID_RECORD, error.message) if _is_cut_or_old(records) else error
    return ApiError(ErrorCode.INVALID_RECORD, "a produce request must hold exactly one record batch for each partition")


def _is_cut_or_old(records: memoryview | bytes) -> bool:
    """Bytes that end before their batch does are no batch, and a batch of the formats before 2 is not to be sent any more:
    Kafka calls both invalid, where other nonsense is corrupt."""
    if len(records) < _UP_TO_MAGIC.size:
        return True
    _, length, _, magic = _UP_TO_MAGIC.unpack_from(records)
    if length < _LEAST_LENGTH or not 0 <= magic <= MAGIC:
        return False
    return bool(magic < MAGIC or length + LENGTH_PREFIX > len(records))


def admit(
    records: memoryview | bytes | bytearray, header: BatchHeader, config: LogConfig, now_ms: int
) -> tuple[Buffer, BatchHeader]:
    """What a partition's settings ask of the one batch. Raises ApiError, or RecordsInvalid with the records at fault."""
    if header.attributes & TIMESTAMP_TYPE_BIT and not config.log_append_time:
        records = _as_create_time(records)
        header = read_header(records)
    if header.base_offset != 0:
        raise ApiError(ErrorCode.INVALID_RECORD, f"a produced batch must have the base offset 0, not {header.base_offset}")
    check_produced(header)
    size = header.batch_length + LENGTH_PREFIX
    if size > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch size in the append is {size} bytes which exceeds the maximum configured value of {config.max_message_bytes}.",
        )
    timed = not config.log_append_time  # by its producer: the header's timestamps stand for those of all records
    late = timed and header.max_timestamp - now_ms > config.timestamp_after_max_ms
    early = timed and now_ms - header.base_timestamp > config.timestamp_before_max_ms and header.base_timestamp != NO_TIMESTAMP
    unpacked = None
    if config.compact or late or early or header.attributes & TIMESTAMP_TYPE_BIT:
        unpacked = _check_inside(records, header, config, now_ms)
    if config.codec is not None and config.codec != header.codec:
        return _pack_anew(records, header, unpacked, config)
    if (isinstance(records, memoryview) and not records.readonly) or isinstance(records, bytearray):
        return records, header  # part of the frame, which is ours alone: offsets are stamped in place
    return bytearray(records), header


def _as_create_time(records: memoryview | bytes | bytearray) -> bytearray:
    """Whose timestamps count is the topic's affair; a client that says otherwise is corrected, as Kafka does."""
    changed = bytearray(records)
    clear_append_time(changed, 0)
    return changed


def _check_inside(records: memoryview | bytes | bytearray, header: BatchHeader, config: LogConfig, now_ms: int) -> list[Record]:
    """Decode and check: asked only if something could be wrong."""
    limits = not config.log_append_time
    unpacked = _unpacked(records, config)
    rules = RecordRules(
        key_required=config.compact,
        timestamp_before_max_ms=config.timestamp_before_max_ms if limits else None,
        timestamp_after_max_ms=config.timestamp_after_max_ms if limits else None,
    )
    check_records(header, unpacked, rules, now_ms)
    return unpacked


def _unpacked(records: memoryview | bytes | bytearray, config: LogConfig) -> list[Record]:
    """The checksum was right, so what does not unpack came so from its producer: it must not be sent again, as what is corrupt is."""
    try:
        return decode_batch(records, limit=config.max_message_bytes)
    except ApiError as error:
        if error.code != ErrorCode.CORRUPT_MESSAGE:
            raise
        raise ApiError(ErrorCode.INVALID_RECORD, error.message) from None


def _pack_anew(
    records: memoryview | bytes | bytearray, header: BatchHeader, unpacked: list[Record] | None, config: LogConfig
) -> tuple[Buffer, BatchHeader]:
    assert config.codec is not None
    if unpacked is None:
        unpacked = _unpacked(records, config)
    packed = bytearray(
        build_batch(
            unpacked,
            codec=config.codec,
            level=config.compression_level,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
        )
    )
    return packed, read_header(packed)
