"""Arrow in and out of the clients; loaded only by who uses it (`pip install ottla[arrow]`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ottla.client.arrow_hashing import partitions_of
from ottla.client.errors import SerializationFailed
from ottla.client.positions import Chunk, Position
from ottla.client.settings import ProducerSettings
from ottla.model.errors import ApiError
from ottla.model.ids import TopicPartition
from ottla.records.batch import HEADER_SIZE, BatchHeader
from ottla.records.column_encoder import encode_columns, split_rows
from ottla.records.columns import Columns, decode_batches, decode_columns
from ottla.records.control import visible_batches

MIN_ARROW_BATCH = 256 * 1024  # columns pay from a few thousand rows on, so their batches are larger than `batch_size` alone


def encode_arrow(
    batch: Any, partitions: int, partition: int | None, sticky: int, now_ms: int, settings: ProducerSettings, codec: int
) -> Iterator[tuple[int, bytearray, int]]:
    """(partition, encoded batch without a producer, rows) for each batch that the rows make."""
    names = set(batch.schema.names)
    if "value" not in names:
        raise SerializationFailed(f"a batch to send needs a column named value; it has {', '.join(sorted(names)) or 'none'}")
    if not batch.num_rows:
        return
    target = min(settings["max_request_size"] - HEADER_SIZE, max(settings["batch_size"], MIN_ARROW_BATCH))
    for number, rows in _by_partition(batch, names, partitions, partition, sticky, settings):
        key = rows.column("key") if "key" in names else None
        value = rows.column("value")
        headers = rows.column("headers") if "headers" in names else None
        times: Any = _times(rows.column("timestamp"), now_ms) if "timestamp" in names else now_ms
        for start, stop in split_rows(key, value, target, headers):
            encoded = encode_columns(
                key=None if key is None else key.slice(start, stop - start),
                value=value.slice(start, stop - start),
                timestamp=times if isinstance(times, int) else times[start:stop],
                headers=None if headers is None else headers.slice(start, stop - start),
                codec=codec,
                level=settings["compression_level"],
            )
            yield number, encoded, stop - start


def _times(column: Any, now_ms: int) -> Any:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    return np.asarray(column.cast(pa.int64()).fill_null(now_ms))


def _by_partition(
    batch: Any, names: set[str], partitions: int, partition: int | None, sticky: int, settings: ProducerSettings
) -> Iterator[tuple[int, Any]]:
    if partition is not None:
        yield partition, batch
        return
    if "partition" in names:
        numbers = np.asarray(batch.column("partition").cast(pa.int32()))
        if len(numbers) and not (int(numbers.min()) >= 0 and int(numbers.max()) < partitions):
            raise SerializationFailed(f"the partition column holds numbers outside 0 to {partitions - 1}")
    elif "key" in names and batch.column("key").null_count < batch.num_rows and not settings["partitioner_ignore_keys"]:
        numbers = _hashes(batch.column("key"), partitions, sticky)
    else:
        yield sticky, batch
        return
    # All rows sorted by partition once, and then slices: what a filter for each partition would read again and again.
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=partitions))
    rows, start = batch.take(pa.array(order)), 0
    for number, end in enumerate(ends.tolist()):
        if end > start:
            yield number, rows.slice(start, end - start)
        start = end


def _hashes(keys: Any, partitions: int, sticky: int) -> Any:
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    numbers = partitions_of(keys if keys.type == pa.binary() else keys.cast(pa.binary()), partitions)
    if keys.null_count:
        numbers[np.asarray(keys.is_null())] = sticky
    return numbers


def take_batch(position: Position, chunk: Chunk, with_headers: bool, check_crc: bool) -> Any:
    """Everything that a fetch brought of one partition, as one batch; the position moves behind it.

    Where a part of it cannot be read, what comes before that part; and when nothing does, UnreadableRecords is raised.
    """
    start = position.offset
    assert start is not None
    try:
        columns = decode_columns(chunk.data, from_offset=start, aborted=chunk.aborted, headers=with_headers, check_crc=check_crc)
    except ApiError as error:
        good, damaged = _readable(chunk, start, check_crc)
        if not good:
            raise position.drop_unreadable(error, damaged) from error
        columns = decode_batches(chunk.data, good, from_offset=start, headers=with_headers, check_crc=check_crc)
        position.seek(good[-1][1].next_offset, good[-1][1].leader_epoch)
    else:
        position.offset = max(start, chunk.next_offset)
    return _record_batch(position.key, columns, with_headers)


def _readable(chunk: Chunk, start: int, check_crc: bool) -> tuple[list[tuple[int, BatchHeader]], BatchHeader | None]:
    """The batches before the first that cannot be read, and that one."""
    good: list[tuple[int, BatchHeader]] = []
    for found in visible_batches(chunk.data, chunk.aborted):
        if found[1].last_offset >= start:
            try:
                decode_batches(chunk.data, [found], check_crc=check_crc)
            except ApiError:
                return good, found[1]
            good.append(found)
    return good[: len(good) // 2], None  # each by itself can be read: together they are too much for one array


def _record_batch(key: TopicPartition, columns: Columns, with_headers: bool) -> Any:
    """The topic is a dictionary of one word: it costs nothing."""
    count = len(columns)
    topic = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([key.topic]))
    fields = {
        "topic": topic,
        "partition": pa.array(np.full(count, key.partition, np.int32)),
        "offset": columns.offset,
        "timestamp": columns.timestamp,
        "key": columns.key,
        "value": columns.value,
    }
    if with_headers:
        fields["headers"] = columns.headers
    return pa.RecordBatch.from_arrays(list(fields.values()), names=list(fields))
