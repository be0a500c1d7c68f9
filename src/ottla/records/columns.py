"""Records by the column, for those who want a million at a time: Arrow arrays out of batches. `column_encoder` is the way back.

An extra (`ottla[arrow]`): numpy and pyarrow are imported in these two modules and nowhere else in this package.

Where records begin is found by walking from one to the next: from many places side by side with numpy, or else in one Python loop that
jumps over runs of equal length. Then numpy reads the varints of all records at once, field by field; key and value become
Arrow arrays without a Python object per record: the raw bytes are laid under a binary array of 2n+1 elements (gap, value, gap,
value…) and Arrow takes the odd ones. What is checked is what `record` checks, and a property test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import HEADER_SIZE, BatchHeader, crc_of
from ottla.records.compression import DEFAULT_LIMIT, NONE
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
    except IndexError:
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
        counts = [header.record_count for header in self._batches]
        found = _find_side_by_side(data, self._octets, spans, counts)
        self._starts = _find_one_by_one(data, self._octets, spans, counts) if found is None else found

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


def _steps() -> list[list[int]]:
    """How far it is from a record to the next, by the first and second byte of its length; 0: they do not tell."""
    steps = [[0] * 256 for _ in range(256)]
    for first in range(256):
        for second in range(256):
            size = first if first < 0x80 else (first & 0x7F) | second << 7
            if not size & 1 and (first < 0x80 or second < 0x80):
                steps[first][second] = (size >> 1) + (1 if first < 0x80 else 2)
    return steps


_STEPS = _steps()
_STEPS_BY_WORD = np.array(_STEPS, np.int64).T.ravel()  # the same, by both bytes as one little-endian number


def _find_one_by_one(data: Raw, octets: Octets, spans: list[tuple[int, int]], counts: list[int]) -> Ints:
    starts: list[int] = []
    for (start, end), count in zip(spans, counts):
        _find_records(data, octets, start, end, count, starts)
    return np.array(starts, np.int64)


# -- many walks at once ------------------------------------------------------------------------------------------------------

_MANY = 1024  # records, from which on it pays
_WALKS = 1.5  # times the root of the number of records: a walk costs as much to begin as some steps of all
_LIKELY = 3  # records in a row that look like some
_TRIES = 4  # at finding such a place
_STEPS_AT_ONCE = 8
_MOST_STEPS = 3  # times those that there would be if all walks were equally long
_NEAR_END = 16  # bytes of a batch in which no guess is worth while


def _find_side_by_side(data: Raw, octets: Octets, spans: list[tuple[int, int]], counts: list[int]) -> Ints | None:
    """Where each record begins, or None: find out one by one.

    It is guessed where in a batch some records begin, and all walk from there at once. A guess need not be right: a walk counts only
    if it ends exactly where the next one began, and then it has found what a walk from the first record on would have found.
    """
    whole = data.obj if isinstance(data, memoryview) else data
    total = sum(counts)
    if total < _MANY or not isinstance(whole, bytes | bytearray):
        return None
    if not all(0 < count * MIN_RECORD_SIZE <= end - start for count, (start, end) in zip(counts, spans)):
        return None
    if _begins_alike(data, spans[0], counts[0]):
        return None
    shift = octets.ctypes.data - np.frombuffer(whole, np.uint8).ctypes.data
    gap = int(sum(end - start for start, end in spans) / (_WALKS * total**0.5))
    begins: list[int] = []
    firsts: list[int] = []  # of the walks of each batch
    ends: list[int] = []
    for start, end in spans:
        firsts.append(len(begins))
        begins.append(start)
        for place in _likely_starts(whole, start + shift, end + shift, gap):
            ends.append(place - shift)
            begins.append(place - shift)
        ends.append(end)
    if len(begins) < total**0.5:  # so few walks, one step at a time, would take longer than a loop
        return None
    return _walk(octets, np.array(begins, np.int64), np.array(ends, np.int64), np.array(firsts), np.array(counts))


def _begins_alike(data: Raw, span: tuple[int, int], count: int) -> bool:
    """Whether the first records are equally long: then others are too, and a run is found faster than it is walked."""
    position, end = span
    step = _STEPS[data[position]][data[position + 1]]
    places = range(position, min(end - 1, position + step * min(count, _CHUNK)), step or 1)
    return all(_STEPS[data[place]][data[place + 1]] == step for place in places)


def _likely_starts(whole: bytes | bytearray, start: int, end: int, gap: int) -> Iterator[int]:
    """Places some `gap` apart at which a record may begin: behind a zero, as is the last byte of every record without headers, and
    with zeros where records have their attributes."""
    find, steps, last, before = whole.find, _STEPS, end - _NEAR_END, start
    for target in range(start + gap, end - gap, gap):
        place = target
        for _ in range(_TRIES):
            place = position = find(0, place, end) + 1
            if place > last:
                return
            for _ in range(_LIKELY):
                first = whole[position]
                step = steps[first][whole[position + 1]]
                if step < MIN_RECORD_SIZE or whole[position + 1 + (first >> 7)] or position + step > last:
                    break
                position += step
            else:
                if place > before:
                    before = place
                    yield place
                break


def _walk(octets: Octets, begins: Ints, ends: Ints, firsts: Ints, counts: Ints) -> Ints | None:
    """From all of `begins` at once until each has come to its end; None if one of them does not."""
    words: Any = np.ndarray((len(octets) - 1,), "<u2", octets, strides=(1,))  # one begins at every byte
    last, position, walked = np.full(len(begins), len(words) - 1), begins, [begins]
    for _ in range(0, _MOST_STEPS * int(counts.sum()) // len(begins) + 64, _STEPS_AT_ONCE):
        for _ in range(_STEPS_AT_ONCE):
            # Who is at the end walks on until all are, perhaps beyond the last byte.
            position = position + _STEPS_BY_WORD.take(words[np.minimum(position, last)])
            walked.append(position)
        if (position >= ends).all():
            break
    else:
        return None
    places = np.array(walked)
    is_before = places < ends
    steps = is_before.sum(axis=0)
    is_right = np.array_equal(places[steps, np.arange(len(ends))], ends) and np.array_equal(
        np.add.reduceat(steps, firsts), counts
    )
    found: Ints = places.T[is_before.T]
    return found if is_right else None


def _find_records(data: Raw, octets: Octets, position: int, end: int, count: int, starts: list[int]) -> None:
    """Adds where each record begins (at its length). Raises unless exactly `count` records fill the span.

    One Python step per record (0.1 µs). But records of a stream tend to be equally long: if the next one's length reads the same
    as this one's, it is exactly as far away, so a run is found by comparing every stride-th byte, exactly and all at once.
    """
    if count < 0 or count * MIN_RECORD_SIZE > end - position:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{count} records cannot be in {end - position} bytes")
    add, left, steps = starts.append, count, _STEPS
    while left:
        chunk = min(left, _CHUNK)
        for _ in range(chunk):
            add(position)
            position += steps[data[position]][data[position + 1]] or _long_step(data, position)
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
