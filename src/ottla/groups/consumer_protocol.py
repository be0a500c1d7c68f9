"""The consumer protocol (KIP-848): what ConsumerGroupHeartbeat and its time-outs do to a `ConsumerGroup`.

A heartbeat runs through five steps, each of which may add records: who is it (join, return, epoch check) → what does it want
(subscription, regular expressions) → has anything changed for the group (new group epoch) → what should everybody have (new
target assignment) → bring this member one step nearer (`reconcile`). When nothing changes, it touches the group, the member
and one deadline, and writes nothing.

Regular expressions are resolved at once, with RE2, instead of in the background: a member gets its topics with its first
heartbeat. They are resolved again when any topic changes.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from ottla.groups.assignors import ASSIGNORS
from ottla.groups.assignors.spec import GroupSpec, MemberSpec
from ottla.groups.consumer import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Assignment,
    ConsumerGroup,
    Member,
    MemberState,
    ResolvedRegex,
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    regex_record,
    target_epoch_record,
    target_record,
)
from ottla.groups.context import Context, Topics
from ottla.groups.draft import Draft, MemberRevocation, MemberSession, TopicsSeen
from ottla.groups.migration import downgrade, may_downgrade
from ottla.groups.reconcile import Goal, Reported, reconcile
from ottla.groups.records import GroupRecord
from ottla.groups.regex import compile_regex, matching
from ottla.groups.working import Working, cancel_timers, metadata_hash
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import uuid_text
from ottla.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicPartitions
from ottla.protocol.messages.group_records import ConsumerGroupPartitionMetadataKey

FIRST_VERSION_WITH_CLIENT_MEMBER_ID = 1  # KIP-1082


def check_request(request: ConsumerGroupHeartbeatRequest, context: Context) -> None:
    """What Kafka refuses whatever the group's state."""
    epoch = request.member_epoch
    if context.version >= FIRST_VERSION_WITH_CLIENT_MEMBER_ID or epoch > 0 or epoch == LEAVE_EPOCH:
        _refuse(not request.member_id.strip(), "MemberId can't be empty.")
    _refuse(not request.group_id.strip(), "GroupId can't be empty.")
    _refuse(request.instance_id is not None and not request.instance_id.strip(), "InstanceId can't be empty.")
    _refuse(request.rack_id is not None and not request.rack_id.strip(), "RackId can't be empty.")
    if epoch == JOIN_EPOCH:
        _refuse(request.rebalance_timeout_ms == -1, "RebalanceTimeoutMs must be provided in first request.")
        _refuse(
            request.topic_partitions is None or bool(request.topic_partitions), "TopicPartitions must be empty when (re-)joining."
        )
        _refuse(
            request.subscribed_topic_names is None and request.subscribed_topic_regex is None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )
    elif epoch == STATIC_LEAVE_EPOCH:
        _refuse(request.instance_id is None, "InstanceId can't be null.")
    else:
        _refuse(epoch < STATIC_LEAVE_EPOCH, "MemberEpoch is invalid.")
    assignors = context.settings.consumer_assignors
    if request.server_assignor is not None and request.server_assignor not in assignors:
        message = f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}."
        raise ApiError(ErrorCode.UNSUPPORTED_ASSIGNOR, message)


def _refuse(wrong: bool, message: str) -> None:
    if wrong:
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


# The heartbeat ---------------------------------------------------------------------------------------------------------


def heartbeat(working: Working, request: ConsumerGroupHeartbeatRequest, context: Context) -> None:
    draft, group_id = working.draft, working.group.group_id
    check_room(working.group, request.member_id, context)
    reported = None if request.topic_partitions is None else {t.topic_id: t.partitions for t in request.topic_partitions}
    before = _identify(working, request, reported, context)
    subscription_changed = _update_member(working, before, request, context)
    update_epoch(working, subscription_changed, context)
    update_target(working, context)
    after = bring_nearer(working, before.member_id, subscription_changed, reported, context)
    settings = context.settings_for(group_id)
    draft.timers[MemberSession(group_id, after.member_id)] = settings.consumer_session_timeout_ms
    reply = ConsumerGroupHeartbeatResponse(
        member_id=after.member_id, member_epoch=after.epoch, heartbeat_interval_ms=settings.consumer_heartbeat_interval_ms
    )
    says_all = request.rebalance_timeout_ms != -1 and reported is not None
    says_all = says_all and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
    if request.member_epoch == JOIN_EPOCH or says_all or _plain(before) != _plain(after):
        reply.assignment = ConsumerGroupHeartbeatResponse.Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(after.assigned[topic_id]))
                for topic_id in sorted(after.assigned)
            ]
        )
    draft.reply(context.ticket, reply)


def check_room(group: ConsumerGroup, member_id: str, context: Context) -> None:
    limit = context.settings.consumer_group_max_size
    if len(group.members) >= limit and member_id not in group.members:
        message = f"The consumer group has reached its maximum capacity of {limit} members."
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)


def _plain(member: Member) -> dict[bytes, set[int]]:
    return {topic_id: set(partitions) for topic_id, partitions in member.assigned.items()}


# Step 1: who is it? ----------------------------------------------------------------------------------------------------


def _identify(working: Working, request: ConsumerGroupHeartbeatRequest, reported: Reported, context: Context) -> Member:
    group = working.group
    joining = request.member_epoch == JOIN_EPOCH
    member_id = request.member_id or uuid_text(context.new_member_id)
    if request.instance_id is None:
        member = group.members.get(member_id, Member(member_id)) if joining else group.member(member_id)
        _check_epoch(member, request.member_epoch, reported)
        return member
    existing_id = group.static_members.get(request.instance_id)
    if not joining:
        member = static_member(group, request.instance_id, member_id)
        _check_epoch(member, request.member_epoch, reported)
        return member
    if existing_id is None:
        return group.members.get(member_id, Member(member_id))
    existing = group.members[existing_id]
    if existing.classic is None and existing.epoch != STATIC_LEAVE_EPOCH:
        message = (
            f"Static member {member_id} with instance id {request.instance_id} cannot join the group "
            f"because the instance id is owned by {existing_id} member."
        )
        raise ApiError(ErrorCode.UNRELEASED_INSTANCE_ID, message)
    return take_over(working, existing, member_id)


def static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> Member:
    existing_id = group.static_members.get(instance_id)
    if existing_id is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if existing_id != member_id:
        message = f"Static member {member_id} with instance id {instance_id} was fenced by member {existing_id}."
        raise ApiError(ErrorCode.FENCED_INSTANCE_ID, message)
    return group.members[existing_id]


def take_over(working: Working, old: Member, member_id: str) -> Member:
    """A static member came back within its session, or with the other protocol: the new one inherits subscription, target and partitions."""
    group_id = working.group.group_id
    target = working.group.target.get(old.member_id, {})
    new = replace(old, member_id=member_id, epoch=0, previous_epoch=0)
    for record in member_tombstones(group_id, old.member_id):
        working.emit(record)
    working.emit(member_record(group_id, new))
    working.emit(target_record(group_id, member_id, target))
    working.emit(current_record(group_id, new))
    if old.member_id != member_id:
        cancel_timers(working.draft, group_id, old.member_id)
    return new


def _check_epoch(member: Member, epoch: int, reported: Reported) -> None:
    if epoch == JOIN_EPOCH or epoch == member.epoch:
        return
    # The reply that told it the new epoch may be lost: the previous one will do while it owns no more than it was given.
    if epoch < member.epoch and epoch == member.previous_epoch and _is_subset(reported, member):
        return
    relation = "greater" if epoch > member.epoch else "smaller"
    message = (
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.epoch}). The member must abandon all its partitions and rejoin."
    )
    raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _is_subset(reported: Reported, member: Member) -> bool:
    if reported is None:
        return False
    return all(p in member.assigned.get(topic_id, {}) for topic_id, partitions in reported.items() for p in partitions)


# Step 2: what does it want? --------------------------------------------------------------------------------------------


def _update_member(working: Working, before: Member, request: ConsumerGroupHeartbeatRequest, context: Context) -> bool:
    """Record what the heartbeat says about the member; True when its subscription changed."""
    is_known = before.member_id in working.group.members and before.classic is None
    if is_known and _says_nothing_new(before, request, context):
        return False
    names = request.subscribed_topic_names
    updated = replace(
        before,
        instance_id=request.instance_id if request.instance_id is not None else before.instance_id,
        rack_id=request.rack_id if request.rack_id is not None else before.rack_id,
        rebalance_timeout_ms=before.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
        server_assignor=request.server_assignor if request.server_assignor is not None else before.server_assignor,
        topic_names=before.topic_names if names is None else frozenset(names),
        topic_regex=before.topic_regex if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        client_id=context.client_id,
        client_host=context.client_host,
        classic=None,
    )
    if updated.topic_regex and updated.topic_regex != before.topic_regex:
        compile_regex(updated.topic_regex)  # raises INVALID_REGULAR_EXPRESSION, before anything is written
    if updated != before or before.member_id not in working.group.members:
        working.emit(member_record(working.group.group_id, updated))
    return updated.topic_names != before.topic_names or (updated.topic_regex or "") != (before.topic_regex or "")


def _says_nothing_new(member: Member, request: ConsumerGroupHeartbeatRequest, context: Context) -> bool:
    """The usual heartbeat: alive, and nothing else."""
    return (
        request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.rebalance_timeout_ms == -1
        and request.rack_id is None
        and request.server_assignor is None
        and request.instance_id in (None, member.instance_id)
        and member.client_id == context.client_id
        and member.client_host == context.client_host
    )


def _update_regexes(working: Working, topics_changed: bool, context: Context) -> bool:
    """Resolve what is not resolved, forget what nobody uses; True when the matching topics changed."""
    group_id = working.group.group_id
    in_use = {member.topic_regex for member in working.group.members.values() if member.topic_regex}
    changed = False
    for regex in sorted(working.group.regexes.keys() - in_use):
        working.emit(regex_record(group_id, regex, None))
    for regex in sorted(in_use):
        known = working.group.regexes.get(regex)
        if known is not None and not topics_changed:
            continue
        topics = matching(regex, context.topics.by_name)
        if known is None or known.topics != topics:
            working.emit(regex_record(group_id, regex, ResolvedRegex(topics, context.topics.version, context.now_ms)))
            changed |= known is not None or bool(topics)
    return changed


# Step 3: has anything changed for the group? ---------------------------------------------------------------------------


def update_epoch(working: Working, subscription_changed: bool, context: Context) -> None:
    group = working.group
    topics_changed = group.topics_seen != context.topics.version
    if not subscription_changed and not topics_changed:
        return
    regexes_changed = _update_regexes(working, topics_changed, context)
    group = working.group
    hashed = metadata_hash(group.subscribed_topics(), context.topics)
    if subscription_changed or regexes_changed or hashed != group.metadata_hash:
        working.emit(epoch_record(group.group_id, group.epoch + 1, hashed))
    if group.has_partition_metadata:
        working.emit(GroupRecord(ConsumerGroupPartitionMetadataKey(group_id=group.group_id), None))
    if topics_changed:
        working.draft.changes.append(TopicsSeen(group.group_id, context.topics.version))


# Step 4: what should everybody have? -----------------------------------------------------------------------------------


def update_target(working: Working, context: Context) -> None:
    group = working.group
    if group.assignment_epoch >= group.epoch:
        return
    interval_ms = context.settings_for(group.group_id).consumer_assignment_interval_ms
    since_ms = context.now_ms - group.assignment_timestamp_ms
    if group.assignment_timestamp_ms and 0 <= since_ms < interval_ms:
        # A later heartbeat will do it, for all the changes until then at once. A clock that was set back is not waited for
        # (Kafka 4.3 does, and the group stands still for as long).
        return
    assignor = ASSIGNORS[group.preferred_assignor() or context.settings.consumer_assignors[0]]
    assignment = assignor(_spec(group, context.topics))
    for member_id in group.members:
        target: Assignment = assignment.get(member_id, {})
        if group.target.get(member_id) != target:
            working.emit(target_record(group.group_id, member_id, target))
    working.emit(target_epoch_record(group.group_id, group.epoch, context.now_ms))


def _spec(group: ConsumerGroup, topics: Topics) -> GroupSpec:
    members = {
        member.member_id: MemberSpec(
            topic_ids=_topic_ids(group, member, topics),
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            target=group.target.get(member.member_id, {}),
        )
        for member in group.members.values()
    }
    wanted = frozenset().union(*(member.topic_ids for member in members.values()))
    return GroupSpec(members, {topic_id: topics.by_id[topic_id] for topic_id in wanted})


def _topic_ids(group: ConsumerGroup, member: Member, topics: Topics) -> frozenset[bytes]:
    return frozenset(topics.by_name[name].topic_id for name in group.topics_of(member) if name in topics.by_name)


# Step 5: bring this member nearer --------------------------------------------------------------------------------------


def bring_nearer(working: Working, member_id: str, subscription_changed: bool, reported: Reported, context: Context) -> Member:
    group = working.group
    member = group.members[member_id]
    if not subscription_changed and member.has_reached(group.assignment_epoch):
        return member
    goal = Goal(
        epoch=group.assignment_epoch,
        target=group.target.get(member_id, {}),
        subscribed_topic_ids=_topic_ids(group, member, context.topics),
        owners=group.owners,
        subscription_changed=subscription_changed,
    )
    moved = reconcile(member, goal, reported)
    if moved != member:
        working.emit(current_record(group.group_id, moved))
        unrevoked = moved.state is MemberState.UNREVOKED_PARTITIONS
        working.draft.timers[MemberRevocation(group.group_id, member_id)] = moved.rebalance_timeout_ms if unrevoked else None
    return moved


# Leaving and dying -----------------------------------------------------------------------------------------------------


def leave(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, context: Context, draft: Draft) -> None:
    if request.instance_id is None:
        member = group.member(request.member_id)
    else:
        member = static_member(group, request.instance_id, request.member_id)
    if request.instance_id is not None and request.member_epoch == STATIC_LEAVE_EPOCH:
        # It will be back: its partitions wait for it until its session ends.
        assigned = {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in member.assigned.items()}
        away = replace(member, epoch=STATIC_LEAVE_EPOCH, assigned=assigned, revoking={})
        draft.records.append(current_record(group.group_id, away))
    else:
        fence(group, {member.member_id}, context, draft)
    draft.reply(context.ticket, ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch))


def fence(group: ConsumerGroup, leaving: AbstractSet[str], context: Context, draft: Draft) -> None:
    """Remove members; the others get their partitions as they next report."""
    if not leaving:
        return
    for member_id in leaving:
        cancel_timers(draft, group.group_id, member_id)
    if may_downgrade(group, leaving, context.settings, len(group.members) - len(leaving)):
        downgrade(group, leaving, group.epoch, True, context, draft)
        return
    working = Working(group, draft)
    for member_id in sorted(leaving):
        for record in member_tombstones(group.group_id, member_id):
            working.emit(record)
    _update_regexes(working, False, context)
    hashed = metadata_hash(working.group.subscribed_topics(), context.topics)
    working.emit(epoch_record(group.group_id, group.epoch + 1, hashed))


def session_ended(group: ConsumerGroup, member_id: str, context: Context, draft: Draft) -> None:
    """Also when a member of the classic protocol does not join or sync in time."""
    if member_id in group.members:
        fence(group, {member_id}, context, draft)


def revocation_ended(group: ConsumerGroup, member_id: str, context: Context, draft: Draft) -> None:
    """It did not give up its partitions in time: they are taken from it."""
    member = group.members.get(member_id)
    if member is not None and member.state is MemberState.UNREVOKED_PARTITIONS:
        fence(group, {member_id}, context, draft)
