"""Records by the column, for those who want a million at a time: Arrow arrays out of batches. `column_encoder` is the way back.

An extra (`ottla[arrow]`): numpy and pyarrow are imported in these two modules, in `record_starts` and in `gathering`,
and nowhere else in this package.

`record_starts` finds where records begin; then numpy reads the varints of all of them at once, field by field; key and value become
Arrow arrays without a Python object per record: the raw bytes are laid under a binary array of 2n+1 elements (gap, value, gap,
value…) and Arrow takes the odd ones. What is checked is what `record` checks, and a property test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import HEADER_SIZE, BatchHeader, crc_of
from ottla.records.compression import DEFAULT_LIMIT, NONE
from ottla.records.control import AbortedTransaction, visible_batches
from ottla.records.record import unpack
from ottla.records.record_starts import Ints, Raw, find_records
from ottla.records.varint import MAX_BYTES

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


def _unfolded(folded: npt.NDArray[np.uint64]) -> Ints:
    """Zigzag: 0, -1, 1, -2…"""
    return (folded >> np.uint64(1)).astype(np.int64) ^ -(folded & np.uint64(1)).astype(np.int64)


def _numbers() -> Ints:
    """What varints of one and two bytes say, by their bytes as one little-endian number. A byte that is behind does not count."""
    words = np.arange(1 << 16, dtype=np.uint64)
    low, high = words & np.uint64(0x7F), words >> np.uint64(8) << np.uint64(7)
    return _unfolded(np.where(words & np.uint64(0x80), low | high, low))


_NUMBERS = _numbers()


class _Decoder:
    def __init__(self, data: Raw, batches: list[tuple[int, BatchHeader]], spans: list[tuple[int, int]]) -> None:
        self._data = data
        self._octets = np.frombuffer(data, np.uint8)
        self._batches = [header for _, header in batches]
        counts = [header.record_count for header in self._batches]
        self._starts = find_records(data, self._octets, spans, counts)

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
        first = self._octets[position]
        is_longer = first > 0x7F
        if not is_longer.any():
            return _NUMBERS.take(first), position + 1
        # Nearly all others take two bytes: those that do not are looked at again. The last number may be the last byte there is.
        second = self._octets.take(position + 1, mode="clip")
        word = first | second.astype(np.uint16) << np.uint16(8)
        value, behind = _NUMBERS.take(word), position + 1 + is_longer
        longest = np.flatnonzero(is_longer & (second > 0x7F))
        if len(longest):
            value[longest], behind[longest] = self._long_varints(position[longest])
        if int(behind.max()) > len(self._octets):
            raise IndexError
        return value, behind

    def _long_varints(self, position: Ints) -> tuple[Ints, Ints]:
        """The same for numbers of more than two bytes."""
        value, behind = np.zeros(len(position), np.uint64), position.copy()
        longer = np.arange(len(position))
        for shift in range(0, 7 * MAX_BYTES, 7):
            octet = self._octets[behind[longer]]
            value[longer] |= (octet & np.uint8(0x7F)).astype(np.uint64) << np.uint64(shift)
            behind[longer] += 1
            longer = longer[octet > 0x7F]
            if not len(longer):
                return _unfolded(value), behind
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a number inside a record is longer than 64 bits")

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
