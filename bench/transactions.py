"""Transactions of one record, one after the other: as librdkafka does them, and as bare requests of transactions v2 (KIP-890)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer
from tests.compatibility.wire import Wire, wait_until

from bench import clients
from bench.systems import System
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.coordinator import FindCoordinatorRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.transactions import EndTxnRequest, InitProducerIdRequest
from ottla.protocol.schema import Message
from ottla.records.builder import build_batch
from ottla.records.record import Record

LIMIT_S = 60.0
TRANSACTIONS = 1  # the key type of a transactional id
# Both systems say so to the first request of a transaction while the markers of the one before are under way.
AGAIN = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


def by_librdkafka(system: System, count: int) -> float:
    """A second: begin, one record, commit."""
    clients.create(system.bootstrap, "by-librdkafka", 1)
    producer = Producer({"bootstrap.servers": system.bootstrap, "transactional.id": "bench", "linger.ms": 0})
    producer.init_transactions(LIMIT_S)

    def one() -> None:
        producer.begin_transaction()
        producer.produce("by-librdkafka", b"x" * 100, partition=0)
        producer.commit_transaction(LIMIT_S)

    return _rate(one, count)


def _rate(one: Callable[[], None], count: int) -> float:
    for _ in range(count // 2):
        one()
    started = time.perf_counter()
    for _ in range(count):
        one()
    return count / (time.perf_counter() - started)


def by_bare_requests(system: System, count: int) -> float:
    """A second: Produce 12, which adds its partition by itself, and EndTxn 5, which gives the next epoch."""
    clients.create(system.bootstrap, "bare", 1)
    with Wire(system.address) as wire:
        asked = FindCoordinatorRequest(key_type=TRANSACTIONS, coordinator_keys=["bare"])
        wait_until("a coordinator", lambda: wire.ask(asked, 4).coordinators[0].error_code == 0)
        return _rate(Bare(wire), count)


class Bare:
    """A transactional producer on a plain socket; a call is a transaction."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        request = InitProducerIdRequest(transactional_id="bare", transaction_timeout_ms=60_000)
        answer = self._patiently(request, 5, lambda reply: reply.error_code)
        self.identity = answer.producer_id, answer.producer_epoch

    def __call__(self) -> None:
        producer_id, epoch = self.identity
        record = Record(0, int(time.time() * 1000), None, b"x" * 100)
        batch = build_batch([record], producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True)
        data = ProduceRequest.TopicProduceData
        rows = [data(name="bare", partition_data=[data.PartitionProduceData(records=batch)])]
        produce = ProduceRequest(transactional_id="bare", acks=-1, timeout_ms=30_000, topic_data=rows)
        self._patiently(produce, 12, lambda reply: reply.responses[0].partition_responses[0].error_code)
        end = EndTxnRequest(transactional_id="bare", producer_id=producer_id, producer_epoch=epoch, committed=True)
        answer = self._patiently(end, 5, lambda reply: reply.error_code)
        self.identity = answer.producer_id, answer.producer_epoch

    def _patiently(self, request: Message, version: int, code_of: Callable[[Any], int]) -> Any:
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = self.wire.ask(request, version)
            code = code_of(answer)
            if code == ErrorCode.NONE:
                return answer
            assert code in AGAIN, f"{type(request).__name__}: {ErrorCode(code).name}"
            assert time.monotonic() < deadline, f"{type(request).__name__}: {ErrorCode(code).name} for {LIMIT_S:g} s"
