"""Batches out of Arrow arrays: what `builder.BatchBuilder` makes of the same records, byte for byte, a million at a time.

The numbers in front of a key and of a value are a few bytes for each record. numpy writes them into 64-bit words, all records at
once; the words are laid under a binary array of 2n elements (what counts, what does not, what counts…) and Arrow takes the even
ones. Then Arrow joins room for a batch header, numbers, keys, numbers and values element by element, and the joined array's data
buffer *is* the batches, one behind the other: only their headers are written into it. `columns` is the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
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

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Encoded = bytearray | memoryview  # a batch that may be stamped in place

NOBODY = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
MOST_NUMBERS = 31  # bytes of a record besides key, value and headers, unless its timestamp is far from the batch's first
WORD_SIZE = 8
_EMPTY = pa.scalar(b"", pa.binary())


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
    rows = Rows(key, value, timestamp, headers)
    [encoded] = rows.encode([(0, len(value))], codec, level, transactional, identity)
    stamp(encoded, 0, base_offset, leader_epoch)
    return encoded


def split_rows(key: Any | None, value: Any, batch_size: int, headers: Any | None = None) -> list[tuple[int, int]]:
    """Ranges of rows whose batches stay within `batch_size` bytes before compression; a row larger than that stands alone."""
    return Rows(key, value, 0, headers).split(0, len(value), batch_size)


class Rows:
    """Columns of records, to be cut into ranges and encoded."""

    def __init__(self, key: Any | None, value: Any, timestamp: Any, headers: Any | None) -> None:
        count = len(value)
        self._key, self._value = _binary(key, count), _binary(value, count)
        self._key_size, self._value_size = _lengths(self._key), _lengths(self._value)
        self._times = timestamp if isinstance(timestamp, int) else np.asarray(timestamp, np.int64)
        self._tail = pa.scalar(b"\x00", pa.binary()) if headers is None else _encode_headers(headers)
        self._tail_size = np.ones(count, np.int64) if headers is None else _lengths(self._tail)
        sizes = np.maximum(self._key_size, 0) + np.maximum(self._value_size, 0) + self._tail_size + MOST_NUMBERS
        self._ends = np.cumsum(sizes)

    def split(self, start: int, stop: int, batch_size: int) -> list[tuple[int, int]]:
        """Rows `start` to `stop` in ranges whose batches stay within `batch_size`."""
        ends, room, ranges = self._ends, max(1, batch_size - HEADER_SIZE), []
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
        joined, offsets = self._joined(first, last, starts, HEADER_SIZE if codec == NONE else 0)
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

    def _joined(self, first: int, last: int, starts: Ints, room: int) -> tuple[memoryview, npt.NDArray[np.int32]]:
        """The records of these rows behind one another, those at `starts` with `room` in front; and where each row begins."""
        count, rows = last - first, slice(first, last)
        key_size, value_size = self._key_size[rows], self._value_size[rows]
        value_prefix = _varints(value_size)
        numbers = [*self._time_deltas(rows, starts), *_varints(_deltas(count, starts)), *_varints(key_size)]
        tail = self._tail if isinstance(self._tail, pa.Scalar) else self._tail[rows]
        body = np.maximum(key_size, 0) + np.maximum(value_size, 0) + self._tail_size[rows] + 1  # the attributes, which are unused
        for piece in (*numbers, *value_prefix):
            body += piece.sizes
        [length] = _varints(body)
        # The attributes are a zero, as all bytes of a word are beyond those that count.
        prefix = _together([_Piece(length.words, length.sizes + 1, length.longest + 1), *numbers])
        parts = [*map(_laid, prefix), self._key[rows], *map(_laid, value_prefix), self._value[rows], tail, _EMPTY]
        if room:
            parts.insert(0, _rooms(count, starts, room))
        joined = pc.binary_join_element_wise(*parts, null_handling="replace", null_replacement=b"")
        offsets = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset : joined.offset + count + 1]
        return memoryview(joined.buffers()[2]).cast("B"), offsets

    def _time_deltas(self, rows: slice, starts: Ints) -> list[_Piece]:
        count = rows.stop - rows.start
        if isinstance(self._times, int):
            return [_Piece(np.zeros(count, np.uint64), np.ones(count, np.int64), 1)]
        times = self._times[rows]
        return _varints(times - np.repeat(times[starts], np.diff(starts, append=count)))


def _deltas(count: int, starts: Ints) -> Ints:
    """0, 1, 2… from each start on."""
    return np.arange(count) - np.repeat(starts, np.diff(starts, append=count))


def _rooms(count: int, starts: Ints, room: int) -> Any:
    """An array with `room` bytes at each of `starts`, and nothing elsewhere."""
    offsets = np.zeros(count + 1, np.int32)
    offsets[starts + 1] = room
    np.cumsum(offsets, out=offsets)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(bytes(room * len(starts)))])


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


# -- numbers -----------------------------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """Up to eight bytes for each row: the first `size` of its little-endian word. Those behind them are zero."""

    words: Words
    sizes: Ints
    longest: int


def _tables() -> tuple[Words, Ints]:
    """The words of -1 and of the numbers that fit into two bytes, in this order, and how many bytes of each count."""
    zigzag = np.concatenate(([1], np.arange(0, 2 * _TABLED, 2))).astype(np.uint64)
    is_long = zigzag > 0x7F
    words = np.where(is_long, zigzag & np.uint64(0x7F) | np.uint64(0x80) | zigzag >> np.uint64(7) << np.uint64(8), zigzag)
    return words, np.where(is_long, 2, 1).astype(np.int64)


_TABLED = 1 << 13  # lengths and offsets within a batch are seldom larger; these take one or two bytes
_TABLE, _TABLE_SIZES = _tables()


def _varints(values: Ints) -> list[_Piece]:
    """These numbers as varints: in one piece, or in two if there are some of more than eight bytes."""
    low, high = int(values.min()), int(values.max())
    if low >= -1 and high < _TABLED:
        place = values + 1
        return [_Piece(_TABLE[place], _TABLE_SIZES[place], 1 if high < 0x40 else 2)]
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
        pieces.append(_Piece(words, np.clip(sizes - first, 0, WORD_SIZE), min(width - first, WORD_SIZE)))
    return pieces


def _together(pieces: list[_Piece]) -> list[_Piece]:
    """As few pieces as hold the same bytes in the same order."""
    made = [pieces[0]]
    for piece in pieces[1:]:
        last = made[-1]
        if last.longest + piece.longest <= WORD_SIZE:
            words = last.words | piece.words << (last.sizes << 3).view(np.uint64)
            made[-1] = _Piece(words, last.sizes + piece.sizes, last.longest + piece.longest)
        else:
            made.append(piece)
    return made


def _laid(piece: _Piece) -> Any:
    """A piece as a binary array."""
    count = len(piece.words)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[::2] = np.arange(0, WORD_SIZE * count + 1, WORD_SIZE)
    np.add(offsets[:-1:2], piece.sizes, out=offsets[1::2], casting="unsafe")
    octets = pa.py_buffer(piece.words.astype("<u8", copy=False))
    laid = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), octets])
    return laid.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


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
        parts = [*map(_laid, _varints(_lengths(key))), key, *map(_laid, _varints(_lengths(value))), value, _EMPTY]
        encoded = pc.binary_join_element_wise(*parts, null_handling="replace", null_replacement=b"")
    list_offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    joined = pc.binary_join(pa.ListArray.from_arrays(list_offsets, encoded), _EMPTY)
    return pc.binary_join_element_wise(*map(_laid, _varints(counts)), joined, _EMPTY)
