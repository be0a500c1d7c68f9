"""A transactional producer's dealings with its coordinator (KIP-98, KIP-360, KIP-890).

    UNINITIALIZED ──init──▶ READY ──begin──▶ OPEN ──commit──▶ COMMITTING ──▶ READY
                                              │  └──abort──▶ ABORTING ────▶ READY
                                              ▼                 ▲
                                           BROKEN ────abort─────┘
    any ──fenced, not authorised──▶ FATAL

With transaction.version 1 each partition and group is added to the transaction before it is written, and the epoch stays the
same from one transaction to the next. With version 2 writing adds by itself, and each end gives the producer a new epoch, so a
late write of one transaction can never land in the next. The version is chosen at `begin`, by what the cluster has finalized.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ottla.client.accumulator import Accumulator, Batch, Identity
from ottla.client.cluster import GROUP, TRANSACTION, Cluster
from ottla.client.errors import IllegalState
from ottla.client.metadata import code_of
from ottla.client.open_transaction import END_TXN_1, OpenTransaction
from ottla.client.sender import LAST_VERSION_OF_TRANSACTIONS_1, LAST_VERSION_WITH_NAMES, Sender
from ottla.client.settings import ProducerSettings
from ottla.model.errors import ApiError, ErrorCode, OttlaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

log = logging.getLogger("ottla.producer")

ADD_PARTITIONS_AT_MOST = 3  # later versions are spoken between brokers
TXN_OFFSET_COMMIT_1 = 4
_FATAL = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
# What a partition's leader answers; unlike the coordinator's word these need not be the end.
_FATAL_FROM_LEADER = _FATAL - {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE}


class State(Enum):
    UNINITIALIZED = "not initialised; call init_transactions first"
    READY = "between transactions; call begin_transaction first"
    OPEN = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    BROKEN = "broken; abort the transaction"
    FATAL = "fenced or refused for good; close this producer"


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """Who commits offsets inside a transaction: `consumer.group_metadata()` gives it."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class Transactions:
    def __init__(self, cluster: Cluster, accumulator: Accumulator, sender: Sender, settings: ProducerSettings) -> None:
        transactional_id = settings["transactional_id"]
        assert transactional_id is not None
        self._id = transactional_id
        self._cluster = cluster
        self._accumulator = accumulator
        self._sender = sender
        self._settings = settings
        self.state = State.UNINITIALIZED
        self.error: Exception | None = None
        self._is_version_2 = False
        self._added: set[TopicPartition] = set()
        self._to_add: set[TopicPartition] = set()
        self._adding: asyncio.Task[Any] | None = None
        self._started = False  # something was written, so the coordinator knows of this transaction
        sender.may_send = self._may_send
        sender.on_batch_error = self._batch_failed

    # Life --------------------------------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Get an id and an epoch; fences earlier producers of the same name and ends what they left open."""
        self._require(State.UNINITIALIZED, State.READY)
        await self._init_producer_id(Identity(-1, -1))
        self.state = State.READY
        log.info("transactions_ready id=%s producer_id=%s epoch=%s", self._id, *self._sender.identity)

    async def _init_producer_id(self, current: Identity) -> None:
        request = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._settings["transaction_timeout_ms"],
            producer_id=current.producer_id,
            producer_epoch=current.epoch,
        )
        reply = await self._ask(request)
        self._take_identity(reply.producer_id, reply.producer_epoch)

    def _take_identity(self, producer_id: int, epoch: int) -> None:
        self._sender.identity = Identity(producer_id, epoch)
        self._accumulator.new_epoch()

    def begin(self) -> None:
        self._require(State.READY)
        self._is_version_2 = self._cluster.features.get("transaction.version", 0) >= 2
        self._sender.produce_at_most = LAST_VERSION_WITH_NAMES + 1 if self._is_version_2 else LAST_VERSION_OF_TRANSACTIONS_1
        self._added.clear()
        self._to_add.clear()
        self._started = False
        self.error = None
        self.state = State.OPEN

    def check_open(self) -> None:
        """`send` is allowed now."""
        self._require(State.OPEN)

    def _require(self, *allowed: State) -> None:
        if self.state in allowed:
            return
        if self.error is not None:
            raise self.error
        raise IllegalState(f"the producer {self._id} is {self.state.value}")

    # While open --------------------------------------------------------------------------------------------------------

    def _may_send(self, partition: TopicPartition) -> bool:
        """Asked by the sender for each ready partition. Version 1: only once the coordinator has the partition."""
        if self.state not in (State.OPEN, State.COMMITTING):
            return self.state is State.ABORTING
        if self._is_version_2:
            self._started = True
            return True
        if partition in self._added:
            return True
        self._to_add.add(partition)
        if self._adding is None:
            self._adding = self._cluster.spawn(self._add_partitions(), "add partitions to transaction")
        return False

    async def _add_partitions(self) -> None:
        try:
            while self._to_add:
                wanted, self._to_add = self._to_add, set()
                await self._add(wanted)
                self._added |= wanted
                self._started = True
        except OttlaError as error:
            self._break(error)
        finally:
            self._adding = None
            self._sender.wake()

    async def _add(self, partitions: set[TopicPartition]) -> None:
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(partitions):
            topics.setdefault(topic, []).append(number)
        identity = self._sender.identity
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in topics.items()],
        )

        async def attempt() -> None:
            connection = await self._cluster.connection(await self._cluster.coordinator(TRANSACTION, self._id))
            reply = await connection.request(
                request, version=connection.version_of(AddPartitionsToTxnRequest, ADD_PARTITIONS_AT_MOST)
            )
            for topic in reply.results_by_topic_v3_and_below:
                for part in topic.results_by_partition:
                    if part.partition_error_code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED):
                        raise ApiError(
                            code_of(part.partition_error_code), f"{topic.name}-{part.partition_index} in transaction {self._id}"
                        )

        await self._cluster.persist(attempt, timeout_ms=self._settings["max_block_ms"])

    async def send_offsets(self, offsets: Mapping[TopicPartition, tuple[int, int, str]], group: GroupMetadata) -> None:
        """Commit offsets (offset, leader epoch, metadata) with the transaction: they count only if it commits."""
        self._require(State.OPEN)
        try:
            if not self._is_version_2:
                await self._add_offsets(group)
            self._started = True
            await self._commit_offsets(offsets, group)
        except ApiError as error:
            self._break(error)
            raise

    async def _add_offsets(self, group: GroupMetadata) -> None:
        identity = self._sender.identity
        await self._ask(
            AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                group_id=group.group_id,
            )
        )

    async def _commit_offsets(self, offsets: Mapping[TopicPartition, tuple[int, int, str]], group: GroupMetadata) -> None:
        request = self._offsets_request(offsets, group)

        async def attempt() -> None:
            connection = await self._cluster.connection(await self._cluster.coordinator(GROUP, group.group_id))
            at_most = None if self._is_version_2 else TXN_OFFSET_COMMIT_1
            reply = await connection.request(request, version=connection.version_of(TxnOffsetCommitRequest, at_most))
            for topic in reply.topics:
                for part in topic.partitions:
                    if part.error_code:
                        raise ApiError(code_of(part.error_code), f"offset of {topic.name}-{part.partition_index}")

        await self._cluster.persist(attempt, timeout_ms=self._settings["max_block_ms"])

    def _offsets_request(
        self, offsets: Mapping[TopicPartition, tuple[int, int, str]], group: GroupMetadata
    ) -> TxnOffsetCommitRequest:
        kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        topics: dict[str, Any] = {}
        for (name, number), (offset, leader_epoch, metadata) in offsets.items():
            topics.setdefault(name, kind(name=name)).partitions.append(
                kind.TxnOffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=offset,
                    committed_leader_epoch=leader_epoch,
                    committed_metadata=metadata,
                )
            )
        identity = self._sender.identity
        return TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=group.group_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            generation_id=group.generation,
            member_id=group.member_id,
            group_instance_id=group.instance_id,
            topics=list(topics.values()),
        )

    # Ending ------------------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """All batches are delivered by now (the producer has flushed). May be called again after a time-out."""
        self._require(State.OPEN, State.COMMITTING)
        self.state = State.COMMITTING
        if self._started:
            await self._end(committed=True)
        self.state = State.READY

    async def abort(self) -> None:
        """Nothing is under way any more (the producer has seen to that)."""
        self._require(State.ABORTING)
        if self._started:
            await self._end(committed=False)
        if self._accumulator.has_unresolved() and not (self._started and self._is_version_2):
            await self._init_producer_id(self._sender.identity)  # a new epoch, because the count of sequences is lost (KIP-360)
        self.error = None
        self.state = State.READY

    def detach(self) -> OpenTransaction:
        """All batches are delivered by now. The transaction stays open at the coordinator; here it is over."""
        self._require(State.OPEN)
        identity = self._sender.identity
        self.state = State.READY
        return OpenTransaction(self._id, identity.producer_id, identity.epoch, not self._started)

    def begin_abort(self) -> None:
        if self.state is State.FATAL:
            self._require(State.OPEN)
        self._require_abortable()
        self.error = None
        self.state = State.ABORTING

    def _require_abortable(self) -> None:
        if self.state not in (State.OPEN, State.BROKEN, State.ABORTING):
            raise IllegalState(f"the producer {self._id} is {self.state.value}")

    async def _end(self, *, committed: bool) -> None:
        identity = self._sender.identity
        request = EndTxnRequest(
            transactional_id=self._id, producer_id=identity.producer_id, producer_epoch=identity.epoch, committed=committed
        )
        reply = await self._ask(request, None if self._is_version_2 else END_TXN_1)
        if self._is_version_2 and reply.producer_id >= 0:
            self._take_identity(reply.producer_id, reply.producer_epoch)

    # Errors ------------------------------------------------------------------------------------------------------------

    async def _ask(self, request: Any, at_most: int | None = None) -> Any:
        """Ask the transaction coordinator until it answers; what it refuses for good changes the state."""

        async def attempt() -> Any:
            connection = await self._cluster.connection(await self._cluster.coordinator(TRANSACTION, self._id))
            reply = await connection.request(request, version=connection.version_of(type(request), at_most))
            if reply.error_code:
                raise ApiError(code_of(reply.error_code), None)
            return reply

        try:
            return await self._cluster.persist(attempt, timeout_ms=self._settings["max_block_ms"])
        except ApiError as error:
            if not error.retriable:
                self._break(error)
            raise

    def _break(self, error: Exception) -> None:
        if self.state is State.FATAL:
            return
        fatal = isinstance(error, ApiError) and error.code in _FATAL
        self._set_broken(error, fatal)

    def _set_broken(self, error: Exception, fatal: bool) -> None:
        self.error = error
        self.state = State.FATAL if fatal else State.BROKEN
        log.warning("transaction_%s id=%s error=%s", "fatal" if fatal else "broken", self._id, error)
        if fatal:
            self._sender.fail_waiting(error)

    def _batch_failed(self, batch: Batch, error: Exception) -> None:
        if self.state in (State.OPEN, State.COMMITTING):
            self._set_broken(error, isinstance(error, ApiError) and error.code in _FATAL_FROM_LEADER)
