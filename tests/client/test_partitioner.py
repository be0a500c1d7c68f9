from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.partitioner import RoundRobin, UniformSticky, murmur2, partition_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_murmur2_is_javas(text, expected):
    assert murmur2(text.encode()) == expected & 0xFFFFFFFF


def dumb_murmur2(data: bytes) -> int:
    """As the C of the paper has it, byte by byte."""
    m, h, position = 0x5BD1E995, 0x9747B28C ^ len(data), 0
    while len(data) - position >= 4:
        k = data[position] | data[position + 1] << 8 | data[position + 2] << 16 | data[position + 3] << 24
        k = k * m % 2**32
        k ^= k >> 24
        k = k * m % 2**32
        h = h * m % 2**32 ^ k
        position += 4
    rest = data[position:]
    if len(rest) >= 3:
        h ^= rest[2] << 16
    if len(rest) >= 2:
        h ^= rest[1] << 8
    if len(rest) >= 1:
        h = (h ^ rest[0]) * m % 2**32
    h ^= h >> 13
    h = h * m % 2**32
    return h ^ h >> 15


@given(st.binary(max_size=300), st.integers(1, 100))
def test_hash_equals_its_dumb_twin_and_partition_is_in_range(key, partitions):
    assert murmur2(key) == dumb_murmur2(key)
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


def test_round_robin_takes_turns_per_topic():
    turns = RoundRobin()
    assert [turns.choose("a", 3) for _ in range(5)] == [0, 1, 2, 0, 1]
    assert turns.choose("b", 3) == 0


def test_sticky_stays_until_a_batch_is_full_and_then_moves():
    numbers = iter([2, 0])
    sticky = UniformSticky(100, lambda limit: next(numbers))
    assert sticky.choose("a", [0, 1, 2]) == 2
    sticky.produced("a", 2, 60, False)
    assert sticky.choose("a", [0, 1, 2]) == 2
    sticky.produced("a", 2, 60, False)  # full, but the batch goes on
    assert sticky.choose("a", [0, 1, 2]) == 2
    sticky.produced("a", 2, 1, True)
    assert sticky.choose("a", [0, 1, 2]) == 0


def test_sticky_never_takes_more_than_two_batches_worth():
    sticky = UniformSticky(100, lambda limit: 0)
    sticky.choose("a", [0, 1])
    sticky.produced("a", 0, 199, False)
    assert "a" in sticky._current
    sticky.produced("a", 0, 1, False)
    assert "a" not in sticky._current


def test_sticky_prefers_short_queues():
    counter = iter(range(10**6))
    sticky = UniformSticky(1, lambda limit: next(counter) % limit)
    chosen = Counter()
    for _ in range(600):
        partition = sticky.choose("a", [0, 1, 2], {0: 0, 1: 3, 2: 5})
        chosen[partition] += 1
        sticky.produced("a", partition, 2, True)
    assert chosen == {0: 360, 1: 180, 2: 60}  # 6 : 3 : 1


@given(st.lists(st.none() | st.binary(max_size=12) | st.binary(min_size=120, max_size=140)), st.integers(1, 9))
def test_a_column_of_keys_goes_where_each_would_go(keys, partitions):
    arrow = pytest.importorskip("pyarrow")
    from ottla.client.arrow_hashing import partitions_of

    column = arrow.array([b"before", *keys, b"after"], arrow.binary()).slice(1, len(keys))
    found = partitions_of(column, partitions).tolist()
    assert [number for key, number in zip(keys, found) if key is not None] == [
        partition_of(key, partitions) for key in keys if key is not None
    ]
