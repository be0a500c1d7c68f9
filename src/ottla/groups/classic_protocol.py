"""The classic protocol: what JoinGroup, SyncGroup, Heartbeat, LeaveGroup and their time-outs do to a `ClassicGroup`.

Each function gets a group that it may change (the decision's copy), and writes replies, records and timers into the draft.
Every join or sync that is parked in a member (`join_ticket`, `sync_ticket`) is answered exactly once: when its phase ends,
or when the member is removed, replaced, or asks again.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from ottla.groups.classic import NEW_MEMBER_JOIN_TIMEOUT_MS, ClassicGroup, Member, Protocols, State, group_record
from ottla.groups.context import Context
from ottla.groups.draft import Draft, JoinPhase, MemberSession, SyncPhase
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.machine import Ticket
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

FIRST_VERSION_WITH_KNOWN_MEMBER_ID = 4  # of JoinGroup (KIP-394)
FIRST_SYNC_WITH_PROTOCOL = 5
FIRST_VERSION_THAT_SKIPS_ASSIGNMENT = 9  # of JoinGroup (KIP-814)


def join_error(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=None)


# JoinGroup -----------------------------------------------------------------------------------------------------------


def join(group: ClassicGroup, request: JoinGroupRequest, context: Context, draft: Draft) -> None:
    """Raises ApiError when the group stays as it was."""
    if not _has_room(group, request.member_id, context):
        _turn_away(group, request.member_id, context, draft)
        return
    protocols = tuple((protocol.name, protocol.metadata) for protocol in request.protocols)
    if not group.supports(request.protocol_type, (name for name, _ in protocols)):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not request.member_id:
        _join_without_id(group, request, protocols, context, draft)
    elif request.member_id in group.pending_join:
        if request.group_instance_id is not None:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)  # static members are never given an id to come back with
        _add_member(group, request.member_id, request, protocols, context, draft)
    else:
        group.check_member(request.member_id, request.group_instance_id)
        _rejoin(group, request, protocols, context, draft)


def _has_room(group: ClassicGroup, member_id: str, context: Context) -> bool:
    limit = context.settings.group_max_size
    member = group.members.get(member_id)
    if group.is_empty:
        return True
    if group.state is State.PREPARING_REBALANCE:
        return (member is not None and member.join_ticket is not None) or group.awaiting_join() < limit
    return member is not None or len(group.members) < limit


def _turn_away(group: ClassicGroup, member_id: str, context: Context, draft: Draft) -> None:
    """The group shrank below its members (the limit was lowered): one that comes too late is out, and nobody waits for it."""
    draft.reply(context.ticket, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
    if member_id in group.members:
        _drop_member(group, member_id, draft)
        complete_join_if_all_joined(group, context, draft)


def _join_without_id(
    group: ClassicGroup, request: JoinGroupRequest, protocols: Protocols, context: Context, draft: Draft
) -> None:
    stem = request.group_instance_id if request.group_instance_id is not None else context.client_id
    new_id = f"{stem}-{UUID(bytes=context.new_member_id)}"
    if request.group_instance_id is not None:
        existing = group.static_members.get(request.group_instance_id)
        if existing is None:
            _add_member(group, new_id, request, protocols, context, draft)
        else:
            _replace_static(group, existing, new_id, request, protocols, context, draft)
    elif context.version < FIRST_VERSION_WITH_KNOWN_MEMBER_ID:
        _add_member(group, new_id, request, protocols, context, draft)
    else:
        group.pending_join |= {new_id}
        draft.timers[MemberSession(group.group_id, new_id)] = request.session_timeout_ms
        draft.reply(context.ticket, join_error(ErrorCode.MEMBER_ID_REQUIRED, new_id))


def _add_member(
    group: ClassicGroup, member_id: str, request: JoinGroupRequest, protocols: Protocols, context: Context, draft: Draft
) -> None:
    member = Member(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=context.client_id,
        client_host=context.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=protocols,
        is_new=True,
        join_ticket=context.ticket,
    )
    if group.state is State.PREPARING_REBALANCE and group.previous_state is State.EMPTY:
        group.new_member_added = True
    group.add(member, request.protocol_type)
    # It sends no heartbeats before its first generation, which may take long: it is given five minutes, not its session time-out.
    draft.timers[MemberSession(group.group_id, member_id)] = NEW_MEMBER_JOIN_TIMEOUT_MS
    rebalance_or_complete(group, context, draft)


def _rejoin(group: ClassicGroup, request: JoinGroupRequest, protocols: Protocols, context: Context, draft: Draft) -> None:
    member = group.members[request.member_id]
    unchanged = member.protocols == protocols
    is_leader = group.leader == member.member_id
    if group.state is State.COMPLETING_REBALANCE and unchanged:
        # The reply to its join was lost: give it the current generation again.
        draft.reply(context.ticket, _joined(group, member.member_id, with_members=is_leader))
    elif group.state is State.STABLE and unchanged and not is_leader:
        draft.reply(context.ticket, _joined(group, member.member_id, with_members=False))
    elif group.is_empty:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    else:
        _update_member(group, member, request, protocols, context.ticket, draft)
        rebalance_or_complete(group, context, draft)


def _update_member(
    group: ClassicGroup, member: Member, request: JoinGroupRequest, protocols: Protocols, ticket: Ticket, draft: Draft
) -> None:
    if member.join_ticket is not None:  # it gave up waiting and asks again; its first question must not stay open
        draft.reply(member.join_ticket, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
    group.put(
        replace(
            member,
            protocols=protocols,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            join_ticket=ticket,
        )
    )


def _replace_static(
    group: ClassicGroup,
    old_id: str,
    new_id: str,
    request: JoinGroupRequest,
    protocols: Protocols,
    context: Context,
    draft: Draft,
) -> None:
    """A static member restarted (KIP-345): the new one takes over, and if nothing else changed, without a rebalance."""
    old_leader = group.leader
    old = group.members[old_id]
    if old.join_ticket is not None:
        draft.reply(old.join_ticket, join_error(ErrorCode.FENCED_INSTANCE_ID, old_id))
    if old.sync_ticket is not None:
        draft.reply(old.sync_ticket, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
    group.rename_static(old_id, new_id)
    draft.timers[MemberSession(group.group_id, old_id)] = None
    draft.timers[MemberSession(group.group_id, new_id)] = old.session_timeout_ms
    group.pending_sync = frozenset(new_id if member_id == old_id else member_id for member_id in group.pending_sync)
    _update_member(group, group.members[new_id], request, protocols, context.ticket, draft)
    if group.state is State.STABLE and group.protocol_name == group.select_protocol():
        group.put(replace(group.members[new_id], join_ticket=None))
        draft.records.append(group_record(group))
        skips = context.version >= FIRST_VERSION_THAT_SKIPS_ASSIGNMENT and group.leader == new_id
        reply = _joined(group, new_id, with_members=skips)
        reply.skip_assignment = skips
        if context.version < FIRST_VERSION_THAT_SKIPS_ASSIGNMENT:
            reply.leader = old_leader or ""  # so that an old client does not take itself for the leader and assign again
        draft.reply(context.ticket, reply)
    elif group.state is State.PREPARING_REBALANCE:
        complete_join_if_all_joined(group, context, draft)
    else:
        prepare_rebalance(group, context, draft)


def _joined(group: ClassicGroup, member_id: str, with_members: bool) -> JoinGroupResponse:
    members = [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata(group.protocol_name),
        )
        for member in (group.members.values() if with_members else ())
    ]
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        member_id=member_id,
        members=members,
    )


# The phases of a rebalance -------------------------------------------------------------------------------------------


def rebalance_or_complete(group: ClassicGroup, context: Context, draft: Draft) -> None:
    if group.state is State.PREPARING_REBALANCE:
        complete_join_if_all_joined(group, context, draft)
    else:
        prepare_rebalance(group, context, draft)


def prepare_rebalance(group: ClassicGroup, context: Context, draft: Draft) -> None:
    """Ask everybody to join again: those who wait for an assignment now, the others with their next heartbeat."""
    if group.state is State.COMPLETING_REBALANCE:
        for member in list(group.members.values()):
            _answer_sync(group, replace(member, assignment=b""), ErrorCode.REBALANCE_IN_PROGRESS, draft)
    group.pending_sync = frozenset()
    draft.timers[SyncPhase(group.group_id)] = None
    is_first = group.is_empty
    group.move_to(State.PREPARING_REBALANCE, context.now_ms)
    if is_first:
        delay_ms = context.settings.group_initial_rebalance_delay_ms
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        draft.timers[JoinPhase(group.group_id)] = delay_ms
    elif group.has_all_joined:
        complete_join(group, context, draft)
    else:
        draft.timers[JoinPhase(group.group_id)] = group.rebalance_timeout_ms


def complete_join_if_all_joined(group: ClassicGroup, context: Context, draft: Draft) -> None:
    """A first generation waits for its delay instead, so that the members of a starting application come together."""
    if group.state is State.PREPARING_REBALANCE and group.previous_state is not State.EMPTY and group.has_all_joined:
        complete_join(group, context, draft)


def join_phase_ended(group: ClassicGroup, context: Context, draft: Draft) -> None:
    if group.state is not State.PREPARING_REBALANCE:
        return
    if group.previous_state is State.EMPTY and group.new_member_added and group.initial_remaining_ms > 0:
        group.new_member_added = False
        delay_ms = min(context.settings.group_initial_rebalance_delay_ms, group.initial_remaining_ms)
        group.initial_remaining_ms = max(group.initial_remaining_ms - group.initial_delay_ms, 0)
        group.initial_delay_ms = delay_ms
        draft.timers[JoinPhase(group.group_id)] = delay_ms
    else:
        complete_join(group, context, draft)


def complete_join(group: ClassicGroup, context: Context, draft: Draft) -> None:
    """Go on with those who joined. A static member that did not is kept: it may be restarting, within its session time-out."""
    draft.timers[JoinPhase(group.group_id)] = None
    for member in [*group.members.values()]:
        if member.join_ticket is None and member.group_instance_id is None:
            group.remove(member.member_id)
            draft.timers[MemberSession(group.group_id, member.member_id)] = None
    if not group.elect_joined_leader() and group.members:
        draft.timers[JoinPhase(group.group_id)] = group.rebalance_timeout_ms
        return
    group.begin_generation(context.now_ms)
    group.new_member_added = False
    if group.is_empty:
        draft.records.append(group_record(group))
        return
    for member in [*group.members.values()]:
        if member.join_ticket is not None:
            draft.reply(member.join_ticket, _joined(group, member.member_id, with_members=member.member_id == group.leader))
        draft.timers[MemberSession(group.group_id, member.member_id)] = member.session_timeout_ms
        group.put(replace(member, join_ticket=None, is_new=False))
    group.pending_sync = frozenset(group.members)
    draft.timers[SyncPhase(group.group_id)] = group.rebalance_timeout_ms


def sync_phase_ended(group: ClassicGroup, context: Context, draft: Draft) -> None:
    if group.state not in (State.COMPLETING_REBALANCE, State.STABLE) or not group.pending_sync:
        return
    for member_id in group.pending_sync:
        _drop_member(group, member_id, draft)
    prepare_rebalance(group, context, draft)


# SyncGroup -----------------------------------------------------------------------------------------------------------


def check_sync(request: SyncGroupRequest, context: Context) -> None:
    """Whoever can say which protocol it means must say so, before anything else is looked at (KIP-559)."""
    if context.version >= FIRST_SYNC_WITH_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def sync(group: ClassicGroup, request: SyncGroupRequest, context: Context, draft: Draft) -> None:
    group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.state is State.PREPARING_REBALANCE:
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
    member = group.members[request.member_id]
    group.pending_sync -= {member.member_id}
    if not group.pending_sync:
        draft.timers[SyncPhase(group.group_id)] = None
    if group.state is State.STABLE:
        draft.reply(context.ticket, _synced(group, member))
        return
    if member.sync_ticket is not None:  # it asks again
        draft.reply(member.sync_ticket, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    group.put(replace(member, sync_ticket=context.ticket))
    if group.leader == member.member_id:
        _take_assignments(group, request, context, draft)


def _take_assignments(group: ClassicGroup, request: SyncGroupRequest, context: Context, draft: Draft) -> None:
    """The leader's word is final once it is in the log: members get it with the commit of this very record."""
    assignments = {given.member_id: given.assignment for given in request.assignments}
    for member in list(group.members.values()):
        group.put(replace(member, assignment=assignments.get(member.member_id, b"")))
    draft.records.append(group_record(group))
    group.move_to(State.STABLE, context.now_ms)
    for member in list(group.members.values()):
        _answer_sync(group, member, ErrorCode.NONE, draft)


def _answer_sync(group: ClassicGroup, member: Member, code: ErrorCode, draft: Draft) -> None:
    if member.sync_ticket is not None:
        reply = _synced(group, member) if code is ErrorCode.NONE else SyncGroupResponse(error_code=code)
        draft.reply(member.sync_ticket, reply)
        draft.timers[MemberSession(group.group_id, member.member_id)] = member.session_timeout_ms
    group.put(replace(member, sync_ticket=None))


def _synced(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment)


def _differs(asked: str | None, known: str | None) -> bool:
    return asked is not None and known is not None and asked != known


# Heartbeat, which copies nothing: it is by far the most frequent request ------------------------------------------------


def heartbeat(group: ClassicGroup, request: HeartbeatRequest, context: Context, draft: Draft) -> None:
    group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    if group.is_empty:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.members[request.member_id]
    draft.timers[MemberSession(group.group_id, request.member_id)] = member.session_timeout_ms
    rebalancing = group.state is State.PREPARING_REBALANCE
    code = ErrorCode.REBALANCE_IN_PROGRESS if rebalancing else ErrorCode.NONE
    draft.reply(context.ticket, HeartbeatResponse(error_code=code))


# Leaving and dying ---------------------------------------------------------------------------------------------------


def leave(group: ClassicGroup, request: LeaveGroupRequest, context: Context, draft: Draft) -> None:
    results = [_leave_one(group, member, draft) for member in request.members]
    if any(result.error_code == ErrorCode.NONE for result in results):
        _after_removal(group, context, draft)
    draft.reply(context.ticket, LeaveGroupResponse(members=results))


def _leave_one(group: ClassicGroup, leaving: LeaveGroupRequest.MemberIdentity, draft: Draft) -> LeaveGroupResponse.MemberResponse:
    code, instance_id = ErrorCode.NONE, leaving.group_instance_id
    if not leaving.member_id:  # an administrator removes a static member by its name alone
        member_id = group.static_members.get(instance_id) if instance_id is not None else None
    else:
        member_id = leaving.member_id
    if member_id is None:
        code = ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id in group.pending_join:
        group.remove(member_id)
        draft.timers[MemberSession(group.group_id, member_id)] = None
    else:
        try:
            group.check_member(member_id, instance_id)
            _drop_member(group, member_id, draft)
        except ApiError as error:
            code = error.code
    return LeaveGroupResponse.MemberResponse(member_id=leaving.member_id, group_instance_id=instance_id, error_code=code)


def session_ended(group: ClassicGroup, member_id: str, context: Context, draft: Draft) -> None:
    if member_id in group.pending_join:
        group.remove(member_id)
        if group.state is State.PREPARING_REBALANCE and group.has_all_joined:
            complete_join(group, context, draft)
        return
    member = group.members.get(member_id)
    if member is None or member.is_awaited:
        return
    _drop_member(group, member_id, draft)
    if group.state is State.PREPARING_REBALANCE and group.has_all_joined:
        complete_join(group, context, draft)
    else:
        _after_removal(group, context, draft)


def _drop_member(group: ClassicGroup, member_id: str, draft: Draft) -> None:
    member = group.members[member_id]
    if member.join_ticket is not None:
        draft.reply(member.join_ticket, join_error(ErrorCode.UNKNOWN_MEMBER_ID, ""))
    if member.sync_ticket is not None:
        draft.reply(member.sync_ticket, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    draft.timers[MemberSession(group.group_id, member_id)] = None
    group.remove(member_id)


def _after_removal(group: ClassicGroup, context: Context, draft: Draft) -> None:
    if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
        prepare_rebalance(group, context, draft)
    else:
        complete_join_if_all_joined(group, context, draft)
