"""Transactions and the producers behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any

from ottla.client.admin.base import AdminBase, by_topic, error_of, raise_code, settle
from ottla.client.admin.types import ProducerFenced, ProducerState, TransactionDescription, TransactionListing
from ottla.client.cluster import TRANSACTION
from ottla.client.open_transaction import END_TXN_1, OpenTransaction
from ottla.model.errors import ApiError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)

FENCING_TIMEOUT_MS = 60_000


class TransactionsAdmin(AdminBase):
    async def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> tuple[TransactionListing, ...]:
        """All transactional ids: every broker is asked for those that it coordinates. `pattern` is an RE2 expression."""
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=longer_than_ms,
            transactional_id_pattern=pattern,
        )
        await self._persist(lambda: self._cluster.refresh(()))

        async def ask(broker: int) -> list[TransactionListing]:
            async def attempt() -> Any:
                reply = await self._cluster.ask(broker, request)
                raise_code(reply.error_code)
                return reply

            reply = await self._persist(attempt)
            return [
                TransactionListing(row.transactional_id, row.producer_id, row.transaction_state)
                for row in reply.transaction_states
            ]

        found = await asyncio.gather(*map(ask, self._cluster.view.brokers))
        return tuple(sorted((row for rows in found for row in rows), key=lambda row: row.id))

    async def describe_transactions(self, ids: Iterable[str]) -> dict[str, TransactionDescription]:
        done: dict[str, TransactionDescription] = {}
        failed: dict[str, ApiError] = {}
        for name in dict.fromkeys(ids):
            request = DescribeTransactionsRequest(transactional_ids=[name])
            reply = await self._ask_coordinator(
                TRANSACTION, name, request, lambda reply: (row.error_code for row in reply.transaction_states)
            )
            row = reply.transaction_states[0]
            if error := error_of(row.error_code):
                failed[name] = error
                continue
            partitions = tuple(TopicPartition(topic.topic, number) for topic in row.topics for number in topic.partitions)
            started = row.transaction_start_time_ms
            done[name] = TransactionDescription(
                name,
                await self._cluster.coordinator(TRANSACTION, name),
                row.transaction_state,
                row.producer_id,
                row.producer_epoch,
                row.transaction_timeout_ms,
                started if started >= 0 else None,
                partitions,
            )
        return settle(done, failed)

    async def describe_producers(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """The idempotent and transactional producers whose state a partition keeps."""

        async def ask(leader: int, share: list[tuple[str, int]]) -> dict[Any, Any]:
            kind = DescribeProducersRequest.TopicRequest
            topics = [kind(name=topic, partition_indexes=numbers) for topic, numbers in by_topic(share).items()]
            reply = await self._cluster.ask(leader, DescribeProducersRequest(topics=topics))
            return {
                TopicPartition(topic.name, part.partition_index): error_of(part.error_code, part.error_message)
                or tuple(map(_producer, part.active_producers))
                for topic in reply.topics
                for part in topic.partitions
            }

        return await self._ask_leaders((TopicPartition(*key) for key in partitions), ask)

    async def abort_transaction(
        self, partition: tuple[str, int], producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Write an abort marker by hand, for a transaction that hangs (KIP-664)."""
        topic, number = partition
        kind = WriteTxnMarkersRequest.WritableTxnMarker
        marker = kind(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            transaction_result=False,
            topics=[kind.WritableTxnMarkerTopic(name=topic, partition_indexes=[number])],
        )

        async def ask(leader: int, share: list[tuple[str, int]]) -> dict[Any, Any]:
            reply = await self._cluster.ask(leader, WriteTxnMarkersRequest(markers=[marker]))
            return {
                TopicPartition(row.name, part.partition_index): error_of(part.error_code)
                for result in reply.markers
                for row in result.topics
                for part in row.partitions
            }

        await self._ask_leaders([TopicPartition(topic, number)], ask)

    async def end_transaction(self, transaction: OpenTransaction, *, commit: bool) -> None:
        """Commit or abort a transaction that its producer has left open. Asking again for the same end does no harm."""
        if transaction.is_empty:
            return
        request = EndTxnRequest(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            committed=commit,
        )
        at_most = None if self._cluster.features.get("transaction.version", 0) >= 2 else END_TXN_1

        async def attempt() -> None:
            connection = await self._cluster.connection(
                await self._cluster.coordinator(TRANSACTION, transaction.transactional_id)
            )
            reply = await connection.request(request, version=connection.version_of(EndTxnRequest, at_most))
            raise_code(reply.error_code)

        await self._persist(attempt)

    async def fence_producers(self, ids: Iterable[str]) -> dict[str, ProducerFenced]:
        """Give these transactional ids a new epoch: whoever used them is fenced, and open transactions abort."""
        done: dict[str, ProducerFenced] = {}
        failed: dict[str, ApiError] = {}
        for name in dict.fromkeys(ids):
            request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=FENCING_TIMEOUT_MS)

            async def attempt(name: str = name, request: InitProducerIdRequest = request) -> Any:
                reply = await self._cluster.ask_coordinator(TRANSACTION, name, request)
                if reply.error_code and (error := error_of(reply.error_code)) is not None and error.retriable:
                    raise error
                return reply

            reply = await self._persist(attempt)
            if error := error_of(reply.error_code):
                failed[name] = error
            else:
                done[name] = ProducerFenced(name, reply.producer_id, reply.producer_epoch)
        return settle(done, failed)


def _producer(row: Any) -> ProducerState:
    start = row.current_txn_start_offset
    return ProducerState(
        row.producer_id,
        row.producer_epoch,
        row.last_sequence,
        row.last_timestamp,
        row.coordinator_epoch,
        start if start >= 0 else None,
    )
