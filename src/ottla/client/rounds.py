"""Work that is done in rounds, in callbacks of the loop, without a task of its own: what `sender` and `fetcher` share.

`wake` asks for a round, `wake_by` for one at the latest then; any number of calls make one round. What a round cannot do at once
(no leader, no connection) it starts in the background, each thing once at a time, and there is a round when that is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

from ottla.client.cluster import Cluster
from ottla.client.connection import Connection
from ottla.client.errors import ClientClosed, NetworkError
from ottla.model.errors import ApiError
from ottla.model.ids import TopicPartition

SUSPICION_MS = 2_000.0  # an answer that takes longer makes us ask whether its broker is still in charge


class Rounds:
    def __init__(self, cluster: Cluster, work: Callable[[], None], name: str, *, allow_create: bool = False) -> None:
        self._cluster = cluster
        self._work = work
        self._name = name
        self._log = logging.getLogger(f"ottla.{name}")
        self._allow_create = allow_create
        self._background: dict[Any, asyncio.Task[Any]] = {}
        self._failures = 0  # lookups of leaders in a row that did not find them all
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0  # kept here, because uvloop's handle does not tell when the delay is nought
        self.closed = False

    def close(self) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._background.values():
            task.cancel()

    # When --------------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._loop.call_soon(self._round)

    def wake_by(self, at_ms: float) -> None:
        """See that there is a round by then."""
        if self._scheduled or self.closed:
            return
        delay = max(0.0, at_ms - self._cluster.now_ms()) / 1000
        rings_at = self._loop.time() + delay
        if self._timer is not None:
            if self._rings_at <= rings_at:
                return
            self._timer.cancel()
        self._rings_at = rings_at
        self._timer = self._loop.call_later(delay, self._timer_rang)

    def _timer_rang(self) -> None:
        self._timer = None
        self.wake()

    def _round(self) -> None:
        self._scheduled = False
        if not self.closed:
            self._work()

    # In the background -------------------------------------------------------------------------------------------------

    def start(self, key: Any, work: Coroutine[Any, Any, None]) -> None:
        """Do this, unless it is being done already, and wake up afterwards."""
        if key in self._background or self.closed:
            work.close()
            return
        task = self._background[key] = self._cluster.spawn(work, f"{self._name} {key}")

        def done(task: asyncio.Task[Any]) -> None:
            self._background.pop(key, None)
            if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, ClientClosed):
                self._log.warning("background=%s error=%s", key, error)
            self.wake()

        task.add_done_callback(done)

    def find_leaders(self, topics: Iterable[str]) -> None:
        self.start("metadata", self._find_leaders(set(topics)))

    async def _find_leaders(self, topics: set[str]) -> None:
        try:
            await self._cluster.refresh(topics, allow_create=self._allow_create)
        except (NetworkError, ApiError) as error:
            self._log.info("metadata_failed error=%s", error)
        else:
            known = self._cluster.view.topics
            if all(name in known and all(part.leader >= 0 for part in known[name].partitions) for name in topics):
                self._failures = 0
                return
        await asyncio.sleep(self._cluster.backoff_ms(self._failures) / 1000)
        self._failures += 1

    def connect(
        self, node: int, purpose: str, topics: Callable[[], Iterable[str]], failed: Callable[[], None] | None = None
    ) -> None:
        """Open a connection. If that fails, other brokers are asked whether these topics have moved."""
        self.start(("connection", node), self._connect(node, purpose, topics, failed))

    async def _connect(
        self, node: int, purpose: str, topics: Callable[[], Iterable[str]], failed: Callable[[], None] | None
    ) -> None:
        try:
            await self._cluster.connection(node, purpose)
        except (NetworkError, ApiError) as error:
            self._log.info("connection_failed broker=%s error=%s", node, error)
            if failed is not None:
                failed()
            await asyncio.sleep(self._cluster.backoff_ms(0) / 1000)
            await self._find_leaders(set(topics()))

    # Doubt -------------------------------------------------------------------------------------------------------------

    def watch(
        self,
        node: int,
        connection: Connection,
        partitions: Collection[TopicPartition],
        answer: asyncio.Future[Any],
        wait_ms: float = 0,
    ) -> None:
        """When an answer is late (it may take `wait_ms` by itself), others are asked whether these partitions have moved.

        If one has, the connection is given up and what was under way is done again elsewhere, long before the request's own
        time-out: a leader that stopped, or was cut off from its cluster, says nothing, and its successor was elected meanwhile.
        """
        delay = (wait_ms + SUSPICION_MS) / 1000
        timer = self._loop.call_later(delay, self._suspect, node, connection, partitions, answer)
        answer.add_done_callback(lambda _: timer.cancel())

    def _suspect(
        self, node: int, connection: Connection, partitions: Collection[TopicPartition], answer: asyncio.Future[Any]
    ) -> None:
        if not answer.done():
            self.start(("suspicion", node), self._ask_about(node, connection, partitions, answer))

    async def _ask_about(
        self, node: int, connection: Connection, partitions: Collection[TopicPartition], answer: asyncio.Future[Any]
    ) -> None:
        await self._find_leaders({partition.topic for partition in partitions})
        topics = self._cluster.view.topics
        infos = [topics[topic].partition(number) for topic, number in partitions if topic in topics]
        if answer.done():
            return
        if any(info is not None and info.leader not in (node, -1) for info in infos):
            self._log.warning("leader_silent_and_replaced broker=%s", node)
            connection.close()
        else:
            self.watch(node, connection, partitions, answer)
