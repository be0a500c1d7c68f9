"""Transactions as a kind of coordinator: what a decision may know, where producer ids come from, and who sends markers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ottla.broker.coordinators import Coordinator, Kind
from ottla.broker.markers import MarkerSender
from ottla.broker.peers import Peers
from ottla.client.errors import NetworkError
from ottla.model.errors import ApiError, ErrorCode, ProtocolError
from ottla.model.ids import TRANSACTIONS_TOPIC
from ottla.model.machine import Decision, Ticket
from ottla.protocol.messages.controller import AllocateProducerIdsRequest
from ottla.protocol.messages.transactions import DescribeTransactionsResponse, ListTransactionsResponse
from ottla.protocol.schema import Message
from ottla.transactions import records
from ottla.transactions.producer_ids import ProducerIds
from ottla.transactions.records import TransactionRecord
from ottla.transactions.requests import (
    AddPartitions,
    Context,
    DescribeTransaction,
    ListTransactions,
    Markers,
    MarkersWritten,
    ProducerIdReply,
    TimedOut,
    TransactionSettings,
    VerifyPartitions,
)
from ottla.transactions.shard import TransactionShard

if TYPE_CHECKING:
    from ottla.broker.dispatch import RequestContext
    from ottla.broker.node import Node

log = logging.getLogger("ottla.transactions")
FEATURE = "transaction.version"
RETRY_MS = 100


class TransactionKind(Kind):
    topic = TRANSACTIONS_TOPIC

    def __init__(self, node: Node) -> None:
        self._node = node
        self._allocating: asyncio.Task[None] | None = None
        self._unfinished: dict[str, asyncio.Future[None]] = {}  # decided transactions whose markers are on their way
        self.producer_ids = ProducerIds()
        self.markers = MarkerSender(node, self._is_coordinator, self._written, self._left)
        self._peers = Peers(node.world.network, f"broker-{node.node_id}-transactions")

    def close(self) -> None:
        self.markers.close()
        self._peers.close()
        if self._allocating is not None:
            self._allocating.cancel()

    async def ask_broker(self, broker_id: int, request: Message) -> Any:
        """Markers for another leader, or a question to another coordinator. Raises ApiError with a code to act on."""
        broker = self._node.image.brokers.get(broker_id)
        found = None if broker is None or broker.fenced else broker.listener(self._node.config.inter_broker_listener)
        if found is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not there, or has no listener for brokers")
        timeout_ms = self._node.settings["request.timeout.ms"]
        try:
            return await self._peers.request(found.host, found.port, request, timeout_ms=timeout_ms)
        except (NetworkError, ProtocolError) as error:
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, str(error)) from error

    # Producer ids --------------------------------------------------------------------------------------------------------

    async def have_producer_ids(self) -> None:
        """Ask for the next block before this one runs out, and wait for it only when none is left."""
        ids = self.producer_ids
        if ids.needs_block and self._allocating is None:
            self._allocating = asyncio.get_running_loop().create_task(self._allocate())
            self._allocating.add_done_callback(self._allocated)
        if ids.is_empty and self._allocating is not None:
            await asyncio.wait([self._allocating])

    async def _allocate(self) -> None:
        node = self._node
        request = AllocateProducerIdsRequest(broker_id=node.node_id, broker_epoch=node.lifecycle.broker_epoch)
        response = await node.quorum.ask(request)
        if response.error_code:
            raise ApiError(ErrorCode(response.error_code))
        self.producer_ids.add_block(response.producer_id_start, response.producer_id_len)

    def _allocated(self, task: asyncio.Task[None]) -> None:
        self._allocating = None
        if not task.cancelled() and task.exception() is not None:
            log.warning("no producer ids node=%d error=%s", self._node.node_id, task.exception())

    # Markers -------------------------------------------------------------------------------------------------------------

    def perform(self, coordinator: Coordinator, effect: Markers) -> None:
        name = effect.transactional_id
        if name not in self._unfinished:
            self._unfinished[name] = asyncio.get_running_loop().create_future()
        self.markers.send(coordinator.replica.topic_partition.partition, coordinator.epoch, effect)

    async def finished(self, transactional_id: str) -> bool:
        """Wait a moment for the markers of the transaction before. A client told to come back would wait for longer.

        False: there is none here, or its markers take too long.
        """
        waiting = self._unfinished.get(transactional_id)
        if waiting is None:
            return False
        limit_ms = self._node.settings["add.partitions.to.txn.retry.backoff.max.ms"]
        done, _ = await asyncio.wait([waiting], timeout=limit_ms / 1000)
        return bool(done)

    def _coordinator(self, partition: int, epoch: int) -> Coordinator | None:
        try:
            found = self._node.coordinators.at(self, partition)
        except ApiError:
            return None
        return found if found.epoch == epoch else None

    def _is_coordinator(self, partition: int, epoch: int) -> bool:
        return self._coordinator(partition, epoch) is not None

    def _written(self, partition: int, epoch: int, markers: Markers) -> None:
        coordinator = self._coordinator(partition, epoch)
        if coordinator is not None:
            news = MarkersWritten(markers.transactional_id, markers.producer_id, markers.producer_epoch)
            if not coordinator.carry_out(coordinator.shard.decide(news, self.context(-1, None))):
                # Too few replicas in sync, say. The outcome is decided; that it is done must be written down some time.
                asyncio.get_running_loop().call_later(RETRY_MS / 1000, self._written, partition, epoch, markers)
                return
        self._left(markers)

    def _left(self, markers: Markers) -> None:
        """Its markers are written, or are no longer ours to write: nobody need wait for them here."""
        waiting = self._unfinished.pop(markers.transactional_id, None)
        if waiting is not None:
            waiting.set_result(None)

    # The machine ---------------------------------------------------------------------------------------------------------

    def partition_for(self, key: str, partition_count: int) -> int:
        return records.partition_for(key, partition_count)

    def new_shard(self) -> TransactionShard:
        settings = self._node.settings
        return TransactionShard(
            TransactionSettings(
                transaction_max_timeout_ms=settings["transaction.max.timeout.ms"],
                transactional_id_expiration_ms=settings["transactional.id.expiration.ms"],
                transaction_abort_timed_out_transaction_cleanup_interval_ms=settings[
                    "transaction.abort.timed.out.transaction.cleanup.interval.ms"
                ],
                transaction_remove_expired_transaction_cleanup_interval_ms=settings[
                    "transaction.remove.expired.transaction.cleanup.interval.ms"
                ],
            )
        )

    def loaded(self, shard: TransactionShard, context: Context) -> Decision[Any, Any]:
        return shard.loaded(context)

    def decide(self, shard: TransactionShard, request: Any, context: Context) -> Decision[Any, Any]:
        return shard.decide(request, context)

    def expire(self, shard: TransactionShard, key: Any, context: Context) -> Decision[Any, Any]:
        return shard.decide(TimedOut(key), context)

    def apply(self, shard: TransactionShard, record: TransactionRecord, offset: int) -> None:
        shard.apply(record)

    def complete_transaction(self, shard: TransactionShard, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Nobody writes into this topic within a transaction."""

    # What it knows and says ----------------------------------------------------------------------------------------------

    @property
    def transaction_version(self) -> int:
        return self._node.image.features.get(FEATURE, 0)

    def context(self, ticket: Ticket, request: RequestContext | None) -> Context:
        return Context(self._node.world.clock.wall_ms(), ticket, self.transaction_version, self.producer_ids)

    def refusal(self, request: Any, error: ApiError, version: int) -> Any:
        if isinstance(request, AddPartitions):
            return error.code
        if isinstance(request, VerifyPartitions):
            return dict.fromkeys(request.partitions, error.code)
        if isinstance(request, DescribeTransaction):
            return DescribeTransactionsResponse.TransactionState(transactional_id=request.transactional_id, error_code=error.code)
        if isinstance(request, ListTransactions):
            return ListTransactionsResponse(error_code=error.code)
        return ProducerIdReply(error.code)

    def listing_of_nothing(self, request: ListTransactions) -> ListTransactionsResponse:
        """What an empty shard would answer."""
        [reply] = TransactionShard().decide(request, self.context(0, None)).replies
        listing: ListTransactionsResponse = reply.message
        return listing

    # Records as bytes ----------------------------------------------------------------------------------------------------

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        return records.encode_record(record, self.transaction_version)

    def decode(self, key: bytes, value: bytes | None, producer_id: int, producer_epoch: int) -> TransactionRecord | None:
        return records.decode_record(key, value)
