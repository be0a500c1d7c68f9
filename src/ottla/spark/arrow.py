"""Fetches as Arrow batches in the columns of Spark's Kafka connector. In executors only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ottla.records.columns import Columns, decode_columns
from ottla.spark.reading import Fetched, OffsetRange, fetched

MAX_ROWS = 200_000  # of one batch handed to Spark
HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batches(settings: Mapping[str, Any], wanted: OffsetRange, headers: bool, fail_on_data_loss: bool) -> Iterator[pa.RecordBatch]:
    for item in fetched(settings, wanted, fail_on_data_loss):
        made = record_batch(item, wanted, headers)
        for start in range(0, made.num_rows, MAX_ROWS):
            yield made.slice(start, MAX_ROWS)


def record_batch(item: Fetched, wanted: OffsetRange, headers: bool) -> pa.RecordBatch:
    columns = decode_columns(item.data, from_offset=item.start, aborted=item.aborted, headers=headers)
    offsets = np.asarray(columns.offset)
    count = int(np.searchsorted(offsets, wanted.end))  # offsets rise, so what lies past the end is a tail
    return _spark_columns(columns, count, wanted, headers)


def _spark_columns(columns: Columns, count: int, wanted: OffsetRange, headers: bool) -> pa.RecordBatch:
    micros = np.asarray(columns.timestamp)[:count] * 1000
    fields = {
        "key": columns.key.slice(0, count),
        "value": columns.value.slice(0, count),
        "topic": pa.array([wanted.topic], pa.string()).take(pa.array(np.zeros(count, np.int32))),
        "partition": pa.array(np.full(count, wanted.partition, np.int32)),
        "offset": columns.offset.slice(0, count),
        "timestamp": pa.array(micros, pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array(np.zeros(count, np.int32)),
    }
    if headers and columns.headers is not None:
        fields["headers"] = columns.headers.slice(0, count)
    return pa.RecordBatch.from_arrays(list(fields.values()), names=list(fields))
