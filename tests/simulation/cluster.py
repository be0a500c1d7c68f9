"""Real brokers on simulated machines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ottla.broker.config import NodeConfig
from ottla.broker.node import Node
from ottla.host import World
from ottla.model.errors import ApiError
from ottla.model.ids import uuid_text
from ottla.storage.directory import LogDirectory, StorageError
from tests.simulation.files import check_producers
from tests.simulation.node import SimulatedNode
from tests.simulation.simulation import Simulation

BROKER_PORT = 9092
CONTROLLER_PORT = 9093
DATA = "/data"
RESTART_SECONDS = 1.0
CLUSTER_ID = uuid_text(b"simulated cluste")


class SimulatedBroker:
    """A machine that runs a node of ottla over and over."""

    def __init__(self, machine: SimulatedNode, node_id: int, properties: Mapping[str, str]) -> None:
        self.machine = machine
        self.node_id = node_id
        self._properties = properties
        self.node: Node | None = None  # while it runs
        self.ready = asyncio.Event()
        self.starts = 0
        self.stopping = False  # it was told to stop
        self.down = False  # it was taken down, and whoever did it will start it again
        self._format(b"directory of n%02d" % node_id)

    def _format(self, directory_id: bytes) -> None:
        self.machine.disk.make_directory(DATA)
        LogDirectory.format(self.machine.disk, DATA, CLUSTER_ID, self.node_id, directory_id)

    @property
    def name(self) -> str:
        return self.machine.name

    def start(self) -> None:
        self.ready.clear()
        self.stopping = self.down = False
        if self.starts:
            self.machine.journal.counts["restarts"] += 1
        self.starts += 1
        self.machine.start(self._serve)

    def _start_again(self) -> None:
        if not self.machine.running and not self.down:
            self.start()

    async def _serve(self, world: World) -> None:
        try:
            node = self.node = Node(world, NodeConfig.from_properties(self._properties))
            await node.start()
        except (StorageError, OSError, ApiError) as error:
            # As `ottla server` does: one sentence, exit 1. Whoever watches over it tries again.
            self.node = None
            self.machine.journal.tell("refused starts", f"{self.name} does not start: {error}")
            self.machine.loop.outside.call_later(RESTART_SECONDS, self._start_again)
            return
        check_producers(self.name, node)
        self.machine.loop.outside.call_soon(self.ready.set)
        self._stopping = asyncio.Event()
        node.on_failure = self._stopping.set
        if node.failure is None:
            await self._stopping.wait()
        if node.failure is not None:  # as `ottla server` does: nothing is closed, and whoever watches over it starts it again
            self.node = None
            self.machine.journal.tell("failed nodes", f"{self.name} gives up: {node.failure}")
            self.machine.loop.outside.call_later(RESTART_SECONDS, self._start_again)
            return
        try:
            await node.stop()
        except (OSError, ApiError) as error:  # a full disk: what was not closed is recovered at the next start
            self.machine.journal.tell("unclean stops", f"{self.name} could not close everything: {error}")

    async def stop(self) -> None:
        """A controlled shutdown, once it is up."""
        await self.ready.wait()
        assert self.machine.main is not None
        assert self.machine.process is not None
        self.stopping = self.down = True
        self.machine.process.call_soon(self._stopping.set)
        await asyncio.wait([self.machine.main])
        self.node = None

    def kill(self) -> None:
        self.node = None
        self.down = True
        self.machine.kill()

    def replace_disk(self) -> None:
        """While it is down: nothing is left, and the new folder has an id of its own."""
        assert not self.machine.running
        self.machine.disk.remove_tree(DATA)
        self._format(b"other folder n%02d" % self.node_id)

    def cut_power(self) -> None:
        self.node = None
        self.down = True
        self.machine.cut_power()


class SimulatedCluster:
    """Combined nodes n1…nN, all voters; or, if there are controllers of their own, brokers n1…nN and the voters after them."""

    def __init__(
        self, simulation: Simulation, size: int, settings: Mapping[str, str] | None = None, *, controllers: int = 0
    ) -> None:
        self.simulation = simulation
        brokers, separate = range(1, size + 1), range(size + 1, size + 1 + controllers)
        voters = ",".join(f"{number}@n{number}:{CONTROLLER_PORT}" for number in separate or brokers)

        def node(number: int, roles: str) -> SimulatedBroker:
            properties = _properties(number, roles, voters, settings or {})
            return SimulatedBroker(simulation.node(f"n{number}"), number, properties)

        self.brokers = [node(number, "broker" if separate else "broker,controller") for number in brokers]
        self.controllers = [node(number, "controller") for number in separate]
        self.weakened: set[int] = set()  # brokers that lost power and have not caught up since
        self.bootstrap = [(broker.name, BROKER_PORT) for broker in self.brokers]

    async def start(self) -> None:
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            await node.ready.wait()

    @property
    def nodes(self) -> list[SimulatedBroker]:
        return [*self.brokers, *self.controllers]

    @property
    def voters(self) -> list[SimulatedBroker]:
        return self.controllers or self.brokers


def _properties(number: int, roles: str, voters: str, settings: Mapping[str, str]) -> dict[str, str]:
    host = f"n{number}"
    listeners = {"broker": f"PLAINTEXT://{host}:{BROKER_PORT}", "controller": f"CONTROLLER://{host}:{CONTROLLER_PORT}"}
    return {
        "node.id": str(number),
        "process.roles": roles,
        "listeners": ",".join(listeners[role] for role in roles.split(",")),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": voters,
        "log.dirs": DATA,
        **settings,
    }
