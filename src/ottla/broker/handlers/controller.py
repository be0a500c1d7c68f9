"""What brokers ask of the active controller: BrokerRegistration 0-4, BrokerHeartbeat 0-2, AlterPartition 2-3,
AllocateProducerIds 0, AssignReplicasToDirs 0, ControllerRegistration 0."""

from __future__ import annotations

from functools import partial
from typing import Any

from ottla.broker.dispatch import RequestContext, handles


async def decide(request: Any, context: RequestContext) -> Any:
    return await context.node.quorum.decide(request, context.version)


async def from_broker(request: Any, context: RequestContext) -> Any:
    """The connection that heartbeats come over is how the controller hears at once of a broker's death."""
    context.connection.on_lost = partial(context.node.quorum.suspect, request.broker_id)
    return await decide(request, context)


for _name in ("BrokerRegistration", "BrokerHeartbeat"):
    handles(_name, roles=("controller",))(from_broker)
for _name in ("AlterPartition", "AllocateProducerIds", "AssignReplicasToDirs", "ControllerRegistration"):
    handles(_name, roles=("controller",))(decide)
