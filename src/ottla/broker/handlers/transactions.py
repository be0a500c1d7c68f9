"""Producer ids and transactions, as their coordinator and as the leader of partitions that take part.

InitProducerId 0-5 (3 expected id and epoch, 4 PRODUCER_FENCED), AddPartitionsToTxn 0-5 (4+ many transactions, from brokers only, to
add or to verify), AddOffsetsToTxn 0-4, EndTxn 0-5 (5 bumps the epoch, KIP-890), WriteTxnMarkers 1-2, DescribeTransactions 0,
TxnOffsetCommit 0-5 (3 members, 5 adds the partition), ListTransactions 0-2 (1 duration, 2 pattern), DescribeProducers 0.

Clients from before PRODUCER_FENCED existed are told INVALID_PRODUCER_EPOCH, which they handle the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Any

from ottla.broker.access import is_allowed
from ottla.broker.dispatch import RequestContext, handles
from ottla.broker.handlers.group_offsets import of_known
from ottla.broker.markers import write_marker
from ottla.broker.verification import Joining, Support, Verified, join_transaction, support_of_offset_commit
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import OFFSETS_TOPIC, TopicPartition
from ottla.model.names import check_topic_name
from ottla.protocol.apis import Operation, Resource
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.records.batch import NO_SEQUENCE
from ottla.transactions.records import partition_for
from ottla.transactions.requests import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    ListTransactions,
    ProducerIdReply,
    VerifyPartitions,
)
from ottla.transactions.states import EPOCH_BUMP_AT_END

Errors = dict[TopicPartition, ErrorCode]
_REFUSALS = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction


async def _ask(context: RequestContext, transactional_id: str, request: Any) -> Any:
    """Of the shard that coordinates this id; an error, too, is an answer."""
    node = context.node
    answer = node.coordinators.ask(node.transactions, transactional_id, request, context)
    return await answer if isinstance(answer, asyncio.Future) else answer


async def _begin(context: RequestContext, transactional_id: str, request: Any) -> Any:
    """The same, for what starts something new: if the transaction before is just being finished, that is waited for."""
    answer = await _ask(context, transactional_id, request)
    code = answer.error if isinstance(answer, ProducerIdReply) else answer
    if code == ErrorCode.CONCURRENT_TRANSACTIONS and await context.node.transactions.finished(transactional_id):
        answer = await _ask(context, transactional_id, request)
    return answer


def _spoken(error: ErrorCode, version: int, first_that_knows: int) -> ErrorCode:
    older = error == ErrorCode.PRODUCER_FENCED and version < first_that_knows
    return ErrorCode.INVALID_PRODUCER_EPOCH if older else error


# Clients to their coordinator --------------------------------------------------------------------------------------------


@handles("InitProducerId")
async def init_producer_id(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    """Without a transactional id anybody may have a producer id, from any broker."""
    if (request.producer_id >= 0) != (request.producer_epoch >= 0):
        return InitProducerIdResponse(
            error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1
        )  # one without the other
    kind = context.node.transactions
    await kind.have_producer_ids()
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=kind.producer_ids.take(), producer_epoch=0)
    asked = InitProducerId(
        request.transactional_id,
        request.transaction_timeout_ms,
        request.producer_id,
        request.producer_epoch,
        request.enable2_pc,
        request.keep_prepared_txn,
    )
    reply: ProducerIdReply = await _begin(context, request.transactional_id, asked)
    return InitProducerIdResponse(
        error_code=_spoken(reply.error, context.version, 4), producer_id=reply.producer_id, producer_epoch=reply.producer_epoch
    )


@handles("EndTxn")
async def end_transaction(request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
    identity = (request.transactional_id, request.producer_id, request.producer_epoch)
    version = EPOCH_BUMP_AT_END if context.version >= 5 else 0
    reply: ProducerIdReply = await _ask(context, request.transactional_id, EndTransaction(*identity, request.committed, version))
    return EndTxnResponse(
        error_code=_spoken(reply.error, context.version, 2), producer_id=reply.producer_id, producer_epoch=reply.producer_epoch
    )


@handles("AddOffsetsToTxn")
async def add_offsets(request: AddOffsetsToTxnRequest, context: RequestContext) -> AddOffsetsToTxnResponse:
    """The offsets of a group are records like others: their partition joins the transaction."""
    node = context.node
    topic_id = node.image.topic_ids.get(OFFSETS_TOPIC)
    count = node.settings["offsets.topic.num.partitions"] if topic_id is None else len(node.image.topics[topic_id].partitions)
    partition = TopicPartition(OFFSETS_TOPIC, partition_for(request.group_id, count))
    identity = (request.transactional_id, request.producer_id, request.producer_epoch)
    error: ErrorCode = await _begin(context, request.transactional_id, AddPartitions(*identity, frozenset({partition})))
    return AddOffsetsToTxnResponse(error_code=_spoken(error, context.version, 2))


@handles("TxnOffsetCommit")
def commit_offsets(request: TxnOffsetCommitRequest, context: RequestContext) -> Any:
    """At the group's coordinator: the offsets become visible when the transaction that they belong to commits."""
    return of_known(request, context, partial(_verify_and_commit, request, context))


def _verify_and_commit(request: TxnOffsetCommitRequest, context: RequestContext) -> Any:
    identity = (request.transactional_id, request.producer_id, request.producer_epoch)
    joining = Joining(context, *identity, support_of_offset_commit(context.version))
    try:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        verified = join_transaction(joining, partial(_start, joining, request.group_id), _error_for_offsets)
    except ApiError as error:
        return _refuse(request, context, error)
    if isinstance(verified, Verified):
        return _commit(request, context, verified)
    return _commit_later(request, context, verified)


def _start(joining: Joining, group_id: str) -> Verified:
    node = joining.context.node
    replica = node.coordinators.active(node.groups, group_id).replica
    guard = joining.start(replica.log, NO_SEQUENCE)
    return Verified({}, {} if guard is None else {replica.topic_partition: guard})


def _error_for_offsets(error: ErrorCode, support: Support) -> ApiError:
    # Older clients do not expect NETWORK_EXCEPTION here; told that the coordinator loads, they ask again.
    return ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error == ErrorCode.NETWORK_EXCEPTION else error)


def _commit(request: TxnOffsetCommitRequest, context: RequestContext, verified: Verified) -> Any:
    node, groups = context.node, context.node.groups
    for error in verified.errors.values():
        return _refuse(request, context, error)
    guard = next(iter(verified.guards.values()), None)  # there is but one partition
    version = EPOCH_BUMP_AT_END if context.version >= 5 else 1
    return node.coordinators.ask(groups, request.group_id, request, context, guard, version)


async def _commit_later(request: TxnOffsetCommitRequest, context: RequestContext, verified: Awaitable[Verified]) -> Any:
    try:
        reply = _commit(request, context, await verified)
    except ApiError as error:
        return _refuse(request, context, error)
    return await reply if isinstance(reply, asyncio.Future) else reply


def _refuse(request: TxnOffsetCommitRequest, context: RequestContext, error: ApiError) -> Any:
    groups = context.node.groups
    return groups.shape(groups.refusal(request, error, context.version), context.version)


@handles("AddPartitionsToTxn")
async def add_partitions(request: AddPartitionsToTxnRequest, context: RequestContext) -> AddPartitionsToTxnResponse:
    if context.version < 4:
        alone = Transaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        errors = await _add_or_verify(alone, context)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_by_topic(errors, alone))
    answers = await asyncio.gather(*(_add_or_verify(each, context) for each in request.transactions))
    result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            result(transactional_id=each.transactional_id, topic_results=_by_topic(errors))
            for each, errors in zip(request.transactions, answers, strict=True)
        ]
    )


async def _add_or_verify(transaction: Transaction, context: RequestContext) -> Errors:
    """One partition that is not there, or not the sender's to write, fails the whole transaction's request."""
    partitions = frozenset(TopicPartition(topic.name, index) for topic in transaction.topics for index in topic.partitions)
    refused = {each: code for each in partitions if (code := _refusal(each, context))}
    if refused:
        return {each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions}
    identity = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch, partitions)
    if transaction.verify_only:
        verdict: Errors = await _ask(context, transaction.transactional_id, VerifyPartitions(*identity))
        return verdict
    version = EPOCH_BUMP_AT_END if context.version >= 4 else 0
    error: ErrorCode = await _begin(context, transaction.transactional_id, AddPartitions(*identity, version))
    return dict.fromkeys(partitions, _spoken(error, context.version, 2))


def _refusal(partition: TopicPartition, context: RequestContext) -> ErrorCode:
    if context.version < 4 and not is_allowed(context, Operation.WRITE, Resource.TOPIC, partition.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = context.node.partition_state(*partition)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else ErrorCode.NONE


def _by_topic(errors: Errors, of: Transaction | None = None) -> list[AddPartitionsToTxnTopicResult]:
    """Topics without partitions are answered for as well if the transaction is given, unless some of its partitions were refused."""
    named = [] if of is None or _REFUSALS & set(errors.values()) else [topic.name for topic in of.topics]
    topics = {name: AddPartitionsToTxnTopicResult(name=name) for name in named}
    for (topic, partition), error in sorted(errors.items()):
        row = topics.setdefault(topic, AddPartitionsToTxnTopicResult(name=topic))
        row.results_by_partition.append(AddPartitionsToTxnPartitionResult(partition_index=partition, partition_error_code=error))
    return list(topics.values())


# Coordinators to partition leaders ---------------------------------------------------------------------------------------


@handles("WriteTxnMarkers")
async def write_markers(request: WriteTxnMarkersRequest, context: RequestContext) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(markers=[await _write(marker, context) for marker in request.markers])


async def _write(
    marker: WriteTxnMarkersRequest.WritableTxnMarker, context: RequestContext
) -> WriteTxnMarkersResponse.WritableTxnMarkerResult:
    result = WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic_row = result.WritableTxnMarkerTopicResult
    partitions = [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]
    outcomes = [write_marker(context.node, partition, marker) for partition in partitions]
    topics: dict[str, Any] = {}
    for (topic, index), outcome in zip(partitions, outcomes, strict=True):
        error = await outcome if isinstance(outcome, asyncio.Future) else outcome
        row = topic_row.WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
        topics.setdefault(topic, topic_row(name=topic)).partitions.append(row)
    return result(producer_id=marker.producer_id, topics=list(topics.values()))


# Questions ---------------------------------------------------------------------------------------------------------------


@handles("DescribeTransactions")
async def describe_transactions(request: DescribeTransactionsRequest, context: RequestContext) -> DescribeTransactionsResponse:
    described = [await _describe(transactional_id, context) for transactional_id in request.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=described)


async def _describe(transactional_id: str, context: RequestContext) -> DescribeTransactionsResponse.TransactionState:
    row = DescribeTransactionsResponse.TransactionState
    if not is_allowed(context, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id):
        return row(transactional_id=transactional_id, error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    found: DescribeTransactionsResponse.TransactionState = await _ask(
        context, transactional_id, DescribeTransaction(transactional_id)
    )
    return found


@handles("ListTransactions")
async def list_transactions(request: ListTransactionsRequest, context: RequestContext) -> ListTransactionsResponse:
    asked = ListTransactions(
        tuple(request.state_filters),
        tuple(request.producer_id_filters),
        request.duration_filter,
        request.transactional_id_pattern,
    )
    # Filters that make no sense are refused even if there is nothing to be filtered.
    merged = context.node.transactions.listing_of_nothing(asked)
    try:
        shards = context.node.coordinators.all_of(context.node.transactions)
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.code)
    for shard in shards:
        answer = shard.ask(asked, context)
        merged.transaction_states += (await answer if isinstance(answer, asyncio.Future) else answer).transaction_states
    return merged


@handles("DescribeProducers")
def describe_producers(request: DescribeProducersRequest, context: RequestContext) -> DescribeProducersResponse:
    topic_row = DescribeProducersResponse.TopicResponse
    return DescribeProducersResponse(
        topics=[
            topic_row(name=topic.name, partitions=_producers(topic.name, topic.partition_indexes, context))
            for topic in request.topics
        ]
    )


def _producers(
    topic: str, indexes: Iterable[int], context: RequestContext
) -> list[DescribeProducersResponse.TopicResponse.PartitionResponse]:
    row = DescribeProducersResponse.TopicResponse.PartitionResponse
    found = []
    for index in indexes:
        try:
            if not is_allowed(context, Operation.READ, Resource.TOPIC, topic):
                raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            check_topic_name(topic)
            summaries = context.node.replicas.leader(topic, index).log.active_producers()
        except ApiError as error:
            found.append(row(partition_index=index, error_code=error.code, error_message=error.message))
            continue
        producers = [
            row.ProducerState(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_timestamp,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_start_offset=each.current_transaction_start_offset,
            )
            for each in summaries
        ]
        found.append(row(partition_index=index, active_producers=producers))
    return found
