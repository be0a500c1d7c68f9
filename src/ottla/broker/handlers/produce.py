"""Produce 3-13: records in.

Versions: 3 transactional id; 5 log start offset in the reply; 7 zstd; 8 record errors; 9 flexible; 10 leader hints (KIP-951);
11 transactions v2 allowed from here (KIP-890); 12 implicit partition adds; 13 topic ids.

Versions 0 to 2 are advertised, because older librdkafka takes them for the sign that a broker can do compression, and answered
as their senders expect when they come: they cannot.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any, NamedTuple

from ottla.broker.admission import admit, one_batch
from ottla.broker.dispatch import RequestContext, handles
from ottla.broker.purgatory import Parked
from ottla.broker.replicas import Fresh, Replica
from ottla.broker.server import Answer, Exchange, Later
from ottla.broker.verification import NOTHING_VERIFIED, Verified, verify
from ottla.host.sending import READ_INSTEAD_OF_SENDFILE, Part
from ottla.model.errors import ApiError, ErrorCode, ProtocolError
from ottla.model.ids import INTERNAL_TOPICS, ZERO_UUID
from ottla.protocol.framing import response_frame
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.single_produce import read_request, write_answer
from ottla.records.validation import RecordsInvalid
from ottla.storage.config import LONG_MAX
from ottla.storage.log import Log
from ottla.storage.types import CLIENT, AppendResult

log = logging.getLogger("ottla.produce")
TopicReply = ProduceResponse.TopicProduceResponse
PartitionReply = TopicReply.PartitionProduceResponse
ALL = -1
_ACKS = (0, 1, ALL)
_NO_HINT = PartitionReply.LeaderIdAndEpoch()  # shared by all replies without a hint: it is replaced, never changed
_WITHOUT_LOG_START = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.KAFKA_STORAGE_ERROR)
ADMIN_CLIENT_ID = "__admin_client"  # the one client id that Kafka lets write to internal topics


class Waiting(NamedTuple):
    """An append that is not safe yet: replicas must have it, or the disk (`flush.messages`)."""

    replica: Replica
    leader_epoch: int
    last_offset: int
    for_replicas: bool
    for_disk: bool

    def outcome(self, final: bool) -> ErrorCode | None:
        """None: not yet."""
        leader, error = self.replica.leader, None
        if leader is None or self.replica.leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not self.for_disk or self.replica.log.recovery_point > self.last_offset:
            error = leader.acknowledged(self.last_offset + 1) if self.for_replicas else ErrorCode.NONE
        return ErrorCode.REQUEST_TIMED_OUT if error is None and final else error


Row = tuple[Waiting, PartitionReply]


def single_produce(frame: bytearray, position: int, correlation_id: int, context: RequestContext) -> Answer | Exchange:
    """The short way of a request that names one partition: the same append, with no message made before it or after."""
    version, node = context.version, context.node
    single = read_request(frame, position, version)
    if single is None or not single.acks:
        return None
    acks, timeout_ms, topic, partition, named, records = single
    name = topic if isinstance(topic, str) else node.topic_name(topic)
    replicas = node.replicas
    replicas.agenda.attend()
    try:
        outcome = _append(context, name, partition, records, acks, node.world.clock.wall_ms(), NOTHING_VERIFIED)
        if isinstance(outcome, PartitionReply):
            return _refusal(outcome, topic, correlation_id, context)
        result, waiting = outcome
        if waiting is not None:
            replicas.agenda.run()
    finally:
        replicas.agenda.leave()
        replicas.fresh = None
    answer = write_answer(version, correlation_id, named, result.first_offset, result.log_append_time_ms, result.log_start_offset)
    if waiting is None:
        return answer

    def attempt(final: bool) -> Answer:
        error = waiting.outcome(final)
        if error:
            return _refusal(_failed(partition, error), topic, correlation_id, context)
        return None if error is None else answer

    return attempt(final=False) or _answered_later(Parked(replicas.agenda, attempt, timeout_ms, [waiting.replica.watchers]))


def _refusal(reply: PartitionReply, topic: str | bytes, correlation_id: int, context: RequestContext) -> Answer:
    name, topic_id = (topic, ZERO_UUID) if isinstance(topic, str) else ("", topic)
    response = ProduceResponse([TopicReply(name, topic_id, [reply])])
    _hint_leaders(response, context)
    return response_frame(response, context.version, correlation_id)


def _answered_later(parked: Parked[list[Part]]) -> Exchange:
    later = Later()

    def deliver(answer: Answer, failure: Exception | None) -> None:
        if failure is not None:
            log.error("produce failed", exc_info=failure)
        later.give(answer, None if failure is None else ProtocolError(f"a produce request failed: {failure}"))

    parked.deliver_to(deliver)
    later.abandon = parked.leave
    return Exchange(None, later, lets_next_start=True)


@handles("Produce", lets_next_start=True, shortcut=single_produce)
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
    replies: list[TopicReply] = []
    rows: list[Row] = []
    failed = False
    now_ms = context.node.world.clock.wall_ms()
    replicas = context.node.replicas
    replicas.agenda.attend()
    try:
        for topic in request.topic_data:
            name = topic.name if context.version < 13 else context.node.topic_name(topic.topic_id)
            if not topic.partition_data:
                continue
            results: list[PartitionReply] = []
            for data in topic.partition_data:
                outcome = _append(context, name, data.index, data.records, request.acks, now_ms, verified)
                if isinstance(outcome, PartitionReply):
                    failed = True
                    results.append(outcome)
                    continue
                (first_offset, _, append_time, start_offset, _), waiting = outcome
                # By position, because this is made for every batch that comes in: the fields in the order of their declaration.
                reply = PartitionReply(data.index, 0, first_offset, append_time, start_offset, [], None, _NO_HINT)
                results.append(reply)
                if waiting is not None:
                    rows.append((waiting, reply))
            replies.append(TopicReply(topic.name, topic.topic_id, results))
        if rows:
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
    if not rows:
        return response
    return _wait(response, rows, request.timeout_ms, context)


def _append(
    context: RequestContext,
    topic: str | None,
    index: int,
    records: Any,
    acks: int,
    now_ms: int,
    verified: Verified,
) -> PartitionReply | tuple[AppendResult, Waiting | None]:
    """Why it was refused, or where the records are and what their producer must wait for."""
    held = None
    replicas = context.node.replicas
    try:
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        replica = replicas.leader(topic, index)
        if topic in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        header = one_batch(records, context.version)
        if acks not in _ACKS:
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
        leader, held = replica.leader, replica.log
        assert leader is not None
        leader.check_append(acks)
        guard = None if verified is NOTHING_VERIFIED else verified.guard(replica.topic_partition)
        buffer, header = admit(records, header, held.config, now_ms)
        result = replica.append(buffer, [(0, header)], now_ms, CLIENT, guard, 2 if context.version >= 12 else 1)
    except RecordsInvalid as error:
        reply = _refused(index, error, held)
        reply.record_errors = [
            PartitionReply.BatchIndexAndErrorMessage(batch_index=row.batch_index, batch_index_error_message=row.message)
            for row in error.errors
        ]
        return reply
    except ApiError as error:
        return _refused(index, error, held)
    last_offset = result.last_offset
    for_replicas = acks == ALL and held.high_watermark <= last_offset
    if for_replicas and not result.duplicate and len(buffer) < READ_INSTEAD_OF_SENDFILE:
        replicas.fresh = Fresh(held, result.first_offset, buffer)
    for_disk = held.config.flush_messages != LONG_MAX and replica.flush_if_counted(now_ms)
    if for_replicas or for_disk:
        return result, Waiting(replica, replica.leader_epoch, last_offset, for_replicas, for_disk)
    return result, None


def _refused(index: int, error: ApiError, held: Log | None) -> PartitionReply:
    """Kafka tells where the log starts with every error of the log's own judgement, so that a producer sees what was deleted."""
    tells_start = error.code not in _WITHOUT_LOG_START
    return PartitionReply(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=held.log_start_offset if held is not None and tells_start else -1,
        error_message=error.message,
    )


def _failed(index: int, error: ErrorCode) -> PartitionReply:
    """Of an append that happened, and is not known to be safe."""
    return PartitionReply(index, error, -1, -1, -1)


def _wait(
    response: ProduceResponse, rows: list[Row], timeout_ms: int, context: RequestContext
) -> ProduceResponse | Parked[ProduceResponse]:
    """Answer once every partition is committed, or has lost its leader, or the time is up."""

    def attempt(final: bool) -> ProduceResponse | None:
        for row in list(rows):
            waiting, reply = row
            error = waiting.outcome(final)
            if error is not None:
                rows.remove(row)
                if error:
                    reply.error_code = error
                    reply.base_offset = reply.log_append_time_ms = reply.log_start_offset = -1
                    _hint_leaders(response, context)
        return None if rows else response

    watched = {waiting.replica.watchers for waiting, _ in rows}
    return attempt(final=False) or Parked(context.node.replicas.agenda, attempt, timeout_ms, watched)


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
