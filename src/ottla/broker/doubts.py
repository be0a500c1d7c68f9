"""Brokers whose connections have just broken: whoever asks who leads what waits a moment, until it is known whether they are gone.

A client that loses its leader asks another broker for the new one at once, and so before a majority of controllers can have decided
anything. Told of the old leader again, it would rest before it asks anew: librdkafka for up to a second, many times what the
decision takes. So a broker that has itself lost a connection to a peer keeps the question for as long as the verdict may take:

| the peer's port | and then | the doubt ends |
|---|---|---|
| takes a connection, or is silent | | at once, or after LOOK_MS: a peer that is only slow is not worth a wait |
| refuses | the image shows the peer fenced, or in a new life | with that image |
| refuses | the controllers cannot agree, or do not think so | after VERDICT_MS |

A doubt changes nothing but when an answer is given: what a broker may do is for the controller alone to say.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.broker.peers import is_gone
from ottla.metadata.delta import Changes
from ottla.metadata.image import ClusterImage

if TYPE_CHECKING:
    from ottla.broker.node import Node

LOOK_MS = 200
VERDICT_MS = 500  # an election of the metadata leader and a decision of the new one fit into it


class Doubts:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._epochs: dict[int, int] = {}  # brokers in doubt, with the epoch of the life that is
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._settled = asyncio.Event()
        self._stopped = False

    def __bool__(self) -> bool:
        return bool(self._epochs)

    def connection_lost(self, broker_id: int) -> None:
        broker = self._node.image.brokers.get(broker_id)
        if self._stopped or broker_id in self._epochs or broker_id == self._node.node_id or broker is None or broker.fenced:
            return
        self._epochs[broker_id] = broker.epoch
        self._settled.clear()
        self._tasks[broker_id] = asyncio.get_running_loop().create_task(self._look_into(broker_id))

    async def settled(self) -> None:
        """Returns when nothing is in doubt any more, soon in any case."""
        if self._epochs:
            await self._settled.wait()

    def follow(self, image: ClusterImage, changes: Changes) -> None:
        for broker_id in changes.brokers & self._epochs.keys():
            broker = image.brokers.get(broker_id)
            if broker is None or broker.fenced or broker.epoch != self._epochs[broker_id]:
                self._end(broker_id)

    def stop(self) -> None:
        self._stopped = True
        for broker_id in list(self._epochs):
            self._end(broker_id)

    async def _look_into(self, broker_id: int) -> None:
        found = self._node.image.brokers[broker_id].listener(self._node.config.inter_broker_listener)
        if found is not None and await is_gone(self._node.world.network, found.host, found.port, limit_ms=LOOK_MS):
            await asyncio.sleep(VERDICT_MS / 1000)
        self._end(broker_id)

    def _end(self, broker_id: int) -> None:
        del self._epochs[broker_id]
        task = self._tasks.pop(broker_id)
        if task is not asyncio.current_task():
            task.cancel()
        if not self._epochs:
            self._settled.set()
