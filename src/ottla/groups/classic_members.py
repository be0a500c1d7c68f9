"""Members of the classic protocol in a consumer group: what JoinGroup, SyncGroup, Heartbeat and LeaveGroup do there.

Such a group is on its way from one protocol to the other (`migration`). The coordinator assigns, so nobody is the leader: a join
brings the member one step nearer to its target, as a heartbeat does with the others, and the sync tells it what it has. Where it
must give something up or may take more, its heartbeat is answered REBALANCE_IN_PROGRESS, and it joins again.
"""

from __future__ import annotations

from dataclasses import replace

from ottla.groups import consumer_protocol, embedded, migration
from ottla.groups.classic import CONSUMER_PROTOCOL_TYPE
from ottla.groups.classic_protocol import FIRST_VERSION_WITH_KNOWN_MEMBER_ID, join_error
from ottla.groups.consumer import ClassicSide, ConsumerGroup, Member, MemberState, member_record
from ottla.groups.context import Context
from ottla.groups.draft import ClassicJoin, ClassicSync, Draft, MemberSession
from ottla.groups.reconcile import Reported
from ottla.groups.working import Working
from ottla.model.errors import ApiError, ErrorCode, ProtocolError
from ottla.model.ids import uuid_text
from ottla.protocol.messages.classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolSubscription


def join(group: ConsumerGroup, request: JoinGroupRequest, context: Context, draft: Draft) -> None:
    """The group has members."""
    member_id = request.member_id or uuid_text(context.new_member_id)
    consumer_protocol.check_room(group, member_id, context)
    _check_protocols(group, request)
    if not request.member_id and request.group_instance_id is None and context.version >= FIRST_VERSION_WITH_KNOWN_MEMBER_ID:
        draft.reply(context.ticket, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        return
    try:
        subscription = embedded.read_subscription(request.protocols[0].metadata)
    except ProtocolError:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR) from None
    working = Working(group, draft)
    replaced = group.static_members.get(request.group_instance_id) if request.group_instance_id is not None else None
    before = _identify(working, member_id, request)
    changed = _update_member(working, before, request, subscription, context)
    consumer_protocol.update_epoch(working, changed, context)
    reported: Reported = embedded.by_topic_id(subscription.owned_partitions, context.topics)
    if replaced is not None and migration.may_downgrade(group, {replaced}, context.settings, len(group.members)):
        after = _join_last(working, group, member_id, changed, reported, context)
    else:
        consumer_protocol.update_target(working, context)
        after = consumer_protocol.bring_nearer(working, member_id, changed, reported, context)
        draft.timers[MemberSession(group.group_id, member_id)] = request.session_timeout_ms
        draft.timers[ClassicSync(group.group_id, member_id)] = request.rebalance_timeout_ms
    draft.timers[ClassicJoin(group.group_id, member_id)] = None
    reply = JoinGroupResponse(
        member_id=member_id,
        generation_id=after.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=request.protocols[0].name,
    )
    draft.reply(context.ticket, reply)


def _check_protocols(group: ConsumerGroup, request: JoinGroupRequest) -> None:
    """At least one of its protocols must be spoken by every member of the classic protocol there is."""
    others = [{name for name, _ in member.classic.protocols} for member in group.members.values() if member.classic is not None]
    offered = [protocol.name for protocol in request.protocols]
    shared = any(all(name in names for names in others) for name in offered)
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not shared:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _identify(working: Working, member_id: str, request: JoinGroupRequest) -> Member:
    group, instance_id = working.group, request.group_instance_id
    if instance_id is None:
        return group.members.get(member_id, Member(member_id))
    if request.member_id:
        return consumer_protocol.static_member(group, instance_id, member_id)
    existing_id = group.static_members.get(instance_id)
    if existing_id is None:
        return Member(member_id)
    return consumer_protocol.take_over(working, group.members[existing_id], member_id)


def _update_member(
    working: Working, before: Member, request: JoinGroupRequest, subscription: ConsumerProtocolSubscription, context: Context
) -> bool:
    """Record what the join says about the member; True when its subscription changed."""
    updated = replace(
        before,
        instance_id=request.group_instance_id if request.group_instance_id is not None else before.instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=frozenset(subscription.topics),
        topic_regex="",
        client_id=context.client_id,
        client_host=context.client_host,
        classic=ClassicSide(request.session_timeout_ms, tuple((row.name, row.metadata) for row in request.protocols)),
    )
    if updated != before or before.member_id not in working.group.members:
        working.emit(member_record(working.group.group_id, updated))
    return updated.topic_names != before.topic_names or bool(before.topic_regex)


def _join_last(
    working: Working, group: ConsumerGroup, member_id: str, changed: bool, reported: Reported, context: Context
) -> Member:
    """It takes the place of the last member of the consumer protocol: the group is a classic one from here on."""
    rebalance = group.assignment_epoch < working.group.epoch
    after = working.group.members[member_id]
    if not rebalance:
        after = consumer_protocol.bring_nearer(working, member_id, changed, reported, context)
    migration.downgrade(working.group, frozenset(), group.epoch, rebalance, context, working.draft)
    return after


# SyncGroup and Heartbeat -----------------------------------------------------------------------------------------------


def sync(group: ConsumerGroup, request: SyncGroupRequest, context: Context, draft: Draft) -> None:
    member, side = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    for asked, known in ((request.protocol_type, CONSUMER_PROTOCOL_TYPE), (request.protocol_name, side.protocols[0][0])):
        if asked is not None and asked != known:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.assignment_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        # Not an error for the draft, which would be dropped with its timer.
        _ask_to_join(group, member, draft)
        draft.reply(context.ticket, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        return
    draft.timers[ClassicSync(group.group_id, member.member_id)] = None
    draft.timers[MemberSession(group.group_id, member.member_id)] = side.session_timeout_ms
    held = {topic_id: set(partitions) for topic_id, partitions in member.assigned.items()}
    assignment = embedded.write_assignment(held, context.topics, embedded.version_of(side.protocols[0][1]))
    reply = SyncGroupResponse(protocol_type=request.protocol_type, protocol_name=request.protocol_name, assignment=assignment)
    draft.reply(context.ticket, reply)


def heartbeat(group: ConsumerGroup, request: HeartbeatRequest, context: Context, draft: Draft) -> None:
    member, side = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    draft.timers[MemberSession(group.group_id, member.member_id)] = side.session_timeout_ms
    may_take_more = member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member)
    code = ErrorCode.NONE
    if member.epoch < group.assignment_epoch or member.state is MemberState.UNREVOKED_PARTITIONS or may_take_more:
        _ask_to_join(group, member, draft)
        code = ErrorCode.REBALANCE_IN_PROGRESS
    draft.reply(context.ticket, HeartbeatResponse(error_code=code))


def _ask_to_join(group: ConsumerGroup, member: Member, draft: Draft) -> None:
    draft.timers_if_absent[ClassicJoin(group.group_id, member.member_id)] = member.rebalance_timeout_ms


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> tuple[Member, ClassicSide]:
    member = group.member(member_id) if instance_id is None else consumer_protocol.static_member(group, instance_id, member_id)
    if member.classic is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation != member.epoch:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    return member, member.classic


# LeaveGroup ------------------------------------------------------------------------------------------------------------


def leave(group: ConsumerGroup, request: LeaveGroupRequest, context: Context, draft: Draft) -> None:
    """Also how an administrator removes members, whichever protocol they speak."""
    results, leaving = [], set()
    for identity in request.members:
        code = ErrorCode.NONE
        try:
            leaving.add(_leaving(group, identity).member_id)
        except ApiError as error:
            code = error.code
        results.append(
            LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
            )
        )
    consumer_protocol.fence(group, leaving, context, draft)
    draft.reply(context.ticket, LeaveGroupResponse(members=results))


def _leaving(group: ConsumerGroup, identity: LeaveGroupRequest.MemberIdentity) -> Member:
    if identity.group_instance_id is None:
        return group.member(identity.member_id)
    known = identity.member_id or group.static_members.get(identity.group_instance_id, "")
    return consumer_protocol.static_member(group, identity.group_instance_id, known)
