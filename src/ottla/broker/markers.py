"""Writes the markers that end transactions: into our own partitions at once, into others' by WriteTxnMarkers.

A coordinator that has decided hands its `Markers` over; when every partition has its marker, or no longer exists, the coordinator
is told. Markers for one broker that come while a request to it is under way share the next one. A marker is tried until it
is written: writing it twice does no harm, leaving it out would hold back everybody who reads only what is committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.broker.purgatory import Agenda, Parked
from ottla.broker.replicas import Replica
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.transactions import WriteTxnMarkersRequest
from ottla.transactions.requests import (
    Markers,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node

log = logging.getLogger("ottla.markers")
ACKS_ALL = -1
RETRY_MS = 50
MAX_MARKERS_PER_REQUEST = 500

# Somebody else coordinates by now, or the producer has moved on: it is not ours to finish.
_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
# The partition can hold no marker, so it can hold no transaction either.
_POINTLESS = frozenset({ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})

Marker = WriteTxnMarkersRequest.WritableTxnMarker


def write_marker(node: Node, partition: TopicPartition, marker: Marker) -> ErrorCode | asyncio.Future[ErrorCode]:
    """Into one partition that this broker should lead. The future is there when replicas must follow first."""
    try:
        replica = node.replicas.leader(*partition)
        assert replica.leader is not None
        replica.leader.check_append(ACKS_ALL)
        result = replica.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.transaction_result,
            node.world.clock.wall_ms(),
            transaction_version=marker.transaction_version,
        )
    except ApiError as error:
        return error.code
    # Offsets that were committed within the transaction become visible, or are forgotten, with this marker.
    node.coordinators.transaction_ended(replica, marker.producer_id, marker.producer_epoch, marker.transaction_result)
    if replica.is_committed(result.last_offset):
        return ErrorCode.NONE
    return committed(replica, result.last_offset, node.settings["request.timeout.ms"], node.replicas.agenda)


def committed(replica: Replica, last_offset: int, timeout_ms: int, agenda: Agenda) -> asyncio.Future[ErrorCode]:
    """NONE once every in-sync replica has it, or why that cannot be said."""
    epoch = replica.leader_epoch

    def attempt(final: bool) -> ErrorCode | None:
        if replica.leader is None or replica.leader_epoch != epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        verdict = replica.leader.acknowledged(last_offset + 1)
        return ErrorCode.REQUEST_TIMED_OUT if verdict is None and final else verdict

    return Parked(agenda, attempt, timeout_ms, [replica.watchers]).future


@dataclass(eq=False, slots=True)
class _Work:
    """One decided transaction and the partitions that still lack its marker."""

    state_partition: int
    coordinator_epoch: int
    markers: Markers
    missing: set[TopicPartition]

    def marker(self, partitions: Iterable[TopicPartition]) -> Marker:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(partitions):
            by_topic.setdefault(topic, []).append(partition)
        return Marker(
            producer_id=self.markers.producer_id,
            producer_epoch=self.markers.producer_epoch,
            transaction_result=self.markers.commit,
            topics=[Marker.WritableTxnMarkerTopic(name=topic, partition_indexes=found) for topic, found in by_topic.items()],
            coordinator_epoch=self.coordinator_epoch,
            transaction_version=self.markers.transaction_version,
        )


IsCoordinator = Callable[[int, int], bool]
Written = Callable[[int, int, Markers], None]
Left = Callable[[Markers], None]


class MarkerSender:
    """`written(state_partition, coordinator_epoch, markers)` is called when all markers of one transaction are there. If
    `is_coordinator` says that another took over, the rest is `left` to it: it sends all of them again."""

    def __init__(self, node: Node, is_coordinator: IsCoordinator, written: Written, left: Left) -> None:
        self._node = node
        self._is_coordinator = is_coordinator
        self._written = written
        self._left = left
        self._works: set[_Work] = set()
        self._queues: dict[int, list[tuple[_Work, list[TopicPartition]]]] = {}  # by broker
        self._senders: dict[int, asyncio.Task[None]] = {}

    def send(self, state_partition: int, coordinator_epoch: int, markers: Markers) -> None:
        work = _Work(state_partition, coordinator_epoch, markers, set(markers.partitions))
        self._works.add(work)
        self._route(work, list(work.missing))

    def close(self) -> None:
        self._works.clear()
        for task in self._senders.values():
            task.cancel()
        self._senders.clear()

    def _is_current(self, work: _Work) -> bool:
        if work in self._works and not self._is_coordinator(work.state_partition, work.coordinator_epoch):
            self._leave(work)
        return work in self._works

    def _leave(self, work: _Work) -> None:
        self._works.discard(work)
        self._left(work.markers)

    def _route(self, work: _Work, partitions: list[TopicPartition]) -> None:
        by_broker: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            state = self._node.partition_state(*partition)
            if state is None:
                work.missing.discard(partition)  # deleted, and its transaction with it
            else:
                by_broker.setdefault(state.leader, []).append(partition)
        for broker_id, found in by_broker.items():
            if broker_id == self._node.node_id:
                self._write_here(work, found)
            elif broker_id < 0:
                self._try_again(work, found)
            else:
                self._queues.setdefault(broker_id, []).append((work, found))
                if broker_id not in self._senders:
                    self._senders[broker_id] = asyncio.get_running_loop().create_task(self._send_to(broker_id))
        self._finish(work)

    def _try_again(self, work: _Work, partitions: list[TopicPartition]) -> None:
        asyncio.get_running_loop().call_later(RETRY_MS / 1000, self._route_again, work, partitions)

    def _route_again(self, work: _Work, partitions: list[TopicPartition]) -> None:
        if self._is_current(work):
            self._route(work, partitions)

    def _write_here(self, work: _Work, partitions: list[TopicPartition]) -> None:
        marker = work.marker(partitions)
        for partition in partitions:
            outcome = write_marker(self._node, partition, marker)
            if isinstance(outcome, asyncio.Future):
                outcome.add_done_callback(lambda done, partition=partition: self._wrote(work, partition, done))  # type: ignore[misc]
            else:
                self._note(work, partition, outcome)

    def _wrote(self, work: _Work, partition: TopicPartition, done: asyncio.Future[ErrorCode]) -> None:
        if not done.cancelled():
            failure = done.exception()
            self._note(work, partition, done.result() if failure is None else _code_of(failure))
            self._finish(work)

    async def _send_to(self, broker_id: int) -> None:
        try:
            while batch := self._queues.pop(broker_id, None):
                self._queues[broker_id] = batch[MAX_MARKERS_PER_REQUEST:]
                await self._request(broker_id, [row for row in batch[:MAX_MARKERS_PER_REQUEST] if self._is_current(row[0])])
        finally:
            self._queues.pop(broker_id, None)
            self._senders.pop(broker_id, None)

    async def _request(self, broker_id: int, rows: list[tuple[_Work, list[TopicPartition]]]) -> None:
        if not rows:
            return
        request = WriteTxnMarkersRequest(markers=[work.marker(partitions) for work, partitions in rows])
        outcomes: dict[tuple[int, TopicPartition], ErrorCode] = {}
        try:
            response = await self._node.transactions.ask_broker(broker_id, request)
            for result in response.markers:
                for topic in result.topics:
                    for row in topic.partitions:
                        key = result.producer_id, TopicPartition(topic.name, row.partition_index)
                        outcomes[key] = ErrorCode(row.error_code)
        except ApiError as error:
            log.info("markers not sent broker=%d error=%s", broker_id, error)
        for work, partitions in rows:
            for partition in partitions:
                outcome = outcomes.get((work.markers.producer_id, partition), ErrorCode.NETWORK_EXCEPTION)
                self._note(work, partition, outcome)
            self._finish(work)

    def _note(self, work: _Work, partition: TopicPartition, outcome: ErrorCode) -> None:
        if not outcome or outcome in _POINTLESS:
            work.missing.discard(partition)
        elif outcome in _FENCED:
            log.info(
                "marker fenced transactional_id=%s partition=%s error=%s", work.markers.transactional_id, partition, outcome.name
            )
            self._leave(work)
        else:
            self._try_again(work, [partition])

    def _finish(self, work: _Work) -> None:
        if not work.missing and self._is_current(work):
            self._works.discard(work)
            self._written(work.state_partition, work.coordinator_epoch, work.markers)


def _code_of(failure: BaseException) -> ErrorCode:
    return failure.code if isinstance(failure, ApiError) else ErrorCode.UNKNOWN_SERVER_ERROR
