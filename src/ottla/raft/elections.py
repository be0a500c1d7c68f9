"""Votes asked for, cast and counted; leaders that announce themselves and leaders that resign.

Two rounds (KIP-996): a pre-vote, which changes nothing at anybody, then the vote, in a new epoch. A node cut off from the others
therefore cannot raise their epoch when it returns, and a leader that answers is not disturbed.
"""

from __future__ import annotations

from ottla.model.errors import ErrorCode
from ottla.protocol.messages.quorum import BeginQuorumEpochRequest, EndQuorumEpochRequest, VoteRequest, VoteResponse
from ottla.raft import messages
from ottla.raft.core import Core, Pending
from ottla.raft.events import Received
from ottla.raft.log import OffsetAndEpoch
from ottla.raft.quorum_state import NOBODY
from ottla.raft.roles import Ballot, Candidate, Follower, Leader, Prospective, Resigned, Unattached, Voted
from ottla.raft.voters import ReplicaKey

# Time ------------------------------------------------------------------------------------------------------------------


def poll_unattached(core: Core, role: Unattached | Voted) -> int:
    if core.is_voter and (core.is_only_voter or core.now_ms >= role.election_deadline_ms):
        core.become_prospective()
        return core.now_ms
    return role.election_deadline_ms


def poll_prospective(core: Core, role: Prospective) -> int:
    lost = role.ballot.is_lost(len(core.voters), core.voters.majority)
    if role.ballot.is_won(core.voters.majority):
        core.become_candidate()
    elif (lost and role.leader_id != NOBODY) or core.now_ms >= role.election_deadline_ms:
        if role.leader_id != NOBODY:
            core.become_follower(role.epoch, role.leader_id)
        else:
            core.become_unattached(role.epoch)
    else:
        _ask_for_votes(core, role.ballot, pre_vote=True)
    return role.election_deadline_ms


def poll_candidate(core: Core, role: Candidate) -> int:
    if role.ballot.is_won(core.voters.majority):
        core.become_leader(frozenset(role.ballot.granted))
    elif core.now_ms >= role.election_deadline_ms:
        core.become_prospective()
    elif not role.ballot.is_lost(len(core.voters), core.voters.majority):
        _ask_for_votes(core, role.ballot, pre_vote=False)
    return role.election_deadline_ms


def poll_resigned(core: Core, role: Resigned) -> int:
    if core.now_ms >= role.election_deadline_ms:
        core.become_unattached(role.epoch + 1)
        return core.now_ms
    for voter in sorted(role.unacknowledged):
        successors = [core.voters.key(node_id) for node_id in role.successors]
        request = messages.end_request(
            core.me.cluster_id, role.epoch, core.me.node_id, successors, core.me.address, core.me.listener
        )
        core.send(voter, request, messages.END_VERSION)
    return role.election_deadline_ms


def _ask_for_votes(core: Core, ballot: Ballot, *, pre_vote: bool) -> None:
    for voter in core.other_voters():
        if voter not in ballot.granted | ballot.rejected:
            request = messages.vote_request(
                core.me.cluster_id, core.epoch, core.me.key, core.voters.key(voter), core.end, pre_vote=pre_vote
            )
            core.send(voter, request, messages.VOTE_VERSION)


# Vote -------------------------------------------------------------------------------------------------------------------


def handle_vote(core: Core, event: Received) -> None:
    request: VoteRequest = event.request
    wanted = messages.only_partition(request)
    if wanted is None:
        core.reply(event.ticket, messages.refusal(request, ErrorCode.INVALID_REQUEST))
        return
    code, granted = _judge(core, request, wanted)
    answer = messages.epoch_response(request, code, core.leader_id, core.epoch, core.leader_endpoint, granted=granted)
    core.reply(event.ticket, answer)


def _judge(core: Core, request: VoteRequest, wanted: VoteRequest.TopicData.PartitionData) -> tuple[ErrorCode, bool]:
    end = OffsetAndEpoch(wanted.last_offset, wanted.last_offset_epoch)
    candidate = ReplicaKey(wanted.replica_id, wanted.replica_directory_id)
    too_new = end.epoch > wanted.replica_epoch if wanted.pre_vote else end.epoch >= wanted.replica_epoch
    if end.offset < 0 or end.epoch < 0 or too_new or wanted.replica_id < 0:
        return ErrorCode.INVALID_REQUEST, False
    if wanted.replica_epoch < core.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH, False
    if wanted.replica_epoch > core.epoch:
        core.become_unattached(wanted.replica_epoch)
    if request.voter_id >= 0 and not core.me.key.matches(ReplicaKey(request.voter_id, wanted.voter_directory_id)):
        return ErrorCode.INVALID_VOTER_KEY, False
    up_to_date = core.log.is_no_longer_than(end)
    granted = _would_vote(core, up_to_date) if wanted.pre_vote else _may_vote(core, candidate, up_to_date)
    if granted and not wanted.pre_vote and not isinstance(core.role, Voted):
        core.become_voted(candidate)
    return ErrorCode.NONE, granted


def _would_vote(core: Core, up_to_date: bool) -> bool:
    """A pre-vote: not against a leader that works, for all this node knows."""
    role = core.role
    if isinstance(role, Leader):
        return False
    return up_to_date and not (isinstance(role, Follower) and role.has_fetched)


def _may_vote(core: Core, candidate: ReplicaKey, up_to_date: bool) -> bool:
    """A vote: one in an epoch, none once the epoch has a leader."""
    role = core.role
    if isinstance(role, Voted):
        return role.voted.matches(candidate)
    if not isinstance(role, Unattached | Prospective) or role.leader_id != NOBODY:
        return False
    voted = core.voted_in(role.epoch)
    if voted is not None:
        return voted.matches(candidate)
    return up_to_date


def handle_vote_answer(core: Core, pending: Pending, response: VoteResponse) -> None:
    answer = messages.only_partition(response) if not response.error_code else None
    if answer is None:
        return
    for end in response.node_endpoints:
        core.learn(end.node_id, end.host, end.port)
    if core.hear_of(answer.leader_id, answer.leader_epoch):
        return
    asked = pending.request.topics[0].partitions[0]
    role = core.role
    if not isinstance(role, Prospective | Candidate) or asked.replica_epoch != role.epoch or answer.error_code:
        return
    if asked.pre_vote is not isinstance(role, Prospective):
        return
    (role.ballot.granted if answer.vote_granted else role.ballot.rejected).add(pending.node_id)
    if isinstance(role, Candidate) and role.ballot.is_lost(len(core.voters), core.voters.majority):
        # Two asked at once and split the vote. The one that waits less asks again, and the other votes for it.
        again_ms = core.early_election_deadline_ms() + core.timing.early_election_spread_ms
        role.election_deadline_ms = min(role.election_deadline_ms, again_ms)


# BeginQuorumEpoch and EndQuorumEpoch ------------------------------------------------------------------------------------


def handle_begin(core: Core, event: Received) -> None:
    request: BeginQuorumEpochRequest = event.request
    wanted = messages.only_partition(request)
    if wanted is None:
        core.reply(event.ticket, messages.refusal(request, ErrorCode.INVALID_REQUEST))
        return
    code = _hear_leader(core, request, wanted.leader_id, wanted.leader_epoch)
    if code is ErrorCode.NONE and request.voter_id >= 0:
        addressed = ReplicaKey(request.voter_id, wanted.voter_directory_id)
        code = ErrorCode.NONE if core.me.key.matches(addressed) else ErrorCode.INVALID_VOTER_KEY
    core.reply(event.ticket, messages.epoch_response(request, code, core.leader_id, core.epoch, core.leader_endpoint))


def _hear_leader(core: Core, request: BeginQuorumEpochRequest | EndQuorumEpochRequest, leader_id: int, epoch: int) -> ErrorCode:
    if leader_id < 0:
        return ErrorCode.INVALID_REQUEST
    if epoch < core.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    for end in request.leader_endpoints:
        if end.name == core.me.listener or len(request.leader_endpoints) == 1:
            core.learn(leader_id, end.host, end.port)
    if epoch == core.epoch and core.leader_id not in (NOBODY, leader_id):
        return ErrorCode.INVALID_REQUEST  # an epoch has one leader
    core.hear_of(leader_id, epoch)
    return ErrorCode.NONE


def handle_end(core: Core, event: Received) -> None:
    """The leader resigns. Those it prefers, because their logs are longest, try first."""
    request: EndQuorumEpochRequest = event.request
    wanted = messages.only_partition(request)
    if wanted is None:
        core.reply(event.ticket, messages.refusal(request, ErrorCode.INVALID_REQUEST))
        return
    code = _hear_leader(core, request, wanted.leader_id, wanted.leader_epoch)
    role = core.role
    if code is ErrorCode.NONE and isinstance(role, Follower) and role.leader_id == wanted.leader_id:
        preferred = [row.candidate_id for row in wanted.preferred_candidates] or wanted.preferred_successors
        role.fetch_deadline_ms = core.now_ms + _resignation_backoff_ms(core, preferred)
        role.has_fetched = False
    core.reply(event.ticket, messages.epoch_response(request, code, core.leader_id, core.epoch, core.leader_endpoint))


def _resignation_backoff_ms(core: Core, preferred: list[int]) -> int:
    """The first at once, the others the later the further down, so that they do not split the vote."""
    position = preferred.index(core.me.node_id) if core.me.node_id in preferred else len(preferred)
    return 0 if position == 0 else min(core.timing.election_timeout_ms, core.timing.retry_backoff_ms * 2**position)
