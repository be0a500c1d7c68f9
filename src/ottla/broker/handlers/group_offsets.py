"""OffsetCommit 2-10, OffsetFetch 1-10, OffsetDelete 0: committed offsets.

OffsetCommit: 5 no retention of its own; 6 leader epochs; 7 static members; 8 flexible; 9 member epochs (KIP-848); 10 topic ids.
OffsetFetch: 2 all topics, and an error of the whole; 5 leader epochs; 6 flexible; 7 only stable offsets (KIP-447); 8 several
groups at once; 9 member epochs; 10 topic ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ottla.broker.dispatch import RequestContext, handles
from ottla.broker.handlers.groups import gather
from ottla.groups.offsets import CommitReply, CommitRequest, add_to_reply, set_aside_unknown
from ottla.groups.versions import normalise
from ottla.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)


@handles("OffsetCommit")
def offset_commit(request: OffsetCommitRequest, context: RequestContext) -> Any:
    return of_known(request, context, partial(_commit, request, context))


def _commit(request: OffsetCommitRequest, context: RequestContext) -> Any:
    return context.node.coordinators.ask(context.node.groups, request.group_id, request, context)


def of_known(request: CommitRequest, context: RequestContext, commit: Callable[[], Any]) -> Any:
    """What `commit` answers about the topics and partitions that are known here, and what is said of the others."""
    refused = set_aside_unknown(request, context.node.groups.context(-1, context))
    if not request.topics:
        return refused
    reply = commit()
    if not refused.topics:
        return reply
    if isinstance(reply, Awaitable):
        return _together_later(reply, refused)
    add_to_reply(reply, refused)
    return reply


async def _together_later(awaited: Awaitable[CommitReply], refused: CommitReply) -> CommitReply:
    reply = await awaited
    add_to_reply(reply, refused)
    return reply


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
