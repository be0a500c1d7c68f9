"""Metadata 0-13, DescribeCluster 0-2, DescribeTopicPartitions 0: the cluster as clients see it.

Metadata: 1 null means all topics; 4 auto-creation may be declined; 5 offline replicas; 7 leader epochs; 8 authorised operations;
9 flexible; 10 topic ids; 12 topics by id; 13 an error of the whole.
DescribeCluster: 1 endpoint type (KIP-919); 2 fenced brokers.

A topic that this request creates is answered for once it exists, where Kafka answers UNKNOWN_TOPIC_OR_PARTITION first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any

from ottla.broker.access import cluster_operations, topic_operations
from ottla.broker.config import Endpoint
from ottla.broker.dispatch import RequestContext, handles
from ottla.metadata.image import NO_LEADER, Partition, Topic
from ottla.model.errors import ErrorCode
from ottla.model.ids import INTERNAL_TOPICS, ZERO_UUID
from ottla.model.names import is_topic_name
from ottla.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)

TopicReply = MetadataResponse.MetadataResponseTopic
PartitionReply = TopicReply.MetadataResponsePartition
BROKERS, CONTROLLERS = 1, 2  # endpoint types


@handles("Metadata")
def metadata(request: MetadataRequest, context: RequestContext) -> Any:
    if context.version < 12 and any(topic.name is None or topic.topic_id != ZERO_UUID for topic in request.topics or ()):
        return _refused(request)
    alone = len(context.node.image.brokers) <= 1
    return _at_once(request, context) if alone else _once_settled(request, context)


async def _once_settled(request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    """A peer may just have died: its successors will be known in a moment. A client hears of it when we do, and the loop reads
    requests before it tells of lost connections, so a turn goes by before we ask ourselves."""
    await asyncio.sleep(0)
    await context.node.doubts.settled()
    response = _at_once(request, context)
    return response if isinstance(response, MetadataResponse) else await response


def _at_once(request: MetadataRequest, context: RequestContext) -> MetadataResponse | Awaitable[MetadataResponse]:
    if request.topics is None or (context.version == 0 and not request.topics):
        return _answer([_describe(topic, context) for topic in context.node.image.topics.values()], request, context)
    missing = _to_create(request, context)
    return _create_and_answer(request, context, missing) if missing else _answer(_asked_for(request, context), request, context)


def _refused(request: MetadataRequest) -> MetadataResponse:
    """Topics by id came before brokers could answer for them: each is told so, and nothing else is said."""
    return MetadataResponse(
        topics=[
            TopicReply(error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id)
            for topic in request.topics or ()
        ]
    )


def _to_create(request: MetadataRequest, context: RequestContext) -> list[str]:
    if not request.allow_auto_topic_creation or not context.node.settings["auto.create.topics.enable"]:
        return []
    known = context.node.image.topic_ids
    return [
        topic.name for topic in request.topics or () if topic.name and topic.topic_id == ZERO_UUID and topic.name not in known
    ]


async def _create_and_answer(request: MetadataRequest, context: RequestContext, missing: list[str]) -> MetadataResponse:
    errors = await context.node.auto_create(missing)
    return _answer(_asked_for(request, context, errors), request, context)


def _asked_for(request: MetadataRequest, context: RequestContext, errors: dict[str, ErrorCode] | None = None) -> list[TopicReply]:
    image, found = context.node.image, {}
    for asked in request.topics or ():
        if asked.topic_id != ZERO_UUID:
            topic = image.topics.get(asked.topic_id)
            missing = TopicReply(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
            found[asked.topic_id.hex()] = missing if topic is None else _describe(topic, context)
        elif asked.name is not None:
            topic_id = image.topic_ids.get(asked.name)
            code = (errors or {}).get(asked.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if not is_topic_name(asked.name):
                code = ErrorCode.INVALID_TOPIC_EXCEPTION
            missing = TopicReply(error_code=code, name=asked.name, is_internal=asked.name in INTERNAL_TOPICS)
            found[asked.name] = missing if topic_id is None else _describe(image.topics[topic_id], context)
    return list(found.values())


def _answer(topics: list[TopicReply], request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    node = context.node
    if request.include_topic_authorized_operations and context.version >= 8:
        for topic in topics:
            if topic.name is not None:  # of an id that is not known nothing can be said
                topic.topic_authorized_operations = topic_operations(context, topic.name)
    with_cluster = request.include_cluster_authorized_operations and 8 <= context.version <= 10
    # A broker that has just started is fenced for a moment, and so may all be. Who answers is there: an empty list would tell a
    # client that there is nobody left to ask (librdkafka then asks nobody, ever again).
    brokers = list(node.endpoints(context.listener, node.image.brokers)) or list(_only_this_one(context))
    response = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=rack)
            for broker_id, endpoint, rack in brokers
        ],
        cluster_id=node.cluster_id,
        controller_id=some_broker(context, [broker_id for broker_id, _, _ in brokers]),
        topics=topics,
    )
    if with_cluster:
        response.cluster_authorized_operations = cluster_operations(context)
    return response


def _only_this_one(context: RequestContext) -> Iterator[tuple[int, Endpoint, str | None]]:
    for endpoint in context.node.advertised:
        if endpoint.name == context.listener:
            yield context.node.node_id, endpoint, context.node.config.rack


def some_broker(context: RequestContext, broker_ids: list[int]) -> int:
    """Clients send what is meant for the controller to the broker named here, and any broker passes it on: so any will do,
    and this one saves a hop."""
    return context.node.node_id if context.node.node_id in broker_ids else broker_ids[0] if broker_ids else -1


def _describe(topic: Topic, context: RequestContext) -> TopicReply:
    return TopicReply(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(index, state, context) for index, state in sorted(topic.partitions.items())],
    )


def _partition(index: int, state: Partition, context: RequestContext) -> PartitionReply:
    error, leader = leader_error(state, context)
    return PartitionReply(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=offline_replicas(state, context),
    )


def leader_error(state: Partition, context: RequestContext) -> tuple[ErrorCode, int]:
    """Whether a client of this listener can reach the leader, and who it is."""
    leader = context.node.image.brokers.get(state.leader)
    if state.leader == NO_LEADER or leader is None or leader.fenced:
        return ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
    if leader.listener(context.listener) is None:
        return ErrorCode.LISTENER_NOT_FOUND if context.version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
    return ErrorCode.NONE, state.leader


def offline_replicas(state: Partition, context: RequestContext) -> list[int]:
    brokers = context.node.image.brokers
    return [
        replica
        for replica in state.replicas
        if replica not in brokers
        or brokers[replica].fenced
        or brokers[replica].listener(context.listener) is None
        or not brokers[replica].has_online_directory(state.directory_of(replica))
    ]


@handles("DescribeCluster", roles=("broker", "controller"))
def describe_cluster(request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
    node = context.node
    is_controller = context.listener in node.config.controller_listener_names
    kind = CONTROLLERS if is_controller else BROKERS
    if request.endpoint_type != kind:
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if request.endpoint_type in (1, 2) else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        return DescribeClusterResponse(error_code=code, error_message="The request was sent to an endpoint of type " + str(kind))
    rows = _controllers(context) if is_controller else _brokers(context, request.include_fenced_brokers)
    response = DescribeClusterResponse(endpoint_type=kind, cluster_id=node.cluster_id, brokers=rows)
    response.controller_id = (
        node.quorum.leader_id if is_controller else some_broker(context, [r.broker_id for r in rows if not r.is_fenced])
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(context)
    return response


def _brokers(context: RequestContext, with_fenced: bool) -> list[DescribeClusterResponse.DescribeClusterBroker]:
    rows = []
    for broker_id, broker in sorted(context.node.image.brokers.items()):
        found = broker.listener(context.listener)
        if found is not None and (with_fenced or not broker.fenced):
            rows.append(
                DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=broker_id, host=found.host, port=found.port, rack=broker.rack, is_fenced=broker.fenced
                )
            )
    return rows


def _controllers(context: RequestContext) -> list[DescribeClusterResponse.DescribeClusterBroker]:
    return [
        DescribeClusterResponse.DescribeClusterBroker(broker_id=node_id, host=found.host, port=found.port)
        for node_id, controller in sorted(context.node.image.controllers.items())
        for found in controller.listeners
        if found.name == context.listener
    ]


@handles("DescribeTopicPartitions")
def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    """In pages: topics by name, partitions by number, from the cursor on, as many as the limit allows."""
    image, cursor = context.node.image, request.cursor
    limit = max(1, min(request.response_partition_limit, context.node.settings["max.request.partition.size.limit"]))
    names = sorted({topic.name for topic in request.topics}) if request.topics else sorted(image.topic_ids)
    if cursor is not None:
        if cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names):
            row = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
            return DescribeTopicPartitionsResponse(
                topics=[row(error_code=ErrorCode.INVALID_REQUEST, name=topic.name) for topic in request.topics]
            )
        names = [name for name in names if name >= cursor.topic_name]
    response = DescribeTopicPartitionsResponse()
    for name in names:
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if limit == 0:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=0)
            break
        limit, after = _page(response, name, first, limit, context, fetch_all=not request.topics)
        if after is not None:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=after)
            break
    return response


def _page(
    response: DescribeTopicPartitionsResponse, name: str, first: int, limit: int, context: RequestContext, fetch_all: bool
) -> tuple[int, int | None]:
    """Adds one topic; what is left of the limit, and the partition to go on with if it did not suffice."""
    row = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    topic_id = context.node.image.topic_ids.get(name)
    if topic_id is None:
        if not fetch_all:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
            missing = row(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                missing.topic_authorized_operations = topic_operations(context, name)
            response.topics.append(missing)
        return limit, None
    topic = context.node.image.topics[topic_id]
    indexes = [index for index in sorted(topic.partitions) if index >= first]
    shown = indexes[:limit]
    response.topics.append(
        row(
            name=name,
            topic_id=topic_id,
            is_internal=name in INTERNAL_TOPICS,
            partitions=[_described(index, topic.partitions[index], context) for index in shown],
            topic_authorized_operations=topic_operations(context, name),
        )
    )
    return limit - len(shown), indexes[limit] if len(indexes) > limit else None


def _described(
    index: int, state: Partition, context: RequestContext
) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic.DescribeTopicPartitionsResponsePartition:
    error, leader = leader_error(state, context)
    row = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic.DescribeTopicPartitionsResponsePartition
    return row(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        eligible_leader_replicas=list(state.eligible_leaders),
        last_known_elr=list(state.last_known_eligible),
        offline_replicas=offline_replicas(state, context),
    )
