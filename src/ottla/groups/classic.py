"""A group of the classic protocol as a value: its members, generation, leader and state.

    from                  to                    when
    Empty                 PreparingRebalance    a first member joins (and the initial delay starts)
    PreparingRebalance    CompletingRebalance   all known members have joined, or the time to join is over
    PreparingRebalance    Empty                 the time to join is over and nobody is left
    CompletingRebalance   Stable                the leader has synced with its assignments
    CompletingRebalance   PreparingRebalance    a member joins, leaves, changes its metadata, or fails to sync in time
    Stable                PreparingRebalance    a member joins, leaves, dies, changes its metadata; the leader rejoins
    Empty                 Dead                  the group is deleted or its last offset expires

A dead group is one that the shard no longer has. Each entry into CompletingRebalance or Empty from PreparingRebalance
starts a new generation, so generations only grow.

Invariants: the leader is a member, unless there is none; a member is awaited by at most one of join and sync; `pending_join`
(ids given out and not yet used, KIP-394) and `members` are disjoint; `pending_sync` is part of `members`.

Durable are the generation, protocol, leader and the members with their assignment, as of the last `GroupMetadata` record;
the rest (who waits for what) dies with the coordinator, and members find their way by the errors they get.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from ottla.groups.group import Drafted
from ottla.groups.offsets import PartitionCheck
from ottla.groups.records import GroupRecord
from ottla.model.errors import ApiError, ErrorCode, ProtocolError
from ottla.model.machine import Ticket
from ottla.protocol import codec
from ottla.protocol.messages import group_records as stored
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

CONSUMER_PROTOCOL_TYPE = "consumer"
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000  # how long a joining member of a first generation may wait without a heartbeat
NO_GENERATION = -1

Protocols = tuple[tuple[str, bytes], ...]


class State(StrEnum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_BEFORE = {
    State.EMPTY: {State.PREPARING_REBALANCE},
    State.PREPARING_REBALANCE: {State.EMPTY, State.COMPLETING_REBALANCE, State.STABLE},
    State.COMPLETING_REBALANCE: {State.PREPARING_REBALANCE},
    State.STABLE: {State.COMPLETING_REBALANCE},
    State.DEAD: set(State),
}


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols  # in the member's order of preference, each with its metadata
    assignment: bytes = b""
    is_new: bool = False  # has not yet seen a generation begin: it may time out although its join is parked
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether its own parked request vouches for it, so that it needs no heartbeat."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)


class ClassicGroup(Drafted):
    __slots__ = (
        "generation", "group_id", "initial_delay_ms", "initial_remaining_ms", "leader", "members", "new_member_added",
        "pending_join", "pending_sync", "previous_state", "protocol_name", "protocol_type", "state", "state_timestamp_ms",
        "static_members", "subscribed_topics", "supporters",
    )  # fmt: skip

    def __init__(self, group_id: str, now_ms: int | None = None) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.previous_state = State.DEAD
        self.state_timestamp_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}  # instance id → member id
        self.supporters: dict[str, int] = {}  # protocol → how many members offer it
        self.pending_join: frozenset[str] = frozenset()
        self.pending_sync: frozenset[str] = frozenset()
        self.new_member_added = False  # since the last step of the initial delay
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self.subscribed_topics: frozenset[str] | None = None  # None: not a group of consumers, or not understood

    # What it is ------------------------------------------------------------------------------------------------------

    @property
    def group_type(self) -> str:
        return "classic"

    @property
    def listed_protocol_type(self) -> str:
        return self.protocol_type or ""

    @property
    def state_name(self) -> str:
        return self.state

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def has_all_joined(self) -> bool:
        return not self.pending_join and all(member.join_ticket is not None for member in self.members.values())

    def awaiting_join(self) -> int:
        return sum(member.join_ticket is not None for member in self.members.values())

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether somebody with these protocols can be a member together with those there are."""
        if self.is_empty:
            return bool(protocol_type) and any(True for _ in names)
        everybody = len(self.members)
        return self.protocol_type == protocol_type and any(self.supporters.get(name, 0) == everybody for name in names)

    def is_subscribed_to(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all members offer."""
        candidates = {name for name, count in self.supporters.items() if count == len(self.members)}
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = member.vote(candidates)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=votes.__getitem__)

    # Who may do what -------------------------------------------------------------------------------------------------

    def check_member(self, member_id: str, group_instance_id: str | None) -> None:
        if group_instance_id is not None:
            existing = self.static_members.get(group_instance_id)
            if existing is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if existing != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)

    def check_offset_commit(
        self, member_id: str, group_instance_id: str | None, generation: int, transactional: bool, version: int
    ) -> PartitionCheck | None:
        if generation < 0 and self.is_empty:
            return None  # an administrator, or a consumer that assigns its partitions itself
        if generation >= 0 or member_id or group_instance_id is not None:
            self.check_member(member_id, group_instance_id)
            if generation != self.generation:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        elif not transactional and not self.is_empty:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not transactional and self.state is State.COMPLETING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        return None

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anybody may read the offsets of a classic group."""

    def check_offset_delete(self) -> None:
        if not self.is_empty and not self.uses_consumer_protocol:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        if not self.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def expiry_base_ms(self, commit_timestamp_ms: int) -> int | None:
        """The moment from which an offset's retention counts; None while its offsets may not expire."""
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.is_empty:
            return commit_timestamp_ms if self.state_timestamp_ms is None else self.state_timestamp_ms
        understood = self.uses_consumer_protocol and self.subscribed_topics is not None
        return commit_timestamp_ms if understood and self.state is State.STABLE else None

    def tombstones(self) -> Iterator[GroupRecord]:
        yield GroupRecord(stored.GroupMetadataKey(group=self.group_id), None)

    # How it changes, on a draft ----------------------------------------------------------------------------------------

    def move_to(self, state: State, now_ms: int) -> None:
        assert self.state in _BEFORE[state], f"group {self.group_id} cannot go from {self.state} to {state}"
        self.previous_state, self.state, self.state_timestamp_ms = self.state, state, now_ms

    def put(self, member: Member) -> None:
        """Replace a member of the same id, or add one."""
        old = self.members.get(member.member_id)
        if old is None or old.protocols != member.protocols:
            self._count(old, -1)
            self._count(member, 1)
        self.members[member.member_id] = member

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.put(member)
        self.pending_join -= {member.member_id}

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        self._count(member, -1)
        if member is not None and member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_join -= {member_id}
        self.pending_sync -= {member_id}

    def rename_static(self, old_id: str, new_id: str) -> None:
        """A static member came back under a new id; it keeps its place, and with it its order among the members."""
        member = replace(self.members[old_id], member_id=new_id, join_ticket=None, sync_ticket=None, is_new=False)
        assert member.group_instance_id is not None
        self.members = {new_id if key == old_id else key: value for key, value in self.members.items()}
        self.members[new_id] = member
        self.static_members[member.group_instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is among those who joined; False when nobody did."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_ticket is None:
            joined = next((member for member in self.members.values() if member.join_ticket is not None), None)
            if joined is None:
                return False
            self.leader = joined.member_id
        return True

    def begin_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.pending_sync = frozenset()
        self.choose_protocol()
        self.move_to(State.COMPLETING_REBALANCE if self.members else State.EMPTY, now_ms)

    def choose_protocol(self) -> None:
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self._parse_subscriptions()

    def _count(self, member: Member | None, step: int) -> None:
        for name, _ in member.protocols if member is not None else ():
            self.supporters[name] = self.supporters.get(name, 0) + step

    def _parse_subscriptions(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol or (self.members and self.protocol_name is None):
            return None
        topics: set[str] = set()
        for member in self.members.values():
            metadata = member.metadata(self.protocol_name)
            try:
                # Whatever its version says, a subscription starts with the fields of version 0.
                topics.update(codec.read_from(ConsumerProtocolSubscription, 0, metadata, 2)[0].topics)
            except ProtocolError:
                return None
        return frozenset(topics)


# Its records ---------------------------------------------------------------------------------------------------------


def group_record(group: ClassicGroup) -> GroupRecord:
    members = [
        stored.MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol_name),
            assignment=member.assignment,
        )
        for member in group.members.values()
    ]
    value = stored.GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader,
        current_state_timestamp=-1 if group.state_timestamp_ms is None else group.state_timestamp_ms,
        members=members,
    )
    return GroupRecord(stored.GroupMetadataKey(group=group.group_id), value)


def new_group_record(group: ClassicGroup) -> GroupRecord:
    """A group's first record, before it has a generation; it holds nobody, whoever may be joining."""
    timestamp = -1 if group.state_timestamp_ms is None else group.state_timestamp_ms
    value = stored.GroupMetadataValue(
        protocol_type="", generation=0, protocol=None, leader=None, current_state_timestamp=timestamp
    )
    return GroupRecord(stored.GroupMetadataKey(group=group.group_id), value)


def from_record(group_id: str, value: stored.GroupMetadataValue) -> ClassicGroup:
    group = ClassicGroup(group_id)
    group.generation = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.leader = value.leader
    group.state = State.STABLE if value.members else State.EMPTY
    group.state_timestamp_ms = None if value.current_state_timestamp < 0 else value.current_state_timestamp
    for member in value.members:
        loaded = Member(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.session_timeout if member.rebalance_timeout < 0 else member.rebalance_timeout,
            session_timeout_ms=member.session_timeout,
            protocols=((value.protocol or "", member.subscription),),
            assignment=member.assignment,
        )
        group.add(loaded, value.protocol_type)
    group.subscribed_topics = group._parse_subscriptions()
    return group
