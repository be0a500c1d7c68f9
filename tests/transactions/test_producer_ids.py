from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model.errors import ApiError, ErrorCode
from ottla.transactions.producer_ids import ProducerIds


def test_an_empty_store_asks_for_a_block_and_refuses_meanwhile() -> None:
    store = ProducerIds()
    assert store.needs_block
    with pytest.raises(ApiError) as refused:
        store.take()
    assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_the_next_block_is_asked_for_before_the_first_is_used_up() -> None:
    store = ProducerIds()
    store.add_block(0, 10)
    taken = [store.take() for _ in range(9)]
    assert store.needs_block
    store.add_block(500, 10)
    assert not store.needs_block
    taken += [store.take() for _ in range(2)]
    assert taken == [*range(10), 500]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_no_id_is_given_twice(lengths: list[int]) -> None:
    store, start, taken = ProducerIds(), 0, []
    for length in lengths:
        while not store.needs_block:
            taken.append(store.take())
        store.add_block(start, length)
        start += length + 5
    assert len(set(taken)) == len(taken)
    assert taken == sorted(taken)
