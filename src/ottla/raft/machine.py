"""Kafka's Raft (KIP-595, KIP-630, KIP-853, KIP-996) as a plain value: events in, effects out, no I/O, clock or dice of its own.

    machine = RaftMachine(me, voters, log, stored, timing, random_below)
    effects = machine.start(now_ms)
    effects = machine.step(event, now_ms)      # for everything that happens, in the order in which it happens

What the shell must do with `Effects`, and in which order, is written in `events`. Besides:

- `log` tells at start what is on disk: end, leader-epoch checkpoint, latest snapshot; `stored` is the quorum-state file, or None.
- While `machine.is_leader`, the shell may append batches of `machine.epoch` to its log, and steps `Appended` and `Flushed`.
- Requests of peers (`Received`) get exactly one reply each, now or later, through `replies` or `reads`.
- Voters in the log: for each `VotersRecord` appended or loaded, step `VotersLearned`.
- A quorum of one is elected within `start`: the effects have the leader-change record to append.

Invariants, checked after every event by the tests: one leader for an epoch; epochs never fall; a committed record is never lost; the
high watermark never falls; nothing is sent before what it stands on is persisted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ottla.model.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.quorum import (
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    VoteRequest,
)
from ottla.raft import elections, following, leading, messages
from ottla.raft.core import FOREVER_MS, Core, Identity, Pending, Timing
from ottla.raft.events import (
    Answered,
    Appended,
    Effects,
    Failed,
    Flushed,
    Leadership,
    LogStartMoved,
    Received,
    Resign,
    SnapshotInstalled,
    SnapshotMade,
    Tick,
    VotersLearned,
)
from ottla.raft.log import LogView
from ottla.raft.quorum_state import NOBODY, QuorumState
from ottla.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached, Voted
from ottla.raft.voters import Address, VoterSet

MAX_ROLE_CHANGES_PER_STEP = 16
FIRST_BOOTSTRAP_ID = -2  # as Kafka numbers servers whose ids it does not know yet

Event = (
    Tick
    | Received
    | Answered
    | Failed
    | Appended
    | Flushed
    | SnapshotMade
    | LogStartMoved
    | SnapshotInstalled
    | VotersLearned
    | Resign
)


class RaftMachine:
    def __init__(
        self,
        me: Identity,
        voters: VoterSet,
        log: LogView,
        stored: QuorumState | None,
        timing: Timing,
        random_below: Callable[[int], int],
        bootstrap: Iterable[Address] = (),
    ) -> None:
        """`bootstrap` are addresses to ask for the leader when no voter is known (`controller.quorum.bootstrap.servers`)."""
        state = stored or QuorumState(0)
        if log.last_epoch > state.epoch:
            state = QuorumState(log.last_epoch)
        self._core = Core(
            me=me,
            log=log,
            timing=timing,
            random_below=random_below,
            voter_history=[(-1, voters)],
            bootstrap={FIRST_BOOTSTRAP_ID - index: address for index, address in enumerate(bootstrap)},
            stored=state,
            role=Unattached(state.epoch, FOREVER_MS),
        )
        if log.snapshot is not None:
            self._core.high_watermark = log.snapshot.offset

    # What may be asked ----------------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self._core.role

    @property
    def epoch(self) -> int:
        return self._core.epoch

    @property
    def leader_id(self) -> int:
        """-1 while nobody is known to lead."""
        return self._core.leader_id

    @property
    def leader_address(self) -> Address | None:
        endpoint = self._core.leader_endpoint
        return None if endpoint is None else endpoint[1]

    @property
    def is_leader(self) -> bool:
        return isinstance(self._core.role, Leader)

    @property
    def high_watermark(self) -> int:
        """Offsets below are committed; -1 while unknown."""
        return self._core.high_watermark

    @property
    def log(self) -> LogView:
        return self._core.log

    @property
    def voters(self) -> VoterSet:
        return self._core.voters

    @property
    def stored(self) -> QuorumState:
        """What the quorum-state file holds, or will once the last effects are carried out."""
        return self._core.stored

    # Events ---------------------------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> Effects:
        """Take up where the last life ended: never leading, because what was led then may be led by another now.

        Voters that know of no leader ask for one at once: when a cluster starts, nobody need wait for an election time-out.
        """
        core = self._begin(now_ms)
        stored = core.stored
        core.effects.persist = stored
        if core.is_only_voter or (stored.leader_id == NOBODY and stored.voted is None):
            core.role = Unattached(stored.epoch, core.early_election_deadline_ms())
        elif stored.leader_id == core.me.node_id:
            core.role = Resigned(stored.epoch, core.election_deadline_ms(), (), set())
        elif stored.leader_id != NOBODY:
            core.become_follower(stored.epoch, stored.leader_id)
        else:
            assert stored.voted is not None
            core.role = Voted(stored.epoch, stored.voted, core.early_election_deadline_ms())
        core.effects.leadership = Leadership(core.leader_id, core.epoch, False)
        return self._finish()

    def step(self, event: Event, now_ms: int) -> Effects:
        self._begin(now_ms)
        _EVENTS[type(event)](self._core, event)
        return self._finish()

    def _begin(self, now_ms: int) -> Core:
        core = self._core
        core.now_ms = max(core.now_ms, now_ms)
        core.effects = Effects()
        core.give_up_late_requests()
        return core

    def _finish(self) -> Effects:
        core = self._core
        wake_ms = _poll(core)
        core.effects.wake_at_ms = max(core.now_ms, min(wake_ms, core.next_request_ms()))
        return core.effects


def _poll(core: Core) -> int:
    """Do what is due in this role, and in whatever roles that leads to."""
    for _ in range(MAX_ROLE_CHANGES_PER_STEP):
        role = core.role
        wake_ms = _POLLS[type(role)](core, role)
        if core.role is role:
            return wake_ms
    raise AssertionError(f"roles change without end: {core.role}")


def _poll_unattached(core: Core, role: Any) -> int:
    wake_ms = elections.poll_unattached(core, role)
    if core.role is role:
        following.look_for_leader(core)
    return wake_ms


_POLLS: dict[type[Any], Callable[[Core, Any], int]] = {
    Unattached: _poll_unattached,
    Voted: _poll_unattached,
    Prospective: elections.poll_prospective,
    Candidate: elections.poll_candidate,
    Follower: following.poll_follower,
    Leader: leading.poll_leader,
    Resigned: elections.poll_resigned,
}


def _tick(core: Core, event: Tick) -> None:
    """The poll that follows does it all."""


def _received(core: Core, event: Received) -> None:
    cluster_id = getattr(event.request, "cluster_id", None)
    if cluster_id is not None and cluster_id != core.me.cluster_id:
        core.reply(event.ticket, messages.refusal(event.request, ErrorCode.INCONSISTENT_CLUSTER_ID))
        return
    _REQUESTS[type(event.request)](core, event)


_REQUESTS: dict[type[Any], Callable[[Core, Received], None]] = {
    VoteRequest: elections.handle_vote,
    BeginQuorumEpochRequest: elections.handle_begin,
    EndQuorumEpochRequest: elections.handle_end,
    FetchRequest: leading.handle_fetch,
    FetchSnapshotRequest: leading.handle_fetch_snapshot,
    DescribeQuorumRequest: leading.handle_describe,
}


def _answered(core: Core, event: Answered) -> None:
    pending = core.close_request(event.request_id, failed=False)
    if pending is None:
        return
    request = pending.request
    if isinstance(request, VoteRequest):
        elections.handle_vote_answer(core, pending, event.response)
    elif isinstance(request, FetchRequest):
        following.handle_fetch_answer(core, pending, event.response)
    elif isinstance(request, FetchSnapshotRequest):
        following.handle_snapshot_answer(core, pending, event.response)
    else:
        _epoch_answered(core, pending, event.response)


def _epoch_answered(core: Core, pending: Pending, response: Any) -> None:
    """BeginQuorumEpoch or EndQuorumEpoch was heard, or answered with a later epoch."""
    answer = messages.only_partition(response) if not response.error_code else None
    if answer is None:
        core.peers[pending.node_id].backoff_until_ms = core.now_ms + core.timing.retry_backoff_ms
        return
    for end in response.node_endpoints:
        core.learn(end.node_id, end.host, end.port)
    if core.hear_of(answer.leader_id, answer.leader_epoch):
        return
    if answer.error_code:
        core.peers[pending.node_id].backoff_until_ms = core.now_ms + core.timing.retry_backoff_ms
    elif isinstance(pending.request, BeginQuorumEpochRequest):
        leading.begin_acknowledged(core, pending)
    elif isinstance(core.role, Resigned):
        core.role.unacknowledged.discard(pending.node_id)


def _failed(core: Core, event: Failed) -> None:
    pending = core.close_request(event.request_id, failed=True)
    if pending is not None and isinstance(pending.request, FetchRequest | FetchSnapshotRequest):
        following.fetch_failed(core, pending, event.refused)


def _appended(core: Core, event: Appended) -> None:
    core.log.append(event.end_offset, event.epochs)
    role = core.role
    if isinstance(role, Follower) and role.awaits_append:
        role.awaits_append = False
        following.follow_high_watermark(core, role)


def _flushed(core: Core, event: Flushed) -> None:
    core.log.flush(event.end_offset, event.generation)
    if isinstance(core.role, Leader):
        leading.commit(core, core.role)


def _snapshot_made(core: Core, event: SnapshotMade) -> None:
    assert event.snapshot.offset <= core.high_watermark, "a snapshot holds only what is committed"
    if core.log.snapshot is None or event.snapshot.offset > core.log.snapshot.offset:
        core.log.snapshot = event.snapshot


def _log_start_moved(core: Core, event: LogStartMoved) -> None:
    core.log.move_start(event.start_offset)


def _voters_learned(core: Core, event: VotersLearned) -> None:
    while core.voter_history[-1][0] >= event.offset >= 0:
        core.voter_history.pop()
    core.voter_history.append((event.offset, event.voters))


def _resign(core: Core, event: Resign) -> None:
    if isinstance(core.role, Leader):
        leading.resign(core, core.role)


_EVENTS: dict[type[Any], Callable[[Core, Any], None]] = {
    Tick: _tick,
    Received: _received,
    Answered: _answered,
    Failed: _failed,
    Appended: _appended,
    Flushed: _flushed,
    SnapshotMade: _snapshot_made,
    LogStartMoved: _log_start_moved,
    SnapshotInstalled: following.snapshot_installed,
    VotersLearned: _voters_learned,
    Resign: _resign,
}
