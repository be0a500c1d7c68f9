"""Records by the column, for those who want a million at a time: Arrow arrays out of batches, and batches out of Arrow arrays.

An extra (`ottla[arrow]`): numpy and pyarrow are imported here and nowhere else in this package.

Decoding. One Python loop finds where records begin, jumping over runs of equal length; then numpy reads the varints of all
records at once, field by field; key and value become Arrow arrays without a Python object per record: the raw bytes are laid
under a binary array of 2n+1 elements (gap, value, gap, value…) and Arrow takes the odd ones. What is checked is what `record`
checks, and a property test holds the two together.

Encoding. numpy writes the numbers of all records into narrow columns, Arrow joins them with keys and values element by element,
and the joined array's data buffer is the batch's payload.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import (
    HEADER_SIZE,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    crc_of,
)
from ottla.records.builder import attributes_of, header_for
from ottla.records.compression import DEFAULT_LIMIT, NONE, compress
from ottla.records.control import AbortedTransaction, visible_batches
from ottla.records.record import MIN_RECORD_SIZE, unpack
from ottla.records.varint import MAX_BYTES

Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Raw = bytes | memoryview

MAX_COLUMN_BYTES = 2**31 - 1  # Arrow's binary arrays have 32-bit offsets
HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class Columns:
    """Arrow arrays of one length: int64, int64, binary, binary, and list<struct<key: string, value: binary>> if asked for."""

    offset: Any
    timestamp: Any
    key: Any
    value: Any
    headers: Any | None = None

    def __len__(self) -> int:
        return len(self.offset)


# -- decoding ----------------------------------------------------------------------------------------------------------------


def decode_columns(
    buffer: bytes | bytearray | memoryview,
    *,
    from_offset: int = 0,
    aborted: Iterable[AbortedTransaction] = (),
    headers: bool = False,
    check_crc: bool = True,
    limit: int = DEFAULT_LIMIT,
) -> Columns:
    """The records of all whole batches in a fetched buffer that an application sees (`control.visible_batches`).

    Raises ApiError CORRUPT_MESSAGE as the plain decoder does. `limit` holds for what the whole buffer unpacks to.
    """
    visible = [(position, header) for position, header in visible_batches(buffer, aborted) if header.last_offset >= from_offset]
    return decode_batches(buffer, visible, from_offset=from_offset, headers=headers, check_crc=check_crc, limit=limit)


def decode_batches(
    buffer: bytes | bytearray | memoryview,
    wanted: list[tuple[int, BatchHeader]],
    *,
    from_offset: int = 0,
    headers: bool = False,
    check_crc: bool = True,
    limit: int = DEFAULT_LIMIT,
) -> Columns:
    """The same for these batches of a buffer only: for who must decode a large one bit by bit."""
    if check_crc:
        for position, header in wanted:
            if crc_of(buffer, position, header.size) != header.crc:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"the record batch at offset {header.base_offset} has a wrong checksum")
    data, starts_of_batches = _payloads(buffer, wanted, limit)
    if len(data) > MAX_COLUMN_BYTES:
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"{len(data)} bytes of records are too many for one Arrow array")
    try:
        columns = _Decoder(data, wanted, starts_of_batches).columns(headers)
    except (IndexError, StructError):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a record runs past the end of its batch") from None
    if wanted and wanted[0][1].base_offset < from_offset:
        keep = np.asarray(columns.offset) >= from_offset
        if not keep.all():
            return _filter(columns, keep)
    return columns


def _payloads(
    buffer: bytes | bytearray | memoryview, batches: list[tuple[int, BatchHeader]], limit: int
) -> tuple[Raw, list[tuple[int, int]]]:
    """One buffer with the records of all batches, and where those of each begin and end. Uncompressed ones stay where they are."""
    if all(header.codec == NONE for _, header in batches):
        return memoryview(buffer), [(position + HEADER_SIZE, position + header.size) for position, header in batches]
    parts, spans, end = [], [], 0
    for position, header in batches:
        part = unpack(buffer, position, header, limit - end)
        if len(part) > limit - end:
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"the record batches unpack to more than {limit} bytes")
        parts.append(part)
        spans.append((end, end + len(part)))
        end += len(part)
    return b"".join(parts), spans


def _filter(columns: Columns, keep: npt.NDArray[np.bool_]) -> Columns:
    mask = pa.array(keep)
    kept = (columns.offset.filter(mask), columns.timestamp.filter(mask), columns.key.filter(mask), columns.value.filter(mask))
    return Columns(*kept, None if columns.headers is None else columns.headers.filter(mask))


class _Decoder:
    def __init__(self, data: Raw, batches: list[tuple[int, BatchHeader]], spans: list[tuple[int, int]]) -> None:
        self._data = data
        self._octets = np.frombuffer(data, np.uint8)
        self._batches = [header for _, header in batches]
        starts: list[int] = []
        for header, (start, end) in zip(self._batches, spans):
            _find_records(data, self._octets, start, end, header.record_count, starts)
        self._starts = np.array(starts, np.int64)

    def columns(self, want_headers: bool) -> Columns:
        counts = np.array([header.record_count for header in self._batches], np.int64)
        size, position = self._varints(self._starts)
        ends = position + size
        timestamp_delta, position = self._varints(position + 1)  # behind the attributes, which are unused
        offset_delta, position = self._varints(position)
        key, position = self._bytes(position)
        value, position = self._bytes(position)
        header_count, position = self._varints(position)
        header_column, position = self._headers(header_count, position, want_headers)
        if not np.array_equal(position, ends):
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a record is not as long as it says")
        return Columns(
            pa.array(offset_delta + self._per_record("base_offset", counts)),
            pa.array(self._timestamps(timestamp_delta, counts)),
            key,
            value,
            header_column,
        )

    def _per_record(self, field: str, counts: Ints) -> Ints:
        return np.repeat(np.array([getattr(header, field) for header in self._batches], np.int64), counts)

    def _timestamps(self, delta: Ints, counts: Ints) -> Ints:
        timestamps = delta + self._per_record("base_timestamp", counts)
        if any(header.is_log_append_time for header in self._batches):
            append_time = np.repeat(np.array([header.is_log_append_time for header in self._batches], np.bool_), counts)
            timestamps = np.where(append_time, self._per_record("max_timestamp", counts), timestamps)
        return timestamps

    def _varints(self, position: Ints) -> tuple[Ints, Ints]:
        """The numbers at these positions, and the positions behind them."""
        octet = self._octets[position]
        value = octet.astype(np.uint64)
        position = position + 1
        longer = np.flatnonzero(octet & 0x80)
        if len(longer):
            value &= np.uint64(0x7F)
            for shift in range(7, 7 * MAX_BYTES, 7):
                octet = self._octets[position[longer]]
                value[longer] |= (octet & np.uint8(0x7F)).astype(np.uint64) << np.uint64(shift)
                position[longer] += 1
                longer = longer[octet >= 0x80]
                if not len(longer):
                    break
            else:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a number inside a record is longer than 64 bits")
        return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64), position

    def _bytes(self, position: Ints, *, nullable: bool = True) -> tuple[Any, Ints]:
        """A column of byte strings, each with its length in front."""
        size, start = self._varints(position)
        if len(size) and (int(size.min()) < (-1 if nullable else 0) or int(size.max()) > len(self._data)):
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a record with an impossible length")
        null = size < 0
        end = start + size
        if null.any():
            end[null] = start[null]
        return self._take(start, end, null), end

    def _take(self, start: Ints, end: Ints, null: npt.NDArray[np.bool_]) -> Any:
        count = len(start)
        offsets = np.empty(2 * count + 2, np.int32)
        offsets[0] = 0
        offsets[1:-1:2] = start
        offsets[2:-1:2] = end
        offsets[-1] = len(self._data)
        if count and (int(end[-1]) > len(self._data) or (np.diff(offsets) < 0).any()):
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a record runs past its end")
        validity = None
        if null.any():
            valid = np.ones(2 * count + 1, np.bool_)
            valid[1::2] = ~null
            validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
        laid = pa.Array.from_buffers(pa.binary(), 2 * count + 1, [validity, pa.py_buffer(offsets), pa.py_buffer(self._data)])
        return laid.take(pa.array(np.arange(1, 2 * count + 1, 2, dtype=np.int32)))

    def _headers(self, count: Ints, position: Ints, wanted: bool) -> tuple[Any | None, Ints]:
        """Walks over the headers of all records, the first of each, then the second of each…: they are rarely many."""
        total = int(count.sum())
        if len(count) and (int(count.min()) < 0 or int(count.max()) > len(self._data) or total > len(self._data)):
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a record with an impossible number of headers")
        if not total:
            return (_no_headers(len(count)) if wanted else None), position
        list_offsets = np.concatenate(([0], np.cumsum(count)))
        spans = np.zeros((4, total), np.int64)  # key start, key end, value start, value end
        null = np.zeros(total, np.bool_)
        position = position.copy()
        index, owners = 0, np.flatnonzero(count)
        while len(owners):
            slot = list_offsets[owners] + index
            size, start = self._varints(position[owners])
            value_size, value_start = self._varints(start + size) if int(size.min()) >= 0 else (size, start)
            if int(size.min()) < 0 or int(value_size.min()) < -1:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a header with an impossible length")
            null[slot] = value_size < 0
            value_end = value_start + np.maximum(value_size, 0)
            spans[:, slot] = (start, start + size, value_start, value_end)
            position[owners] = value_end
            index += 1
            owners = owners[count[owners] > index]
        if not wanted:
            return None, position
        keys = _text(self._take(spans[0], spans[1], np.zeros(total, np.bool_)))
        values = self._take(spans[2], spans[3], null)
        pairs = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
        return pa.ListArray.from_arrays(pa.array(list_offsets.astype(np.int32)), pairs).cast(HEADER_TYPE), position


def _no_headers(count: int) -> Any:
    empty = pa.array([], HEADER_TYPE.value_type)
    return pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), empty).cast(HEADER_TYPE)


def _text(keys: Any) -> Any:
    """Header keys that are no UTF-8 are shown as Java shows them: with replacement characters."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())


_CHUNK = 32  # so many records are looked at one by one before it is asked whether they are all of one length
_TWO_BYTES = Struct("<H").unpack_from


def _steps() -> list[int]:
    """How far it is from a record to the next, by the first two bytes of its length; 0: they do not tell."""
    steps = [0] * 65536
    for word in range(65536):
        first, second = word & 0xFF, word >> 8
        size = first if first < 0x80 else (first & 0x7F) | second << 7
        if not size & 1 and (first < 0x80 or second < 0x80):
            steps[word] = (size >> 1) + (1 if first < 0x80 else 2)
    return steps


_STEPS = _steps()


def _find_records(data: Raw, octets: Octets, position: int, end: int, count: int, starts: list[int]) -> None:
    """Adds where each record begins (at its length). Raises unless exactly `count` records fill the span.

    One Python step per record (0.1 µs). But records of a stream tend to be equally long: if the next one's length reads the same
    as this one's, it is exactly as far away, so a run is found by comparing every stride-th byte, exactly and all at once.
    """
    if count < 0 or count * MIN_RECORD_SIZE > end - position:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{count} records cannot be in {end - position} bytes")
    add, left, steps, two_bytes = starts.append, count, _STEPS, _TWO_BYTES
    while left:
        chunk = min(left, _CHUNK)
        for _ in range(chunk):
            add(position)
            position += steps[two_bytes(data, position)[0]] or _long_step(data, position)
        if position > end:  # positions only rise, so looking once in a while is enough
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a record runs past the end of its batch")
        left -= chunk
        stride = position - starts[-1]
        if left and chunk == _CHUNK and starts[-1] - starts[-_CHUNK] == (_CHUNK - 1) * stride:
            found = _run_length(octets, starts[-1], stride, _prefix_size(stride), min(left, (end - position) // stride))
            starts.extend(range(position, position + found * stride, stride))
            position += found * stride
            left -= found
    if position != end:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{end - position} bytes are left over behind the last record")


def _long_step(data: Raw, position: int) -> int:
    """For a length of more than two bytes."""
    size, shift = 0, 0
    for prefix in range(1, 6):
        octet = data[position + prefix - 1]
        size |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            break
    else:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a record length of more than 32 bits")
    if size & 1:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a record with a negative length")
    return (size >> 1) + prefix


def _prefix_size(stride: int) -> int:
    """Of the length in front of a record that takes `stride` bytes with it."""
    return next(size for size in range(1, 6) if stride - size < 1 << (7 * size - 1))


def _run_length(octets: Octets, begin: int, stride: int, prefix: int, most: int) -> int:
    """How many records after the one at `begin`, each `stride` further, have the same length in their first `prefix` bytes."""
    step = 64
    done = 0
    while done < most:
        take = min(step, most - done)
        first = begin + (done + 1) * stride
        last = first + (take - 1) * stride + prefix
        rows = np.lib.stride_tricks.as_strided(octets[first:last], (take, prefix), (stride, 1))
        differs = np.flatnonzero((rows != octets[begin : begin + prefix]).any(axis=1))
        if len(differs):
            return done + int(differs[0])
        done += take
        step *= 8
    return done


# -- encoding ----------------------------------------------------------------------------------------------------------------


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
