"""Produce 3-13: records in.

Versions: 3 transactional id; 5 log start offset in the reply; 7 zstd; 8 record errors; 9 flexible; 10 leader hints (KIP-951);
11 transactions v2 allowed from here (KIP-890); 12 implicit partition adds; 13 topic ids.

Versions 0 to 2 are advertised, because older librdkafka takes them for the sign that a broker can do compression, and answered
as their senders expect when they come: they cannot.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, NamedTuple

from ottla.broker.admission import admit, one_batch
from ottla.broker.dispatch import RequestContext, handles
from ottla.broker.purgatory import Agenda, Parked
from ottla.broker.replicas import Fresh, Replica
from ottla.broker.verification import NOTHING_VERIFIED, Verified, verify
from ottla.host.sending import READ_INSTEAD_OF_SENDFILE
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import INTERNAL_TOPICS
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.records.validation import RecordsInvalid
from ottla.storage.config import LONG_MAX
from ottla.storage.log import Log

TopicReply = ProduceResponse.TopicProduceResponse
PartitionReply = TopicReply.PartitionProduceResponse
ALL = -1
_NO_HINT = PartitionReply.LeaderIdAndEpoch()  # shared by all replies without a hint: it is replaced, never changed
_WITHOUT_LOG_START = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.KAFKA_STORAGE_ERROR)
ADMIN_CLIENT_ID = "__admin_client"  # the one client id that Kafka lets write to internal topics


class Waiting(NamedTuple):
    """An append that is not safe yet: replicas must have it, or the disk (`flush.messages`)."""

    replica: Replica
    leader_epoch: int
    reply: PartitionReply
    last_offset: int
    for_replicas: bool
    for_disk: bool

    def outcome(self) -> ErrorCode | None:
        """None: not yet."""
        leader = self.replica.leader
        if leader is None or self.replica.leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.for_disk and self.replica.log.recovery_point <= self.last_offset:
            return None
        return leader.acknowledged(self.last_offset + 1) if self.for_replicas else ErrorCode.NONE


@handles("Produce", lets_next_start=True)
def produce(request: ProduceRequest, context: RequestContext) -> Any:
    """Append everything first, then wait for replicas if acks=all: so the order of appends is the order of requests."""
    if request.transactional_id is None:
        return _produce(request, context, NOTHING_VERIFIED)
    verified = verify(request, context)
    if isinstance(verified, Verified):
        return _produce(request, context, verified)
    return _produce_later(request, context, verified)


async def _produce_later(request: ProduceRequest, context: RequestContext, verified: Awaitable[Verified]) -> Any:
    response = _produce(request, context, await verified)
    return await response.future if isinstance(response, Parked) else response


def _produce(request: ProduceRequest, context: RequestContext, verified: Verified) -> Any:
    replies: list[ProduceResponse.TopicProduceResponse] = []
    waiting: list[Waiting] = []
    failed = False
    now_ms = context.node.world.clock.wall_ms()
    replicas = context.node.replicas
    replicas.agenda.attend()
    try:
        for topic in request.topic_data:
            name = topic.name if context.version < 13 else context.node.topic_name(topic.topic_id)
            if not topic.partition_data:
                continue
            results = []
            for partition in topic.partition_data:
                result = _append(request, context, name, partition, now_ms, waiting, verified)
                results.append(result)
                if result.error_code:
                    failed = True
            replies.append(TopicReply(topic.name, topic.topic_id, results))
        if waiting:
            replicas.agenda.run()  # who must copy it begins before we go on
    finally:
        replicas.agenda.leave()
        replicas.fresh = None
    response = ProduceResponse(replies)
    if failed:
        _hint_leaders(response, context)
    if request.acks == 0:
        if failed:
            context.connection.close()  # the only way to tell a producer that wants no answers
        return None
    if not waiting:
        return response
    return _wait(response, waiting, request.timeout_ms, replicas.agenda)


def _append(
    request: ProduceRequest,
    context: RequestContext,
    topic: str | None,
    data: ProduceRequest.TopicProduceData.PartitionProduceData,
    now_ms: int,
    waiting: list[Waiting],
    verified: Verified,
) -> PartitionReply:
    log = None
    try:
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        replica = context.node.replicas.leader(topic, data.index)
        if topic in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        header = one_batch(data.records, context.version)
        acks = request.acks
        if acks not in (0, 1, ALL):
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
        assert replica.leader is not None
        log = replica.log
        replica.leader.check_append(acks)
        guard = None if verified is NOTHING_VERIFIED else verified.guard(replica.topic_partition)
        buffer, header = admit(data.records, header, log.config, now_ms)
        result = replica.append(buffer, [(0, header)], now_ms, guard=guard, transaction_version=2 if context.version >= 12 else 1)
    except RecordsInvalid as error:
        reply = _refused(data.index, error, log)
        reply.record_errors = [
            PartitionReply.BatchIndexAndErrorMessage(batch_index=row.batch_index, batch_index_error_message=row.message)
            for row in error.errors
        ]
        return reply
    except ApiError as error:
        return _refused(data.index, error, log)
    first_offset, last_offset, append_time, start_offset, is_duplicate = result
    # By position, because this is made for every batch that comes in: the fields in the order of their declaration.
    reply = PartitionReply(data.index, 0, first_offset, append_time, start_offset, [], None, _NO_HINT)
    for_replicas = acks == ALL and log.high_watermark <= last_offset
    if for_replicas and not is_duplicate and len(buffer) < READ_INSTEAD_OF_SENDFILE:
        context.node.replicas.fresh = Fresh(log, first_offset, buffer)
    for_disk = log.config.flush_messages != LONG_MAX and replica.flush_if_counted(now_ms)
    if for_replicas or for_disk:
        waiting.append(Waiting(replica, replica.leader_epoch, reply, last_offset, for_replicas, for_disk))
    return reply


def _refused(index: int, error: ApiError, log: Log | None) -> PartitionReply:
    """Kafka tells where the log starts with every error of the log's own judgement, so that a producer sees what was deleted."""
    tells_start = error.code not in _WITHOUT_LOG_START
    return PartitionReply(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=log.log_start_offset if log is not None and tells_start else -1,
        error_message=error.message,
    )


def _wait(
    response: ProduceResponse, waiting: list[Waiting], timeout_ms: int, agenda: Agenda
) -> ProduceResponse | Parked[ProduceResponse]:
    """Answer once every partition is committed, or has lost its leader, or the time is up."""

    def attempt(final: bool) -> ProduceResponse | None:
        for row in list(waiting):
            error = row.outcome()
            if error is None and final:
                error = ErrorCode.REQUEST_TIMED_OUT
            if error is not None:
                waiting.remove(row)
                _fail(row.reply, error)
        return None if waiting else response

    return attempt(final=False) or Parked(agenda, attempt, timeout_ms, {row.replica.watchers for row in waiting})


def _fail(reply: PartitionReply, error: ErrorCode) -> None:
    reply.error_code = error
    if error:
        reply.base_offset = reply.log_append_time_ms = reply.log_start_offset = -1


def _hint_leaders(response: ProduceResponse, context: RequestContext) -> None:
    """Tell a producer with stale metadata where to go (KIP-951)."""
    if context.version < 10:
        return
    leaders = set()
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                state = context.node.partition_state(topic.name or context.node.topic_name(topic.topic_id), partition.index)
                if state is not None:
                    partition.current_leader = PartitionReply.LeaderIdAndEpoch(
                        leader_id=state.leader, leader_epoch=state.leader_epoch
                    )
                    leaders.add(state.leader)
    if not leaders:
        return
    response.node_endpoints = [
        ProduceResponse.NodeEndpoint(node_id=node_id, host=endpoint.host, port=endpoint.port, rack=rack)
        for node_id, endpoint, rack in context.node.endpoints(context.listener, leaders)
    ]
