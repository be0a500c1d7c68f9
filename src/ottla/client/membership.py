"""A member of a group, as a machine: what to do next, and what the answers mean. Pure: no I/O, no clock, no asyncio.

The shell (`coordination`) asks `next(now)` for a step, performs it, and reports what came back. Steps of the network are `Send`;
`NeedTopics` asks for partition counts; `Idle` says until when nothing is due. What the application must do (`Revoke`, `Lose`,
`Assign`) waits in `pending` until the application polls; heartbeats go on meanwhile.

Classic protocol (KIP-62, KIP-345, KIP-429):

    OUT ──poll──▶ PREPARING ──revoked──▶ JOINING ──joined──▶ (leader: NeedTopics) ──▶ SYNCING ──synced──▶ SETTLING ──▶ STABLE
     ▲               ▲                                                                                              │
     │               └──────── rebalance, subscription or partitions changed, a partition given up cooperatively ───┤
     └── unknown member, illegal generation: everything owned is lost; leave, poll interval passed ─────────────────┘

Eager: everything is revoked before joining. Cooperative: only what goes to another member is, after the assignment is known,
and then the member joins again so that the other can have it.

`consumer_membership.ConsumerMember` is the same for KIP-848, where the coordinator assigns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from ottla.client.assignors import NO_RACKS, Assignor, Member
from ottla.client.sticky import Racks
from ottla.client.subscriptions import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.model.errors import ApiError, ErrorCode, ProtocolError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ottla.protocol.schema import Message

PROTOCOL_TYPE = "consumer"
NO_GENERATION = -1
Partitions = frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to the coordinator and report the answer with `answered`, or `failed`."""

    request: Message
    timeout_ms: float | None = None  # a join waits for the others, longer than other requests
    to_any_coordinator: bool = True


@dataclass(frozen=True, slots=True)
class NeedTopics:
    """Tell `with_topics` how many partitions these topics have (or, for ids, what they are called)."""

    names: frozenset[str] = frozenset()
    ids: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Idle:
    until_ms: float | None


Step = Send | NeedTopics | Idle


@dataclass(frozen=True, slots=True)
class Revoke:
    """Commit, tell the listener, give these up."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Lose:
    """The group has given these to others already: tell the listener, drop them without a commit."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Assign:
    """`added` is new; `owned` is everything this member has from now on."""

    added: Partitions
    owned: Partitions


Duty = Revoke | Lose | Assign


@dataclass(frozen=True, slots=True)
class MemberSettings:
    group_id: str
    session_timeout_ms: int
    heartbeat_interval_ms: int
    rebalance_timeout_ms: int
    retry_backoff_ms: float
    instance_id: str | None = None
    rack: str | None = None
    server_assignor: str | None = None


class Phase(Enum):
    OUT = auto()
    PREPARING = auto()
    JOINING = auto()
    ASSIGNING = auto()  # leader only: partition counts are being looked up
    SYNCING = auto()
    SETTLING = auto()  # the application is told about its new partitions
    STABLE = auto()
    FAILED = auto()


COORDINATOR_RETRY = frozenset(  # ask again, or ask for the coordinator again
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_FORGOTTEN = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


class ClassicMember:
    def __init__(self, settings: MemberSettings, assignors: Sequence[Assignor]) -> None:
        self._settings = settings
        self._assignors = {assignor.name: assignor for assignor in assignors}
        # A group moves from eager to cooperative by members that know both; the group is eager while one member is (KIP-429).
        self._is_cooperative = all(assignor.is_cooperative for assignor in assignors)
        self.phase = Phase.OUT
        self.member_id = ""
        self.generation = NO_GENERATION
        # As whom it commits. This outlives a membership: an empty group takes the commits of those who never were members, and
        # what was read as one must be refused instead.
        self.known_as = (NO_GENERATION, "")
        self.protocol: str | None = None
        self.owned: Partitions = frozenset()
        self.pending: Duty | None = None
        self.error: ApiError | None = None
        self.is_leader = False
        self.group_topics: frozenset[str] = frozenset()  # leader: what all members together subscribe to
        self._wanted = False
        self._topics: tuple[str, ...] = ()
        self._joined_topics: tuple[str, ...] = ()
        self._members: list[Member] = []
        self._counts: dict[str, int] = {}
        self._racks: Racks = NO_RACKS
        self._target: Partitions = frozenset()
        self._rejoin = False
        self._reason = "initial join"
        self._not_before = 0.0
        self._last_beat = 0.0
        self._waiting = False  # a request is under way
        self._remembered_generation = NO_GENERATION

    # From the application ----------------------------------------------------------------------------------------------

    def subscribe(self, topics: Collection[str]) -> None:
        self._topics = tuple(sorted(topics))
        if self.phase is Phase.STABLE and self._topics != self._joined_topics:
            self.rejoin("subscription changed")

    def want(self) -> None:
        """The application polls: be a member."""
        self._wanted = True

    def rejoin(self, reason: str) -> None:
        self._rejoin = True
        self._reason = reason

    def partitions_changed(self, counts: Mapping[str, int]) -> None:
        """Leader: topics have grown, appeared or gone since it assigned."""
        if self.is_leader and self.phase is Phase.STABLE and dict(counts) != self._counts:
            self.rejoin("partitions changed")

    def done(self, duty: Duty) -> None:
        """The application has done this; the machine may have moved on meanwhile."""
        current = self.pending is duty
        if isinstance(duty, Assign):
            if current:
                self.owned = duty.owned
        else:
            self.owned -= duty.partitions
        if not current:
            self.pending = Lose(self.owned) if isinstance(self.pending, Lose) and self.owned else None
            return
        self.pending = None
        if self.phase is Phase.PREPARING:
            self.phase = Phase.JOINING
        elif self.phase is Phase.SETTLING:
            self._settle_on(duty)

    def leave(self, reason: str) -> LeaveGroupRequest | None:
        """Stop being a member. A static member says nothing: it may be back before the session ends."""
        request = None
        if self.member_id and self._settings.instance_id is None:
            member = LeaveGroupRequest.MemberIdentity(member_id=self.member_id, reason=reason)
            request = LeaveGroupRequest(group_id=self._settings.group_id, member_id=self.member_id, members=[member])
        self._wanted = False
        self._reset(keep_id=False)
        return request

    # Steps -------------------------------------------------------------------------------------------------------------

    def next(self, now_ms: float) -> Step:
        if self._waiting or self.phase is Phase.FAILED:
            return Idle(None)
        if self.phase is Phase.OUT:
            if not self._wanted or self.pending is not None:
                return Idle(None)
            self._prepare()
        elif self.phase is Phase.STABLE and self._rejoin and self.pending is None:
            self._prepare()
        if self._not_before > now_ms:
            return Idle(self._not_before)
        if self.phase is Phase.JOINING:
            return self._send(self._join_request(), self._settings.rebalance_timeout_ms + 5_000)
        if self.phase is Phase.ASSIGNING:
            return NeedTopics(self.group_topics)
        if self.phase is Phase.SYNCING:
            return self._send(self._sync_request())
        return self._heartbeat(now_ms)

    def _send(self, request: Message, timeout_ms: float | None = None) -> Send:
        self._waiting = True
        return Send(request, timeout_ms)

    def _heartbeat(self, now_ms: float) -> Step:
        if self.generation == NO_GENERATION:
            return Idle(None)
        due = self._last_beat + self._settings.heartbeat_interval_ms
        if now_ms < due:
            return Idle(due)
        self._last_beat = now_ms
        return self._send(
            HeartbeatRequest(
                group_id=self._settings.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self._settings.instance_id,
            )
        )

    def _prepare(self) -> None:
        """Before joining: an eager member gives everything up, a cooperative one what it no longer subscribes to."""
        self.phase = Phase.PREPARING
        self._rejoin = False
        giving_up = self.owned
        if self._is_cooperative:
            giving_up = frozenset(partition for partition in self.owned if partition.topic not in self._topics)
        if giving_up:
            self.pending = Revoke(giving_up)
        else:
            self.phase = Phase.JOINING

    def _join_request(self) -> JoinGroupRequest:
        kind = JoinGroupRequest.JoinGroupRequestProtocol
        self._joined_topics = self._topics
        owned = tuple(sorted(self.owned))
        protocols = []
        for name, assignor in self._assignors.items():
            remembered = owned if assignor.is_cooperative else tuple(sorted(self._target))
            subscription = Subscription(
                self._topics,
                assignor.user_data(remembered, self._remembered_generation),
                owned,
                self._remembered_generation,
                self._settings.rack or None,
            )
            protocols.append(kind(name=name, metadata=encode_subscription(subscription)))
        return JoinGroupRequest(
            group_id=self._settings.group_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
            reason=self._reason,
        )

    def _sync_request(self) -> SyncGroupRequest:
        kind = SyncGroupRequest.SyncGroupRequestAssignment
        assignments = []
        if self.is_leader and self._members:
            assert self.protocol is not None
            assigned = self._assignors[self.protocol].assign(self._counts, self._members, self._racks)
            assignments = [
                kind(member_id=member, assignment=encode_assignment(Assignment(tuple(partitions))))
                for member, partitions in assigned.items()
            ]
        return SyncGroupRequest(
            group_id=self._settings.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self.protocol,
            assignments=assignments,
        )

    def with_topics(self, counts: Mapping[str, int], names: Mapping[bytes, str] | None = None, racks: Racks = NO_RACKS) -> None:
        """Leader: how many partitions each topic has that the group subscribes to; topics that do not exist are left out."""
        if self.phase is Phase.ASSIGNING:
            self._counts, self._racks = dict(counts), racks
            self.phase = Phase.SYNCING

    # Answers -----------------------------------------------------------------------------------------------------------

    def answered(self, reply: Any, now_ms: float) -> None:
        self._waiting = False
        if isinstance(reply, JoinGroupResponse):
            self._joined(reply, now_ms)
        elif isinstance(reply, SyncGroupResponse):
            self._synced(reply, now_ms)
        elif isinstance(reply, HeartbeatResponse):
            self._beaten(reply, now_ms)

    def failed(self, now_ms: float) -> None:
        """The request got no answer. Whoever was joining joins again; a missed heartbeat is made up for."""
        self._waiting = False
        self._not_before = now_ms + self._settings.retry_backoff_ms
        self._last_beat = 0.0
        if self.phase is Phase.SYNCING:
            self.phase = Phase.JOINING

    def _joined(self, reply: JoinGroupResponse, now_ms: float) -> None:
        if self.phase is not Phase.JOINING:  # left meanwhile
            return
        code = ErrorCode(reply.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            return
        if code:
            self._refused(code, now_ms)
            return
        self.member_id, self.generation = reply.member_id, reply.generation_id
        self.known_as = (self.generation, self.member_id)
        self.protocol = reply.protocol_name
        self._last_beat = now_ms
        self.is_leader = reply.leader == reply.member_id
        if self.protocol not in self._assignors:
            self._fail(
                ApiError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group chose {self.protocol}, which this member does not know"
                )
            )
            return
        self._members = []
        if self.is_leader and not reply.skip_assignment:
            self._members = _read_members(reply)
            self.group_topics = frozenset(topic for member in self._members for topic in member.subscription.topics)
            self.phase = Phase.ASSIGNING
        else:
            self.phase = Phase.SYNCING

    def _synced(self, reply: SyncGroupResponse, now_ms: float) -> None:
        if self.phase is not Phase.SYNCING:
            return
        code = ErrorCode(reply.error_code)
        if code:
            self._refused(code, now_ms)
            return
        self._last_beat = now_ms
        self._remembered_generation = self.generation
        try:
            self._target = frozenset(decode_assignment(reply.assignment).partitions) if reply.assignment else frozenset()
        except ProtocolError as error:
            self._fail(ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the leader's assignment cannot be read: {error}"))
            return
        self._reason = "rebalance"
        self.phase = Phase.SETTLING
        revoked = self.owned - self._target
        if revoked and self._is_cooperative:
            self.pending = Revoke(revoked)
            self.rejoin("gave partitions up for another member")
        else:
            self.pending = Assign(self._target - self.owned, self._target)

    def _settle_on(self, duty: Duty | None) -> None:
        if isinstance(duty, Revoke):
            self.pending = Assign(self._target - self.owned, self._target)
            return
        self.phase = Phase.STABLE
        if self._topics != self._joined_topics:
            self.rejoin("subscription changed")

    def _beaten(self, reply: HeartbeatResponse, now_ms: float) -> None:
        code = ErrorCode(reply.error_code)
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            if self.phase is Phase.STABLE:
                self.rejoin("group is already rebalancing")
            elif self.phase is Phase.SETTLING:
                self._rejoin = True
        elif code in _FORGOTTEN and self.phase in (Phase.JOINING, Phase.ASSIGNING, Phase.SYNCING):
            pass  # an answer from before: the join under way says what is true now
        elif code:
            self._refused(code, now_ms)

    def _refused(self, code: ErrorCode, now_ms: float) -> None:
        if code in COORDINATOR_RETRY:
            self._not_before = now_ms + self._settings.retry_backoff_ms
            self._last_beat = 0.0
            if self.phase is Phase.SYNCING:
                self.phase = Phase.JOINING
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.phase = Phase.JOINING
        elif code in _FORGOTTEN:
            self._reset(keep_id=code is ErrorCode.ILLEGAL_GENERATION)
        else:
            self._fail(ApiError(code))

    def forgotten(self) -> None:
        """Another request (a commit) was told that this member is unknown or of an old generation."""
        if self.phase in (Phase.STABLE, Phase.SETTLING):
            self._reset(keep_id=False)

    def _reset(self, *, keep_id: bool) -> None:
        """No longer a member: what was owned is lost. Joining starts from the beginning."""
        self.phase = Phase.OUT
        if not keep_id:
            self.member_id = ""
        self.generation = self._remembered_generation = NO_GENERATION
        self.is_leader = False
        self._rejoin = False
        self._waiting = False
        self._target = frozenset()
        self.pending = Lose(self.owned) if self.owned else None

    def _fail(self, error: ApiError) -> None:
        self.phase = Phase.FAILED
        self.error = error


def _read_members(reply: JoinGroupResponse) -> list[Member]:
    members = []
    for row in reply.members:
        try:
            subscription = decode_subscription(row.metadata)
        except ProtocolError:
            subscription = Subscription(())
        members.append(Member(row.member_id, row.group_instance_id, subscription))
    return members
