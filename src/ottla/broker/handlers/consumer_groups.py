"""ConsumerGroupHeartbeat 0-1, ConsumerGroupDescribe 0-1: the consumer group protocol of KIP-848.

ConsumerGroupHeartbeat: 1 regular expressions, and the client makes its member id (KIP-1082).
ConsumerGroupDescribe: 1 which protocol a member speaks.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.access import group_operations
from ottla.broker.dispatch import RequestContext, handles
from ottla.broker.handlers.groups import spread
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
)


@handles("ConsumerGroupHeartbeat")
def consumer_group_heartbeat(request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> Any:
    return context.node.coordinators.ask(context.node.groups, request.group_id, request, context)


@handles("ConsumerGroupDescribe")
def consumer_group_describe(request: ConsumerGroupDescribeRequest, context: RequestContext) -> Any:
    def merge(replies: list[ConsumerGroupDescribeResponse]) -> ConsumerGroupDescribeResponse:
        groups = [group for reply in replies for group in reply.groups]
        for group in groups:
            if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
                group.authorized_operations = group_operations(context, group.group_id)
        return ConsumerGroupDescribeResponse(groups=groups)

    asked = [(group_id, ConsumerGroupDescribeRequest(group_ids=[group_id])) for group_id in request.group_ids]
    return spread(asked, context, merge)
