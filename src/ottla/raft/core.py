"""The state of one replica of the metadata log, its changes of role, and its requests under way.

The rules are in `elections`, `following` and `leading`; they change roles only through this module, so that whatever must be on
disk before anything is sent goes into the same `Effects`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.model.errors import ErrorCode
from ottla.model.machine import Reply
from ottla.protocol.messages.control_records import LeaderChangeMessage, Voter
from ottla.raft import messages
from ottla.raft.events import Effects, Leadership, Send
from ottla.raft.log import LogView, OffsetAndEpoch
from ottla.raft.quorum_state import NOBODY, QuorumState
from ottla.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached, Voted
from ottla.raft.voters import Address, ReplicaKey, VoterSet

FOREVER_MS = 2**62
MAX_LEARNED_ADDRESSES = 1000
NO_ADDRESS = Address("", 0)


@dataclass(frozen=True, slots=True)
class Timing:
    """Kafka's settings, controller.quorum.*."""

    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 200  # a node that is down is asked this often
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 8 * 1024 * 1024
    early_election_spread_ms: int = 50  # how far apart voters ask for an election that nobody need wait for

    @property
    def check_quorum_ms(self) -> int:
        """A leader that a majority has not fetched from for so long resigns: longer than followers wait before they leave."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def begin_epoch_interval_ms(self) -> int:
        return self.fetch_timeout_ms // 2


@dataclass(frozen=True, slots=True)
class Identity:
    node_id: int  # -1 reads along anonymously
    cluster_id: str
    directory_id: bytes = bytes(16)
    listener: str = "CONTROLLER"
    address: Address = NO_ADDRESS  # where this node's own controller listener is reached

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.node_id, self.directory_id)


@dataclass(slots=True)
class _Peer:
    request_id: int | None = None  # one request under way for each node
    deadline_ms: int = 0
    backoff_until_ms: int = 0
    failures: int = 0  # in a row


@dataclass(slots=True)
class Pending:
    node_id: int
    request: Any


@dataclass(slots=True)
class Core:
    me: Identity
    log: LogView
    timing: Timing
    random_below: Callable[[int], int]
    voter_history: list[tuple[int, VoterSet]]  # the offset from which each set holds
    bootstrap: Mapping[int, Address]  # negative ids of addresses whose node ids are unknown
    stored: QuorumState
    role: Role
    now_ms: int = 0
    high_watermark: int = -1
    effects: Effects = field(default_factory=Effects)
    pending: dict[int, Pending] = field(default_factory=dict)
    peers: dict[int, _Peer] = field(default_factory=dict)
    learned: dict[int, Address] = field(default_factory=dict)
    next_request_id: int = 1

    # What it knows --------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.role.epoch

    @property
    def voters(self) -> VoterSet:
        return self.voter_history[-1][1]

    @property
    def is_voter(self) -> bool:
        return self.voters.is_voter(self.me.key)

    @property
    def is_only_voter(self) -> bool:
        return self.is_voter and len(self.voters) == 1

    @property
    def leader_id(self) -> int:
        role = self.role
        if isinstance(role, Leader):
            return self.me.node_id
        if isinstance(role, Follower | Unattached | Prospective):
            return role.leader_id
        return NOBODY

    @property
    def leader_endpoint(self) -> tuple[int, Address] | None:
        if self.leader_id == NOBODY:
            return None
        address = self.me.address if isinstance(self.role, Leader) else self.address_of(self.leader_id)
        return None if address is None else (self.leader_id, address)

    def other_voters(self) -> list[int]:
        return [voter for voter in self.voters if voter != self.me.node_id]

    def address_of(self, node_id: int) -> Address | None:
        return self.learned.get(node_id) or self.voters.addresses.get(node_id) or self.bootstrap.get(node_id)

    def learn(self, node_id: int, host: str, port: int) -> None:
        if node_id >= 0 and host and len(self.learned) < MAX_LEARNED_ADDRESSES:
            self.learned[node_id] = Address(host, port)

    def voted_in(self, epoch: int) -> ReplicaKey | None:
        return self.stored.voted if self.stored.epoch == epoch else None

    # Effects --------------------------------------------------------------------------------------------------------------

    def persist(self, state: QuorumState) -> None:
        if state != self.stored:
            self.stored = state
            self.effects.persist = state

    def reply(self, ticket: int, message: Any) -> None:
        self.effects.replies.append(Reply(ticket, message))

    def advance_high_watermark(self, offset: int) -> bool:
        if offset <= self.high_watermark:
            return False
        self.high_watermark = self.effects.high_watermark = offset
        return True

    def truncate(self, offset: int) -> None:
        assert offset >= self.high_watermark, (
            f"the leader wants the log cut to {offset}, below the high watermark {self.high_watermark}: committed records are lost"
        )
        self.log.truncate(offset)
        self.effects.truncate_to = offset
        while len(self.voter_history) > 1 and self.voter_history[-1][0] >= offset:
            self.voter_history.pop()

    # Requests under way ---------------------------------------------------------------------------------------------------

    def is_ready(self, node_id: int) -> bool:
        """Whether a request may go to a node now: none is under way, and the last did not just fail."""
        peer = self.peers.get(node_id)
        return peer is None or (peer.request_id is None and self.now_ms >= peer.backoff_until_ms)

    def send(self, node_id: int, request: Any, version: int) -> None:
        address = self.address_of(node_id)
        if address is None or not self.is_ready(node_id):
            return
        request_id, self.next_request_id = self.next_request_id, self.next_request_id + 1
        peer = self.peers.setdefault(node_id, _Peer())
        peer.request_id, peer.deadline_ms = request_id, self.now_ms + self.timing.request_timeout_ms
        self.pending[request_id] = Pending(node_id, request)
        self.effects.send.append(Send(request_id, node_id, address, request, version))

    def close_request(self, request_id: int, *, failed: bool) -> Pending | None:
        """A request is over. None if it was given up already."""
        pending = self.pending.pop(request_id, None)
        if pending is not None:
            peer = self.peers[pending.node_id]
            peer.request_id = None
            if failed:
                doubled = self.timing.retry_backoff_ms << min(peer.failures, 10)
                peer.backoff_until_ms = self.now_ms + min(doubled, self.timing.retry_backoff_max_ms)
            peer.failures = peer.failures + 1 if failed else 0
        return pending

    def give_up_late_requests(self) -> None:
        for peer in self.peers.values():
            if peer.request_id is not None and self.now_ms >= peer.deadline_ms:
                self.close_request(peer.request_id, failed=True)

    def next_request_ms(self) -> int:
        """When a request times out or a node may be asked again."""
        waits = [peer.deadline_ms if peer.request_id is not None else peer.backoff_until_ms for peer in self.peers.values()]
        return min((at for at in waits if at > self.now_ms), default=FOREVER_MS)

    def _forget_requests(self) -> None:
        """Answers to what a former role asked are not for the next; connections may be used again at once."""
        self.pending.clear()
        for peer in self.peers.values():
            peer.request_id = None

    # Changes of role ------------------------------------------------------------------------------------------------------

    def election_deadline_ms(self) -> int:
        if not self.is_voter:
            return FOREVER_MS
        spread = self.timing.election_timeout_ms
        return self.now_ms + spread + self.random_below(spread)

    def early_election_deadline_ms(self) -> int:
        """Where no leader can be disturbed (at start, when its port refuses) or was elected (a split vote), a pre-vote is soon asked
        for: it changes nothing at anybody, and whoever hears of a leader refuses it. Spread, so that voters do not collide."""
        return self.now_ms + self.random_below(self.timing.early_election_spread_ms + 1) if self.is_voter else FOREVER_MS

    def fetch_deadline_ms(self) -> int:
        """Spread, because followers of a silent leader have last heard from it at the same moment and would split the vote."""
        timeout_ms = self.timing.fetch_timeout_ms
        return self.now_ms + timeout_ms + self.random_below(timeout_ms // 8 + 1)

    def _enter(self, role: Role) -> None:
        former = self.leader_id, self.epoch
        if isinstance(self.role, Leader):
            for parked in self.role.parked:
                self._refuse_parked(parked.ticket, role.epoch)
        self._forget_requests()
        self.role = role
        if (self.leader_id, self.epoch) != former:
            self.effects.leadership = Leadership(self.leader_id, self.epoch, isinstance(role, Leader))

    def _refuse_parked(self, ticket: int, epoch: int) -> None:
        self.reply(ticket, messages.fetch_response(ErrorCode.NOT_LEADER_OR_FOLLOWER, NOBODY, epoch, None))

    def become_unattached(self, epoch: int, leader_id: int = NOBODY) -> None:
        voted = self.voted_in(epoch)
        leader = leader_id if leader_id != NOBODY else self.stored.leader_id if self.stored.epoch == epoch else NOBODY
        self.persist(QuorumState(epoch, leader, voted))
        if voted is not None and leader_id == NOBODY:
            self._enter(Voted(epoch, voted, self.election_deadline_ms()))
        else:
            self._enter(Unattached(epoch, self.election_deadline_ms(), leader_id))

    def become_voted(self, candidate: ReplicaKey) -> None:
        self.persist(QuorumState(self.epoch, NOBODY, candidate))
        self._enter(Voted(self.epoch, candidate, self.election_deadline_ms()))

    def become_prospective(self) -> None:
        role = Prospective(self.epoch, self.election_deadline_ms(), self.leader_id)
        role.ballot.granted.add(self.me.node_id)
        self._enter(role)

    def become_candidate(self) -> None:
        epoch = self.epoch + 1
        self.persist(QuorumState(epoch, NOBODY, self.me.key))
        role = Candidate(epoch, self.election_deadline_ms())
        role.ballot.granted.add(self.me.node_id)
        self._enter(role)

    def become_leader(self, granting: frozenset[int]) -> None:
        self.persist(QuorumState(self.epoch, self.me.node_id, self.voted_in(self.epoch)))
        self._enter(
            Leader(
                epoch=self.epoch,
                epoch_start_offset=self.log.end_offset,
                check_quorum_deadline_ms=self.now_ms + self.timing.check_quorum_ms,
                next_begin_epoch_ms=self.now_ms,
                granting=granting,
            )
        )
        self.effects.leader_change = LeaderChangeMessage(
            leader_id=self.me.node_id,
            voters=[self._voter(voter) for voter in self.voters],
            granting_voters=[self._voter(voter) for voter in sorted(granting)],
        )

    def _voter(self, node_id: int) -> Voter:
        return Voter(voter_id=node_id, voter_directory_id=self.voters.key(node_id).directory_id)

    def become_follower(self, epoch: int, leader_id: int) -> None:
        role = self.role
        if isinstance(role, Follower) and (role.epoch, role.leader_id) == (epoch, leader_id):
            return
        if self.address_of(leader_id) is None:
            self.become_unattached(epoch, leader_id)
            return
        self.persist(QuorumState(epoch, leader_id, self.voted_in(epoch)))
        self._enter(Follower(epoch, leader_id, self.fetch_deadline_ms()))
        peer = self.peers.get(leader_id)
        if peer is not None and not peer.failures:
            peer.backoff_until_ms = 0  # it said a moment ago that it does not lead, and now it does

    def become_resigned(self, successors: tuple[int, ...]) -> None:
        self._enter(Resigned(self.epoch, self.election_deadline_ms(), successors, set(self.other_voters())))

    def hear_of(self, leader_id: int, epoch: int) -> bool:
        """A peer says who leads which epoch. True if this node's role changed for it."""
        if epoch < self.epoch or (epoch == self.epoch and leader_id == NOBODY):
            return False
        role = self.role
        if leader_id == self.me.node_id:
            # Some life of this node led that epoch, and this one does not know: it must not contradict.
            leader_id = NOBODY
        if epoch > self.epoch:
            if leader_id == NOBODY:
                self.become_unattached(epoch)
            else:
                self.become_follower(epoch, leader_id)
            return True
        if leader_id == NOBODY or isinstance(role, Leader | Resigned):
            return False
        if isinstance(role, Prospective) and role.leader_id == leader_id:
            return False  # no news: it is the very leader that this node has given up on
        self.become_follower(epoch, leader_id)
        return self.role is not role

    @property
    def end(self) -> OffsetAndEpoch:
        return self.log.end
