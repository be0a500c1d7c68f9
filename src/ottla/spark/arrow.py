"""Fetches as Arrow batches in the columns of Spark's Kafka connector. In executors only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.records.batch import BatchHeader
from ottla.records.columns import HEADER_TYPE, Columns, decode_batches
from ottla.records.compression import NONE
from ottla.records.control import visible_batches
from ottla.spark.ranges import OffsetRange
from ottla.spark.reading import Fetched

MAX_ROWS = 200_000  # of one batch handed to Spark
PORTION_BYTES = 16 << 20  # of records, unpacked, that are decoded at once; more only if a single batch unpacks to more
UNKNOWN_RATIO = float("inf")  # of unpacked to packed bytes, before anything is known


def batches(fetches: Iterable[Fetched], wanted: OffsetRange, headers: bool) -> Iterator[pa.RecordBatch]:
    for item in fetches:
        for made in _portions(item, wanted, headers):
            for start in range(0, made.num_rows, MAX_ROWS):
                yield made.slice(start, MAX_ROWS)


def _portions(item: Fetched, wanted: OffsetRange, headers: bool) -> Iterator[pa.RecordBatch]:
    """A fetch, so much at a time that memory stays bounded however well the records were compressed.

    How well is known only afterwards, so the first compressed batch stands alone and the next ones expect what was seen last.
    """
    ratio, portion, packed, expected = UNKNOWN_RATIO, [], 0, 0.0
    visible = [each for each in visible_batches(item.data, item.aborted) if each[1].last_offset >= item.start]
    for number, (position, header) in enumerate(visible, 1):
        portion.append((position, header))
        packed += header.size
        expected += header.size * (1.0 if header.codec == NONE else ratio)
        if expected >= PORTION_BYTES or number == len(visible):
            made = record_batch(item, portion, wanted, headers)
            ratio = max(1.0, made.nbytes / packed)
            portion, packed, expected = [], 0, 0.0
            if made.num_rows:
                yield made


def record_batch(item: Fetched, visible: list[tuple[int, BatchHeader]], wanted: OffsetRange, headers: bool) -> pa.RecordBatch:
    columns = decode_batches(item.data, visible, from_offset=item.start, headers=headers)
    offsets = np.asarray(columns.offset)
    count = int(np.searchsorted(offsets, wanted.end))  # offsets rise, so what lies past the end is a tail
    return _spark_columns(columns, count, wanted, headers, _timestamp_types(visible, offsets[:count]))


def _timestamp_types(visible: list[tuple[int, BatchHeader]], offsets: Any) -> Any:
    """0 for the producer's time, 1 for the broker's (LogAppendTime). It is the batch that says so, not the record."""
    found = [(header.base_offset, header.is_log_append_time) for _, header in visible]
    if not any(is_append_time for _, is_append_time in found):
        return np.zeros(len(offsets), np.int32)
    batch_of_record = np.searchsorted(np.array([base for base, _ in found], np.int64), offsets, "right") - 1
    return np.array([is_append_time for _, is_append_time in found], np.int32)[batch_of_record]


def latest_per_key(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The last record of each key, in offset order; a key whose last record is a tombstone is not there, nor are rows without one.

    What is kept in memory is the table itself: batches are folded in as soon as they outnumber what is kept.
    """
    kept: pa.Table | None = None
    waiting: list[pa.RecordBatch] = []
    for batch in rows:
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= max(MAX_ROWS, 0 if kept is None else kept.num_rows):
            kept, waiting = _last_of_each(kept, waiting), []
    kept = _last_of_each(kept, waiting)
    if kept is not None:
        yield from kept.filter(pc.is_valid(kept.column("value"))).to_batches(max_chunksize=MAX_ROWS)


def _last_of_each(kept: pa.Table | None, more: list[pa.RecordBatch]) -> pa.Table | None:
    tables = ([] if kept is None else [kept]) + ([pa.Table.from_batches(more)] if more else [])
    if not tables:
        return None
    whole = pa.concat_tables(tables).combine_chunks()
    whole = whole.filter(pc.is_valid(whole.column("key"))).combine_chunks()
    if not whole.num_rows:
        return whole
    codes = np.asarray(whole.column("key").combine_chunks().dictionary_encode().indices)
    last = np.zeros(int(codes.max()) + 1, np.int64)
    last[codes] = np.arange(len(codes))  # of several rows with one code, numpy keeps the last
    return whole.take(pa.array(np.sort(last)))


def _spark_columns(columns: Columns, count: int, wanted: OffsetRange, headers: bool, types: Any) -> pa.RecordBatch:
    micros = np.asarray(columns.timestamp)[:count] * 1000
    fields = {
        "key": columns.key.slice(0, count),
        "value": columns.value.slice(0, count),
        "topic": pa.array([wanted.topic], pa.string()).take(pa.array(np.zeros(count, np.int32))),
        "partition": pa.array(np.full(count, wanted.partition, np.int32)),
        "offset": columns.offset.slice(0, count),
        "timestamp": pa.array(micros, pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array(types),
    }
    if headers and columns.headers is not None:
        fields["headers"] = _null_if_none(columns.headers).slice(0, count)
    return pa.RecordBatch.from_arrays(list(fields.values()), names=list(fields))


def _null_if_none(headers: Any) -> Any:
    """A record without headers has null in this column, not an empty list: as the connector has it."""
    empty = pc.equal(pc.list_value_length(headers), 0)
    return pa.ListArray.from_arrays(headers.offsets, headers.values, type=HEADER_TYPE, mask=empty)
