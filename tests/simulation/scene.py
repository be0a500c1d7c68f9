"""A cluster of simulated brokers as an operator sees it: topics made and written to, leaders elected, disks replaced and filled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ottla.client.admin import Admin, ElectionType
from ottla.client.producer import Producer
from ottla.host import World
from ottla.metadata.image import ClusterImage, Partition
from tests.simulation.cluster import SimulatedBroker, SimulatedCluster
from tests.simulation.simulation import Simulation

LIMIT_S = 60.0
RECORDS = 50


class Scene:
    """Three brokers, and what is done to them."""

    def __init__(
        self, simulation: Simulation, size: int = 3, settings: Mapping[str, str] | None = None, *, controllers: int = 0
    ) -> None:
        self.simulation = simulation
        self.cluster = SimulatedCluster(simulation, size, settings, controllers=controllers)
        self.servers = ",".join(f"{host}:{port}" for host, port in self.cluster.bootstrap)
        self._clients = 0

    def node(self, node_id: int) -> SimulatedBroker:
        return self.cluster.nodes[node_id - 1]

    async def _client(self, main: Callable[[World], object]) -> None:
        self._clients += 1
        await self.simulation.node(f"client {self._clients}").start(main)  # type: ignore[arg-type]

    async def create(self, name: str, *replicas: list[int]) -> None:
        async def main(world: World) -> None:
            async with Admin(bootstrap_servers=self.servers, world=world) as admin:
                await admin.create_topic(name, assignments=dict(enumerate(replicas)))

        await self._client(main)

    async def write(self, name: str, partition: int = 0, count: int = RECORDS) -> None:
        async def main(world: World) -> None:
            async with Producer(bootstrap_servers=self.servers, world=world, acks="all", linger_ms=0) as producer:
                for number in range(count):
                    await producer.send_and_wait(name, b"%d" % number, partition=partition)

        await self._client(main)

    async def elect(self, name: str, election: ElectionType = ElectionType.PREFERRED) -> None:
        async def main(world: World) -> None:
            async with Admin(bootstrap_servers=self.servers, world=world) as admin:
                await admin.elect_leaders([(name, 0)], election)

        await self._client(main)

    @property
    def image(self) -> ClusterImage:
        """As those who run know it."""
        return max((b.node.image for b in self.cluster.nodes if b.node is not None), key=lambda image: image.offset)

    def partition(self, name: str, index: int = 0) -> Partition:
        found = self.image.partition(name, index)
        assert found is not None
        return found

    async def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

        await asyncio.wait_for(wait(), LIMIT_S)

    async def replace_disk(self, node_id: int) -> None:
        broker = self.node(node_id)
        broker.kill()
        broker.replace_disk()
        broker.start()
        await asyncio.wait_for(broker.ready.wait(), LIMIT_S)

    def fill_disk(self, node_id: int, room: int = 0) -> None:
        disk = self.node(node_id).machine.disk
        disk.capacity = disk.usage("/")[0] - disk.usage("/")[1] + room

    def make_room(self, node_id: int) -> None:
        self.node(node_id).machine.disk.capacity = 1 << 40

    def log_end(self, node_id: int, name: str, index: int = 0) -> int:
        node = self.node(node_id).node
        assert node is not None
        replica = node.replicas.get(name, index)
        assert replica is not None
        return replica.log.log_end_offset
