"""Batches out of Arrow arrays: what `builder.BatchBuilder` makes of the same records, byte for byte, a million at a time.

The numbers in front of a key and of a value are a few bytes for each record; numpy writes them into 64-bit words, all records at
once. `gathering` lays room for a batch header, numbers, keys, numbers and values behind one another, in the one pass over their bytes
that there is, and its buffer *is* the batches: only their headers are written into it. `columns` is the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import (
    HEADER,
    HEADER_SIZE,
    LENGTH_PREFIX,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    stamp,
)
from ottla.records.builder import attributes_of, header_for
from ottla.records.compression import NONE, compress
from ottla.records.gathering import WORD_SIZE, Column, Ints, Part, Short, Words, column_of, gather, together

Encoded = bytearray | memoryview  # a batch that may be stamped in place

NOBODY = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
MOST_NUMBERS = 31  # bytes of a record besides key, value and headers, unless its timestamp is far from the batch's first


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
) -> Encoded:
    """One batch of all rows. It may be stamped in place.

    `key` and `value` are Arrow arrays (or chunked arrays) of binary or string, nulls allowed; a missing `key` column is all null;
    `timestamp` is an int64 array or one number for all; `headers` has HEADER_TYPE. There must be rows, and few enough for a batch:
    `split_rows` says how many.
    """
    identity = (producer_id, producer_epoch, base_sequence)
    rows = Rows.of(key, value, timestamp, headers)
    [encoded] = rows.encode([(0, len(value))], codec, level, transactional, identity)
    stamp(encoded, 0, base_offset, leader_epoch)
    return encoded


def split_rows(key: Any | None, value: Any, batch_size: int, headers: Any | None = None) -> list[tuple[int, int]]:
    """Ranges of rows whose batches stay within `batch_size` bytes before compression; a row larger than that stands alone."""
    return Rows.of(key, value, 0, headers).split(0, len(value), batch_size)


class Rows:
    """Columns of records, to be brought into another order, cut into ranges and encoded."""

    def __init__(self, key: Column, value: Column, times: Ints | int, tail: Sequence[Part], content: Ints) -> None:
        self._key, self._value, self._times, self._tail = key, value, times, tail
        self._content = content  # how many bytes each row has besides the numbers
        self._ends = np.cumsum(content + MOST_NUMBERS)

    @classmethod
    def of(cls, key: Any | None, value: Any, timestamp: Any, headers: Any | None) -> Rows:
        """See `encode_columns`."""
        count = len(value)
        keys, values = column_of(key, count), column_of(value, count)
        times = timestamp if isinstance(timestamp, int) else np.asarray(timestamp, np.int64)
        tail = _no_headers(count) if headers is None else _headers(headers)
        content = sum((part.sizes for part in tail), np.maximum(keys.sizes, 0) + np.maximum(values.sizes, 0))
        return cls(keys, values, times, tail, content)

    def ordered(self, order: Ints) -> Rows:
        """The rows with these numbers, in their order. Their bytes stay where they are."""
        times = self._times if isinstance(self._times, int) else self._times[order]
        tail = [part.of(order) for part in self._tail]
        return Rows(self._key.of(order), self._value.of(order), times, tail, self._content[order])

    def split(self, start: int, stop: int, size: int) -> list[tuple[int, int]]:
        """Rows `start` to `stop` in ranges whose batches stay within `size`."""
        ends, room, ranges = self._ends, max(1, size - HEADER_SIZE), []
        while start < stop:
            before = int(ends[start - 1]) if start else 0
            cut = min(stop, max(start + 1, int(np.searchsorted(ends, before + room, "right"))))
            ranges.append((start, cut))
            start = cut
        return ranges

    def encode(
        self,
        ranges: Sequence[tuple[int, int]],
        codec: int = NONE,
        level: int | None = None,
        transactional: bool = False,
        identity: tuple[int, int, int] | None = NOBODY,
    ) -> list[Encoded]:
        """A batch of each of these ranges, which follow one another without a gap and hold no more than 2 GB together.

        Without an identity they have no checksum either: `stamp_producer` will give them both.
        """
        first, last = ranges[0][0], ranges[-1][1]
        assert all(start < stop for start, stop in ranges), "a batch without records is written by compaction only"
        starts = np.array([start for start, _ in ranges], np.int64) - first
        parts = self._parts(slice(first, last), starts)
        joined, offsets = gather(parts, starts, HEADER_SIZE) if codec == NONE else gather(parts)
        attributes, encoded = attributes_of(codec, transactional=transactional), list[Encoded]()
        for start, stop in ranges:
            view = joined[int(offsets[start - first]) : int(offsets[stop - first])]
            batch: Encoded = view if codec == NONE else bytearray(HEADER_SIZE) + compress(codec, bytes(view), level)
            fields = (attributes, stop - start - 1, *self._time_span(start, stop), *(identity or NOBODY), stop - start)
            if identity is None:
                HEADER.pack_into(batch, 0, 0, len(batch) - LENGTH_PREFIX, NO_LEADER_EPOCH, MAGIC, 0, *fields)
            else:
                batch[:HEADER_SIZE] = header_for(memoryview(batch)[HEADER_SIZE:], fields, 0, NO_LEADER_EPOCH)
            encoded.append(batch)
        return encoded

    def _time_span(self, start: int, stop: int) -> tuple[int, int]:
        if isinstance(self._times, int):
            return self._times, self._times
        return int(self._times[start]), int(self._times[start:stop].max())

    def _parts(self, rows: slice, starts: Ints) -> list[Part]:
        """What these records are made of. At each of `starts` a batch begins."""
        key, value, tail = self._key.of(rows), self._value.of(rows), [part.of(rows) for part in self._tail]
        counts = np.diff(starts, append=rows.stop - rows.start)
        times = self._time_deltas(rows, starts, counts)
        zeros = 2 if times is None else 1  # the attributes, which are unused, come before the time
        numbers = [*(times or ()), *_counted(starts, counts), *_varints(key.sizes)]
        value_prefix = _varints(value.sizes)
        body = self._content[rows] + zeros
        for number in (*numbers, *value_prefix):
            body += number.sizes
        [length] = _varints(body)
        # All bytes of a word are zeros that are beyond those that count.
        length = Short(length.words, length.sizes + zeros, length.longest + zeros)
        return together([length, *numbers, key, *value_prefix, value, *tail])

    def _time_deltas(self, rows: slice, starts: Ints, counts: Ints) -> list[Short] | None:
        """None if they are all nought."""
        if isinstance(self._times, int):
            return None
        times = self._times[rows]
        return _varints(times - np.repeat(times[starts], counts))


def _counted(starts: Ints, counts: Ints) -> list[Short]:
    """0, 1, 2… from each start on."""
    most = int(counts.max())
    if most > _TABLED:
        return _varints(np.arange(int(counts.sum())) - np.repeat(starts, counts))
    ends = (counts + 1).tolist()
    words, sizes = (np.concatenate([table[1:end] for end in ends]) for table in (_TABLE, _TABLE_SIZES))
    return [Short(words, sizes, 1 if most <= 0x40 else 2)]


def _no_headers(count: int) -> list[Part]:
    return [Short(np.zeros(count, np.uint64), np.ones(count, np.int64), 1)]


def _headers(column: Any) -> list[Part]:
    """For each row, its header count and its headers. A null list is an empty one."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    counts = np.asarray(pc.fill_null(pc.list_value_length(column), 0)).astype(np.int64)
    pairs = column.flatten()
    if not len(pairs):
        return _no_headers(len(column))
    key, value = column_of(pairs.field("key"), len(pairs)), column_of(pairs.field("value"), len(pairs))
    if key.sizes.min() < 0:
        raise ApiError(ErrorCode.INVALID_RECORD, "a header without a key")
    joined, offsets = gather(together([*_varints(key.sizes), key, *_varints(value.sizes), value]))
    ends = pa.py_buffer(offsets[np.concatenate(([0], np.cumsum(counts)))])
    of_rows = pa.Array.from_buffers(pa.binary(), len(column), [None, ends, pa.py_buffer(joined)])
    return [*_varints(counts), column_of(of_rows, len(column))]


# -- numbers -----------------------------------------------------------------------------------------------------------------


def _tables() -> tuple[Words, Ints]:
    """The words of -1 and of the numbers that fit into two bytes, in this order, and how many bytes of each count."""
    zigzag = np.concatenate(([1], np.arange(0, 2 * _TABLED, 2))).astype(np.uint64)
    is_long = zigzag > 0x7F
    words = np.where(is_long, zigzag & np.uint64(0x7F) | np.uint64(0x80) | zigzag >> np.uint64(7) << np.uint64(8), zigzag)
    return words, np.where(is_long, 2, 1).astype(np.int64)


_TABLED = 1 << 13  # lengths and offsets within a batch are seldom larger; these take one or two bytes
_TABLE, _TABLE_SIZES = _tables()


def _varints(values: Ints) -> list[Short]:
    """These numbers as varints: in one piece, or in two if there are some of more than eight bytes."""
    low, high = int(values.min()), int(values.max())
    if low >= -1 and high < _TABLED:
        place = values + 1
        return [Short(_TABLE[place], _TABLE_SIZES[place], 1 if high < 0x40 else 2)]
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    most, width, sizes = int(zigzag.max()), 1, np.ones(len(values), np.int64)
    while most >> (7 * width):
        sizes += zigzag >= np.uint64(1 << (7 * width))
        width += 1
    pieces = []
    for first in range(0, width, WORD_SIZE):
        words = np.zeros(len(values), np.uint64)
        for number in range(first, min(width, first + WORD_SIZE)):
            octet = (zigzag >> np.uint64(7 * number)) & np.uint64(0x7F)
            octet |= (sizes > number + 1).astype(np.uint64) << np.uint64(7)
            words |= octet << np.uint64(8 * (number - first))
        pieces.append(Short(words, np.clip(sizes - first, 0, WORD_SIZE), min(width - first, WORD_SIZE)))
    return pieces
