from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.model.errors import ApiError
from ottla.records.batch import check_batches, read_header
from ottla.records.builder import build_batch
from ottla.records.record import Record, decode_batch, unpack
from ottla.storage.outline import keep, outline

CONTENT = st.one_of(st.none(), st.binary(max_size=200))
RECORDS = st.lists(
    st.tuples(
        st.integers(1, 300),
        st.integers(0, 2**41),
        CONTENT,
        CONTENT,
        st.lists(st.tuples(st.text(max_size=9), CONTENT), max_size=2),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=150)
@given(RECORDS, st.integers(0, 4), st.data())
def test_an_outline_tells_what_decoding_tells_and_keeps_what_is_asked(rows: list[tuple], codec: int, data: st.DataObject) -> None:  # type: ignore[type-arg]
    offset, records = 1000, []
    for gap, timestamp, key, value, headers in rows:
        offset += gap  # compacted batches have gaps
        records.append(Record(offset, timestamp, key, value, tuple(headers)))
    batch = build_batch(
        records, base_offset=1000, last_offset=offset + 3, codec=codec, producer_id=4, producer_epoch=1, base_sequence=9
    )
    header = read_header(batch)
    unpacked = unpack(batch, 0, header)
    found = outline(header, unpacked)
    assert [(row.offset, row.key, row.has_value) for row in found] == [
        (row.offset, row.key, row.value is not None) for row in records
    ]
    chosen = sorted(data.draw(st.sets(st.integers(0, len(records) - 1), min_size=1)))
    smaller, timestamp = keep(header, unpacked, [found[slot] for slot in chosen])
    [(_, kept)] = check_batches(smaller)
    assert decode_batch(smaller) == [records[slot] for slot in chosen]
    assert timestamp == kept.max_timestamp == max(records[slot].timestamp for slot in chosen)
    same = ("base_offset", "last_offset_delta", "producer_id", "producer_epoch", "base_sequence", "attributes", "leader_epoch")
    assert [getattr(kept, name) for name in same] == [getattr(header, name) for name in same]


@settings(max_examples=150)
@given(st.binary(max_size=120), st.integers(0, 20))
def test_bytes_that_are_no_records_are_refused(data: bytes, count: int) -> None:
    header = read_header(build_batch([Record(0, 0, None, None)]))._replace(record_count=count)
    if count == 0 and not data:
        return
    try:
        found = outline(header, data)
    except ApiError:
        return
    assert found[-1].end == len(data)
    with pytest.raises(ApiError):
        outline(header, data + b"\x00")
