"""The coordinator of the groups of one `__consumer_offsets` partition, as a machine of the shape in `model.machine`.

    decide(request, context)           a request that arrived; may answer others that were parked, or park this one
    expire(key, context)               a timer of an earlier decision went off
    loaded(context)                    all records have been applied: set the timers of everybody known
    topics_deleted(topics, context)    their offsets go
    apply(record, offset)              the only way durable state changes: live, following, recovering
    apply_change(change)               volatile state
    complete_transaction(…)            the marker of a transaction is in the log

Decisions on a group that is refused change nothing and say why, with Kafka's error code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ottla.groups import classic, classic_members, classic_protocol, consumer, consumer_protocol, listing, migration, offsets
from ottla.groups.classic import ClassicGroup
from ottla.groups.consumer import ConsumerGroup, MemberState
from ottla.groups.context import Context, Topic
from ottla.groups.draft import (
    Change,
    ClassicJoin,
    ClassicSync,
    Draft,
    GroupDecision,
    GroupReplaced,
    JoinPhase,
    MemberRevocation,
    MemberSession,
    OffsetExpiry,
    SyncPhase,
    TimerKey,
)
from ottla.groups.group import Group
from ottla.groups.records import GroupRecord
from ottla.groups.replies import error_reply, fetch_error
from ottla.groups.versions import normalise
from ottla.groups.working import Working
from ottla.model.errors import ApiError, ErrorCode
from ottla.protocol.messages import classic_groups as classic_wire
from ottla.protocol.messages import group_offsets as offsets_wire
from ottla.protocol.messages import group_records as stored
from ottla.protocol.messages import groups as groups_wire
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
)
from ottla.protocol.messages.transactions import TxnOffsetCommitRequest
from ottla.protocol.schema import Message

# One decision is one batch in the log; what is left over is found by the next round.
MAX_TOMBSTONES_PER_ROUND = 1_000
NEXT_ROUND_MS = 1_000


class GroupShard:
    __slots__ = ("groups", "offsets")

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets = offsets.OffsetStore()

    # Deciding ----------------------------------------------------------------------------------------------------------

    def decide(self, request: Message, context: Context) -> GroupDecision:
        normalise(request, context.version)
        draft = Draft()
        try:
            _HANDLERS[type(request)](self, request, context, draft)
        except ApiError as error:
            draft = Draft()  # whatever was collected before the refusal is dropped with it
            draft.reply(context.ticket, error_reply(request, error.code, error.message, context.version))
        return draft.finish()

    def expire(self, key: TimerKey, context: Context) -> GroupDecision:
        draft = Draft()
        if isinstance(key, OffsetExpiry):
            self._expire_offsets(context, draft)
            return draft.finish()
        group = self.groups.get(key.group_id)
        if isinstance(group, ClassicGroup):
            changed = group.copy()
            if isinstance(key, MemberSession):
                classic_protocol.session_ended(changed, key.member_id, context, draft)
            elif isinstance(key, JoinPhase):
                classic_protocol.join_phase_ended(changed, context, draft)
            elif isinstance(key, SyncPhase):
                classic_protocol.sync_phase_ended(changed, context, draft)
            draft.changes.append(GroupReplaced(changed))
        elif isinstance(group, ConsumerGroup):
            if isinstance(key, MemberSession | ClassicJoin | ClassicSync):
                consumer_protocol.session_ended(group, key.member_id, context, draft)
            elif isinstance(key, MemberRevocation):
                consumer_protocol.revocation_ended(group, key.member_id, context, draft)
        return draft.finish()

    def loaded(self, context: Context) -> GroupDecision:
        """Members are given a whole session to be heard of again; a classic group over its limit is made to shrink."""
        draft = Draft()
        draft.timers[OffsetExpiry()] = context.settings.offsets_retention_check_interval_ms
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    draft.timers[MemberSession(group.group_id, member.member_id)] = member.session_timeout_ms
                if len(group.members) > context.settings.group_max_size:
                    changed = group.copy()
                    classic_protocol.prepare_rebalance(changed, context, draft)
                    draft.changes.append(GroupReplaced(changed))
            elif isinstance(group, ConsumerGroup):
                session_ms = context.settings_for(group.group_id).consumer_session_timeout_ms
                for holder in group.members.values():
                    own_ms = session_ms if holder.classic is None else holder.classic.session_timeout_ms
                    draft.timers[MemberSession(group.group_id, holder.member_id)] = own_ms
                    if holder.state is MemberState.UNREVOKED_PARTITIONS:
                        draft.timers[MemberRevocation(group.group_id, holder.member_id)] = holder.rebalance_timeout_ms
        return draft.finish()

    def topics_deleted(self, topics: Iterable[tuple[str, bytes]], context: Context) -> GroupDecision:
        """One round; to be decided again until there are no records left."""
        draft = Draft()
        for name, topic_id in topics:
            for group_id, partition in self.offsets.groups_with(name, topic_id):
                draft.records.append(offsets.tombstone(group_id, name, partition))
                if len(draft.records) >= MAX_TOMBSTONES_PER_ROUND:
                    return draft.finish()
        return draft.finish()

    def _expire_offsets(self, context: Context, draft: Draft) -> None:
        draft.timers[OffsetExpiry()] = context.settings.offsets_retention_check_interval_ms
        for group_id, group in self.groups.items():
            if offsets.expire(self.offsets, group_id, group, context, draft.records) and group.is_empty:
                draft.records += group.tombstones()
            if len(draft.records) >= MAX_TOMBSTONES_PER_ROUND:
                draft.timers[OffsetExpiry()] = NEXT_ROUND_MS
                return

    # Applying ----------------------------------------------------------------------------------------------------------

    def apply(self, record: GroupRecord, offset: int) -> None:
        key, value = record.key, record.value
        if isinstance(key, stored.OffsetCommitKey):
            assert value is None or isinstance(value, stored.OffsetCommitValue)
            if value is not None and key.group not in self.groups:
                self.groups[key.group] = ClassicGroup(key.group)  # a "simple" group: offsets, and nobody in it
            self.offsets.apply(key, value, offset, record.producer_id)
        elif isinstance(key, stored.GroupMetadataKey):
            if value is not None:
                assert isinstance(value, stored.GroupMetadataValue)
                self.groups[key.group] = classic.from_record(key.group, value)
            elif isinstance(self.groups.get(key.group), ClassicGroup):
                del self.groups[key.group]
        elif type(key) in consumer.RECORD_KEYS:
            self._apply_consumer(key, value)

    def _apply_consumer(self, key: Any, value: Any) -> None:
        group = self.groups.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = self.groups[key.group_id] = ConsumerGroup(key.group_id)
        if value is None and isinstance(key, stored.ConsumerGroupMetadataKey):
            del self.groups[key.group_id]
        else:
            group.apply(key, value)

    def apply_change(self, change: Change) -> None:
        if isinstance(change, GroupReplaced):
            self.groups[change.group.group_id] = change.group
        else:
            group = self.groups.get(change.group_id)
            if isinstance(group, ConsumerGroup):
                group.topics_seen = change.version

    def complete_transaction(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        self.offsets.complete_transaction(producer_id, committed)

    # Requests to classic groups ----------------------------------------------------------------------------------------

    def _join(self, request: classic_wire.JoinGroupRequest, context: Context, draft: Draft) -> None:
        _check_group_id(request.group_id)
        settings = context.settings
        if not settings.group_min_session_timeout_ms <= request.session_timeout_ms <= settings.group_max_session_timeout_ms:
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        known = self.groups.get(request.group_id)
        if known is not None and not isinstance(known, ClassicGroup):
            if isinstance(known, ConsumerGroup) and not known.is_empty:
                classic_members.join(known, request, context, draft)
                return
            draft.records += known.tombstones()
            known = None
        if known is None:
            if request.member_id:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = ClassicGroup(request.group_id, context.now_ms)
            draft.records.append(classic.new_group_record(group))
        else:
            group = known.copy()
        classic_protocol.join(group, request, context, draft)
        draft.changes.append(GroupReplaced(group))

    def _sync(self, request: classic_wire.SyncGroupRequest, context: Context, draft: Draft) -> None:
        classic_protocol.check_sync(request, context)
        known = self._members_group(request.group_id)
        if isinstance(known, ConsumerGroup):
            classic_members.sync(known, request, context, draft)
            return
        group = known.copy()
        classic_protocol.sync(group, request, context, draft)
        draft.changes.append(GroupReplaced(group))

    def _heartbeat(self, request: classic_wire.HeartbeatRequest, context: Context, draft: Draft) -> None:
        group = self._members_group(request.group_id)
        if isinstance(group, ConsumerGroup):
            classic_members.heartbeat(group, request, context, draft)
        else:
            classic_protocol.heartbeat(group, request, context, draft)

    def _leave(self, request: classic_wire.LeaveGroupRequest, context: Context, draft: Draft) -> None:
        known = self._members_group(request.group_id)
        if isinstance(known, ConsumerGroup):
            classic_members.leave(known, request, context, draft)
            return
        group = known.copy()
        classic_protocol.leave(group, request, context, draft)
        draft.changes.append(GroupReplaced(group))

    def _members_group(self, group_id: str) -> ClassicGroup | ConsumerGroup:
        _check_group_id(group_id)
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup | ConsumerGroup):
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # Requests to consumer groups ---------------------------------------------------------------------------------------

    def _consumer_heartbeat(self, request: ConsumerGroupHeartbeatRequest, context: Context, draft: Draft) -> None:
        consumer_protocol.check_request(request, context)
        group = self.groups.get(request.group_id)
        leaving = request.member_epoch < 0
        joining = request.member_epoch == consumer.JOIN_EPOCH
        if isinstance(group, ConsumerGroup):
            if leaving:
                consumer_protocol.leave(group, request, context, draft)
            else:
                consumer_protocol.heartbeat(Working(group, draft), request, context)
            return
        if not joining:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, _why_not_consumer(request.group_id, group, leaving))
        if isinstance(group, ClassicGroup) and not group.is_empty:
            working = migration.upgrade(group, context, draft)
        else:
            if group is not None:  # an empty group of another type becomes a consumer group and keeps its offsets
                draft.records += group.tombstones()
            working = Working(ConsumerGroup(request.group_id), draft)
        consumer_protocol.heartbeat(working, request, context)

    def _consumer_describe(self, request: ConsumerGroupDescribeRequest, context: Context, draft: Draft) -> None:
        described = [listing.describe_consumer(self.groups, group_id, context) for group_id in request.group_ids]
        draft.reply(context.ticket, ConsumerGroupDescribeResponse(groups=described))

    # Requests about groups of any type ---------------------------------------------------------------------------------

    def _describe(self, request: groups_wire.DescribeGroupsRequest, context: Context, draft: Draft) -> None:
        described = [listing.describe_classic(self.groups, group_id, context.version) for group_id in request.groups]
        draft.reply(context.ticket, groups_wire.DescribeGroupsResponse(groups=described))

    def _list(self, request: groups_wire.ListGroupsRequest, context: Context, draft: Draft) -> None:
        draft.reply(context.ticket, listing.list_groups(self.groups, request))

    def _delete(self, request: groups_wire.DeleteGroupsRequest, context: Context, draft: Draft) -> None:
        listing.delete_groups(self.groups, self.offsets, request, context, draft)

    # Offsets -----------------------------------------------------------------------------------------------------------

    def _commit(self, request: offsets_wire.OffsetCommitRequest, context: Context, draft: Draft) -> None:
        check, topics = None, offsets.known_topics(request, context)
        if _names_a_partition(request, topics):  # otherwise the group is not even asked
            generation, version = request.generation_id_or_member_epoch, context.version
            group = self._group_for_commit(
                request.group_id, generation, version >= consumer.FIRST_COMMIT_VERSION_WITH_MEMBER_EPOCH
            )
            check = group.check_offset_commit(request.member_id, request.group_instance_id, generation, False, version)
            if isinstance(group, ClassicGroup) and request.member_id in group.members:
                # Whoever commits is alive; while the group waits for the assignment, a commit is refused anyway.
                timeout_ms = group.members[request.member_id].session_timeout_ms
                draft.timers[MemberSession(group.group_id, request.member_id)] = timeout_ms
        offsets.commit(request, topics, context, check, draft)

    def _commit_in_transaction(self, request: TxnOffsetCommitRequest, context: Context, draft: Draft) -> None:
        _check_group_id(request.group_id)
        topics = offsets.known_topics(request, context)
        if _names_a_partition(request, topics):
            group = self._group_for_commit(request.group_id, request.generation_id, False)
            try:
                check = group.check_offset_commit(
                    request.member_id, request.group_instance_id, request.generation_id, True, context.version
                )
                offsets.commit(request, topics, context, check, draft)
            except ApiError as error:
                stale = error.code is ErrorCode.STALE_MEMBER_EPOCH
                raise ApiError(ErrorCode.ILLEGAL_GENERATION) if stale else error from None
        else:
            offsets.commit(request, topics, context, None, draft)

    def _group_for_commit(self, group_id: str, generation: int, says_not_found: bool) -> Group:
        group = self.groups.get(group_id)
        if group is None and generation >= 0:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND if says_not_found else ErrorCode.ILLEGAL_GENERATION)
        return group if group is not None else ClassicGroup(group_id)

    def _fetch(self, request: offsets_wire.OffsetFetchRequest, context: Context, draft: Draft) -> None:
        fetched = []
        for asked in request.groups:
            group = self.groups.get(asked.group_id)
            try:
                if group is not None:
                    group.check_offset_fetch(asked.member_id, asked.member_epoch)
                fetched.append(offsets.fetch(self.offsets, asked, request.require_stable, context, group is not None))
            except ApiError as error:
                fetched.append(fetch_error(asked, error.code, context.version))
        draft.reply(context.ticket, offsets_wire.OffsetFetchResponse(groups=fetched))

    def _delete_offsets(self, request: offsets_wire.OffsetDeleteRequest, context: Context, draft: Draft) -> None:
        _check_group_id(request.group_id)
        group = self.groups.get(request.group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_offset_delete()
        offsets.delete(self.offsets, request, group, context, draft)


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID)


def _names_a_partition(request: offsets.CommitRequest, topics: Mapping[int, Topic]) -> bool:
    """Whether anything in the request is about a partition that exists."""
    for position, topic in topics.items():
        for partition in request.topics[position].partitions:
            if 0 <= partition.partition_index < topic.partition_count:
                return True
    return False


def _why_not_consumer(group_id: str, group: Group | None, leaving: bool) -> str:
    if group is None:
        return f"Group {group_id} not found." if leaving else f"Consumer group {group_id} not found."
    return f"Group {group_id} is not a consumer group."


_HANDLERS: dict[type[Message], Callable[[GroupShard, Any, Context, Draft], None]] = {
    classic_wire.JoinGroupRequest: GroupShard._join,
    classic_wire.SyncGroupRequest: GroupShard._sync,
    classic_wire.HeartbeatRequest: GroupShard._heartbeat,
    classic_wire.LeaveGroupRequest: GroupShard._leave,
    ConsumerGroupHeartbeatRequest: GroupShard._consumer_heartbeat,
    ConsumerGroupDescribeRequest: GroupShard._consumer_describe,
    groups_wire.DescribeGroupsRequest: GroupShard._describe,
    groups_wire.ListGroupsRequest: GroupShard._list,
    groups_wire.DeleteGroupsRequest: GroupShard._delete,
    offsets_wire.OffsetCommitRequest: GroupShard._commit,
    offsets_wire.OffsetFetchRequest: GroupShard._fetch,
    offsets_wire.OffsetDeleteRequest: GroupShard._delete_offsets,
    TxnOffsetCommitRequest: GroupShard._commit_in_transaction,
}
