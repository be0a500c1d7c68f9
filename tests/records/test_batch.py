"""The batch header: what is checked, stamped and counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import (
    HEADER_SIZE,
    check_batches,
    check_produced,
    headers,
    next_sequence,
    read_header,
    stamp,
    stamp_append_time,
)
from ottla.records.builder import build_batch
from ottla.records.control import EndTransaction, end_transaction_batch
from ottla.records.record import Record, decode_batch
from ottla.records.validation import RecordRules, RecordsInvalid, check_records


def batch_of(count: int, base_offset: int = 0, **settings: int) -> bytes:
    return build_batch([Record(base_offset + index, 1000 + index, b"k%d" % index, b"v") for index in range(count)], **settings)


def code_of(buffer: bytes | bytearray) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        check_batches(buffer)
    return caught.value.code


def test_batches_are_found_with_their_positions() -> None:
    first, second = batch_of(2), batch_of(3, 2)
    found = check_batches(first + second)
    assert [(position, header.base_offset, header.last_offset) for position, header in found] == [(0, 0, 1), (len(first), 2, 4)]
    assert list(headers(first + second)) == found
    assert list(headers((first + second)[:-1])) == found[:1]
    assert check_batches(b"") == []


def test_every_cut_and_every_flipped_byte_of_a_batch_is_found() -> None:
    batch = batch_of(3)
    for end in range(1, len(batch)):
        assert code_of(batch[:end]) is ErrorCode.CORRUPT_MESSAGE
    for index in range(len(batch)):
        if index in range(8) or index in range(12, 16):
            continue  # offset and leader epoch are the leader's to set
        changed = bytearray(batch)
        changed[index] ^= 0x01
        assert code_of(changed) in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 48, 2**31 - 1])
def test_a_false_length_is_corrupt(length: int) -> None:
    batch = bytearray(batch_of(1))
    batch[8:12] = length.to_bytes(4, "big", signed=True)
    assert code_of(batch) is ErrorCode.CORRUPT_MESSAGE


def test_stamping_leaves_the_checksum_right() -> None:
    prefix, batch = batch_of(1), batch_of(3)
    buffer = bytearray(prefix + batch)
    stamp(buffer, len(prefix), 77, 5)
    header = check_batches(buffer)[1][1]
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (77, 80, 5)
    stamp_append_time(memoryview(buffer), len(prefix), 123456)
    header = check_batches(buffer)[1][1]
    assert (header.base_offset, header.leader_epoch, header.max_timestamp, header.is_log_append_time) == (77, 5, 123456, True)
    assert [record.timestamp for record in decode_batch(buffer, len(prefix))] == [123456] * 3
    assert bytes(buffer[: len(prefix)]) == prefix


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_sequences_wrap_to_zero_as_java_s_do(sequence: int, count: int) -> None:
    if sequence > 2**31 - 1 - count:
        expected = count - (2**31 - 1 - sequence) - 1
    else:
        expected = sequence + count
    assert next_sequence(sequence, count) == expected
    header = read_header(batch_of(1))._replace(base_sequence=sequence, last_offset_delta=count)
    assert header.last_sequence == expected


@pytest.mark.parametrize(
    "change",
    [
        {"record_count": 2},
        {"record_count": 0},
        {"last_offset_delta": -1},
        {"attributes": 0x20},
        {"producer_id": 9, "base_sequence": -1},
    ],
)
def test_headers_no_client_may_send_are_invalid(change: dict[str, int]) -> None:
    header = read_header(batch_of(3, producer_id=9, producer_epoch=0, base_sequence=0))
    check_produced(header)
    with pytest.raises(ApiError) as caught:
        check_produced(header._replace(**change))
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_a_marker_is_a_batch_without_a_sequence() -> None:
    header = read_header(end_transaction_batch(EndTransaction(True, 1), producer_id=3, producer_epoch=0, timestamp=5))
    assert (header.is_control, header.is_transactional, header.base_sequence, header.last_sequence) == (True, True, -1, -1)
    assert header.size > HEADER_SIZE


def errors_of(batch: bytes, rules: RecordRules, now_ms: int) -> tuple[ErrorCode, list[int]]:
    with pytest.raises(RecordsInvalid) as caught:
        check_records(read_header(batch), decode_batch(batch), rules, now_ms)
    return caught.value.code, [error.batch_index for error in caught.value.errors]


def test_record_errors_name_the_records_at_fault() -> None:
    keys = [b"a", None, b"", None]
    batch = build_batch([Record(10 + index, 1000 * index, key, b"v") for index, key in enumerate(keys)])
    header, records = read_header(batch), decode_batch(batch)
    check_records(header, records, RecordRules(), 0)
    assert errors_of(batch, RecordRules(key_required=True), 0) == (ErrorCode.INVALID_RECORD, [1, 3])
    assert errors_of(batch, RecordRules(timestamp_before_max_ms=500), 2000) == (ErrorCode.INVALID_TIMESTAMP, [0, 1])
    assert errors_of(batch, RecordRules(timestamp_after_max_ms=500), 2000) == (ErrorCode.INVALID_TIMESTAMP, [3])
    check_records(header, records, RecordRules(timestamp_before_max_ms=2000, timestamp_after_max_ms=1000), 2000)


def test_offset_deltas_with_a_gap_are_invalid_from_a_producer() -> None:
    batch = build_batch([Record(0, 0, None, b""), Record(2, 0, None, b"")])
    with pytest.raises(ApiError) as caught:
        check_records(read_header(batch), decode_batch(batch), RecordRules(), 0)
    assert caught.value.code is ErrorCode.INVALID_RECORD
