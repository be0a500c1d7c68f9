"""Runs the controller machine on the node that leads the metadata quorum: decide → append → apply → park → reply.

Replies wait until everything that their decision could have seen is committed; losing leadership fails them all with
NOT_CONTROLLER, and the asker looks for the new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.peers import is_gone
from ottla.broker.rules import Rules
from ottla.broker.snapshot_file import read_bootstrap
from ottla.metadata.controller import Controller
from ottla.metadata.features import BOOTSTRAP_LEVELS, SERVED_LEVELS
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import MetadataRecord
from ottla.metadata.state import Activated, BrokerUnreachable, Context, ControllerSettings, SessionChange, TimedOut
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import random_uuid
from ottla.model.machine import Decision, Ticket

if TYPE_CHECKING:
    from ottla.broker.node import Node

log = logging.getLogger("ottla.controller")
MAX_WAITING = 10_000  # requests whose records are not committed yet

Append = Callable[[Sequence[MetadataRecord], int], int]  # records and metadata version → offset of the first; raises ApiError


class ActiveController:
    """`append` puts records at the end of the metadata log, which `end_offset` tells; `committed` is called as it commits."""

    def __init__(self, node: Node, image: ClusterImage, epoch: int, append: Append, end_offset: Callable[[], int]) -> None:
        self._node = node
        self._epoch = epoch
        self._append = append
        self._end_offset = end_offset
        self._machine = Controller(controller_settings(node), Rules(node.settings), image)
        self._tickets: dict[Ticket, asyncio.Future[Any]] = {}
        self._next_ticket = 0
        self._parked: deque[tuple[int, Ticket, Any]] = deque()  # commit offset to wait for, who, what
        self._timers: dict[Any, asyncio.TimerHandle] = {}
        self._committed = 0
        self._closed = False
        self._probes: dict[int, asyncio.Task[None]] = {}
        self._run(Activated(), 0, 0)
        for broker in image.brokers.values():
            if not broker.fenced:
                self.suspect(broker.broker_id)  # it may have gone down together with the last controller

    def ask(self, request: Any, version: int) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        if len(self._tickets) >= MAX_WAITING:
            future.set_exception(ApiError(ErrorCode.REQUEST_TIMED_OUT, "the controller has too many requests waiting"))
            return future
        self._next_ticket += 1
        self._tickets[self._next_ticket] = future
        try:
            self._run(request, self._next_ticket, version)
        except ApiError as error:
            self._tickets.pop(self._next_ticket, None)
            if not future.done():
                future.set_exception(error)
        return future

    def _run(self, event: Any, ticket: Ticket, version: int) -> None:
        if self._closed:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        clock, random = self._node.world.clock, self._node.world.random
        context = Context(
            now_ms=int(clock.monotonic_ms()),
            next_offset=self._end_offset(),
            ticket=ticket,
            version=version,
            new_uuid=lambda: random_uuid(random.bytes),
            random_index=random.below,
        )
        decision = self._machine.decide(event, context)
        self._carry_out(decision)

    def _carry_out(self, decision: Decision[MetadataRecord, SessionChange]) -> None:
        if decision.records:
            first = self._append(decision.records, self._machine.image.metadata_version)
            if self._closed:
                return  # appending took a step of the quorum, in which it found that it no longer leads
            self._machine.apply_batch(decision.records, first, self._epoch)
        for change in decision.changes:
            self._machine.apply_change(change)
        for timer in decision.timers:
            self._set_timer(timer.key, timer.delay_ms)
        for reply in decision.replies:
            self._parked.append((self._end_offset(), reply.ticket, reply.message))
        self.committed(self._committed)

    def suspect(self, broker_id: int) -> None:
        """Look whether a broker is still there. A port that refuses is proof; silence is left to the session time-out."""
        if broker_id != self._node.node_id and broker_id not in self._probes:
            task = self._probes[broker_id] = asyncio.get_running_loop().create_task(self._probe(broker_id))
            task.add_done_callback(lambda _: self._probes.pop(broker_id, None))

    async def _probe(self, broker_id: int) -> None:
        broker = self._machine.image.brokers.get(broker_id)
        found = None if broker is None else broker.listener(self._node.config.inter_broker_listener)
        if broker is None or found is None or broker.fenced:
            return
        if await is_gone(self._node.world.network, found.host, found.port):
            if self._closed:
                return
            log.warning("broker gone broker=%d epoch=%d", broker_id, broker.epoch)
            try:
                self._run(BrokerUnreachable(broker_id, broker.epoch), 0, 0)
            except ApiError as error:  # a full disk, say; the session's end will come to the same
                log.warning("broker could not be fenced broker=%d error=%s", broker_id, error)

    def _set_timer(self, key: Any, delay_ms: int | None) -> None:
        former = self._timers.pop(key, None)
        if former is not None:
            former.cancel()
        if delay_ms is not None:
            self._timers[key] = asyncio.get_running_loop().call_later(delay_ms / 1000, self._time_out, key)

    def _time_out(self, key: Any) -> None:
        self._timers.pop(key, None)
        if self._closed:
            return
        try:
            self._run(TimedOut(key), 0, 0)
        except ApiError as error:
            if self._closed:
                return
            log.warning("controller could not act timer=%s error=%s", key, error)
            self._set_timer(key, 1000)

    def committed(self, offset: int) -> None:
        """Everything below `offset` is committed, and the image that shows it is published."""
        self._committed = offset
        while self._parked and self._parked[0][0] <= offset:
            _, ticket, message = self._parked.popleft()
            future = self._tickets.pop(ticket, None)
            if future is not None and not future.done():
                future.set_result(message)

    def close(self) -> None:
        """No longer the leader, or stopping. May be called in the midst of an append of our own."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        for probe in self._probes.values():
            probe.cancel()
        for future in self._tickets.values():
            if not future.done():
                future.set_exception(ApiError(ErrorCode.NOT_CONTROLLER))
        self._tickets.clear()
        self._parked.clear()
        self._machine.stand_down()


def controller_settings(node: Node) -> ControllerSettings:
    settings = node.settings
    voters = frozenset(voter for voter, _, _ in node.config.voters) or frozenset({node.node_id})
    balance_ms = settings["leader.imbalance.check.interval.seconds"] * 1000
    return ControllerSettings(
        cluster_id=node.cluster_id,
        node_id=node.node_id,
        supported_features=SERVED_LEVELS,
        bootstrap_features=read_bootstrap(node.world.disk, node.config.metadata_directory) or BOOTSTRAP_LEVELS,
        quorum_ids=voters,
        session_timeout_ms=settings["broker.session.timeout.ms"],
        default_partition_count=settings["num.partitions"],
        default_replication_factor=settings["default.replication.factor"],
        imbalance_check_interval_ms=balance_ms if settings["auto.leader.rebalance.enable"] else None,
        # A no-op proves a leader alive to those who follow it; alone it would only wear the disk.
        max_idle_interval_ms=settings["metadata.max.idle.interval.ms"] if len(voters) > 1 else 0,
        topic_deletion_enabled=settings["delete.topic.enable"],
    )
