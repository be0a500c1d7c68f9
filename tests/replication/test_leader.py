"""The leader's rules one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ottla.model.errors import ApiError, ErrorCode
from ottla.replication.closest import THE_LEADER, closest_replica
from ottla.replication.leader import PartitionLeader, divergence
from ottla.replication.state import EpochEnd, PartitionState

STATE = PartitionState(1, 5, 10, (1, 2, 3), frozenset({1, 2, 3}))
LAG_MS = 1000


def lead(state: PartitionState = STATE, end: int = 0, high_watermark: int = 0, **settings: Any) -> PartitionLeader:
    live = settings.pop("live_brokers", {1: 11, 2: 22, 3: 33})
    return PartitionLeader(1, 11, state, end, high_watermark, 0, live_brokers=live, replica_lag_time_max_ms=LAG_MS, **settings)


def fetch(leader: PartitionLeader, replica: int, offset: int, now_ms: int = 0) -> Any:
    return leader.fetched(replica, offset, 0, replica * 11, now_ms)


def refused(error: ErrorCode) -> Any:
    return pytest.raises(ApiError, match=error.name)


def test_with_one_replica_every_append_is_committed_at_once() -> None:
    leader = lead(PartitionState(1, 0, 0, (1,), frozenset({1})), end=7, min_insync_replicas=2)
    assert leader.high_watermark == 7
    leader.check_append(-1)  # Kafka caps min.insync.replicas at the number of replicas
    assert leader.appended(9, 0)
    assert leader.acknowledged(9) == ErrorCode.NONE


def test_the_high_watermark_is_the_lowest_end_in_sync() -> None:
    leader = lead()
    assert not leader.appended(10, 0)
    assert not fetch(leader, 2, 10).high_watermark_moved
    assert fetch(leader, 3, 4).high_watermark_moved
    assert leader.high_watermark == 4
    assert leader.acknowledged(4) == ErrorCode.NONE
    assert leader.acknowledged(5) is None


def test_before_a_follower_was_heard_nothing_moves() -> None:
    leader = lead(end=10, high_watermark=3)
    assert leader.high_watermark == 3
    leader.appended(11, 0)
    fetch(leader, 2, 11)
    assert leader.high_watermark == 3
    fetch(leader, 3, 11)
    assert leader.high_watermark == 11


def test_a_late_follower_is_proposed_away_and_held_on_to_until_the_controller_agrees() -> None:
    leader = lead()
    leader.appended(10, 0)
    fetch(leader, 2, 10, now_ms=LAG_MS)
    assert leader.tick(LAG_MS).proposal is None
    proposal = leader.tick(LAG_MS + 1).proposal
    assert proposal is not None
    assert proposal.isr == ((1, 11), (2, 22))
    assert (proposal.leader_epoch, proposal.partition_epoch) == (5, 10)
    assert leader.high_watermark == 0
    assert leader.tick(9 * LAG_MS).proposal is None, "one proposal at a time"
    assert leader.altered(proposal, proposal.members, 5, 11, LAG_MS + 2).high_watermark_moved
    assert leader.high_watermark == 10
    assert leader.under_replicated


def test_a_follower_under_a_steady_stream_of_appends_counts_as_caught_up() -> None:
    leader = lead()
    for round_number in range(1, 100):
        leader.appended(round_number * 10, round_number * 100)
        fetch(leader, 2, round_number * 10 - 10, now_ms=round_number * 100)
        fetch(leader, 3, round_number * 10 - 10, now_ms=round_number * 100)
        assert leader.tick(round_number * 100).proposal is None


def test_a_follower_that_caught_up_is_proposed_and_holds_the_watermark_from_then_on() -> None:
    leader = lead(replace(STATE, isr=frozenset({1, 2})), end=10)
    fetch(leader, 2, 10)
    assert leader.high_watermark == 10
    assert fetch(leader, 3, 9).proposal is None
    proposal = fetch(leader, 3, 10).proposal
    assert proposal is not None
    assert proposal.members == {1, 2, 3}
    leader.appended(12, 0)
    fetch(leader, 2, 12)
    assert leader.high_watermark == 10, "it may already be in the set"
    assert leader.isr == {1, 2}
    leader.altered(proposal, proposal.members, 5, 11, 0)
    assert leader.isr == {1, 2, 3}


def test_a_follower_must_have_all_that_earlier_leaders_left() -> None:
    leader = lead(replace(STATE, isr=frozenset({1})), end=10, high_watermark=2, min_insync_replicas=3)
    assert leader.high_watermark == 2, "below min.insync.replicas it stands still"
    assert fetch(leader, 2, 5).proposal is None, "above the high watermark, below the start of the epoch"
    assert fetch(leader, 2, 10).proposal is not None


@pytest.mark.parametrize("live", [{1: 11}, {1: 11, 2: 99}])
def test_fenced_and_restarted_brokers_may_not_join(live: dict[int, int]) -> None:
    leader = lead(replace(STATE, isr=frozenset({1})), end=10, live_brokers=live)
    assert fetch(leader, 2, 10).proposal is None


def test_taking_the_same_metadata_twice_does_not_forget_a_proposal() -> None:
    """Found by a random run: the watermark passed a replica that the controller was just adding."""
    committed = replace(STATE, isr=frozenset({1, 2}))
    leader = lead(committed, end=10)
    fetch(leader, 2, 10)
    proposal = fetch(leader, 3, 10).proposal
    assert proposal is not None
    leader.updated(committed, 0)
    leader.appended(12, 0)
    fetch(leader, 2, 12)
    assert leader.high_watermark == 10
    leader.altered(proposal, proposal.members, 5, 11, 0)
    assert leader.isr == {1, 2, 3}


def test_after_a_missed_reign_of_another_leader_nothing_old_counts() -> None:
    """Broker 3 had everything in epoch 5, and may have cut it off for the leader of epoch 6, of whom we never heard."""
    leader = lead()
    leader.appended(10, 0)
    fetch(leader, 3, 10)
    fetch(leader, 2, 6)
    assert leader.high_watermark == 6
    leader.updated(replace(STATE, leader_epoch=7, partition_epoch=12), 0)
    fetch(leader, 2, 10)
    assert leader.high_watermark == 6
    assert leader.epoch_start_offset == 10
    fetch(leader, 3, 10)
    assert leader.high_watermark == 10


def test_too_few_in_sync_refuses_before_and_after_the_append() -> None:
    leader = lead(replace(STATE, isr=frozenset({1, 2})), min_insync_replicas=2)
    leader.check_append(-1)
    leader.appended(5, 0)
    fetch(leader, 2, 5)
    assert leader.acknowledged(5) == ErrorCode.NONE
    leader.updated(replace(STATE, isr=frozenset({1}), partition_epoch=11), 0)
    assert leader.acknowledged(5) == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    with refused(ErrorCode.NOT_ENOUGH_REPLICAS):
        leader.check_append(-1)
    leader.check_append(1)
    leader.appended(6, 0)
    assert leader.high_watermark == 5, "below min.insync.replicas the watermark stands still (KIP-966)"


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_refused_proposal_is_forgotten_and_may_be_made_again(error: ErrorCode) -> None:
    leader = lead(replace(STATE, isr=frozenset({1, 2})), end=10)
    proposal = fetch(leader, 3, 10).proposal
    assert leader.alter_failed(proposal, error).proposal is None
    assert leader.maximal_isr == {1, 2}
    assert fetch(leader, 3, 10).proposal is not None


@pytest.mark.parametrize("error", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NEW_LEADER_ELECTED])
def test_an_overtaken_proposal_waits_for_the_metadata_log(error: ErrorCode) -> None:
    leader = lead(replace(STATE, isr=frozenset({1, 2})), end=10)
    proposal = fetch(leader, 3, 10).proposal
    assert leader.alter_failed(proposal, error).proposal is None
    assert fetch(leader, 3, 10).proposal is None
    assert leader.maximal_isr == {1, 2, 3}
    leader.updated(replace(STATE, isr=frozenset({1, 2}), partition_epoch=11), 0)
    assert fetch(leader, 3, 10).proposal is not None


def test_a_proposal_that_got_lost_is_sent_again() -> None:
    leader = lead(replace(STATE, isr=frozenset({1, 2})), end=10)
    proposal = fetch(leader, 3, 10).proposal
    assert leader.alter_failed(proposal, ErrorCode.REQUEST_TIMED_OUT).proposal is proposal


def test_late_answers_to_old_proposals_are_ignored() -> None:
    leader = lead(replace(STATE, isr=frozenset({1, 2})), end=10)
    proposal = fetch(leader, 3, 10).proposal
    leader.updated(replace(STATE, isr=frozenset({1, 2}), partition_epoch=11), 0)
    leader.altered(proposal, proposal.members, 5, 12, 0)
    assert leader.isr == {1, 2}


def test_readers_of_another_epoch_are_told_who_is_behind() -> None:
    leader = lead()
    leader.check_epoch(-1)
    leader.check_epoch(5)
    with refused(ErrorCode.FENCED_LEADER_EPOCH):
        leader.check_epoch(4)
    with refused(ErrorCode.UNKNOWN_LEADER_EPOCH):
        leader.check_epoch(6)


def test_followers_are_checked_before_they_are_served() -> None:
    leader = lead()
    leader.check_follower(2, 22, 5)
    leader.check_follower(2, -1, -1)
    with refused(ErrorCode.UNKNOWN_LEADER_EPOCH):
        leader.check_follower(9, 99, 5)
    with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        leader.check_follower(9, 99, -1)
    with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        leader.check_follower(2, 21, 5)


def test_records_are_deleted_once_every_live_replica_has_moved() -> None:
    leader = lead(live_brokers={1: 11, 2: 22})
    leader.appended(10, 0)
    assert leader.low_watermark(8) == -1
    leader.fetched(2, 10, 5, 22, 0)
    assert leader.low_watermark(8) == 5, "broker 3 is not alive"
    leader.fetched(2, 10, 8, 22, 0)
    assert leader.low_watermark(8) == 8


def test_divergence_is_seen_by_epoch_and_by_offset() -> None:
    assert divergence(3, 10, EpochEnd(3, 10), 0) is None
    assert divergence(3, 11, EpochEnd(3, 10), 0) == EpochEnd(3, 10)
    assert divergence(3, 8, EpochEnd(2, 20), 0) == EpochEnd(2, 20)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        divergence(3, 8, None, 0)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        divergence(3, 8, EpochEnd(3, 10), 9)


def test_consumers_are_sent_to_the_furthest_replica_of_their_rack() -> None:
    leader = lead(end=10)
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "b"}
    fetch(leader, 2, 9)
    fetch(leader, 3, 10)
    assert closest_replica(leader, "a", 5, racks) == THE_LEADER
    assert closest_replica(leader, "b", 5, racks) == 3
    assert closest_replica(leader, "c", 5, racks) == THE_LEADER
    assert closest_replica(leader, None, 5, racks) == THE_LEADER
    assert closest_replica(leader, "b", 11, racks) == THE_LEADER, "neither has it yet"
    leader.updated(replace(STATE, isr=frozenset({1, 2}), partition_epoch=11), 0)
    assert closest_replica(leader, "b", 5, racks) == 2, "only those in sync"
