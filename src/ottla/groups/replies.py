"""A reply to any group request that says only: no, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.groups.offsets import commit_error, unfetched
from ottla.model.errors import ErrorCode
from ottla.protocol.messages import classic_groups as classic
from ottla.protocol.messages import consumer_groups as consumer
from ottla.protocol.messages import group_offsets as offsets
from ottla.protocol.messages import groups
from ottla.protocol.messages.transactions import TxnOffsetCommitRequest
from ottla.protocol.schema import Message

_FetchedGroup = offsets.OffsetFetchResponse.OffsetFetchResponseGroup


def error_reply(request: Message, code: ErrorCode, message: str | None = None, version: int = 0) -> Message:
    return _REFUSALS[type(request)](request, code, message, version)


def fetch_error(asked: offsets.OffsetFetchRequest.OffsetFetchRequestGroup, code: ErrorCode, version: int) -> _FetchedGroup:
    """Versions before 2 have nowhere to put an error but at each partition."""
    topics = []
    if version < 2:
        topics = [
            _FetchedGroup.OffsetFetchResponseTopics(name=t.name, partitions=[unfetched(p, code) for p in t.partition_indexes])
            for t in asked.topics or ()
        ]
    return _FetchedGroup(group_id=asked.group_id, topics=topics, error_code=code)


def _heartbeat(request: classic.HeartbeatRequest, code: ErrorCode, message: str | None, version: int) -> Message:
    # A coordinator that is still loading must not frighten its members: they are alive, and it will know them soon.
    calm = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return classic.HeartbeatResponse(error_code=ErrorCode.NONE if calm else code)


def _join(request: classic.JoinGroupRequest, code: ErrorCode, message: str | None, version: int) -> Message:
    return classic.JoinGroupResponse(error_code=code, member_id=request.member_id, protocol_name=None)


def _leave(request: classic.LeaveGroupRequest, code: ErrorCode, message: str | None, version: int) -> Message:
    if code is not ErrorCode.UNKNOWN_MEMBER_ID:
        return classic.LeaveGroupResponse(error_code=code)
    refused = classic.LeaveGroupResponse.MemberResponse
    return classic.LeaveGroupResponse(
        members=[
            refused(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code)
            for member in request.members
        ]
    )


def _describe_classic(request: groups.DescribeGroupsRequest, code: ErrorCode, message: str | None, version: int) -> Message:
    described = groups.DescribeGroupsResponse.DescribedGroup
    return groups.DescribeGroupsResponse(groups=[described(group_id=name, error_code=code) for name in request.groups])


def _describe_consumer(
    request: consumer.ConsumerGroupDescribeRequest, code: ErrorCode, message: str | None, version: int
) -> Message:
    described = consumer.ConsumerGroupDescribeResponse.DescribedGroup
    return consumer.ConsumerGroupDescribeResponse(
        groups=[described(group_id=name, error_code=code) for name in request.group_ids]
    )


def _delete(request: groups.DeleteGroupsRequest, code: ErrorCode, message: str | None, version: int) -> Message:
    result = groups.DeleteGroupsResponse.DeletableGroupResult
    return groups.DeleteGroupsResponse(results=[result(group_id=name, error_code=code) for name in request.groups_names])


_REFUSALS: dict[type[Message], Callable[[Any, ErrorCode, str | None, int], Message]] = {
    classic.JoinGroupRequest: _join,
    classic.SyncGroupRequest: lambda request, code, message, version: classic.SyncGroupResponse(error_code=code),
    classic.HeartbeatRequest: _heartbeat,
    classic.LeaveGroupRequest: _leave,
    consumer.ConsumerGroupHeartbeatRequest: lambda request, code, message, version: consumer.ConsumerGroupHeartbeatResponse(
        error_code=code, error_message=message
    ),
    consumer.ConsumerGroupDescribeRequest: _describe_consumer,
    groups.DescribeGroupsRequest: _describe_classic,
    groups.ListGroupsRequest: lambda request, code, message, version: groups.ListGroupsResponse(error_code=code),
    groups.DeleteGroupsRequest: _delete,
    offsets.OffsetCommitRequest: lambda request, code, message, version: commit_error(request, code),
    TxnOffsetCommitRequest: lambda request, code, message, version: commit_error(request, code),
    offsets.OffsetFetchRequest: lambda request, code, message, version: offsets.OffsetFetchResponse(
        groups=[fetch_error(group, code, version) for group in request.groups]
    ),
    offsets.OffsetDeleteRequest: lambda request, code, message, version: offsets.OffsetDeleteResponse(error_code=code),
}
