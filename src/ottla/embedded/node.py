"""One node of an embedded cluster: the real broker, on a loop and thread of its own.

stopped ── start ──> running ── pause ──> paused
   ^                   │  ^                 │
   └── stop, kill ─────┘  └──── resume ─────┘        (stop and kill resume first)
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.config import NodeConfig
from ottla.broker.main import real_world
from ottla.broker.node import Node
from ottla.embedded.formatting import format_node
from ottla.embedded.loops import LoopThread
from ottla.embedded.network import NodeNetwork, Switchboard
from ottla.embedded.properties import NodePlan
from ottla.host import World
from ottla.host.disk import DirectoryLock, RealDisk
from ottla.host.network import RealNetwork

START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0


class NodeDisk(RealDisk):
    """The real disk, with the locks remembered: a process that dies lets go of them, a thread does not."""

    def __init__(self) -> None:
        self._locks: list[DirectoryLock] = []

    def lock(self, path: str) -> DirectoryLock:
        taken = super().lock(path)
        self._locks.append(taken)
        return taken

    def let_go(self) -> None:
        while self._locks:
            self._locks.pop().release()


class EmbeddedNode:
    def __init__(self, plan: NodePlan, properties: Mapping[str, str], cluster_id: str, switchboard: Switchboard) -> None:
        self.node_id = plan.node_id
        self.directory = plan.directory
        self.properties = dict(properties)
        self.bootstrap = f"{plan.host}:{plan.port}"
        self._cluster_id = cluster_id
        self._switchboard = switchboard
        self._network: NodeNetwork | None = None
        self._disk: NodeDisk | None = None
        self._thread: LoopThread | None = None
        self._node: Node | None = None

    @property
    def is_running(self) -> bool:
        return self._node is not None

    @property
    def is_paused(self) -> bool:
        return self._thread is not None and self._thread.is_frozen

    def start(self) -> None:
        """Returns when it serves. A node that runs already stays as it is."""
        if self._node is not None:
            return
        format_node(self.directory, self._cluster_id, self.node_id)
        self._thread = LoopThread(f"ottla-node-{self.node_id}")
        try:
            self._node = self._thread.call(self._started(), START_LIMIT_S)
        except BaseException:
            self._thread.close()
            self._thread = None
            raise

    async def _started(self) -> Node:
        node = Node(self._doors(), NodeConfig.from_properties(self.properties))
        await node.start()
        return node

    def _doors(self) -> World:
        real = real_world()
        self._network = NodeNetwork(self.node_id, self._switchboard, RealNetwork(unix_sockets=False))
        self._disk = NodeDisk()
        return World(real.clock, real.random, self._network, self._disk, real.workers)

    def stop(self) -> None:
        """Cleanly: leaderships are handed on, logs are closed."""
        self.resume()
        node, thread = self._node, self._thread
        self._node = self._thread = None
        if node is not None and thread is not None:
            try:
                thread.call(node.stop(), STOP_LIMIT_S)
            finally:
                thread.close()

    def kill(self) -> None:
        """At once, as `kill -9` does: connections break, nothing is handed on, no log is closed."""
        self.resume()
        node, thread = self._node, self._thread
        self._node = self._thread = None
        if node is not None and thread is not None and self._network is not None and self._disk is not None:
            try:
                thread.call(self._network.vanish(), STOP_LIMIT_S)
            finally:
                thread.close()
                node.world.workers.close()
                self._disk.let_go()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """It stands still, timers and all, as after SIGSTOP: to others it is there and does not answer."""
        if self._thread is not None:
            self._thread.freeze()

    def resume(self) -> None:
        if self._thread is not None:
            self._thread.thaw()

    def sees(self, brokers: int) -> bool:
        """Whether this node knows of so many brokers that serve."""
        return self._node is not None and sum(not broker.fenced for broker in self._node.image.brokers.values()) >= brokers

    def leads(self, topic: str, partition: int) -> bool:
        """Whether this node holds itself to be the leader of a partition."""
        if self._node is None:
            return False
        state = self._node.partition_state(topic, partition)
        return state is not None and state.leader == self.node_id
