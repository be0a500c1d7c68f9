"""Records in and out of batches: round trips, sizes, and what malformed bytes do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import HEADER_SIZE, check_batches, read_header
from ottla.records.builder import BatchBuilder, build_batch, build_pairs, empty_batch, encode_record, record_size_limit
from ottla.records.record import Record, decode_batch, decode_batches, decode_records
from ottla.records.varint import read_varint, varint, varint_size

from .strategies import record_lists


def corrupt_or(decode: Callable[[], list[Record]]) -> list[Record] | None:
    """What `decode` gives, or None if it calls its bytes corrupt; any other error is the test's failure."""
    try:
        return decode()
    except ApiError as error:
        if error.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        return None


INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64)
def test_varints_survive_a_round_trip_and_their_size_is_known(value: int) -> None:
    encoded = varint(value)
    assert read_varint(encoded, 0) == (value, len(encoded))
    assert varint_size(value) == len(encoded)


@given(record_lists(), st.integers(0, 4))
def test_records_survive_a_round_trip(records: list[Record], codec: int) -> None:
    batch = build_batch(records, codec=codec)
    assert decode_batch(batch) == records
    [(position, header)] = check_batches(batch)
    assert (position, header.size, header.codec) == (0, len(batch), codec)
    assert header.max_timestamp == max(record.timestamp for record in records)


@given(record_lists(contiguous=True), st.integers(0, 4))
def test_a_builder_writes_what_build_batch_writes(records: list[Record], codec: int) -> None:
    builder = BatchBuilder(codec)
    for record in records:
        builder.append(record.timestamp, record.key, record.value, record.headers)
    built = builder.build(base_offset=records[0].offset, producer_id=7, producer_epoch=1, base_sequence=3, transactional=True)
    assert built == build_batch(records, codec=codec, producer_id=7, producer_epoch=1, base_sequence=3, transactional=True)
    assert len(builder) == len(records)
    if codec == 0:
        assert builder.size == len(built)


@given(record_lists())
def test_no_record_is_larger_than_its_size_limit(records: list[Record]) -> None:
    for record in records:
        size = len(encode_record(2**31 - 1, 2**62, record.key, record.value, record.headers))
        assert size <= record_size_limit(record.key, record.value, record.headers)


@given(record_lists(), st.data())
def test_a_changed_byte_inside_the_records_is_an_error_or_another_record_but_nothing_else(
    records: list[Record], data: st.DataObject
) -> None:
    batch = bytearray(build_batch(records))
    index = data.draw(st.integers(HEADER_SIZE, len(batch) - 1))
    batch[index] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ApiError) as caught:
        check_batches(batch)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    decoded = corrupt_or(lambda: decode_batch(batch))
    assert decoded is None or len(decoded) == len(records)


@given(st.binary(max_size=80), st.integers(-1, 12))
def test_random_bytes_are_no_records_but_never_an_unexpected_error(data: bytes, count: int) -> None:
    header = read_header(build_batch([Record(0, 0, None, None)]))._replace(record_count=count)
    decoded = corrupt_or(lambda: decode_records(header, data))
    if decoded is not None:
        assert len(decoded) == count
        again = b"".join(encode_record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in decoded)
        assert decode_records(header, again) == decoded


@given(record_lists())
def test_every_cut_of_a_batch_is_an_error(records: list[Record]) -> None:
    payload = build_batch(records)[HEADER_SIZE:]
    header = read_header(build_batch(records))
    for end in range(len(payload)):
        with pytest.raises(ApiError):
            decode_records(header, payload[:end])
    with pytest.raises(ApiError):
        decode_records(header, payload + b"\x00")


def test_log_append_time_stands_for_every_record() -> None:
    batch = build_batch([Record(5, 100, b"k", b"v"), Record(6, 50, None, b"")], log_append_time=999)
    assert [record.timestamp for record in decode_batch(batch)] == [999, 999]
    header = read_header(batch)
    assert (header.base_timestamp, header.max_timestamp, header.is_log_append_time) == (100, 999, True)


def test_a_compacted_batch_keeps_the_range_it_had() -> None:
    batch = build_batch([Record(12, 7, b"k", b"v")], base_offset=10, last_offset=19, delete_horizon=1234)
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.record_count, header.delete_horizon) == (10, 19, 1, 1234)
    assert decode_batch(batch) == [Record(12, 7, b"k", b"v")]
    left = empty_batch(header)
    assert decode_batch(left) == []
    assert read_header(left).last_offset == 19
    check_batches(left)


def test_fetched_batches_start_at_the_offset_asked_for_and_end_before_a_cut() -> None:
    first = build_batch([Record(offset, 0, None, b"a") for offset in range(3)])
    second = build_batch([Record(offset, 0, None, b"b") for offset in range(3, 6)], codec=2)
    third = build_batch([Record(6, 0, None, b"c")])
    fetched = list(decode_batches(first + second + third[:-1], from_offset=4))
    assert [[record.offset for record in records] for _, records in fetched] == [[4, 5]]
    with pytest.raises(ApiError):
        list(decode_batches(first[:-1] + b"!" + second))


PAIRS = st.lists(st.tuples(st.binary(max_size=200), st.none() | st.binary(max_size=200)), min_size=1, max_size=70)


@given(PAIRS, st.integers(0, 2**50), st.none() | st.tuples(st.integers(0, 2**40), st.integers(0, 100)))
def test_pairs_become_the_batch_that_records_of_one_moment_become(
    pairs: list[tuple[bytes, bytes | None]], timestamp: int, producer: tuple[int, int] | None
) -> None:
    producer_id, epoch = producer or (-1, -1)
    records = [Record(offset, timestamp, key, value) for offset, (key, value) in enumerate(pairs)]
    expected = build_batch(records, producer_id=producer_id, producer_epoch=epoch, transactional=producer is not None)
    assert build_pairs(pairs, timestamp, producer_id=producer_id, producer_epoch=epoch) == expected
