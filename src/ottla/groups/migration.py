"""A group that changes its protocol while members are in it (KIP-848, "online migration").

    classic → consumer   when a first member of the consumer protocol joins; the others stay in it with the classic protocol
    consumer → classic   when the last member of the consumer protocol is gone and others are left

Every member keeps its partitions: the last assignment becomes the target, and the target the assignment. What follows is an
ordinary rebalance of the new protocol. `group.consumer.migration.policy` says which of the two may happen.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from ottla.groups import classic, classic_protocol, embedded
from ottla.groups.classic import CONSUMER_PROTOCOL_TYPE, ClassicGroup, State
from ottla.groups.consumer import (
    Assignment,
    ClassicSide,
    ConsumerGroup,
    Member,
    current_record,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
)
from ottla.groups.context import Context, GroupSettings
from ottla.groups.draft import Draft, GroupReplaced, JoinPhase, MemberSession, SyncPhase
from ottla.groups.working import Working, cancel_timers, metadata_hash
from ottla.model.errors import ApiError, ErrorCode, ProtocolError
from ottla.protocol.messages.classic_groups import SyncGroupResponse

_UPGRADES, _DOWNGRADES = {"upgrade", "bidirectional"}, {"downgrade", "bidirectional"}


# Upgrade ---------------------------------------------------------------------------------------------------------------


def upgrade(group: ClassicGroup, context: Context, draft: Draft) -> Working:
    """The same group as one of the consumer protocol. Raises GROUP_ID_NOT_FOUND when it must stay what it is."""
    _check_upgrade(group, context.settings)
    for waiting in group.members.values():
        if waiting.join_ticket is not None:
            draft.reply(waiting.join_ticket, classic_protocol.join_error(ErrorCode.REBALANCE_IN_PROGRESS, waiting.member_id))
        if waiting.sync_ticket is not None:
            draft.reply(waiting.sync_ticket, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    draft.timers[JoinPhase(group.group_id)] = draft.timers[SyncPhase(group.group_id)] = None
    draft.records += group.tombstones()
    working = Working(ConsumerGroup(group.group_id), draft)
    taken: set[tuple[bytes, int]] = set()
    members = [_upgraded(group, member, taken, context) for member in group.members.values()]
    for member in members:
        working.emit(member_record(group.group_id, member))
    hashed = metadata_hash(working.group.subscribed_topics(), context.topics)
    working.emit(epoch_record(group.group_id, group.generation, hashed))
    for member in members:
        target: Assignment = {topic_id: set(partitions) for topic_id, partitions in member.assigned.items()}
        working.emit(target_record(group.group_id, member.member_id, target))
    working.emit(target_epoch_record(group.group_id, group.generation, 0))
    for member in members:
        working.emit(current_record(group.group_id, member))
        assert member.classic is not None
        draft.timers[MemberSession(group.group_id, member.member_id)] = member.classic.session_timeout_ms
    return working


def _check_upgrade(group: ClassicGroup, settings: GroupSettings) -> None:
    reason = None
    if settings.consumer_migration_policy not in _UPGRADES:
        reason = "online upgrade is disabled"
    elif not group.uses_consumer_protocol:
        reason = "the group does not use the consumer embedded protocol"
    elif len(group.members) > settings.consumer_group_max_size:
        reason = "the group size exceeds the consumer group maximum size"
    if reason is not None:
        raise _cannot_upgrade(group, reason)


def _cannot_upgrade(group: ClassicGroup, reason: str) -> ApiError:
    message = f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}."
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _upgraded(group: ClassicGroup, member: classic.Member, taken: set[tuple[bytes, int]], context: Context) -> Member:
    """A leader that gave a partition to two members cannot be undone: the first keeps it."""
    try:
        subscription = embedded.read_subscription(member.metadata(group.protocol_name or group.select_protocol()))
        assignment = embedded.read_assignment(member.assignment) if member.assignment else None
    except ProtocolError:
        raise _cannot_upgrade(group, "the embedded consumer protocol is malformed") from None
    if assignment is not None and assignment.user_data:
        raise _cannot_upgrade(
            group,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default assignor "
            "before re-attempting the upgrade",
        )
    held = {} if assignment is None else embedded.by_topic_id(assignment.assigned_partitions, context.topics)
    for topic_id, partitions in held.items():
        held[topic_id] = [partition for partition in dict.fromkeys(partitions) if (topic_id, partition) not in taken]
        taken.update((topic_id, partition) for partition in held[topic_id])
    return Member(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=frozenset(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicSide(member.session_timeout_ms, member.protocols),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned={topic_id: dict.fromkeys(partitions, group.generation) for topic_id, partitions in held.items() if partitions},
    )


# Downgrade -------------------------------------------------------------------------------------------------------------


def may_downgrade(group: ConsumerGroup, without: AbstractSet[str], settings: GroupSettings, size: int) -> bool:
    """Whether the group, `without` these members, is a classic group of `size` members."""
    only_classic = all(member.classic is not None for member in group.members.values() if member.member_id not in without)
    allowed = settings.consumer_migration_policy in _DOWNGRADES
    return only_classic and allowed and 0 < size <= settings.group_max_size


def downgrade(
    group: ConsumerGroup, without: AbstractSet[str], generation: int, rebalance: bool, context: Context, draft: Draft
) -> None:
    """The same group, `without` these members, as one of the classic protocol."""
    draft.records += group.tombstones()
    made = ClassicGroup(group.group_id, context.now_ms)
    made.state, made.generation = State.STABLE, generation
    for member in group.members.values():
        cancel_timers(draft, group.group_id, member.member_id)
        if member.member_id not in without:
            made.add(_downgraded(member), CONSUMER_PROTOCOL_TYPE)
    made.choose_protocol()
    for again in list(made.members.values()):
        target = group.target.get(again.member_id, {})
        made.put(replace(again, assignment=_assignment(again.metadata(made.protocol_name), target, context)))
        draft.timers[MemberSession(group.group_id, again.member_id)] = again.session_timeout_ms
    draft.records.append(classic.group_record(made))
    if rebalance:
        classic_protocol.prepare_rebalance(made, context, draft)
    draft.changes.append(GroupReplaced(made))


def _downgraded(member: Member) -> classic.Member:
    assert member.classic is not None
    return classic.Member(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=member.classic.protocols,
    )


def _assignment(metadata: bytes, target: Assignment, context: Context) -> bytes:
    """In the version in which the member wrote its subscription; one that cannot be read gets the oldest."""
    try:
        version = embedded.version_of(metadata)
    except ProtocolError:
        version = 0
    return embedded.write_assignment(target, context.topics, version)
