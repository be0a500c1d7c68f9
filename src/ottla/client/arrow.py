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
from ottla.records.column_encoder import Encoded, Rows
from ottla.records.columns import Columns, decode_batches, decode_columns
from ottla.records.control import visible_batches
from ottla.records.gathering import as_binary

ENCODED_AT_ONCE = 16 << 20  # bytes: what is joined at once is freed at once
MOST_BY_RADIX = 1 << 15  # numbers of 16 bits are sorted by numpy three times as fast
MIN_ARROW_BATCH = 256 * 1024  # columns pay from a few thousand rows on, so their batches are larger than `batch_size` alone


def encode_arrow(
    batch: Any, partitions: int, partition: int | None, sticky: int, now_ms: int, settings: ProducerSettings, codec: int
) -> Iterator[list[tuple[int, Encoded, int]]]:
    """(partition, encoded batch without a producer, rows) for each batch that the rows make, as many at a time as are made at once."""
    names = set(batch.schema.names)
    if "value" not in names:
        raise SerializationFailed(f"a batch to send needs a column named value; it has {', '.join(sorted(names)) or 'none'}")
    if not batch.num_rows:
        return
    target = min(settings["max_request_size"] - HEADER_SIZE, max(settings["batch_size"], MIN_ARROW_BATCH))
    numbers = _partitions(batch, partitions, partition, sticky, settings)
    times: Any = _times(batch.column("timestamp"), now_ms) if "timestamp" in names else now_ms
    headers = batch.column("headers") if "headers" in names else None
    rows = Rows.of(batch.column("key") if "key" in names else None, batch.column("value"), times, headers)
    for start, stop in rows.split(0, len(batch), ENCODED_AT_ONCE):
        sorted_rows, shares = _by_partition(rows, numbers, start, stop)
        cuts = [(number, cut) for number, first, end in shares for cut in sorted_rows.split(first, end, target)]
        encoded = sorted_rows.encode([cut for _, cut in cuts], codec, settings["compression_level"], identity=None)
        yield [(number, each, stop - start) for (number, (start, stop)), each in zip(cuts, encoded)]


def _times(column: Any, now_ms: int) -> Any:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    return np.asarray(column.cast(pa.int64()).fill_null(now_ms))


def _partitions(batch: Any, partitions: int, partition: int | None, sticky: int, settings: ProducerSettings) -> Any:
    """Where the rows go: an array of numbers, or one for all."""
    if partition is not None:
        return partition
    columns = {name: column for name, column in zip(batch.schema.names, batch.columns) if column.null_count < len(batch)}
    by_key = "key" in columns and not settings["partitioner_ignore_keys"]
    if "partition" in columns:
        asked = columns["partition"].cast(pa.int32())
        numbers = np.asarray(asked.fill_null(0))
        if not 0 <= numbers.min() <= numbers.max() < partitions:
            raise SerializationFailed(f"the partition column holds numbers outside 0 to {partitions - 1}")
        if asked.null_count:  # such a row goes where it would without the column
            others = _hashes(columns["key"], partitions, sticky) if by_key else sticky
            numbers = np.where(np.asarray(asked.is_null()), others, numbers)
    elif by_key:
        numbers = _hashes(columns["key"], partitions, sticky)
    else:
        return sticky
    return numbers.astype(np.int16) if partitions <= MOST_BY_RADIX else numbers


def _by_partition(rows: Rows, numbers: Any, start: int, stop: int) -> tuple[Rows, list[tuple[int, int, int]]]:
    """Rows, those from `start` to `stop` among them in the order of their partitions; and (partition, start, stop) for each that has some."""
    if isinstance(numbers, int):
        return rows, [(numbers, start, stop)]
    order = np.argsort(numbers[start:stop], kind="stable")
    ends = np.cumsum(np.bincount(numbers[start:stop])).tolist()
    shares = [(number, first, end) for number, (first, end) in enumerate(zip([0, *ends], ends)) if first < end]
    return rows.ordered(order + start), shares


def _hashes(keys: Any, partitions: int, sticky: int) -> Any:
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    numbers = partitions_of(as_binary(keys), partitions)
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
