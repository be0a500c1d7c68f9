"""Before transactional records are taken: are they part of a transaction that their coordinator knows? (KIP-890)

Clients of version 1 add their partitions themselves; here it is only verified that they did, so that a record which comes late,
after its transaction has ended, cannot start one that nobody would ever end. For clients of version 2 the leader of the
partition adds it on their behalf, which saves them a round trip.

The coordinator may be this node: then nothing waits, and the answer is there at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Iterator
from enum import IntEnum
from typing import Any

from ottla.broker.dispatch import RequestContext
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TRANSACTIONS_TOPIC, TopicPartition
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.records.batch import HEADER_SIZE, MAGIC, BatchHeader, read_header
from ottla.storage.producers import VerificationGuard
from ottla.transactions.requests import (
    AddPartitions,
    VerifyPartitions,
)
from ottla.transactions.states import EPOCH_BUMP_AT_END

Errors = dict[TopicPartition, ErrorCode]
Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction

# What a client of Produce may not know how to handle is told to it as something that it will simply try again.
_TRY_AGAIN = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Support(IntEnum):
    """What the client of a request can do, by the version that it speaks."""

    VERIFY = 0
    VERIFY_ABORTABLE = 1  # it knows TRANSACTION_ABORTABLE
    ADD = 2  # it leaves adding to us, and bumps its epoch at each end


def support_of_produce(version: int) -> Support:
    return Support.ADD if version >= 12 else Support.VERIFY_ABORTABLE if version == 11 else Support.VERIFY


def support_of_offset_commit(version: int) -> Support:
    return Support.ADD if version >= 5 else Support.VERIFY_ABORTABLE if version == 4 else Support.VERIFY


def join_transaction(
    context: RequestContext,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[TopicPartition],
    support: Support,
) -> Errors | Coroutine[Any, Any, Errors]:
    """The errors of those partitions that may not take the records; none when all may."""
    wanted = frozenset(partitions)
    try:
        answer = _ask(context, transactional_id, producer_id, producer_epoch, wanted, support)
    except ApiError as error:
        return dict.fromkeys(wanted, error.code)
    if isinstance(answer, dict):
        errors = _spoken(answer, support)
        if support is not Support.ADD or ErrorCode.CONCURRENT_TRANSACTIONS not in errors.values():
            return errors
    return _wait(answer, context, transactional_id, producer_id, producer_epoch, wanted, support)


async def _wait(
    answer: Errors | Coroutine[Any, Any, Errors],
    context: RequestContext,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: frozenset[TopicPartition],
    support: Support,
) -> Errors:
    """The transaction before may still be writing its markers: for a moment that is worth waiting for here."""
    node = context.node
    deadline = node.world.clock.monotonic_ms() + node.settings["add.partitions.to.txn.retry.backoff.max.ms"]
    while True:
        try:
            errors = _spoken(answer if isinstance(answer, dict) else await answer, support)
        except ApiError as error:
            return dict.fromkeys(partitions, error.code)
        concurrent = ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
        if not concurrent or support is not Support.ADD or node.world.clock.monotonic_ms() >= deadline:
            return errors
        if not await node.transactions.finished(transactional_id):
            await asyncio.sleep(node.settings["add.partitions.to.txn.retry.backoff.ms"] / 1000)
        try:
            answer = _ask(context, transactional_id, producer_id, producer_epoch, partitions, support)
        except ApiError as error:
            return dict.fromkeys(partitions, error.code)


def _ask(
    context: RequestContext,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: frozenset[TopicPartition],
    support: Support,
) -> Errors | Coroutine[Any, Any, Errors]:
    node = context.node
    kind = node.transactions
    topic_id = node.image.topic_ids.get(TRANSACTIONS_TOPIC)
    if topic_id is None:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    places = node.image.topics[topic_id].partitions
    leader = places[kind.partition_for(transactional_id, len(places))].leader
    if leader < 0:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if leader != node.node_id:
        return _ask_remote(context, leader, transactional_id, producer_id, producer_epoch, partitions, support)
    identity = (transactional_id, producer_id, producer_epoch, partitions)
    request = AddPartitions(*identity, EPOCH_BUMP_AT_END) if support is Support.ADD else VerifyPartitions(*identity)
    answer = node.coordinators.ask(kind, transactional_id, request, context)
    if isinstance(answer, asyncio.Future):
        return _later(answer, partitions)
    return _each(answer, partitions)


async def _later(answer: asyncio.Future[Any], partitions: frozenset[TopicPartition]) -> Errors:
    return _each(await answer, partitions)


def _each(answer: Any, partitions: frozenset[TopicPartition]) -> Errors:
    return answer if isinstance(answer, dict) else dict.fromkeys(partitions, answer)


async def _ask_remote(
    context: RequestContext,
    leader: int,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: frozenset[TopicPartition],
    support: Support,
) -> Errors:
    by_topic: dict[str, AddPartitionsToTxnTopic] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, AddPartitionsToTxnTopic(name=topic)).partitions.append(partition)
    transaction = Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        verify_only=support is not Support.ADD,
        topics=list(by_topic.values()),
    )
    response = await context.node.transactions.ask_broker(leader, AddPartitionsToTxnRequest(transactions=[transaction]))
    if response.error_code:
        error = ErrorCode(response.error_code)
        raise ApiError(ErrorCode.INVALID_TXN_STATE if error == ErrorCode.CLUSTER_AUTHORIZATION_FAILED else error)
    return {
        TopicPartition(topic.name, row.partition_index): ErrorCode(row.partition_error_code)
        for result in response.results_by_transaction
        for topic in result.topic_results
        for row in topic.results_by_partition
    }


def _spoken(errors: Errors, support: Support) -> Errors:
    return {partition: _in_words_of(error, support) for partition, error in errors.items() if error}


def _in_words_of(error: ErrorCode, support: Support) -> ErrorCode:
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and support is Support.VERIFY:
        return ErrorCode.INVALID_TXN_STATE
    return error


# Produce -----------------------------------------------------------------------------------------------------------------


class Verified:
    """What is known of the partitions of one Produce request: who may not, and the guards of those who may."""

    __slots__ = ("_errors", "_guards")

    def __init__(self, errors: dict[TopicPartition, ApiError], guards: dict[TopicPartition, VerificationGuard]) -> None:
        self._errors = errors
        self._guards = guards

    def guard(self, partition: TopicPartition) -> VerificationGuard | None:
        """Raises what the producer is to be told if its records may not be taken."""
        refused = self._errors.get(partition)
        if refused is not None:
            raise refused
        return self._guards.get(partition)


NOTHING_VERIFIED = Verified({}, {})


def verify(request: ProduceRequest, context: RequestContext) -> Verified | Awaitable[Verified]:
    """Before anything is appended. Only the first batch of a transaction in a partition needs its coordinator's word."""
    support = support_of_produce(context.version)
    errors: dict[TopicPartition, ApiError] = {}
    guards: dict[TopicPartition, VerificationGuard] = {}
    producers = set()
    for partition, header in _transactional_batches(request, context):
        producers.add((header.producer_id, header.producer_epoch))
        replica = context.node.replicas.get(*partition)
        if replica is None or not replica.leads:
            continue  # the append will say so
        try:
            guard = replica.log.start_verification(
                header.producer_id,
                header.base_sequence,
                header.producer_epoch,
                context.node.world.clock.wall_ms(),
                supports_epoch_bump=support is Support.ADD,
            )
        except ApiError as error:
            errors[partition] = error
            continue
        if guard is not None:
            guards[partition] = guard
    if len(producers) > 1:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID")
    verifies = support is Support.ADD or context.node.settings["transaction.partition.verification.enable"]
    if not guards or not verifies:
        return Verified(errors, guards)
    [(producer_id, producer_epoch)] = producers
    answer = join_transaction(context, request.transactional_id or "", producer_id, producer_epoch, guards, support)
    if isinstance(answer, dict):
        return _verdict(errors, guards, answer, support)
    return _verdict_later(errors, guards, answer, support)


def _transactional_batches(request: ProduceRequest, context: RequestContext) -> Iterator[tuple[TopicPartition, BatchHeader]]:
    for topic in request.topic_data:
        name = topic.name if context.version < 13 else context.node.topic_name(topic.topic_id)
        for data in topic.partition_data:
            if name is not None and data.records is not None and len(data.records) >= HEADER_SIZE:
                header = read_header(data.records)
                if header.magic == MAGIC and header.is_transactional:
                    yield TopicPartition(name, data.index), header


def _verdict(
    errors: dict[TopicPartition, ApiError], guards: dict[TopicPartition, VerificationGuard], answer: Errors, support: Support
) -> Verified:
    refused = {partition: error_for_produce(error, support) for partition, error in answer.items()}
    return Verified(errors | refused, guards)


async def _verdict_later(
    errors: dict[TopicPartition, ApiError],
    guards: dict[TopicPartition, VerificationGuard],
    answer: Awaitable[Errors],
    support: Support,
) -> Verified:
    return _verdict(errors, guards, await answer, support)


def error_for_produce(error: ErrorCode, support: Support) -> ApiError:
    """What a producer is told when its records were not taken."""
    if error == ErrorCode.INVALID_TXN_STATE:
        return ApiError(error, "Partition was not added to the transaction")
    if error in _TRY_AGAIN or (error == ErrorCode.CONCURRENT_TRANSACTIONS and support is not Support.ADD):
        # NOT_ENOUGH_REPLICAS makes clients try again without looking at their metadata first.
        words = f"Unable to verify the partition has been added to the transaction. Underlying error: {error.name}"
        return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, words)
    return ApiError(error)
