"""Single rules of the machine that a random history may miss."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from ottla.protocol.messages.quorum import DescribeQuorumRequest, FetchSnapshotRequest, VoteRequest
from ottla.raft import messages, quorum_state
from ottla.raft.core import Identity, Timing
from ottla.raft.events import Answered, Appended, Effects, Flushed, Received, Tick, VotersLearned
from ottla.raft.log import LogView, OffsetAndEpoch
from ottla.raft.machine import RaftMachine
from ottla.raft.quorum_state import QuorumState
from ottla.raft.roles import Candidate, Follower, Leader, Prospective, Unattached, Voted
from ottla.raft.voters import Address, ReplicaKey, VoterSet
from tests.raft.world import World

VOTERS = VoterSet.static([(1, "a", 1), (2, "b", 2), (3, "c", 3)])


def unstarted(node_id: int = 1, log: LogView | None = None, stored: QuorumState | None = None, **options: Any) -> RaftMachine:
    me = Identity(node_id, "c", directory_id=bytes([node_id]) * 16, address=Address("me", node_id))
    return RaftMachine(me, options.pop("voters", VOTERS), log or LogView(), stored, Timing(), lambda count: count - 1, **options)


def machine(node_id: int = 1, log: LogView | None = None, stored: QuorumState | None = None) -> RaftMachine:
    made = unstarted(node_id, log, stored)
    made.start(0)
    return made


def vote(
    epoch: int, candidate: int, end: tuple[int, int] = (0, 0), *, voter: int = 1, pre_vote: bool = False, **fields: Any
) -> VoteRequest:
    return messages.vote_request(
        "c", epoch, ReplicaKey(candidate), ReplicaKey(voter), OffsetAndEpoch(*end), pre_vote=pre_vote
    ).replace(**fields)


def ask(asked: RaftMachine, request: Any, version: int = 2, now_ms: int = 1) -> tuple[Effects, Any]:
    effects = asked.step(Received(7, request, version), now_ms)
    assert [reply.ticket for reply in effects.replies] == [7]
    return effects, effects.replies[0].message


def granted(response: Any) -> tuple[int, bool]:
    partition = response.topics[0].partitions[0]
    return partition.error_code, partition.vote_granted


def test_a_vote_is_persisted_in_the_effects_that_cast_it() -> None:
    voter = machine()
    effects, response = ask(voter, vote(1, 2))
    assert granted(response) == (0, True)
    assert effects.persist == QuorumState(1, -1, ReplicaKey(2))
    assert isinstance(voter.role, Voted)


def test_one_vote_in_an_epoch_even_after_a_restart() -> None:
    voter = machine()
    effects, _ = ask(voter, vote(1, 2))
    again = machine(stored=effects.persist)
    assert granted(ask(again, vote(1, 3))[1]) == (0, False)
    assert granted(ask(again, vote(1, 2))[1]) == (0, True)
    assert granted(ask(again, vote(2, 3))[1]) == (0, True)


@pytest.mark.parametrize(("end", "is_granted"), [((5, 2), True), ((9, 1), False), ((4, 2), False), ((0, 3), True)])
def test_no_vote_for_a_log_that_ends_before_ones_own(end: tuple[int, int], is_granted: bool) -> None:
    voter = machine(log=LogView(end_offset=5, epochs=[(1, 0), (2, 3)]))
    assert granted(ask(voter, vote(4, 2, end))[1]) == (0, is_granted)


def test_a_pre_vote_changes_nothing() -> None:
    voter = machine(stored=QuorumState(3))
    effects, response = ask(voter, vote(3, 2, pre_vote=True))
    assert granted(response) == (0, True)
    assert effects.persist is None
    assert (voter.epoch, type(voter.role)) == (3, Unattached)
    assert granted(ask(voter, vote(3, 3, pre_vote=True))[1]) == (0, True)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (vote(1, 2, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (vote(1, 2, topics=[]), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_request_of_another_cluster_or_log_is_refused(request_: VoteRequest, code: ErrorCode) -> None:
    assert ask(machine(), request_)[1].error_code == code


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (vote(1, 2), ErrorCode.FENCED_LEADER_EPOCH),
        (vote(5, 2, (0, 5)), ErrorCode.INVALID_REQUEST),
        (vote(5, -1), ErrorCode.INVALID_REQUEST),
        (vote(5, 2, (-1, 0)), ErrorCode.INVALID_REQUEST),
        (vote(5, 2, voter=3), ErrorCode.INVALID_VOTER_KEY),
    ],
)
def test_a_vote_that_cannot_be_is_refused(request_: VoteRequest, code: ErrorCode) -> None:
    assert granted(ask(machine(stored=QuorumState(2)), request_)[1]) == (code, False)


def elected(log: LogView | None = None) -> RaftMachine:
    """Node 1 leading epoch 1 with the votes of 2."""
    made = machine(log=log)
    effects = made.step(Tick(), 4500)
    assert isinstance(made.role, Prospective)
    for kind in (Candidate, Leader):
        send = next(send for send in effects.send if send.node_id == 2)
        answer = messages.epoch_response(send.request, ErrorCode.NONE, -1, made.epoch, None, granted=True)
        effects = made.step(Answered(send.request_id, answer), 5001)
        assert isinstance(made.role, kind)
    assert effects.leader_change is not None
    start = made.log.end_offset
    made.step(Appended(start + 1, ((made.epoch, start),)), 5001)
    return made


def test_voters_that_start_together_do_not_wait_for_an_election_time_out() -> None:
    for seed in range(20):
        world = World(3, 0, seed=seed)
        world.start()
        world.run(Timing().election_timeout_ms // 2)
        assert world.leader() is not None


def test_a_voter_that_starts_beside_a_leader_follows_it_and_leaves_its_epoch_alone() -> None:
    world = World(3, 0, seed=1)
    world.replicas[1].start()
    world.replicas[2].start()
    world.run(500)
    leader = world.leader()
    assert leader is not None
    epoch = leader.machine.epoch
    world.replicas[3].start()
    world.run(500)
    assert (world.leader(), leader.machine.epoch) == (leader, epoch)
    assert isinstance(world.replicas[3].machine.role, Follower)


def test_after_a_split_vote_the_candidate_asks_again_soon() -> None:
    candidate = machine()
    effects = candidate.step(Tick(), 100)
    answered = messages.epoch_response(effects.send[0].request, ErrorCode.NONE, -1, 0, None, granted=True)
    effects = candidate.step(Answered(effects.send[0].request_id, answered), 101)
    assert isinstance(candidate.role, Candidate)
    for send in effects.send:
        answered = messages.epoch_response(send.request, ErrorCode.NONE, -1, candidate.epoch, None, granted=False)
        effects = candidate.step(Answered(send.request_id, answered), 102)
    assert effects.wake_at_ms is not None
    assert effects.wake_at_ms <= 102 + 2 * Timing().early_election_spread_ms
    candidate.step(Tick(), effects.wake_at_ms)
    assert isinstance(candidate.role, Prospective)


def fetch(of: RaftMachine, node_id: int, end: tuple[int, int], now_ms: int = 5002) -> Effects:
    request = messages.fetch_request("c", ReplicaKey(node_id), of.epoch, OffsetAndEpoch(*end), -1, 0, 100)
    return of.step(Received(9, request, 18), now_ms)


def test_a_leader_counts_its_own_records_only_once_they_are_synced() -> None:
    leader = elected()
    fetch(leader, 2, (1, 1))
    assert leader.high_watermark == -1
    leader.step(Flushed(1, leader.log.generation), 5003)
    assert leader.high_watermark == 1


def test_records_of_former_epochs_are_committed_only_together_with_one_of_the_leaders_own() -> None:
    """Figure 8 of the Raft paper: a majority has the old record, and it could still be replaced."""
    leader = elected(LogView(end_offset=4, epochs=[(2, 0)]))
    leader.step(Flushed(5, leader.log.generation), 5002)
    fetch(leader, 2, (4, 2))
    assert leader.high_watermark == -1
    fetch(leader, 2, (5, leader.epoch))
    assert leader.high_watermark == 5


def following(log: LogView | None = None) -> tuple[RaftMachine, int]:
    """Node 2 following node 1 in epoch 1, and the id of its fetch."""
    made = unstarted(2, log, QuorumState(1, 1))
    [send] = made.start(2).send
    assert isinstance(made.role, Follower)
    return made, send.request_id


def test_a_follower_acknowledges_records_only_once_they_are_synced() -> None:
    follower, request_id = following()
    response = messages.fetch_response(ErrorCode.NONE, 1, 1, None, high_watermark=2)
    response.responses[0].partitions[0].records = b"two records"
    effects = follower.step(Answered(request_id, response), 3)
    assert effects.append_records == b"two records"
    assert not effects.send
    assert not follower.step(Appended(2, ((1, 0),)), 3).send
    assert follower.high_watermark == 2
    sent = follower.step(Flushed(2, follower.log.generation), 4).send
    assert [send.request.topics[0].partitions[0].fetch_offset for send in sent] == [2]


def test_a_leader_that_would_cut_committed_records_stops_the_node() -> None:
    follower, request_id = following(LogView(end_offset=3, epochs=[(1, 0)], snapshot=OffsetAndEpoch(2, 1)))
    response = messages.fetch_response(ErrorCode.NONE, 1, 1, None)
    response.responses[0].partitions[0].diverging_epoch.epoch = 1
    response.responses[0].partitions[0].diverging_epoch.end_offset = 1
    with pytest.raises(AssertionError, match="committed records are lost"):
        follower.step(Answered(request_id, response), 3)


def test_describe_quorum_tells_how_far_everybody_is() -> None:
    world = World(3, 1, seed=1)
    world.start()
    world.run(3000)
    leader = world.leader()
    assert leader is not None
    leader.propose("x")
    world.run(50)
    topic = DescribeQuorumRequest.TopicData
    request = DescribeQuorumRequest(
        topics=[topic(topic_name="__cluster_metadata", partitions=[topic.PartitionData(partition_index=0)])]
    )
    effects = leader.machine.step(Received(1, request, 2, wall_ms=1_700_000_000_000), world.now_ms)
    response = effects.replies[0].message
    partition = response.topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id, partition.high_watermark) == (0, leader.node_id, 2)
    assert [(row.replica_id, row.log_end_offset) for row in partition.current_voters] == [(1, 2), (2, 2), (3, 2)]
    assert [(row.replica_id, row.log_end_offset) for row in partition.observers] == [(4, 2)]
    assert all(1_699_999_999_000 < row.last_caught_up_timestamp <= 1_700_000_000_000 for row in partition.current_voters)
    assert [node.node_id for node in response.nodes] == [1, 2, 3]
    other = next(replica for replica in world.up if not replica.machine.is_leader)
    refused = other.machine.step(Received(1, request, 2), world.now_ms).replies[0].message
    assert refused.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_snapshot_is_read_only_by_those_who_know_the_leader() -> None:
    leader = elected()
    request = messages.snapshot_request("c", ReplicaKey(2), leader.epoch, OffsetAndEpoch(0, 0), 0, 10)
    assert leader.step(Received(1, request, 1), 5005).reads
    request = messages.snapshot_request("c", ReplicaKey(2), leader.epoch - 1, OffsetAndEpoch(0, 0), 0, 10)
    response = leader.step(Received(1, request, 1), 5005).replies[0].message
    assert response.topics[0].partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert isinstance(request, FetchSnapshotRequest)


def test_an_observer_finds_the_leader_through_a_bootstrap_address() -> None:
    observer = unstarted(9, voters=VoterSet({}, {}), bootstrap=[Address("boot", 1)])
    [send] = observer.start(1).send
    assert (send.node_id, send.address) == (-2, Address("boot", 1))
    response = messages.fetch_response(ErrorCode.NOT_LEADER_OR_FOLLOWER, 3, 4, (3, Address("there", 5)))
    effects = observer.step(Answered(send.request_id, response), 2)
    assert (observer.leader_id, observer.epoch) == (3, 4)
    assert [(send.node_id, send.address) for send in effects.send] == [(3, Address("there", 5))]


def test_voters_of_the_log_hold_until_their_record_is_cut() -> None:
    follower, request_id = following(LogView(end_offset=3, epochs=[(1, 0)]))
    follower.step(VotersLearned(2, VoterSet.static([(1, "a", 1), (2, "b", 2)])), 2)
    assert list(follower.voters) == [1, 2]
    response = messages.fetch_response(ErrorCode.NONE, 1, 1, None)
    response.responses[0].partitions[0].diverging_epoch.epoch = 1
    response.responses[0].partitions[0].diverging_epoch.end_offset = 1
    follower.step(Answered(request_id, response), 3)
    assert list(follower.voters) == [1, 2, 3]


# The quorum-state file ---------------------------------------------------------------------------------------------------

KAFKA_STATIC = (
    '{"clusterId":"","leaderId":2,"leaderEpoch":7,"votedId":3,"appliedOffset":0,'
    '"currentVoters":[{"voterId":1},{"voterId":2},{"voterId":3}],"data_version":0}'
)
KAFKA_DYNAMIC = '{"leaderId":-1,"leaderEpoch":4,"votedId":1,"votedDirectoryId":"AQEBAQEBAQEBAQEBAQEBAQ","data_version":1}'


def test_the_quorum_state_file_is_kafkas() -> None:
    state = QuorumState(7, 2, ReplicaKey(3))
    assert json.loads(quorum_state.to_text(state, VOTERS)) == json.loads(KAFKA_STATIC)
    assert quorum_state.from_text(KAFKA_STATIC) == state
    voted = QuorumState(4, -1, ReplicaKey(1, bytes([1]) * 16))
    assert quorum_state.to_text(voted, VOTERS, version=1) == KAFKA_DYNAMIC
    assert quorum_state.from_text(KAFKA_DYNAMIC) == voted


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"leaderEpoch":1}', '{"leaderEpoch":"x","data_version":0}', '{"data_version":9}']
)
def test_an_unreadable_quorum_state_is_said_and_not_guessed(text: str) -> None:
    with pytest.raises(ValueError, match="quorum-state"):
        quorum_state.from_text(text)
