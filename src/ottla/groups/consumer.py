"""A group of the consumer protocol (KIP-848) as a value: its members, epochs, target assignment and who owns what.

Three epochs, each catching up with the one before:

    group epoch        grows whenever members, subscriptions or subscribed topics change
    assignment epoch   the group epoch for which the target assignment was computed
    member epoch       the assignment epoch that a member has reached, or is on its way from

The group's state follows from them: Empty without members, Assigning while the target is behind, Reconciling while any
member is, Stable otherwise.

Everything here is durable: `apply` of a record is the only way to change a group, for live decisions (on a copy) and for
recovery alike. The one exception is `topics_seen`, which only saves work.

Invariant: a partition is owned by one member, namely the one that has it among `assigned` or `revoking`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from ottla.groups.group import Drafted
from ottla.groups.offsets import PartitionCheck
from ottla.groups.records import GroupRecord
from ottla.model.errors import ApiError, ErrorCode
from ottla.protocol.messages import group_records as stored

LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
JOIN_EPOCH = 0
INITIAL_EPOCH = 1  # so that a member that subscribes to nothing yet has an epoch other than a joining member's
FIRST_COMMIT_VERSION_WITH_MEMBER_EPOCH = 9
TOPICS_NEVER_SEEN = -1

Assignment = dict[bytes, set[int]]  # topic id → partitions
OwnedPartitions = dict[bytes, dict[int, int]]  # topic id → partition → the assignment epoch that gave it (KIP-1251)


class MemberState(IntEnum):
    STABLE = 0  # has reached the assignment epoch and all that is meant for it
    UNREVOKED_PARTITIONS = 1  # must give up partitions before it may go on to the next epoch
    UNRELEASED_PARTITIONS = 2  # has reached the epoch, but waits for partitions others still hold
    UNKNOWN = 127  # written by a newer coordinator


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """What is known of a member that speaks the classic protocol while its group is one of the consumer protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # in its order of preference, each with its metadata


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicSide | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: OwnedPartitions = field(default_factory=dict)
    revoking: OwnedPartitions = field(default_factory=dict)

    @property
    def stale_code(self) -> ErrorCode:
        """How an epoch that is not its own is called in its protocol."""
        return ErrorCode.STALE_MEMBER_EPOCH if self.classic is None else ErrorCode.ILLEGAL_GENERATION

    def has_reached(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch

    def partitions(self) -> Iterator[tuple[bytes, int]]:
        """What it owns, whether it may keep it or not."""
        for held in (self.assigned, self.revoking):
            for topic_id, partitions in held.items():
                yield from ((topic_id, partition) for partition in partitions)


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    topics: frozenset[str]
    version: int
    timestamp_ms: int


class ConsumerGroup(Drafted):
    __slots__ = (
        "assignment_epoch", "assignment_timestamp_ms", "epoch", "group_id", "has_partition_metadata", "members",
        "metadata_hash", "owners", "regexes", "static_members", "target", "topics_seen",
    )  # fmt: skip

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = INITIAL_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = INITIAL_EPOCH
        self.assignment_timestamp_ms = 0
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}  # instance id → member id
        self.target: dict[str, Assignment] = {}
        self.owners: dict[bytes, dict[int, str]] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.has_partition_metadata = False  # a record of Kafka before 4.1, to be removed
        self.topics_seen = TOPICS_NEVER_SEEN

    # What it is --------------------------------------------------------------------------------------------------------

    @property
    def group_type(self) -> str:
        return "consumer"

    @property
    def listed_protocol_type(self) -> str:
        return "consumer"

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        reached = all(member.has_reached(self.assignment_epoch) for member in self.members.values())
        return "Stable" if reached else "Reconciling"

    def topics_of(self, member: Member) -> frozenset[str]:
        resolved = self.regexes.get(member.topic_regex) if member.topic_regex else None
        return member.topic_names if resolved is None else member.topic_names | resolved.topics

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*(self.topics_of(member) for member in self.members.values()))

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.topics_of(member) for member in self.members.values())

    def subscribers_of_regex(self, regex: str) -> int:
        return sum(member.topic_regex == regex for member in self.members.values())

    def preferred_assignor(self) -> str | None:
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.server_assignor is not None:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        return max(votes, key=votes.__getitem__) if votes else None

    def classic_members(self) -> list[Member]:
        return [member for member in self.members.values() if member.classic is not None]

    def waits_for_others(self, member: Member) -> bool:
        """Whether something that is meant for the member is still held by another."""
        for topic_id, partitions in self.target.get(member.member_id, {}).items():
            held, owners = member.assigned.get(topic_id, {}), self.owners.get(topic_id, {})
            if any(partition in owners for partition in partitions - held.keys()):
                return True
        return False

    def expiry_base_ms(self, commit_timestamp_ms: int) -> int | None:
        return commit_timestamp_ms

    # Who may do what ---------------------------------------------------------------------------------------------------

    def member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def check_offset_commit(
        self, member_id: str, group_instance_id: str | None, generation: int, transactional: bool, version: int
    ) -> PartitionCheck | None:
        if generation < 0 and not self.members:
            return None
        if transactional and generation == -1 and not member_id and group_instance_id is None:
            return None  # a producer that does not say which consumer it works for
        member = self.member(member_id)
        if not transactional and member.classic is None and version < FIRST_COMMIT_VERSION_WITH_MEMBER_EPOCH:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
            )
        if generation == member.epoch:
            return None
        if generation > member.epoch:
            message = f"Received member epoch {generation} is newer than current member epoch {member.epoch}."
            raise ApiError(member.stale_code, message)

        def check(topic: str, topic_id: bytes, partition: int) -> None:
            """An older epoch will do for a partition that has been the member's ever since."""
            given = member.assigned.get(topic_id, {}).get(partition)
            if given is None:
                given = member.revoking.get(topic_id, {}).get(partition)
            if given is None:
                message = f"Partition {topic}-{partition} is not assigned or pending revocation for member."
                raise ApiError(member.stale_code, message)
            if generation < given:
                message = f"Received member epoch {generation} is older than assignment epoch {given} for partition {topic}-{partition}."
                raise ApiError(member.stale_code, message)

        return check

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        member = self.member(member_id or "")
        if member_epoch != member.epoch:
            message = f"The received member epoch {member_epoch} does not match the expected member epoch {member.epoch}."
            raise ApiError(member.stale_code, message)

    def check_offset_delete(self) -> None:
        """Subscriptions protect the offsets in use, topic by topic."""

    def check_delete(self) -> None:
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def tombstones(self) -> Iterator[GroupRecord]:
        for member_id in self.members:
            yield from member_tombstones(self.group_id, member_id)
        yield GroupRecord(stored.ConsumerGroupTargetAssignmentMetadataKey(group_id=self.group_id), None)
        for regex in self.regexes:
            yield regex_record(self.group_id, regex, None)
        yield GroupRecord(stored.ConsumerGroupPartitionMetadataKey(group_id=self.group_id), None)
        yield GroupRecord(stored.ConsumerGroupMetadataKey(group_id=self.group_id), None)

    # How it changes ----------------------------------------------------------------------------------------------------

    def apply(self, key: Any, value: Any) -> None:
        """Any record of a consumer group, except the tombstone of the group itself."""
        _APPLY[type(key)](self, key, value)

    def _apply_metadata(self, key: stored.ConsumerGroupMetadataKey, value: stored.ConsumerGroupMetadataValue | None) -> None:
        if value is not None:
            self.epoch, self.metadata_hash = value.epoch, value.metadata_hash

    def _apply_partition_metadata(self, key: Any, value: Any) -> None:
        self.has_partition_metadata = value is not None

    def _apply_member(
        self, key: stored.ConsumerGroupMemberMetadataKey, value: stored.ConsumerGroupMemberMetadataValue | None
    ) -> None:
        old = self.members.get(key.member_id)
        if value is None:
            if old is not None:
                self._own(old, None)
                del self.members[key.member_id]
                if old.instance_id is not None and self.static_members.get(old.instance_id) == key.member_id:
                    del self.static_members[old.instance_id]
            return
        self.members[key.member_id] = replace(
            old or Member(key.member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=frozenset(value.subscribed_topic_names),
            topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=_classic_side(value.classic_member_metadata),
        )
        if value.instance_id is not None:
            self.static_members[value.instance_id] = key.member_id

    def _apply_target_metadata(self, key: Any, value: stored.ConsumerGroupTargetAssignmentMetadataValue | None) -> None:
        self.assignment_epoch = -1 if value is None else value.assignment_epoch
        self.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp

    def _apply_target(
        self, key: stored.ConsumerGroupTargetAssignmentMemberKey, value: stored.ConsumerGroupTargetAssignmentMemberValue | None
    ) -> None:
        if value is None:
            self.target.pop(key.member_id, None)
        else:
            self.target[key.member_id] = {topic.topic_id: set(topic.partitions) for topic in value.topic_partitions}

    def _apply_current(
        self, key: stored.ConsumerGroupCurrentMemberAssignmentKey, value: stored.ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        old = self.members.get(key.member_id)
        if value is None:
            if old is not None:
                self._own(old, None)
                self.members[key.member_id] = replace(old, epoch=-1, previous_epoch=-1, assigned={}, revoking={})
            return
        states = set(MemberState)
        new = replace(
            old or Member(key.member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if value.state in states else MemberState.UNKNOWN,
            assigned=_with_epochs(value.assigned_partitions, value.member_epoch),
            revoking=_with_epochs(value.partitions_pending_revocation, value.member_epoch),
        )
        self._own(old, new)
        self.members[key.member_id] = new

    def _apply_regex(
        self, key: stored.ConsumerGroupRegularExpressionKey, value: stored.ConsumerGroupRegularExpressionValue | None
    ) -> None:
        if value is None:
            self.regexes.pop(key.regular_expression, None)
        else:
            self.regexes[key.regular_expression] = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)

    def _own(self, old: Member | None, new: Member | None) -> None:
        """Keep `owners` in step. The inner dictionaries are copied first: a draft shares them with the shard."""
        touched: set[bytes] = set()
        for member in (old, new):
            for topic_id, partition in member.partitions() if member is not None else ():
                if topic_id not in touched:
                    touched.add(topic_id)
                    self.owners[topic_id] = dict(self.owners.get(topic_id, {}))
                owners = self.owners[topic_id]
                if member is new:
                    owners[partition] = member.member_id  # type: ignore[union-attr]
                elif owners.get(partition) == member.member_id:  # type: ignore[union-attr]
                    del owners[partition]
        for topic_id in touched:
            if not self.owners[topic_id]:
                del self.owners[topic_id]


_APPLY: dict[type, Any] = {
    stored.ConsumerGroupMetadataKey: ConsumerGroup._apply_metadata,
    stored.ConsumerGroupPartitionMetadataKey: ConsumerGroup._apply_partition_metadata,
    stored.ConsumerGroupMemberMetadataKey: ConsumerGroup._apply_member,
    stored.ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroup._apply_target_metadata,
    stored.ConsumerGroupTargetAssignmentMemberKey: ConsumerGroup._apply_target,
    stored.ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroup._apply_current,
    stored.ConsumerGroupRegularExpressionKey: ConsumerGroup._apply_regex,
}
RECORD_KEYS = frozenset(_APPLY)


def _with_epochs(topics: list[stored.TopicPartitions], member_epoch: int) -> OwnedPartitions:
    """Coordinators before KIP-1251 wrote no epochs: then only the member's own epoch is known to be good."""
    return {
        topic.topic_id: dict(
            zip(topic.partitions, topic.assignment_epochs or [member_epoch] * len(topic.partitions), strict=True)
        )
        for topic in topics
    }


# Its records -----------------------------------------------------------------------------------------------------------


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> GroupRecord:
    value = stored.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return GroupRecord(stored.ConsumerGroupMetadataKey(group_id=group_id), value)


def member_record(group_id: str, member: Member) -> GroupRecord:
    value = stored.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=_classic_metadata(member.classic),
    )
    return GroupRecord(stored.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value)


_Classic = stored.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata


def _classic_side(value: _Classic | None) -> ClassicSide | None:
    if value is None:
        return None
    return ClassicSide(value.session_timeout_ms, tuple((row.name, row.metadata) for row in value.supported_protocols))


def _classic_metadata(side: ClassicSide | None) -> _Classic | None:
    if side is None:
        return None
    rows = [_Classic.ClassicProtocol(name=name, metadata=metadata) for name, metadata in side.protocols]
    return _Classic(session_timeout_ms=side.session_timeout_ms, supported_protocols=rows)


def target_record(group_id: str, member_id: str, assignment: Assignment) -> GroupRecord:
    topic = stored.ConsumerGroupTargetAssignmentMemberValue.TopicPartition
    value = stored.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[topic(topic_id=topic_id, partitions=sorted(assignment[topic_id])) for topic_id in sorted(assignment)]
    )
    return GroupRecord(stored.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> GroupRecord:
    value = stored.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms)
    return GroupRecord(stored.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def current_record(group_id: str, member: Member) -> GroupRecord:
    value = stored.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_stored(member.assigned),
        partitions_pending_revocation=_stored(member.revoking),
    )
    return GroupRecord(stored.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value)


def _stored(owned: OwnedPartitions) -> list[stored.TopicPartitions]:
    return [
        stored.TopicPartitions(
            topic_id=topic_id,
            partitions=sorted(owned[topic_id]),
            assignment_epochs=[owned[topic_id][partition] for partition in sorted(owned[topic_id])],
        )
        for topic_id in sorted(owned)
    ]


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex | None) -> GroupRecord:
    value = None
    if resolved is not None:
        value = stored.ConsumerGroupRegularExpressionValue(
            topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
        )
    return GroupRecord(stored.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value)


def member_tombstones(group_id: str, member_id: str) -> Iterator[GroupRecord]:
    """In this order: what a member owns must be gone before the member is."""
    yield GroupRecord(stored.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None)
    yield GroupRecord(stored.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None)
    yield GroupRecord(stored.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None)
