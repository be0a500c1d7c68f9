"""A coordinator shell without a world: a clock that is set by hand, a log that is a list of bytes, markers that wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ottla.model.ids import TopicPartition
from ottla.transactions.producer_ids import ProducerIds
from ottla.transactions.records import decode_record, encode_record
from ottla.transactions.requests import (
    ABORT_TIMED_OUT,
    REMOVE_EXPIRED,
    AddPartitions,
    Context,
    EndTransaction,
    InitProducerId,
    Markers,
    MarkersWritten,
    ProducerIdReply,
    TimedOut,
    TransactionSettings,
)
from ottla.transactions.shard import TransactionShard
from ottla.transactions.states import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Transaction

TICKET = 7
A0 = TopicPartition("a", 0)
A1 = TopicPartition("a", 1)
B0 = TopicPartition("b", 0)


class ImaginaryCoordinator:
    def __init__(self, transaction_version: int = 2, settings: TransactionSettings | None = None) -> None:
        self.shard = TransactionShard(settings)
        self.transaction_version = transaction_version
        self.producer_ids = ProducerIds()
        self.producer_ids.add_block(1000, 1000)
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.markers: list[Markers] = []  # decided, and not yet written
        self.written: list[Markers] = []

    def ask(self, request: Any) -> Any:
        decision = self.shard.decide(request, self._context())
        self._carry_out(decision)
        replies = [reply.message for reply in decision.replies]
        assert len(replies) == 1, f"one request, {len(replies)} replies"
        return replies[0]

    def tell(self, request: Any) -> int:
        """What no client waits for. Returns how many records it wrote."""
        decision = self.shard.decide(request, replace(self._context(), ticket=-1))
        assert not decision.replies
        self._carry_out(decision)
        return len(decision.records)

    def _context(self) -> Context:
        return Context(self.now_ms, TICKET, self.transaction_version, self.producer_ids)

    def _carry_out(self, decision: Any) -> None:
        for record in decision.records:
            self.log.append(encode_record(record, self.transaction_version))
            self.shard.apply(record)
        self.markers += decision.effects

    def write_markers(self) -> None:
        while self.markers:
            markers = self.markers.pop(0)
            self.written.append(markers)
            self.tell(MarkersWritten(markers.transactional_id, markers.producer_id, markers.producer_epoch))

    def reloaded(self) -> ImaginaryCoordinator:
        """The coordinator that another broker loads from the same log."""
        other = ImaginaryCoordinator(self.transaction_version, self.shard.settings)
        other.producer_ids = self.producer_ids
        other.now_ms = self.now_ms
        other.log = list(self.log)
        for key, value in self.log:
            record = decode_record(key, value)
            assert record is not None
            other.shard.apply(record)
        other.markers += other.shard.loaded(other._context()).effects
        return other

    def durable_state(self) -> dict[str, Transaction]:
        """All but the fields that Kafka's record has no room for: one in any version, three in version 0."""
        forgotten: dict[str, Any] = {"last_producer_epoch": NO_PRODUCER_EPOCH}
        if self.transaction_version == 0:
            forgotten |= {"previous_producer_id": NO_PRODUCER_ID, "next_producer_id": NO_PRODUCER_ID}
        return {name: replace(each, **forgotten) for name, each in self.shard.transactions.items()}

    # The usual requests, so that a test reads like a story.

    def init(self, name: str = "copy", timeout_ms: int = 60_000, **expected: Any) -> ProducerIdReply:
        reply: ProducerIdReply = self.ask(InitProducerId(name, timeout_ms, **expected))
        return reply

    def add(self, producer: ProducerIdReply, *partitions: TopicPartition, name: str = "copy") -> Any:
        version = self.transaction_version if self.transaction_version >= 2 else 0
        return self.ask(AddPartitions(name, producer.producer_id, producer.producer_epoch, frozenset(partitions), version))

    def end(self, producer: ProducerIdReply, commit: bool = True, name: str = "copy") -> ProducerIdReply:
        version = self.transaction_version if self.transaction_version >= 2 else 0
        reply: ProducerIdReply = self.ask(EndTransaction(name, producer.producer_id, producer.producer_epoch, commit, version))
        return reply

    def state(self, name: str = "copy") -> str:
        return self.shard.transactions[name].state.text

    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.tell(TimedOut(ABORT_TIMED_OUT))
        self.tell(TimedOut(REMOVE_EXPIRED))
