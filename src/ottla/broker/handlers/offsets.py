"""ListOffsets 1-11, OffsetForLeaderEpoch 2-4, DeleteRecords 0-2.

ListOffsets: 2 isolation level; 4 leader epochs; 5 may say that the end is not known yet; 6 flexible; 7 the offset of the largest timestamp (-3); 8 the local log's start
(-4); 9 the last tiered offset (-5); 10 timeout; 11 the first offset not yet tiered (-6). Nothing is tiered here.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.dispatch import RequestContext, handles
from ottla.broker.purgatory import Agenda, Parked
from ottla.broker.replicas import Replica
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import INTERNAL_TOPICS
from ottla.protocol.messages.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
CONSUMER, DEBUGGER = -1, -2
READ_COMMITTED = 1
Found = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse


@handles("ListOffsets")
def list_offsets(request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    named = [(topic.name, row.partition_index) for topic in request.topics for row in topic.partitions]
    repeated = {key for key in named if named.count(key) > 1} if len(set(named)) < len(named) else set()
    refused: set[tuple[str, int]] = set()  # a partition that is asked for twice is refused once
    response = ListOffsetsResponse()
    for topic in request.topics:
        reply = ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name)
        for row in topic.partitions:
            found = Found(partition_index=row.partition_index)
            if (topic.name, row.partition_index) in refused:
                continue
            try:
                if (topic.name, row.partition_index) in repeated:
                    refused.add((topic.name, row.partition_index))
                    raise ApiError(ErrorCode.INVALID_REQUEST)
                _check_timestamp(row.timestamp, context.version)
                replica = context.node.replicas.leader(topic.name, row.partition_index)
                replica.check_epoch(row.current_leader_epoch)
                _find(found, replica, row.timestamp, request, context.version)
            except ApiError as error:
                found.error_code = error.code
            reply.partitions.append(found)
        if reply.partitions:
            response.topics.append(reply)
    return response


def _check_timestamp(timestamp: int, version: int) -> None:
    """A special timestamp that the version does not know is refused before anything else is looked at."""
    if timestamp < EARLIEST and (timestamp not in _SINCE or version < _SINCE[timestamp]):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)


def _find(found: Found, replica: Replica, timestamp: int, request: ListOffsetsRequest, version: int) -> None:
    log = replica.log
    upper = log.log_end_offset
    if request.replica_id == CONSUMER:
        upper = log.last_stable_offset if request.isolation_level == READ_COMMITTED else log.high_watermark
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        found.offset, found.leader_epoch = log.log_start_offset, log.epoch_of(log.log_start_offset)
    elif timestamp == LATEST_TIERED:
        found.leader_epoch = -1
    elif timestamp == EARLIEST_PENDING:
        found.offset, found.leader_epoch = -1, -1
    elif timestamp == LATEST:
        _check_known_to_be_committed(replica, request, version)
        found.offset, found.leader_epoch = upper, replica.leader_epoch
    else:
        match = log.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else log.lookup_timestamp(timestamp)
        if match is not None and match.offset < upper:
            found.timestamp, found.offset, found.leader_epoch = match
        else:
            _check_known_to_be_committed(replica, request, version)


def _check_known_to_be_committed(replica: Replica, request: ListOffsetsRequest, version: int) -> None:
    """A new leader has every acknowledged record, but learns only from its followers' next fetches that they were committed (KIP-207).

    Until then its high watermark lies below what consumers were told before, and "the end" would be a step back.
    """
    assert replica.leader is not None
    if request.replica_id == CONSUMER and replica.leader.epoch_start_offset > replica.log.high_watermark:
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE)


@handles("OffsetForLeaderEpoch")
def offset_for_leader_epoch(request: OffsetForLeaderEpochRequest, context: RequestContext) -> OffsetForLeaderEpochResponse:
    """3 says who asks; 4 flexible."""
    result = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        reply = result(topic=topic.topic)
        for row in topic.partitions:
            end = result.EpochEndOffset(partition=row.partition)
            try:
                replica = context.node.replicas.leader(topic.topic, row.partition)
                replica.check_epoch(row.current_leader_epoch)
                if row.leader_epoch == replica.leader_epoch:
                    end.leader_epoch, end.end_offset = row.leader_epoch, replica.log.log_end_offset
                else:
                    found = replica.log.end_offset_for_epoch(row.leader_epoch)
                    end.leader_epoch, end.end_offset = found.epoch, found.offset
            except ApiError as error:
                end.error_code = error.code
            reply.partitions.append(end)
        response.topics.append(reply)
    return response


@handles("DeleteRecords")
def delete_records(request: DeleteRecordsRequest, context: RequestContext) -> Any:
    """Answered once every replica has dropped the records, so that no failover brings them back."""
    rows = DeleteRecordsResponse.DeleteRecordsTopicResult
    response = DeleteRecordsResponse()
    waiting: list[tuple[Replica, Any]] = []
    for topic in request.topics:
        reply = rows(name=topic.name)
        for row in topic.partitions:
            result = rows.DeleteRecordsPartitionResult(partition_index=row.partition_index, low_watermark=-1)
            try:
                if topic.name in INTERNAL_TOPICS:
                    raise ApiError(ErrorCode.POLICY_VIOLATION)
                replica = context.node.replicas.leader(topic.name, row.partition_index)
                if not replica.log.config.delete:
                    raise ApiError(ErrorCode.POLICY_VIOLATION)
                result.low_watermark = replica.delete_records(row.offset)
                if replica.low_watermark < result.low_watermark:
                    waiting.append((replica, result))
            except ApiError as error:
                result.error_code = error.code
            reply.partitions.append(result)
        if reply.partitions:
            response.topics.append(reply)
    if not waiting:
        return response
    return _wait_for_deletion(response, waiting, request.timeout_ms, context.node.replicas.agenda)


def _wait_for_deletion(
    response: DeleteRecordsResponse, waiting: list[tuple[Replica, Any]], timeout_ms: int, agenda: Agenda
) -> Any:
    def attempt(final: bool) -> DeleteRecordsResponse | None:
        for replica, result in waiting:
            if not replica.leads:
                result.error_code, result.low_watermark = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
            elif replica.low_watermark < result.low_watermark:
                if not final:
                    return None
                result.error_code, result.low_watermark = ErrorCode.REQUEST_TIMED_OUT, -1
        return response

    return Parked(agenda, attempt, timeout_ms, {replica.watchers for replica, _ in waiting})
