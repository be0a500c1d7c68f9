"""OffsetCommit 2-10, OffsetFetch 1-10, OffsetDelete 0: committed offsets.

OffsetCommit: 5 no retention of its own; 6 leader epochs; 7 static members; 8 flexible; 9 member epochs (KIP-848); 10 topic ids.
OffsetFetch: 2 all topics, and an error of the whole; 5 leader epochs; 6 flexible; 7 only stable offsets (KIP-447); 8 several
groups at once; 9 member epochs; 10 topic ids.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.dispatch import RequestContext, handles
from ottla.broker.handlers.groups import gather
from ottla.groups.versions import normalise
from ottla.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)


@handles("OffsetCommit")
def offset_commit(request: OffsetCommitRequest, context: RequestContext) -> Any:
    return context.node.coordinators.ask(context.node.groups, request.group_id, request, context)


@handles("OffsetFetch")
def offset_fetch(request: OffsetFetchRequest, context: RequestContext) -> Any:
    normalise(request, context.version)
    coordinators, kind = context.node.coordinators, context.node.groups
    if len(request.groups) == 1:
        return coordinators.ask(kind, request.groups[0].group_id, request, context)

    def merge(replies: list[OffsetFetchResponse]) -> OffsetFetchResponse:
        return OffsetFetchResponse(groups=[group for reply in replies for group in reply.groups])

    asked = [(g.group_id, OffsetFetchRequest(groups=[g], require_stable=request.require_stable)) for g in request.groups]
    return gather([coordinators.ask(kind, group_id, one, context) for group_id, one in asked], merge)


@handles("OffsetDelete")
def offset_delete(request: OffsetDeleteRequest, context: RequestContext) -> Any:
    return context.node.coordinators.ask(context.node.groups, request.group_id, request, context)
