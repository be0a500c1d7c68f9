"""What a leader demands of record batches before it appends them (Kafka's LogValidator).

In: the `records` field of a Produce request, a view into the frame. Out: a buffer of our own whose batches are whole, and their
headers. Records are unpacked only where a topic demands it: a compacted topic needs keys, a topic with its own
`compression.type` packs anew, and timestamps outside the topic's limits must be named one by one.
"""

from __future__ import annotations

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import NO_TIMESTAMP, BatchHeader, check_batches, check_produced
from ottla.records.builder import build_batch
from ottla.records.record import Record, decode_batch
from ottla.records.validation import RecordRules, check_records
from ottla.storage.config import LogConfig

Batches = list[tuple[int, BatchHeader]]
Buffer = bytearray | memoryview


def admit(records: memoryview | bytes | None, config: LogConfig, now_ms: int) -> tuple[Buffer, Batches]:
    """Raises ApiError, or RecordsInvalid with the records at fault."""
    if not records:
        raise ApiError(ErrorCode.INVALID_RECORD, "a produce request must hold one record batch for each partition")
    batches = check_batches(records)
    if len(batches) != 1:
        raise ApiError(ErrorCode.INVALID_RECORD, "a produce request must hold exactly one record batch for each partition")
    [(_, header)] = batches
    check_produced(header)
    if header.size > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch size in the append is {header.size} bytes which exceeds the maximum configured value of {config.max_message_bytes}.",
        )
    unpacked = _check_inside(records, header, config, now_ms)
    if config.codec is not None and config.codec != header.codec:
        return _pack_anew(records, header, unpacked, config)
    if isinstance(records, memoryview) and not records.readonly:
        return records, batches  # part of the frame, which is ours alone: offsets are stamped in place
    return bytearray(records), batches


def _check_inside(records: memoryview | bytes, header: BatchHeader, config: LogConfig, now_ms: int) -> list[Record] | None:
    """Decode and check only if something could be wrong; the header's timestamps stand for those of all records."""
    limits = not config.log_append_time
    late = limits and header.max_timestamp - now_ms > config.timestamp_after_max_ms
    early = limits and now_ms - header.base_timestamp > config.timestamp_before_max_ms and header.base_timestamp != NO_TIMESTAMP
    if not (config.compact or late or early or header.is_log_append_time):
        return None
    unpacked = decode_batch(records, limit=config.max_message_bytes)
    rules = RecordRules(
        key_required=config.compact,
        timestamp_before_max_ms=config.timestamp_before_max_ms if limits else None,
        timestamp_after_max_ms=config.timestamp_after_max_ms if limits else None,
    )
    check_records(header, unpacked, rules, now_ms)
    return unpacked


def _pack_anew(
    records: memoryview | bytes, header: BatchHeader, unpacked: list[Record] | None, config: LogConfig
) -> tuple[Buffer, Batches]:
    assert config.codec is not None
    if unpacked is None:
        unpacked = decode_batch(records, limit=config.max_message_bytes)
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
    return packed, check_batches(packed)
