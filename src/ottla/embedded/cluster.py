"""A real cluster inside this process: for tests, notebooks and demos.

    with EmbeddedCluster(3) as cluster:
        cluster.bootstrap            # "127.0.0.1:40001,127.0.0.1:40002,127.0.0.1:40003": any Kafka client may use it
        cluster.nodes[0].stop()      # or kill, pause, resume, restart
        cluster.partition(1, 2)      # nodes 1 and 2 no longer hear each other; `cluster.heal()` mends it

Each node is the real broker on a loop and thread of its own, with a data folder of its own; the folders are temporary unless a
directory is given. Calls block until they are done; from a coroutine, use `async with` and `await cluster.wait(node.stop)`.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

from ottla.embedded.formatting import cluster_id_in, new_id
from ottla.embedded.network import Switchboard
from ottla.embedded.node import EmbeddedNode
from ottla.embedded.properties import plan, properties

Result = TypeVar("Result")
MAX_BROKERS = 16
READY_LIMIT_S = 30.0
LOOK_AGAIN_S = 0.005
# A test waits for the first election; nodes in one process hear each other within milliseconds.
QUICK = {"controller.quorum.election.timeout.ms": "100", "controller.quorum.election.backoff.max.ms": "100"}


class EmbeddedCluster:
    def __init__(
        self, brokers: int = 1, *, directory: str | None = None, settings: Mapping[str, str] | None = None, port: int = 0
    ) -> None:
        if not 1 <= brokers <= MAX_BROKERS:
            raise ValueError(f"an embedded cluster has 1 to {MAX_BROKERS} brokers, not {brokers}")
        # Quiet unless somebody listens: a library must not print.
        logging.getLogger("ottla").addHandler(logging.NullHandler())
        self._temporary = directory is None
        self.directory = directory or tempfile.mkdtemp(prefix="ottla-")
        self._switchboard = Switchboard()
        plans = plan(brokers, self.directory, port=port)
        cluster_id = cluster_id_in(self.directory) or new_id()
        self.nodes = [
            EmbeddedNode(each, properties(each, plans, QUICK | dict(settings or {})), cluster_id, self._switchboard)
            for each in plans
        ]

    def node(self, node_id: int) -> EmbeddedNode:
        """Ids begin at 1, as brokers tell them."""
        return self.nodes[node_id - 1]

    @property
    def bootstrap(self) -> str:
        """All nodes, as clients take it."""
        return ",".join(node.bootstrap for node in self.nodes)

    # Life ----------------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Returns when every broker serves and all of them know each other."""
        try:
            self._together(EmbeddedNode.start)
            self._wait_for_each_other()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop every node and remove temporary folders. Nodes that are stopped already stay so."""
        self.heal()
        try:
            # Nobody will open temporary folders again, so leaderships need not be handed on nor logs closed.
            self._together(EmbeddedNode.kill if self._temporary else EmbeddedNode.stop)
        finally:
            if self._temporary:
                shutil.rmtree(self.directory, ignore_errors=True)

    def _together(self, action: Callable[[EmbeddedNode], None]) -> None:
        """A quorum forms only when its voters start side by side."""
        if len(self.nodes) == 1:
            action(self.nodes[0])
            return
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            for done in [pool.submit(action, node) for node in self.nodes]:
                done.result()

    def _wait_for_each_other(self) -> None:
        deadline = time.monotonic() + READY_LIMIT_S
        while not all(node.sees(len(self.nodes)) for node in self.nodes):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the brokers did not find each other within {READY_LIMIT_S:.0f} s")
            time.sleep(LOOK_AGAIN_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.to_thread(self.stop)

    async def wait(self, action: Callable[[], Result]) -> Result:
        """For coroutines: `await cluster.wait(cluster.nodes[0].restart)`."""
        return await asyncio.to_thread(action)

    # Trouble -------------------------------------------------------------------------------------------------------------

    def partition(self, one: int, other: int) -> None:
        """Two nodes no longer hear each other. Clients still reach both."""
        self._switchboard.cut(one, other)

    def isolate(self, node_id: int) -> None:
        """Cut a node off from all others."""
        for node in self.nodes:
            if node.node_id != node_id:
                self.partition(node_id, node.node_id)

    def heal(self) -> None:
        """Mend every cut."""
        for pair in list(self._switchboard.cuts):
            self._switchboard.mend(*pair)
