"""Before transactional records are taken: are they part of a transaction that their coordinator knows? (KIP-890)

Clients of version 1 add their partitions themselves; here it is only verified that they did, so that a record which comes late,
after its transaction has ended, cannot start one that nobody would ever end. For clients of version 2 the leader of the
partition adds it on their behalf, which saves them a round trip.

The coordinator may be this node: then nothing waits, and the answer is there at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

from ottla.broker.dispatch import RequestContext
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TRANSACTIONS_TOPIC, TopicPartition
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.records.batch import HEADER_SIZE, MAGIC, BatchHeader, read_header
from ottla.storage.log import Log
from ottla.storage.producers import VerificationGuard
from ottla.transactions.requests import AddPartitions, VerifyPartitions
from ottla.transactions.states import EPOCH_BUMP_AT_END

Errors = dict[TopicPartition, ErrorCode]
Answer = Errors | Coroutine[Any, Any, Errors]
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


class Joining(NamedTuple):
    """A producer that wants partitions of ours in its transaction."""

    context: RequestContext
    transactional_id: str
    producer_id: int
    producer_epoch: int
    support: Support

    @property
    def asks(self) -> bool:
        return self.support is Support.ADD or bool(self.context.node.settings["transaction.partition.verification.enable"])

    def start(self, log: Log, sequence: int) -> VerificationGuard | None:
        """None: the transaction is open there already."""
        return log.start_verification(
            self.producer_id,
            sequence,
            self.producer_epoch,
            self.context.node.world.clock.wall_ms(),
            supports_epoch_bump=self.support is Support.ADD,
        )


class Verified:
    """What is known of the partitions of one request: who may not, and the guards of those who may."""

    __slots__ = ("errors", "guards")

    def __init__(self, errors: dict[TopicPartition, ApiError], guards: dict[TopicPartition, VerificationGuard]) -> None:
        self.errors = errors
        self.guards = guards

    def guard(self, partition: TopicPartition) -> VerificationGuard | None:
        """Raises what the producer is to be told if its records may not be taken."""
        refused = self.errors.get(partition)
        if refused is not None:
            raise refused
        return self.guards.get(partition)


NOTHING_VERIFIED = Verified({}, {})
Start = Callable[[], Verified]  # begins a verification in each partition's log
Worded = Callable[[ErrorCode, Support], ApiError]  # what a producer is told of a coordinator's error


def join_transaction(joining: Joining, start: Start, worded: Worded) -> Verified | Coroutine[Any, Any, Verified]:
    verified = start()
    if not verified.guards or not joining.asks:
        return verified
    answer = _ask(joining, frozenset(verified.guards))
    if isinstance(answer, dict) and not _too_early(answer, joining):
        return _verdict(verified, answer, joining, worded)
    return _wait(verified, answer, joining, start, worded)


async def _wait(verified: Verified, answer: Answer, joining: Joining, start: Start, worded: Worded) -> Verified:
    """The transaction before may still be writing its markers: for a moment that is worth waiting for here.

    A marker ends every verification that was begun before it, so each question to the coordinator has a beginning of its own, and
    an answer that a marker has overtaken counts for nothing.
    """
    node = joining.context.node
    deadline = node.world.clock.monotonic_ms() + node.settings["add.partitions.to.txn.retry.backoff.max.ms"]
    while True:
        errors = answer if isinstance(answer, dict) else await answer
        if joining.support is Support.ADD:
            errors = errors | _overtaken(verified, start(), errors)
        if not _too_early(errors, joining) or node.world.clock.monotonic_ms() >= deadline:
            return _verdict(verified, errors, joining, worded)
        if not await node.transactions.finished(joining.transactional_id):
            await asyncio.sleep(node.settings["add.partitions.to.txn.retry.backoff.ms"] / 1000)
        verified = start()
        if not verified.guards:
            return verified
        answer = _ask(joining, frozenset(verified.guards))


def _overtaken(verified: Verified, now: Verified, errors: Errors) -> Errors:
    return {
        partition: ErrorCode.CONCURRENT_TRANSACTIONS
        for partition, guard in now.guards.items()
        if verified.guards.get(partition) is not guard and not errors.get(partition)
    }


def _too_early(errors: Errors, joining: Joining) -> bool:
    return joining.support is Support.ADD and ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()


def _verdict(verified: Verified, answer: Errors, joining: Joining, worded: Worded) -> Verified:
    support = joining.support
    refused = {partition: worded(_in_words_of(error, support), support) for partition, error in answer.items() if error}
    return Verified(verified.errors | refused, verified.guards)


def _ask(joining: Joining, partitions: frozenset[TopicPartition]) -> Answer:
    try:
        leader = _coordinator(joining)
    except ApiError as error:
        return dict.fromkeys(partitions, error.code)
    node = joining.context.node
    if leader != node.node_id:
        return _ask_remote(joining, leader, partitions)
    identity = (joining.transactional_id, joining.producer_id, joining.producer_epoch, partitions)
    adds = joining.support is Support.ADD
    request = AddPartitions(*identity, EPOCH_BUMP_AT_END) if adds else VerifyPartitions(*identity)
    answer = node.coordinators.ask(node.transactions, joining.transactional_id, request, joining.context)
    if isinstance(answer, asyncio.Future):
        return _later(answer, partitions)
    return _each(answer, partitions)


def _coordinator(joining: Joining) -> int:
    node = joining.context.node
    topic_id = node.image.topic_ids.get(TRANSACTIONS_TOPIC)
    if topic_id is None:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    places = node.image.topics[topic_id].partitions
    leader = places[node.transactions.partition_for(joining.transactional_id, len(places))].leader
    if leader < 0:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return leader


async def _later(answer: asyncio.Future[Any], partitions: frozenset[TopicPartition]) -> Errors:
    try:
        return _each(await answer, partitions)
    except ApiError as error:
        return dict.fromkeys(partitions, error.code)


def _each(answer: Any, partitions: frozenset[TopicPartition]) -> Errors:
    return answer if isinstance(answer, dict) else dict.fromkeys(partitions, answer)


async def _ask_remote(joining: Joining, leader: int, partitions: frozenset[TopicPartition]) -> Errors:
    by_topic: dict[str, AddPartitionsToTxnTopic] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, AddPartitionsToTxnTopic(name=topic)).partitions.append(partition)
    transaction = Transaction(
        transactional_id=joining.transactional_id,
        producer_id=joining.producer_id,
        producer_epoch=joining.producer_epoch,
        verify_only=joining.support is not Support.ADD,
        topics=list(by_topic.values()),
    )
    request = AddPartitionsToTxnRequest(transactions=[transaction])
    try:
        response = await joining.context.node.transactions.ask_broker(leader, request)
    except ApiError as error:
        return dict.fromkeys(partitions, error.code)
    if response.error_code:
        error_code = ErrorCode(response.error_code)
        forbidden = error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return dict.fromkeys(partitions, ErrorCode.INVALID_TXN_STATE if forbidden else error_code)
    return {
        TopicPartition(topic.name, row.partition_index): ErrorCode(row.partition_error_code)
        for result in response.results_by_transaction
        for topic in result.topic_results
        for row in topic.results_by_partition
    }


def _in_words_of(error: ErrorCode, support: Support) -> ErrorCode:
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and support is Support.VERIFY:
        return ErrorCode.INVALID_TXN_STATE
    return error


# Produce -----------------------------------------------------------------------------------------------------------------


def verify(request: ProduceRequest, context: RequestContext) -> Verified | Coroutine[Any, Any, Verified]:
    """Before anything is appended. Only the first batch of a transaction in a partition needs its coordinator's word."""
    first_sequences: dict[TopicPartition, int] = {}
    producers = set()
    for partition, header in _transactional_batches(request, context):
        first_sequences[partition] = header.base_sequence
        producers.add((header.producer_id, header.producer_epoch))
    if len(producers) > 1:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID")
    if not producers:
        return NOTHING_VERIFIED
    [producer] = producers
    joining = Joining(context, request.transactional_id or "", *producer, support_of_produce(context.version))
    return join_transaction(joining, partial(_start, joining, first_sequences), error_for_produce)


def _start(joining: Joining, first_sequences: dict[TopicPartition, int]) -> Verified:
    """One that is not led here is refused even if it is led here by the time of the append: nobody has vouched for it."""
    errors: dict[TopicPartition, ApiError] = {}
    guards: dict[TopicPartition, VerificationGuard] = {}
    for partition, sequence in first_sequences.items():
        try:
            guard = joining.start(joining.context.node.replicas.leader(*partition).log, sequence)
        except ApiError as error:
            errors[partition] = error
            continue
        if guard is not None:
            guards[partition] = guard
    return Verified(errors, guards)


def _transactional_batches(request: ProduceRequest, context: RequestContext) -> Iterator[tuple[TopicPartition, BatchHeader]]:
    for topic in request.topic_data:
        name = topic.name if context.version < 13 else context.node.topic_name(topic.topic_id)
        for data in topic.partition_data:
            if name is not None and data.records is not None and len(data.records) >= HEADER_SIZE:
                header = read_header(data.records)
                if header.magic == MAGIC and header.is_transactional:
                    yield TopicPartition(name, data.index), header


def error_for_produce(error: ErrorCode, support: Support) -> ApiError:
    """What a producer is told when its records were not taken."""
    if error == ErrorCode.INVALID_TXN_STATE:
        return ApiError(error, "Partition was not added to the transaction")
    if error in _TRY_AGAIN or (error == ErrorCode.CONCURRENT_TRANSACTIONS and support is not Support.ADD):
        # NOT_ENOUGH_REPLICAS makes clients try again without looking at their metadata first.
        words = f"Unable to verify the partition has been added to the transaction. Underlying error: {error.name}"
        return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, words)
    return ApiError(error)
