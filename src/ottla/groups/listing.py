"""Groups seen from outside: DescribeGroups, ConsumerGroupDescribe, ListGroups, DeleteGroups."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.groups.classic import ClassicGroup, State
from ottla.groups.consumer import Assignment, ConsumerGroup, Member
from ottla.groups.context import Context, Topics
from ottla.groups.draft import Draft
from ottla.groups.group import Group
from ottla.groups.offsets import OffsetStore, delete_all
from ottla.model.errors import ApiError, ErrorCode
from ottla.protocol.messages import consumer_groups as consumer
from ottla.protocol.messages import groups as wire

_Described = wire.DescribeGroupsResponse.DescribedGroup
_DescribedConsumer = consumer.ConsumerGroupDescribeResponse.DescribedGroup
_FIRST_DESCRIBE_THAT_SAYS_NOT_FOUND = 6
_USES_CLASSIC_PROTOCOL, _USES_CONSUMER_PROTOCOL = 0, 1


def list_groups(groups: Mapping[str, Group], request: wire.ListGroupsRequest) -> wire.ListGroupsResponse:
    states = {state.lower().strip() for state in request.states_filter}
    types = {type_.lower() for type_ in request.types_filter}
    return wire.ListGroupsResponse(
        groups=[
            wire.ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.listed_protocol_type,
                group_state=group.state_name,
                group_type=group.group_type,
            )
            for group in groups.values()
            if (not states or group.state_name.lower() in states) and (not types or group.group_type in types)
        ]
    )


# DescribeGroups ------------------------------------------------------------------------------------------------------


def describe_classic(groups: Mapping[str, Group], group_id: str, version: int) -> _Described:
    group = groups.get(group_id)
    if not isinstance(group, ClassicGroup):
        missing = _Described(group_id=group_id, group_state=State.DEAD)
        if version >= _FIRST_DESCRIBE_THAT_SAYS_NOT_FOUND:
            missing.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            missing.error_message = not_found(group_id, group, "classic")
        return missing
    stable = group.state is State.STABLE
    protocol = (group.protocol_name or "") if stable else ""
    members = [
        _Described.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(protocol) if stable else b"",
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]
    return _Described(
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol,
        members=members,
    )


def not_found(group_id: str, group: Group | None, wanted: str) -> str:
    return f"Group {group_id} not found." if group is None else f"Group {group_id} is not a {wanted} group."


# ConsumerGroupDescribe -----------------------------------------------------------------------------------------------


def describe_consumer(groups: Mapping[str, Group], group_id: str, context: Context) -> _DescribedConsumer:
    group = groups.get(group_id)
    if not group_id:
        return _DescribedConsumer(error_code=ErrorCode.INVALID_GROUP_ID)
    if not isinstance(group, ConsumerGroup):
        message = not_found(group_id, group, "consumer")
        return _DescribedConsumer(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message)
    return _DescribedConsumer(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or context.settings.consumer_assignors[0],
        members=[_described_member(group, member, context.topics) for member in group.members.values()],
    )


def _described_member(group: ConsumerGroup, member: Member, topics: Topics) -> _DescribedConsumer.Member:
    held: Assignment = {topic_id: set(partitions) for topic_id, partitions in member.assigned.items()}
    for topic_id, partitions in member.revoking.items():
        held.setdefault(topic_id, set()).update(partitions)
    return _DescribedConsumer.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        assignment=_described_assignment(held, topics),
        target_assignment=_described_assignment(group.target.get(member.member_id, {}), topics),
        member_type=_USES_CONSUMER_PROTOCOL if member.classic is None else _USES_CLASSIC_PROTOCOL,
    )


def _described_assignment(assignment: Assignment, topics: Topics) -> consumer.Assignment:
    """Topics that were deleted meanwhile have no name to show and are left out."""
    return consumer.Assignment(
        topic_partitions=[
            consumer.ConsumerGroupDescribeTopicPartitions(
                topic_id=topic_id, topic_name=topics.by_id[topic_id].name, partitions=sorted(partitions)
            )
            for topic_id, partitions in assignment.items()
            if topic_id in topics.by_id
        ]
    )


# DeleteGroups --------------------------------------------------------------------------------------------------------


def delete_groups(
    groups: Mapping[str, Group], offsets: OffsetStore, request: wire.DeleteGroupsRequest, context: Context, draft: Draft
) -> None:
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        code = ErrorCode.NONE
        group = groups.get(group_id)
        try:
            if group is None:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
            group.check_delete()
            draft.records += delete_all(offsets, group_id)
            draft.records += group.tombstones()
        except ApiError as error:
            code = error.code
        results.append(wire.DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code))
    draft.reply(context.ticket, wire.DeleteGroupsResponse(results=results))
