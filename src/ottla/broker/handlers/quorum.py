"""The quorum's own requests, on the controller listener: Vote 0-2, BeginQuorumEpoch 0-1, EndQuorumEpoch 0-1, Fetch 4-18 of the
metadata log, FetchSnapshot 0-1; and DescribeQuorum 0-2, which any broker passes on."""

from __future__ import annotations

from typing import Any

from ottla.broker.dispatch import RequestContext, handles


def receive(request: Any, context: RequestContext) -> Any:
    return context.node.quorum.receive(request, context.version)


for _name in ("Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "Fetch", "FetchSnapshot", "DescribeQuorum"):
    handles(_name, roles=("controller",))(receive)


@handles("DescribeQuorum")
async def describe_quorum(request: Any, context: RequestContext) -> Any:
    return await context.node.quorum.describe(request, context.version)
