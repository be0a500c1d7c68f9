"""Requests that the active controller decides: any broker takes them and passes them on.

CreateTopics 2-7 (4 defaults by -1, 5 the topic's settings in the reply, 7 topic ids), DeleteTopics 1-6 (6 by id),
CreatePartitions 0-3, AlterPartitionReassignments 0-1, ListPartitionReassignments 0, ElectLeaders 0-2,
AlterConfigs 0-2, IncrementalAlterConfigs 0-1, AlterClientQuotas 0-1, UpdateFeatures 0-2, UnregisterBroker 0.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.dispatch import RequestContext, handles
from ottla.broker.handlers.configs import BROKER_LOGGER
from ottla.broker.handlers.controller import decide
from ottla.metadata.image import BROKER, CLIENT_METRICS, GROUP, TOPIC
from ottla.model.errors import ApiError, ErrorCode

ALTERABLE = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
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


async def alter_configs(request: Any, context: RequestContext) -> Any:
    """A broker answers for brokers other than itself, whose settings only they could check, and for what has no settings."""
    refused = []
    for resource in list(request.resources):
        error = _named_wrong(resource.resource_type, resource.resource_name, context)
        if error is not None:
            request.resources.remove(resource)
            refused.append((resource, error))
    response: Any = await forward(request, context) if request.resources or not refused else context.api.response()
    for resource, error in refused:
        row = type(response).AlterConfigsResourceResponse
        response.responses.append(
            row(
                error_code=error.code,
                error_message=error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return response


def _named_wrong(kind: int, name: str, context: RequestContext) -> ApiError | None:
    if kind == BROKER and name and name != str(context.node.node_id):
        return ApiError(ErrorCode.INVALID_REQUEST, f"this is broker {context.node.node_id}, and {name!r} is not for it to check")
    if kind not in ALTERABLE:
        return ApiError(ErrorCode.INVALID_REQUEST, f"there is no kind {kind} of resource with settings")
    return None


for _name in FORWARDED:
    handles(_name)(alter_configs if _name.endswith("AlterConfigs") else forward)
    handles(_name, roles=("controller",))(decide)
