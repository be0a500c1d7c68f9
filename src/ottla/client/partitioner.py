"""Which partition a record goes to: by its key (murmur2, equal to Java's), sticky, or in turn. Pure; chance comes from outside.

Records without a key stick to one partition until about `batch_size` bytes went there, then move on (KIP-794): batches fill up
and still every partition gets its share. With the adaptive choice a partition whose queue is long is chosen less often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from struct import unpack_from

CACHED_KEYS = 16_384
CACHED_KEY_SIZE = 128
_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Austin Appleby's MurmurHash2 with Kafka's seed, as an unsigned number."""
    length = len(data)
    h = _SEED ^ length
    words = length >> 2
    for k in unpack_from(f"<{words}I", data):
        k = (k * _M) & _MASK
        h = ((h * _M) & _MASK) ^ (((k ^ (k >> 24)) * _M) & _MASK)
    rest = data[words << 2 :]
    if rest:
        h = ((h ^ int.from_bytes(rest, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


@lru_cache(maxsize=CACHED_KEYS)
def _cached_hash(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """Keys repeat, so hashes of short ones are remembered."""
    return (_cached_hash(key) if len(key) <= CACHED_KEY_SIZE else murmur2(key) & 0x7FFFFFFF) % partitions


class RoundRobin:
    """Each topic's partitions in turn, whatever the key."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def choose(self, topic: str, partitions: int) -> int:
        number = self._next.get(topic, 0)
        self._next[topic] = number + 1
        return number % partitions


class UniformSticky:
    """The partition for records without a key. `below(n)` gives a random number from 0 to n - 1."""

    def __init__(self, batch_size: int, below: Callable[[int], int]) -> None:
        self._batch_size = max(1, batch_size)
        self._below = below
        self._current: dict[str, int] = {}
        self._produced: dict[str, int] = {}

    def current(self, topic: str) -> int | None:
        """Where records go now; None when it is time to `choose`."""
        return self._current.get(topic)

    def choose(self, topic: str, available: Sequence[int], queues: Mapping[int, int] | None = None) -> int:
        """The current partition, or a new one of `available` if there is none (any more). `queues`: batches waiting by partition."""
        current = self._current.get(topic)
        if current is None:
            current = self._current[topic] = self._pick(available, queues)
            self._produced[topic] = 0
        return current

    def produced(self, topic: str, partition: int, size: int, at_batch_end: bool) -> None:
        """So many bytes went there. Moves on when that was a batch's worth, best where a batch ends; waits at most for two."""
        if self._current.get(topic) != partition:
            return
        total = self._produced[topic] = self._produced[topic] + size
        if total >= self._batch_size and (at_batch_end or total >= 2 * self._batch_size):
            del self._current[topic]

    def _pick(self, available: Sequence[int], queues: Mapping[int, int] | None) -> int:
        if len(available) == 1:
            return available[0]
        if not queues:
            return available[self._below(len(available))]
        longest = max(queues.get(partition, 0) for partition in available)
        shares = list(accumulate(longest + 1 - queues.get(partition, 0) for partition in available))
        chance = self._below(shares[-1])
        return next(partition for partition, share in zip(available, shares, strict=True) if chance < share)
