"""Batches out of Arrow arrays: what `builder.BatchBuilder` makes of the same records, byte for byte, a million at a time.

numpy writes the numbers of all records into narrow columns, Arrow joins them with keys and values element by element, and the
joined array's data buffer is the batch's payload. `columns` is the way back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import HEADER_SIZE, NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from ottla.records.builder import attributes_of, header_for
from ottla.records.compression import NONE, compress

Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]


def encode_columns(
    *,
    key: Any | None,
    value: Any,
    timestamp: Any,
    headers: Any | None = None,
    codec: int = NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """One batch of all rows: what `builder.BatchBuilder` makes of the same records, byte for byte. It may be stamped in place.

    `key` and `value` are Arrow arrays (or chunked arrays) of binary or string, nulls allowed; a missing `key` column is all null;
    `timestamp` is an int64 array or one number for all; `headers` has HEADER_TYPE. There must be rows, and few enough for a batch:
    `split_rows` says how many.
    """
    count = len(value)
    assert count, "a batch without records is written by compaction only"
    times = np.full(count, timestamp, np.int64) if isinstance(timestamp, int) else np.asarray(timestamp, np.int64)
    records = _encode_records(_binary(key, count), _binary(value, count), times, headers)
    payload = records if codec == NONE else compress(codec, bytes(records), level)
    fields = (
        attributes_of(codec, transactional=transactional),
        count - 1,
        int(times[0]),
        int(times.max()),
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return bytearray().join((header_for(payload, fields, base_offset, leader_epoch), payload))


def split_rows(key: Any | None, value: Any, batch_size: int, headers: Any | None = None) -> list[tuple[int, int]]:
    """Ranges of rows whose batches stay within `batch_size` bytes before compression; a row larger than that stands alone."""
    count = len(value)
    sizes = np.maximum(_lengths(_binary(value, count)), 0) + np.maximum(_lengths(_binary(key, count)), 0) + 32
    if headers is not None:
        sizes += np.maximum(_lengths(_encode_headers(headers)), 0)
    ends = np.cumsum(sizes)
    ranges, start, room = [], 0, max(1, batch_size - HEADER_SIZE)
    while start < count:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + room, "right")))
        ranges.append((start, stop))
        start = stop
    return ranges


def _binary(column: Any | None, count: int) -> Any:
    if column is None:
        return pa.nulls(count, pa.binary())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _lengths(column: Any) -> Ints:
    """Of each element; -1 for a null."""
    lengths = pc.binary_length(column)
    return np.asarray(lengths.fill_null(-1) if lengths.null_count else lengths).astype(np.int64)


def _encode_records(key: Any, value: Any, times: Ints, headers: Any | None) -> memoryview:
    """One behind the other, uncompressed: Arrow's own buffer, not a copy of it."""
    count = len(value)
    key_size, value_size = _lengths(key), _lengths(value)
    deltas = [_varint_matrix(times - times[0]), _varint_matrix(np.arange(count, dtype=np.int64)), _varint_matrix(key_size)]
    value_prefix = _varint_matrix(value_size)
    body = 1 + np.maximum(key_size, 0) + np.maximum(value_size, 0) + value_prefix[1]
    for _, sizes in deltas:
        body += sizes
    if headers is None:
        tail: Any = pa.scalar(b"\x00", pa.binary())
        body += 1
    else:
        tail = _encode_headers(headers)
        body += _lengths(tail)
    attributes = np.zeros((count, 1), np.uint8), np.ones(count, np.int64)
    prefix = _joined([_varint_matrix(body), attributes, *deltas])
    parts = (prefix, key, _joined([value_prefix]), value, tail, pa.scalar(b"", pa.binary()))
    joined = pc.binary_join_element_wise(*parts, null_handling="replace", null_replacement=b"")
    if isinstance(joined, pa.ChunkedArray):
        joined = joined.combine_chunks()
    first, last = (int(np.frombuffer(joined.buffers()[1], np.int32)[index]) for index in (joined.offset, joined.offset + count))
    return memoryview(joined.buffers()[2])[first:last]


def _two_byte_varints() -> tuple[npt.NDArray[np.uint16], Ints]:
    """The bytes of -1 and of the numbers that fit into two bytes, in this order, and how many of them count."""
    zigzag = np.concatenate(([1], np.arange(0, 2 * _TABLED, 2))).astype(np.uint16)
    sizes = np.where(zigzag < 0x80, 1, 2).astype(np.int64)
    low = np.where(zigzag < 0x80, zigzag, zigzag & 0x7F | 0x80)
    return (low | zigzag >> 7 << 8).astype("<u2"), sizes


_TABLED = 1 << 13  # lengths and offsets within a batch are seldom larger
_TABLE, _TABLE_SIZES = _two_byte_varints()


def _varint_matrix(values: Ints) -> tuple[Octets, Ints]:
    """The bytes of each number in a row of its own, and how many of the row's bytes count."""
    low, high = int(values.min()), int(values.max())
    if low >= -1 and high < _TABLED:
        place = values + 1
        words = _TABLE[place].view(np.uint8).reshape(-1, 2)
        return (words[:, :1], np.ones(len(values), np.int64)) if high < 0x40 else (words, _TABLE_SIZES[place])
    zigzag = ((values << 1) ^ (values >> 63)).astype(np.uint64)
    sizes = np.ones(len(values), np.int64)
    width, most = 1, int(zigzag.max())
    while most >> (7 * width):
        sizes += zigzag >= np.uint64(1 << (7 * width))
        width += 1
    matrix = np.empty((len(values), width), np.uint8)
    for column in range(width):
        matrix[:, column] = (zigzag >> np.uint64(7 * column)).astype(np.uint8) | 0x80
    matrix[np.arange(len(values)), sizes - 1] &= 0x7F
    return matrix, sizes


def _joined(columns: list[tuple[Octets, Ints]]) -> Any:
    """Matrices side by side as one binary array: row by row, only the bytes that count."""
    octets = np.concatenate([matrix for matrix, _ in columns], axis=1)
    total = sum(sizes for _, sizes in columns)
    counting = np.concatenate([np.arange(matrix.shape[1]) < sizes[:, None] for matrix, sizes in columns], axis=1)
    data = octets.ravel() if counting.all() else octets[counting]
    offsets = np.zeros(len(octets) + 1, np.int32)
    np.cumsum(total, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(octets), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _encode_headers(headers: Any) -> Any:
    """For each row, its header count and headers as one byte string. A null list is an empty one."""
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    counts = np.asarray(pc.fill_null(pc.list_value_length(headers), 0)).astype(np.int64)
    pairs = headers.flatten()
    encoded = pa.array([], pa.binary())
    if len(pairs):
        key, value = _binary(pairs.field("key"), len(pairs)), _binary(pairs.field("value"), len(pairs))
        if key.null_count:
            raise ApiError(ErrorCode.INVALID_RECORD, "a header without a key")
        sizes = _joined([_varint_matrix(_lengths(key))]), _joined([_varint_matrix(_lengths(value))])
        empty = pa.scalar(b"", pa.binary())
        encoded = pc.binary_join_element_wise(
            sizes[0], key, sizes[1], value, empty, null_handling="replace", null_replacement=b""
        )
    list_offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    joined = pc.binary_join(pa.ListArray.from_arrays(list_offsets, encoded), pa.scalar(b"", pa.binary()))
    return pc.binary_join_element_wise(_joined([_varint_matrix(counts)]), joined, pa.scalar(b"", pa.binary()))
