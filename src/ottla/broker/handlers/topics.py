"""Requests that the active controller decides: any broker takes them and passes them on.

CreateTopics 2-7 (4 defaults by -1, 5 the topic's settings in the reply, 7 topic ids), DeleteTopics 1-6 (6 by id),
CreatePartitions 0-3, AlterPartitionReassignments 0-1, ListPartitionReassignments 0, ElectLeaders 0-2,
AlterConfigs 0-2, IncrementalAlterConfigs 0-1, AlterClientQuotas 0-1, UpdateFeatures 0-2, UnregisterBroker 0.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.dispatch import RequestContext, handles
from ottla.broker.handlers.controller import decide

FORWARDED = (
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "AlterPartitionReassignments",
    "ListPartitionReassignments",
    "ElectLeaders",
    "AlterConfigs",
    "IncrementalAlterConfigs",
    "AlterClientQuotas",
    "UpdateFeatures",
    "UnregisterBroker",
)


async def forward(request: Any, context: RequestContext) -> Any:
    return await context.node.quorum.ask(request, context.version)


for _name in FORWARDED:
    handles(_name)(forward)
    handles(_name, roles=("controller",))(decide)
