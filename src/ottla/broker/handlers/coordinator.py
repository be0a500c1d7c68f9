"""FindCoordinator 0-6: which broker answers for a group or a transactional id.

1 transactional ids; 3 flexible; 4 several keys at once (KIP-699); 5 transactions v2; 6 share groups, which are not served.

The internal topic is created when it is first asked for. Kafka answers COORDINATOR_NOT_AVAILABLE meanwhile; here the answer waits
for the topic, so that a first consumer need not try twice.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.config import Endpoint
from ottla.broker.coordinators import Kind
from ottla.broker.dispatch import RequestContext, handles
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ottla.protocol.messages.coordinator import FindCoordinatorRequest, FindCoordinatorResponse

_TOPICS = {0: OFFSETS_TOPIC, 1: TRANSACTIONS_TOPIC}
_FIRST_WITH_SEVERAL_KEYS = 4
NOT_AVAILABLE = "The coordinator is not available."


@handles("FindCoordinator")
def find_coordinator(request: FindCoordinatorRequest, context: RequestContext) -> Any:
    kind = context.node.coordinators.kinds.get(_TOPICS.get(request.key_type, ""))
    if kind is not None and kind.topic not in context.node.image.topic_ids:
        return _create_and_find(kind, request, context)
    return _find_all(kind, request, context)


async def _create_and_find(kind: Kind, request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
    await context.node.auto_create([kind.topic])
    return _find_all(kind, request, context)


def _find_all(kind: Kind | None, request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
    if context.version < _FIRST_WITH_SEVERAL_KEYS:
        try:
            node_id, endpoint = _find(kind, request.key, context)
        except ApiError as error:
            return FindCoordinatorResponse(error_code=error.code, error_message=error.message, node_id=-1, port=-1)
        return FindCoordinatorResponse(error_message="NONE", node_id=node_id, host=endpoint.host, port=endpoint.port)
    response = FindCoordinatorResponse()
    for key in request.coordinator_keys:
        found = FindCoordinatorResponse.Coordinator(key=key, node_id=-1, port=-1, error_message="")
        try:
            found.node_id, (_, found.host, found.port) = _find(kind, key, context)
        except ApiError as error:
            found.error_code = error.code
        response.coordinators.append(found)
    return response


def _find(kind: Kind | None, key: str, context: RequestContext) -> tuple[int, Endpoint]:
    if kind is None:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    node = context.node
    topic_id = node.image.topic_ids.get(kind.topic)
    if topic_id is not None:
        partitions = node.image.topics[topic_id].partitions
        leader = partitions[kind.partition_for(key, len(partitions))].leader
        for node_id, endpoint, _ in node.endpoints(context.listener, [leader]):
            return node_id, endpoint
    raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, NOT_AVAILABLE)
