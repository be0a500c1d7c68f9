"""Where replicas go: evenly, over as many racks as there are, on live brokers first."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.metadata.placement import UsableBroker, place
from ottla.model.errors import ApiError, ErrorCode


def first(count: int) -> int:
    return 0


def test_three_racks_are_striped() -> None:
    brokers = [UsableBroker(index, "abc"[index // 2], False) for index in range(6)]
    assert place(brokers, 3, 3, first) == [[0, 2, 4], [3, 5, 1], [4, 0, 2]]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_placement_is_valid_even_and_spread_over_racks(data: st.DataObject) -> None:
    racks = data.draw(st.integers(1, 4))
    per_rack = data.draw(st.integers(1, 4))
    brokers = [UsableBroker(rack * 10 + index, f"rack{rack}", False) for rack in range(racks) for index in range(per_rack)]
    factor = data.draw(st.integers(1, len(brokers)))
    partitions = data.draw(st.integers(1, 40))
    random = Random(data.draw(st.integers(0, 10**6)))
    placed = place(brokers, partitions, factor, lambda count: random.randrange(count))
    rack_of = {broker.broker_id: broker.rack for broker in brokers}
    for replicas in placed:
        assert len(set(replicas)) == factor
        per = Counter(rack_of[replica] for replica in replicas)
        assert max(per.values()) - min([per.get(f"rack{rack}", 0) for rack in range(racks)]) <= 1
    leaders = Counter(replicas[0] for replicas in placed[: len(brokers)])
    if partitions >= len(brokers):
        assert set(leaders.values()) == {1}


def test_fenced_brokers_come_last_and_never_lead() -> None:
    brokers = [UsableBroker(1, None, True), UsableBroker(2, None, False), UsableBroker(3, None, False)]
    for replicas in place(brokers, 20, 2, Random(1).randrange):
        assert 1 not in replicas
    for replicas in place(brokers, 20, 3, Random(1).randrange):
        assert replicas[0] != 1


@pytest.mark.parametrize(
    ("brokers", "factor"),
    [([], 1), ([UsableBroker(1, None, True)], 1), ([UsableBroker(1, None, False)], 2), ([UsableBroker(1, None, False)], 0)],
)
def test_too_few_brokers_are_refused(brokers: list[UsableBroker], factor: int) -> None:
    with pytest.raises(ApiError) as caught:
        place(brokers, 1, factor, first)
    assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
