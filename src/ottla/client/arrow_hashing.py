"""Partitions of a whole column of keys at once: `partitioner.partition_of`, by numpy. A property test holds the two together.

Word by word: the first four bytes of every key, then the second four of those that have them, and so on. Few keys are long, and
those are hashed one at a time, so the number of steps has a limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ottla.client.partitioner import partition_of

LONGEST_BY_COLUMN = 128
_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)


def partitions_of(keys: Any, partitions: int) -> npt.NDArray[np.int32]:
    """`keys` is an Arrow array of binary; what a null gets means nothing."""
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    starts, sizes = offsets[:-1], np.diff(offsets)
    short = np.flatnonzero(sizes <= LONGEST_BY_COLUMN)
    out = np.empty(len(keys), np.int32)
    out[short] = (_murmur2(data, starts[short], sizes[short]) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)
    for index in np.flatnonzero(sizes > LONGEST_BY_COLUMN).tolist():
        out[index] = partition_of(data[starts[index] : starts[index] + sizes[index]].tobytes(), partitions)
    return out


def _murmur2(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """uint32 arithmetic wraps by itself, as the hash wants it."""
    padded = np.concatenate((data, np.zeros(4, np.uint8)))  # so that the last word may be read past the last key
    unaligned = np.lib.stride_tricks.as_strided(padded, (len(data) + 1, 4), (1, 1))
    h = _SEED ^ sizes.astype(np.uint32)
    words = sizes >> 2
    for number in range(int(words.max(initial=0))):
        rows: Any = slice(None) if number < int(words.min()) else np.flatnonzero(words > number)
        k = _words(unaligned, starts[rows] + 4 * number) * _M
        h[rows] = (h[rows] * _M) ^ ((k ^ (k >> np.uint32(24))) * _M)
    rest = np.flatnonzero(sizes & 3)
    if len(rest):
        mask = (np.uint32(1) << (8 * (sizes[rest] & 3)).astype(np.uint32)) - np.uint32(1)
        h[rest] = (h[rest] ^ (_words(unaligned, starts[rest] + 4 * words[rest]) & mask)) * _M
    h = (h ^ (h >> np.uint32(13))) * _M
    return h ^ (h >> np.uint32(15))


def _words(unaligned: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(unaligned[positions]).view("<u4").ravel()
