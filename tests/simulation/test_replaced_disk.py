"""A broker whose disk was replaced: its replicas live in a new directory, with an id that the controller has never heard of (KIP-858)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from ottla.client.admin import Admin, ElectionType
from ottla.client.producer import Producer
from ottla.host import World
from ottla.metadata.image import ClusterImage, Partition
from tests.simulation.cluster import SimulatedBroker, SimulatedCluster
from tests.simulation.simulation import Simulation

LIMIT_S = 60.0
RECORDS = 50


class Stage:
    """Three brokers, and what an operator does."""

    def __init__(self, simulation: Simulation, settings: Mapping[str, str] | None = None) -> None:
        self.simulation = simulation
        self.cluster = SimulatedCluster(simulation, 3, settings)
        self.servers = ",".join(f"{host}:{port}" for host, port in self.cluster.bootstrap)
        self._clients = 0

    def node(self, node_id: int) -> SimulatedBroker:
        return self.cluster.brokers[node_id - 1]

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
        return max((b.node.image for b in self.cluster.brokers if b.node is not None), key=lambda image: image.offset)

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

    def log_end(self, node_id: int, name: str, index: int = 0) -> int:
        node = self.node(node_id).node
        assert node is not None
        replica = node.replicas.get(name, index)
        assert replica is not None
        return replica.log.log_end_offset


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_with_a_new_disk_leads_again_once_it_has_caught_up(seed: int) -> None:
    with Simulation(seed) as simulation:
        stage = Stage(simulation)

        async def scenario() -> None:
            await stage.cluster.start()
            await stage.create("t", [1, 2, 3], [2, 3, 1])
            await stage.write("t")
            await stage.replace_disk(1)
            node = stage.node(1).node
            assert node is not None
            await stage.until(lambda: 1 in stage.partition("t").isr)
            new = node.directory.directory_id
            await stage.until(lambda: all(stage.partition("t", index).directory_of(1) == new for index in range(2)))
            await stage.elect("t")
            await stage.until(lambda: stage.partition("t").leader == 1)
            assert stage.log_end(1, "t") == RECORDS
            await stage.write("t")

        simulation.run(scenario())


def test_a_new_disk_leads_nothing_that_nobody_else_has() -> None:
    """The only replica in sync is gone with its disk. Its broker is back with nothing, and must not make another one cut off what it has."""
    with Simulation(4) as simulation:
        stage = Stage(simulation)

        async def scenario() -> None:
            await stage.cluster.start()
            await stage.create("t", [1, 2])
            await stage.write("t")
            stage.node(2).kill()
            await stage.until(lambda: stage.partition("t").isr == (1,))
            await stage.write("t", count=1)
            await stage.replace_disk(1)
            stage.node(2).start()
            await asyncio.wait_for(stage.node(2).ready.wait(), LIMIT_S)
            await stage.elect("t")
            await asyncio.sleep(LIMIT_S)
            assert stage.partition("t").leader == -1
            assert stage.log_end(2, "t") == RECORDS
            await stage.elect("t", ElectionType.UNCLEAN)
            await stage.until(lambda: set(stage.partition("t").isr) == {1, 2})
            await stage.until(lambda: stage.log_end(1, "t") == RECORDS)
            await stage.write("t")

        simulation.run(scenario())


def test_the_only_replica_is_told_of_on_its_new_disk() -> None:
    """There is nobody who could have what it had; an operator's election brings the partition back, as Kafka's does."""
    with Simulation(5) as simulation:
        stage = Stage(simulation)

        async def scenario() -> None:
            await stage.cluster.start()
            await stage.create("t", [1])
            await stage.write("t")
            await stage.replace_disk(1)
            node = stage.node(1).node
            assert node is not None
            new = node.directory.directory_id
            await stage.until(lambda: stage.partition("t").directory_of(1) == new)
            await stage.elect("t")
            await stage.until(lambda: stage.partition("t").leader == 1)
            await stage.write("t")

        simulation.run(scenario())
