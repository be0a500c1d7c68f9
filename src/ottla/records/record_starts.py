"""Where the records of batches begin: the only thing about them that one must know of a record to know it of the next.

Two ways. One Python loop walks from record to record and jumps over runs of equal length. Or many walks go side by side with
numpy, from places that are guessed; a wrong guess costs time, never a record, because a walk counts only if it ends exactly where
the next one began. Finding is the largest part of decoding: 120 ns a record in the loop and 64 side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.record import MIN_RECORD_SIZE

Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Raw = bytes | memoryview


def find_records(data: Raw, octets: Octets, spans: list[tuple[int, int]], counts: list[int]) -> Ints:
    """Where each record of the batches begins that lie in `spans` of `data` and say that they have so many records."""
    found = _find_side_by_side(data, octets, spans, counts)
    return _find_one_by_one(data, octets, spans, counts) if found is None else found


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
    guesses = _likely_starts(whole, shift, octets, spans, gap)
    if len(guesses) + len(spans) < total**0.5:  # so few walks, one step at a time, would take longer than a loop
        return None
    starts, stops = np.array(spans, np.int64).T
    begins = np.sort(np.concatenate((starts, guesses)))
    firsts = np.searchsorted(begins, starts)  # of the walks of each batch
    ends = np.append(begins[1:], stops[-1])
    ends[firsts[1:] - 1] = stops[:-1]
    return _walk(octets, begins, ends, firsts, np.array(counts))


def _begins_alike(data: Raw, span: tuple[int, int], count: int) -> bool:
    """Whether the first records are equally long: then others are too, and a run is found faster than it is walked."""
    position, end = span
    step = _STEPS[data[position]][data[position + 1]]
    places = range(position, min(end - 1, position + step * min(count, _CHUNK)), step or 1)
    return all(_STEPS[data[place]][data[place + 1]] == step for place in places)


def _likely_starts(whole: bytes | bytearray, shift: int, octets: Octets, spans: list[tuple[int, int]], gap: int) -> Ints:
    """Places some `gap` apart at which a record may begin: behind a zero, as is the last byte of every record without headers."""
    find, found = whole.find, list[Ints]()
    tried = [(target, end - _NEAR_END) for start, end in spans for target in range(start + gap, end - gap, gap)]
    for _ in range(_TRIES):
        tried = [(place, last) for target, last in tried if (place := find(0, target + shift, last + shift) + 1 - shift) > target]
        if not tried:
            break
        places, lasts = np.array(tried, np.int64).T
        is_likely = _look_like_records(octets, places, lasts)
        found.append(places[is_likely])
        tried = [tried[number] for number in np.flatnonzero(~is_likely).tolist()]
    return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)


def _look_like_records(octets: Octets, places: Ints, lasts: Ints) -> npt.NDArray[np.bool_]:
    """Whether at each of these places some records follow one another, with zeros where they have their attributes."""
    is_likely, position = np.ones(len(places), np.bool_), places
    for _ in range(_LIKELY):
        first = octets.take(position)
        step = _STEPS_BY_WORD.take(first | octets.take(position + 1).astype(np.uint16) << np.uint16(8))
        position = position + step
        is_likely &= (step >= MIN_RECORD_SIZE) & (position <= lasts) & (octets.take(position - step + 1 + (first >> 7)) == 0)
        position = np.where(is_likely, position, places)
    return is_likely


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
