"""DescribeGroups 0-6, ListGroups 0-5, DeleteGroups 0-2: groups of any type.

DescribeGroups: 3 authorised operations; 4 static members; 5 flexible; 6 says when a group is not there (KIP-1043).
ListGroups: 3 flexible; 4 states (KIP-518); 5 types (KIP-848).  DeleteGroups: 2 flexible.

A request may name groups of several shards: each is asked, and the replies are put together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ottla.broker.access import group_operations
from ottla.broker.dispatch import RequestContext, handles
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from ottla.protocol.schema import Message


def spread(asked: Sequence[tuple[str, Message]], context: RequestContext, merge: Callable[[list[Any]], Any]) -> Any:
    """Ask the shard of each group and merge the replies, in the order of the request."""
    coordinators, kind = context.node.coordinators, context.node.groups
    return gather([coordinators.ask(kind, group_id, request, context) for group_id, request in asked], merge)


def gather(replies: list[Any], merge: Callable[[list[Any]], Any]) -> Any:
    """Merge at once when nothing has to be waited for."""
    if not any(isinstance(reply, asyncio.Future) for reply in replies):
        return merge(replies)
    return _gather(replies, merge)


async def _gather(replies: list[Any], merge: Callable[[list[Any]], Any]) -> Any:
    return merge([await reply if isinstance(reply, asyncio.Future) else reply for reply in replies])


@handles("DescribeGroups")
def describe_groups(request: DescribeGroupsRequest, context: RequestContext) -> Any:
    def merge(replies: list[DescribeGroupsResponse]) -> DescribeGroupsResponse:
        groups = [group for reply in replies for group in reply.groups]
        for group in groups:
            if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
                group.authorized_operations = group_operations(context, group.group_id)
        return DescribeGroupsResponse(groups=groups)

    return spread([(group_id, DescribeGroupsRequest(groups=[group_id])) for group_id in request.groups], context, merge)


@handles("ListGroups")
def list_groups(request: ListGroupsRequest, context: RequestContext) -> Any:
    """Those this node coordinates; a client that wants all asks every broker."""
    shards = context.node.coordinators.all_of(context.node.groups)

    def merge(replies: list[ListGroupsResponse]) -> ListGroupsResponse:
        return ListGroupsResponse(groups=[group for reply in replies for group in reply.groups])

    return gather([shard.ask(request, context) for shard in shards], merge)


@handles("DeleteGroups")
def delete_groups(request: DeleteGroupsRequest, context: RequestContext) -> Any:
    def merge(replies: list[DeleteGroupsResponse]) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(results=[result for reply in replies for result in reply.results])

    asked = [(name, DeleteGroupsRequest(groups_names=[name])) for name in dict.fromkeys(request.groups_names)]
    return spread(asked, context, merge)
