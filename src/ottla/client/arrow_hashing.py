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
    long = np.flatnonzero(sizes > LONGEST_BY_COLUMN)
    hashes = _murmur2(data, starts, np.where(sizes > LONGEST_BY_COLUMN, 0, sizes) if len(long) else sizes)
    out = ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)
    for index in long.tolist():
        out[index] = partition_of(data[starts[index] : starts[index] + sizes[index]].tobytes(), partitions)
    return out


def _murmur2(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """uint32 arithmetic wraps by itself, as the hash wants it."""
    padded = np.concatenate((data, np.zeros(4, np.uint8)))  # so that the last word may be read past the last key
    words: Any = np.ndarray((len(data) + 1,), "<u4", padded, strides=(1,))  # one begins at every byte
    h = _SEED ^ sizes.astype(np.uint32)
    whole = sizes >> 2
    fewest = int(whole.min()) if len(whole) else 0
    for number in range(int(whole.max(initial=0))):
        rows: Any = slice(None) if number < fewest else np.flatnonzero(whole > number)
        k = words.take(starts[rows] + 4 * number) * _M
        h[rows] = (h[rows] * _M) ^ ((k ^ (k >> np.uint32(24))) * _M)
    rest = (sizes & 3).astype(np.uint32)
    mask = (np.uint32(1) << (rest << np.uint32(3))) - np.uint32(1)
    last = words.take(starts + 4 * whole) & mask
    h = np.where(rest > 0, (h ^ last) * _M, h)
    h = (h ^ (h >> np.uint32(13))) * _M
    return h ^ (h >> np.uint32(15))
