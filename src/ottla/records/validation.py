"""Records of a batch from a producer, where the broker must look inside: a compacted topic needs keys, a topic's limits on
timestamps hold for each record, a topic's own `compression.type` means packing anew.

In: the batch, decoded by `record`. Out: the errors of single records as a produce reply lists them, so that a producer can
drop those and send the rest (KIP-467). A batch that is malformed as a whole raises.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import NO_TIMESTAMP, BatchHeader
from ottla.records.record import Record

MAX_RECORD_ERRORS = 1000  # a batch of a million bad records must not make a reply of a million sentences


class RecordError(NamedTuple):
    batch_index: int  # of the record in its batch
    message: str


class RecordRules(NamedTuple):
    """What a topic asks of each record."""

    key_required: bool = False  # cleanup.policy has compact
    timestamp_before_max_ms: int | None = None  # None: not looked at (LogAppendTime, or no limit)
    timestamp_after_max_ms: int | None = None


class RecordsInvalid(ApiError):
    """The batch is refused because of these records."""

    def __init__(self, code: ErrorCode, errors: list[RecordError]) -> None:
        super().__init__(code, "one or more records have been rejected")
        self.errors = errors


def check_records(header: BatchHeader, records: list[Record], rules: RecordRules, now_ms: int) -> None:
    """Raises RecordsInvalid with the errors of the first kind that was met, or ApiError if the offsets have gaps."""
    base_offset = header.base_offset
    for index, record in enumerate(records):
        if record.offset != base_offset + index:
            raise ApiError(ErrorCode.INVALID_RECORD, f"record {index} of a batch has offset delta {record.offset - base_offset}")
    if rules.key_required:
        errors = [
            RecordError(index, "Compacted topic cannot accept message without key")
            for index, record in enumerate(records)
            if record.key is None
        ]
        if errors:
            raise RecordsInvalid(ErrorCode.INVALID_RECORD, errors[:MAX_RECORD_ERRORS])
    if header.is_log_append_time:
        raise RecordsInvalid(
            ErrorCode.INVALID_TIMESTAMP,
            [RecordError(0, "Invalid timestamp type in message. Producer should not set timestamp type to LogAppendTime.")],
        )
    _check_timestamps(records, rules, now_ms)


def _check_timestamps(records: list[Record], rules: RecordRules, now_ms: int) -> None:
    if rules.timestamp_before_max_ms is None and rules.timestamp_after_max_ms is None:
        return
    before, after = rules.timestamp_before_max_ms, rules.timestamp_after_max_ms
    earliest = None if before is None else now_ms - before
    latest = None if after is None else now_ms + after
    errors = [
        RecordError(index, f"Timestamp {record.timestamp} is out of range: it should be within [{earliest}, {latest}]")
        for index, record in enumerate(records)
        if record.timestamp != NO_TIMESTAMP
        and ((earliest is not None and record.timestamp < earliest) or (latest is not None and record.timestamp > latest))
    ]
    if errors:
        raise RecordsInvalid(ErrorCode.INVALID_TIMESTAMP, errors[:MAX_RECORD_ERRORS])
