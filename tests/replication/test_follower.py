"""The follower's rules one by one."""

from __future__ import annotations

from dataclasses import replace

from ottla.replication.follower import FetchPosition, PartitionFollower, Restart, Truncate
from ottla.replication.state import EpochEnd, PartitionState

STATE = PartitionState(1, 5, 10, (1, 2), frozenset({1, 2}))


def follow(end: int = 10, epoch: int = 4, high_watermark: int = 3) -> PartitionFollower:
    return PartitionFollower(2, STATE, end, epoch, high_watermark)


def test_it_fetches_from_its_end_and_says_which_epoch_it_ends_with() -> None:
    follower = follow()
    assert follower.position == FetchPosition(10, 4, 5)
    follower.appended(12, 5)
    assert follower.position == FetchPosition(12, 5, 5)


def test_its_watermark_follows_the_leaders_and_never_passes_its_own_end() -> None:
    follower = follow()
    assert follower.heard(7)
    assert follower.heard(99)
    assert follower.high_watermark == 10
    assert not follower.heard(5), "a leader just elected knows less"
    assert follower.high_watermark == 10


def test_a_remembered_watermark_above_the_end_is_cut() -> None:
    assert follow(end=2, high_watermark=9).high_watermark == 2


def test_truncation_takes_the_shorter_end_of_a_common_epoch() -> None:
    assert follow().diverged(EpochEnd(4, 8), EpochEnd(4, 10)) == Truncate(8)
    assert follow().diverged(EpochEnd(4, 12), EpochEnd(4, 9)) == Truncate(9)


def test_truncation_goes_to_the_end_of_the_last_epoch_before_an_unknown_one() -> None:
    assert follow().diverged(EpochEnd(3, 8), EpochEnd(2, 6)) == Truncate(6)


def test_truncation_without_any_common_epoch_goes_where_the_leader_says() -> None:
    assert follow().diverged(EpochEnd(3, 8), None) == Truncate(8)
    assert follow().diverged(EpochEnd(3, 80), None) == Truncate(10)


def test_truncation_below_the_watermark_takes_it_along() -> None:
    follower = follow()
    follower.truncated(2, 1)
    assert (follower.high_watermark, follower.position) == (2, FetchPosition(2, 1, 5))


def test_out_of_range_is_settled_by_the_leaders_ends() -> None:
    assert follow().out_of_range(0, 7) == Truncate(7)
    assert follow().out_of_range(50, 70) == Restart(50)
    assert follow().out_of_range(5, 20) is None


def test_only_another_leader_or_epoch_means_a_new_start() -> None:
    follower = follow()
    assert not follower.updated(replace(STATE, partition_epoch=11, isr=frozenset({1})))
    assert follower.updated(replace(STATE, partition_epoch=12, leader_epoch=6))
    assert follower.position.current_leader_epoch == 6
    assert not follower.updated(STATE), "older than what is known"
    assert follower.leader_epoch == 6
