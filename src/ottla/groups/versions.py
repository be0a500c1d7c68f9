"""Old and new forms of the same request: `normalise` turns what a client sent into the one form that the shard decides on,
and `shape` turns the shard's reply into the form that the client's version can read. Both change the message in place.

JoinGroup    0: no rebalance time-out, the session time-out stands for it. Before 7: the protocol name may not be null.
LeaveGroup   before 3: one member, and its error is the error of the reply.
OffsetFetch  before 8: one group, outside the list of groups; before 2: an error stands with each partition.
"""

from __future__ import annotations

from ottla.model.errors import ErrorCode
from ottla.protocol.messages.classic_groups import JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse
from ottla.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchResponse
from ottla.protocol.schema import Message

_Group = OffsetFetchRequest.OffsetFetchRequestGroup
_Topic = OffsetFetchResponse.OffsetFetchResponseTopic
_FIRST_FETCH_WITH_GROUPS = 8
_FIRST_FETCH_WITH_ERROR = 2


def normalise(request: Message, version: int) -> None:
    if isinstance(request, JoinGroupRequest):
        if version == 0:
            request.rebalance_timeout_ms = request.session_timeout_ms
    elif isinstance(request, LeaveGroupRequest):
        if version < 3:
            request.members = [LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
    elif isinstance(request, OffsetFetchRequest) and version < _FIRST_FETCH_WITH_GROUPS:
        topics = None
        if request.topics is not None:
            topics = [_Group.OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes) for t in request.topics]
        request.groups = [_Group(group_id=request.group_id, topics=topics)]


def shape(reply: Message, version: int) -> None:
    if isinstance(reply, JoinGroupResponse):
        if version < 7 and reply.protocol_name is None:
            reply.protocol_name = ""
    elif isinstance(reply, LeaveGroupResponse):
        if version < 3 and reply.error_code == ErrorCode.NONE and reply.members:
            reply.error_code = reply.members[0].error_code
    elif isinstance(reply, OffsetFetchResponse) and version < _FIRST_FETCH_WITH_GROUPS:
        _flatten(reply, version)


def _flatten(reply: OffsetFetchResponse, version: int) -> None:
    [group] = reply.groups
    if version >= _FIRST_FETCH_WITH_ERROR:
        reply.error_code = group.error_code
    reply.topics = [
        _Topic(
            name=topic.name,
            partitions=[
                _Topic.OffsetFetchResponsePartition(
                    partition_index=partition.partition_index,
                    committed_offset=partition.committed_offset,
                    committed_leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.metadata,
                    error_code=partition.error_code,
                )
                for partition in topic.partitions
            ],
        )
        for topic in group.topics
    ]
