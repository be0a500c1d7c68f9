"""The columnar decoder and encoder against the plain ones."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import HEADER, HEADER_SIZE, read_header, stamp, stamp_producer
from ottla.records.builder import BatchBuilder, build_batch, empty_batch
from ottla.records.control import AbortedTransaction, EndTransaction, end_transaction_batch, visible_batches
from ottla.records.record import Record, decode_batch

from .strategies import record_lists

pa = pytest.importorskip("pyarrow")
import numpy as np  # noqa: E402

from ottla.records import record_starts  # noqa: E402
from ottla.records.column_encoder import Rows, encode_columns, split_rows  # noqa: E402
from ottla.records.columns import HEADER_TYPE, Columns, decode_columns  # noqa: E402
from ottla.records.gathering import column_of  # noqa: E402


def rows(columns: Columns) -> list[Record]:
    headers: list[Any] = [()] * len(columns)
    if columns.headers is not None:
        assert columns.headers.type == HEADER_TYPE
        headers = [tuple((pair["key"], pair["value"]) for pair in pairs) for pairs in columns.headers.to_pylist()]
    for column in (columns.offset, columns.timestamp, columns.key, columns.value):
        column.validate(full=True)
    parts = (columns.offset, columns.timestamp, columns.key, columns.value)
    return [Record(*fields, pairs) for *fields, pairs in zip(*(part.to_pylist() for part in parts), headers)]


def plain(buffer: bytes, aborted: list[AbortedTransaction] | None = None) -> list[Record]:
    return [record for position, _ in visible_batches(buffer, aborted or []) for record in decode_batch(buffer, position)]


batches = st.lists(st.tuples(record_lists(max_size=8), st.integers(0, 4), st.none() | st.integers(0, 2**40)), max_size=4)


@given(batches, st.booleans(), st.binary(max_size=70))
def test_columns_hold_what_the_plain_decoder_finds(
    drawn: list[tuple[list[Record], int, int | None]], only_plain: bool, cut: bytes
) -> None:
    buffer = b""
    for records, codec, append_time in drawn:
        buffer += build_batch(records, codec=0 if only_plain else codec, log_append_time=append_time)
    fetched = buffer + cut[: HEADER_SIZE - 1]
    assert rows(decode_columns(fetched, headers=True)) == plain(buffer)
    assert decode_columns(memoryview(bytearray(fetched))).headers is None
    assert rows(decode_columns(fetched)) == [record._replace(headers=()) for record in plain(buffer)]


def irregular(count: int, seed: int, alphabet: bytes, longest: int) -> list[Record]:
    """Records of many lengths, from 7 bytes on."""
    dice = random.Random(seed)

    def text() -> bytes | None:
        size = dice.randrange(-1, longest)
        return None if size < 0 else bytes(dice.choices(alphabet, k=size))

    return [Record(offset, dice.randrange(9), text(), text()) for offset in range(count)]


# Text has no zeros; the others are full of what looks like the beginning of a record.
ALPHABETS = (b"abcdefgh", bytes(range(256)), b"\0", b"\0\0\0\x20\x82\x01")


@pytest.mark.parametrize("alphabet", ALPHABETS)
@pytest.mark.parametrize("longest", [4, 80, 700])
def test_records_of_many_lengths_are_found_from_many_places_at_once(alphabet: bytes, longest: int) -> None:
    for seed in range(4):
        drawn = [irregular(count, seed + count, alphabet, longest) for count in (2000, 1, 700)]
        # No zero follows for longer than walks are apart.
        drawn += [[*irregular(40, seed, alphabet, longest), Record(40, 0, None, b"z" * 30_000)]]
        buffer = b"".join(build_batch(records) for records in drawn)
        expected = [record for records in drawn for record in records]
        assert rows(decode_columns(memoryview(bytearray(b"frame" + buffer))[5:])) == expected
        assert rows(decode_columns(buffer)) == expected


def test_walks_are_side_by_side_where_records_are_text_and_end_where_the_next_began() -> None:
    records = irregular(4000, 1, b"abcdefgh", 300)
    # Values that hold whole batches: what looks like a start of a record in there is none.
    inside = bytes(build_batch(irregular(200, 2, b"abc", 20)))
    forged = [record._replace(value=inside) if record.offset % 50 == 0 else record for record in records]
    for drawn, is_found in ((records, True), (forged, None)):
        data = bytes(build_batch(drawn))
        octets, spans = np.frombuffer(data, np.uint8), [(HEADER_SIZE, len(data))]
        one_by_one = record_starts._find_one_by_one(data, octets, spans, [len(drawn)])
        side_by_side = record_starts._find_side_by_side(data, octets, spans, [len(drawn)])
        assert side_by_side is None if is_found is None else side_by_side is not None
        assert side_by_side is None or np.array_equal(one_by_one, side_by_side)
        assert rows(decode_columns(data)) == drawn


def test_records_whose_starts_cannot_be_guessed_are_not_walked_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a few walks only, each step of numpy's would find a few records."""

    def walk(*_: Any) -> None:
        raise AssertionError("walked")

    monkeypatch.setattr(record_starts, "_walk", walk)
    drawn = [record._replace(headers=(("key", b"x"),)) for record in irregular(4000, 3, b"abcdefgh", 300)]
    assert rows(decode_columns(build_batch(drawn), headers=True)) == drawn
    with pytest.raises(AssertionError, match="walked"):
        decode_columns(build_batch(irregular(4000, 3, b"abcdefgh", 300)))


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 20_000)), min_size=1, max_size=6))
def test_runs_of_equal_records_are_all_found(runs: list[tuple[int, int]]) -> None:
    records: list[Record] = []
    for count, size in runs:
        records += [Record(len(records) + index, 5, b"k", bytes(size)) for index in range(count)]
    assert rows(decode_columns(build_batch(records))) == records


@given(record_lists(), st.data())
def test_corrupt_records_are_corrupt_by_column_too(records: list[Record], data: st.DataObject) -> None:
    """The same bytes are refused by both decoders or read alike by both."""
    batch = bytearray(build_batch(records))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(HEADER_SIZE, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = plain(bytes(batch))
    except ApiError:
        with pytest.raises(ApiError) as caught:
            decode_columns(bytes(batch), headers=True, check_crc=False)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        return
    found = decode_columns(bytes(batch), headers=True, check_crc=False)
    wrap = (1 << 64) - 1
    for one, other in zip(rows(found), expected, strict=True):
        assert (one.offset & wrap, one.timestamp & wrap, one.key, one.value) == (
            other.offset & wrap,
            other.timestamp & wrap,
            other.key,
            other.value,
        )
        assert [value for _, value in one.headers] == [value for _, value in other.headers]


def test_a_wrong_checksum_is_found() -> None:
    batch = bytearray(build_batch([Record(0, 0, None, b"abc")]))
    batch[-2] ^= 1
    with pytest.raises(ApiError):
        decode_columns(bytes(batch))


def test_a_false_record_count_is_corrupt() -> None:
    batch = build_batch([Record(offset, 0, None, b"abc") for offset in range(20)])
    for count in (-1, 0, 19, 21, 2**31 - 1):
        changed = HEADER.pack(*read_header(batch)._replace(record_count=count)) + batch[HEADER_SIZE:]
        with pytest.raises(ApiError) as caught:
            decode_columns(changed, check_crc=False)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_aborted_control_and_emptied_batches_leave_no_rows() -> None:
    kept = build_batch([Record(0, 0, b"a", b"1"), Record(1, 0, b"b", None)])
    identity = {"producer_id": 5, "producer_epoch": 0}
    void = build_batch([Record(2, 0, b"c", b"3")], transactional=True, base_sequence=0, **identity)
    marker = end_transaction_batch(EndTransaction(False, 0), timestamp=0, base_offset=3, **identity)
    again = build_batch([Record(4, 0, b"d", b"4")], transactional=True, base_sequence=1, codec=3, **identity)
    emptied = empty_batch(read_header(build_batch([Record(5, 0, b"e", b"")])))
    buffer = kept + void + marker + again + emptied
    aborted = [AbortedTransaction(5, 2)]
    assert decode_columns(buffer, aborted=aborted).offset.to_pylist() == [0, 1, 4]
    assert decode_columns(buffer).offset.to_pylist() == [0, 1, 2, 4]
    assert decode_columns(buffer, aborted=aborted, from_offset=1).key.to_pylist() == [b"b", b"d"]
    assert len(decode_columns(buffer, from_offset=6)) == 0
    assert len(decode_columns(b"", headers=True)) == 0


def test_what_unpacks_is_limited_over_all_batches() -> None:
    batch = build_batch([Record(0, 0, None, bytes(1000))], codec=4)
    assert len(decode_columns(batch * 3, limit=3200)) == 3
    with pytest.raises(ApiError) as caught:
        decode_columns(batch * 3, limit=3000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def header_column(records: list[Record]) -> Any:
    return pa.array([[{"key": key, "value": value} for key, value in record.headers] for record in records], HEADER_TYPE)


@given(record_lists(contiguous=True), st.integers(0, 4), st.booleans())
def test_encoding_by_column_gives_the_builder_s_bytes(records: list[Record], codec: int, with_headers: bool) -> None:
    builder = BatchBuilder(codec)
    for record in records:
        builder.append(record.timestamp, record.key, record.value, record.headers if with_headers else ())
    identity = {"producer_id": 11, "producer_epoch": 2, "base_sequence": 30}
    encoded = encode_columns(
        key=pa.array([record.key for record in records], pa.binary()),
        value=pa.array([record.value for record in records], pa.binary()),
        timestamp=pa.array([record.timestamp for record in records], pa.int64()),
        headers=header_column(records) if with_headers else None,
        codec=codec,
        transactional=True,
        **identity,
    )
    assert encoded == builder.build(transactional=True, **identity)


@given(record_lists(contiguous=True), st.sets(st.integers(1, 7)), st.integers(0, 4), st.booleans())
def test_batches_that_are_encoded_at_once_are_those_of_the_builder(
    records: list[Record], cuts: set[int], codec: int, one_time: bool
) -> None:
    """Without an identity, which is stamped later, as a producer does it."""
    if one_time:
        records = [record._replace(timestamp=3) for record in records]
    ranges = list(pairwise([0, *sorted(cut for cut in cuts if cut < len(records)), len(records)]))
    made = Rows.of(
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        3 if one_time else pa.array([record.timestamp for record in records], pa.int64()),
        header_column(records),
    ).encode(ranges, codec, identity=None)
    for encoded, (start, stop) in zip(made, ranges, strict=True):
        builder = BatchBuilder(codec)
        for record in records[start:stop]:
            builder.append(record.timestamp, record.key, record.value, record.headers)
        stamp_producer(encoded, 11, 2, 30, False)
        assert encoded == builder.build(producer_id=11, producer_epoch=2, base_sequence=30)


@given(record_lists(contiguous=True), st.data(), st.integers(0, 4), st.booleans())
def test_rows_in_another_order_are_encoded_as_if_they_had_come_in_it(
    records: list[Record], data: st.DataObject, codec: int, with_headers: bool
) -> None:
    order = data.draw(st.permutations(range(len(records))))[: data.draw(st.integers(1, len(records)))]
    [encoded] = (
        Rows.of(
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.string() if only_text(records) else pa.binary()),
            pa.array([record.timestamp for record in records], pa.int64()),
            header_column(records) if with_headers else None,
        )
        .ordered(np.array(order))
        .encode([(0, len(order))], codec)
    )
    builder = BatchBuilder(codec)
    for record in (records[number] for number in order):
        builder.append(record.timestamp, record.key, record.value, record.headers if with_headers else ())
    stamp(encoded, 0, 0, -1)
    assert encoded == builder.build()


def only_text(records: list[Record]) -> bool:
    return all(record.value is None or record.value.isascii() for record in records)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-100, 20_000), min_size=1, max_size=20))
def test_timestamps_of_any_distance_are_encoded(times: list[int]) -> None:
    """Their numbers take up to ten bytes, which is more than a word."""
    times = [time if abs(time - times[0]) < 2**63 else times[0] for time in times]
    values = pa.array([b"v"] * len(times), pa.binary())
    encoded = encode_columns(key=None, value=values, timestamp=pa.array(times, pa.int64()))
    assert [record.timestamp for record in decode_batch(encoded)] == times


def test_strings_chunks_slices_and_missing_columns_are_encoded() -> None:
    values = pa.chunked_array([["zero", "eins"], ["zwei", None]])
    records = decode_batch(encode_columns(key=None, value=values, timestamp=7))
    assert [(record.key, record.value, record.timestamp) for record in records] == [
        (None, b"zero", 7),
        (None, b"eins", 7),
        (None, b"zwei", 7),
        (None, None, 7),
    ]
    sliced = pa.array([b"a", b"b", None, b"d"], pa.binary())[1:3]
    headers = pa.array([None, [], [{"key": "h", "value": b"1"}], None], HEADER_TYPE)[1:3]
    records = decode_batch(encode_columns(key=sliced, value=sliced, timestamp=0, headers=headers))
    assert records == [Record(0, 0, b"b", b"b"), Record(1, 0, None, None, (("h", b"1"),))]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60), st.integers(50, 2000))
def test_split_rows_cover_all_rows_within_the_batch_size(sizes: list[int], batch_size: int) -> None:
    values = pa.array([bytes(size) for size in sizes], pa.binary())
    ranges = split_rows(None, values, batch_size)
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == len(sizes)
    for start, stop in ranges:
        encoded = encode_columns(key=None, value=values[start:stop], timestamp=0)
        assert len(encoded) <= batch_size or stop == start + 1


ELEMENTS = ["", "a", "twelve bytes", "thirteen byte", None, "x" * 300, "y" * 5000]


@pytest.mark.parametrize("kind", ["binary", "string", "large_binary", "large_string", "binary_view", "string_view"])
@pytest.mark.parametrize("elements", [ELEMENTS, [text for text in ELEMENTS if text and len(text) > 12]])
def test_columns_of_every_kind_of_bytes_and_text_are_encoded(kind: str, elements: list[str | None]) -> None:
    whole = pa.array(["before", *elements, "behind"], pa.string()).cast(getattr(pa, kind)())
    expected = [None if text is None else text.encode() for text in elements]
    for column in (whole[1:-1], pa.chunked_array([whole[1:3], whole[3:-1]]), pa.chunked_array([whole[1:-1]])):
        records = decode_batch(encode_columns(key=column, value=column, timestamp=5))
        assert [record.key for record in records] == [record.value for record in records] == expected


def test_of_a_buffer_of_many_rows_only_what_a_few_need_is_given_to_arrow() -> None:
    """It sets as much memory aside as the buffers hold that it is given."""
    values = pa.array([b"%07d" % number * 1000 for number in range(4000)], pa.binary())
    rows = Rows.of(None, values, 0, None)
    encoded = rows.encode([(3000, 3002), (3002, 3003)]) + rows.ordered(np.array([3500, 3498])).encode([(0, 2)])
    found = [record.value[:7] for batch in encoded for record in decode_batch(batch)]
    assert found == [b"0003000", b"0003001", b"0003002", b"0003500", b"0003498"]
    buffers: list[Any] = []
    column_of(values, 4000).of(np.array([3500, 3498])).shown_in(buffers)
    assert [buffer.size for buffer in buffers] == [3 * 7000]


def test_batches_outlive_the_columns_and_may_be_stamped() -> None:
    rows = Rows.of(None, pa.array([b"v" * 100] * 10, pa.binary()), 0, None)
    encoded = rows.encode([(0, 5), (5, 10)], identity=None)
    del rows
    for batch in encoded:
        stamp_producer(batch, 11, 2, 30, False)
        assert [record.value for record in decode_batch(batch)] == [b"v" * 100] * 5
