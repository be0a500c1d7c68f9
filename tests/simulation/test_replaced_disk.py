"""A broker whose disk was replaced: its replicas live in a new directory, with an id that the controller has never heard of (KIP-858)."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.admin import ElectionType
from tests.simulation.scene import LIMIT_S, RECORDS, Scene
from tests.simulation.simulation import Simulation


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_with_a_new_disk_leads_again_once_it_has_caught_up(seed: int) -> None:
    with Simulation(seed) as simulation:
        scene = Scene(simulation)

        async def scenario() -> None:
            await scene.cluster.start()
            await scene.create("t", [1, 2, 3], [2, 3, 1])
            await scene.write("t")
            await scene.replace_disk(1)
            node = scene.node(1).node
            assert node is not None
            await scene.until(lambda: 1 in scene.partition("t").isr)
            new = node.directory.directory_id
            await scene.until(lambda: all(scene.partition("t", index).directory_of(1) == new for index in range(2)))
            await scene.elect("t")
            await scene.until(lambda: scene.partition("t").leader == 1)
            assert scene.log_end(1, "t") == RECORDS
            await scene.write("t")

        simulation.run(scenario())


def test_a_new_disk_leads_nothing_that_nobody_else_has() -> None:
    """The only replica in sync is gone with its disk. Its broker is back with nothing, and must not make another one cut off what it has."""
    with Simulation(4) as simulation:
        scene = Scene(simulation)

        async def scenario() -> None:
            await scene.cluster.start()
            await scene.create("t", [1, 2])
            await scene.write("t")
            scene.node(2).kill()
            await scene.until(lambda: scene.partition("t").isr == (1,))
            await scene.write("t", count=1)
            await scene.replace_disk(1)
            scene.node(2).start()
            await asyncio.wait_for(scene.node(2).ready.wait(), LIMIT_S)
            await scene.elect("t")
            await asyncio.sleep(LIMIT_S)
            assert scene.partition("t").leader == -1
            assert scene.log_end(2, "t") == RECORDS
            await scene.elect("t", ElectionType.UNCLEAN)
            await scene.until(lambda: set(scene.partition("t").isr) == {1, 2})
            await scene.until(lambda: scene.log_end(1, "t") == RECORDS)
            await scene.write("t")

        simulation.run(scenario())


def test_the_only_replica_is_told_of_on_its_new_disk() -> None:
    """There is nobody who could have what it had; an operator's election brings the partition back, as Kafka's does."""
    with Simulation(5) as simulation:
        scene = Scene(simulation)

        async def scenario() -> None:
            await scene.cluster.start()
            await scene.create("t", [1])
            await scene.write("t")
            await scene.replace_disk(1)
            node = scene.node(1).node
            assert node is not None
            new = node.directory.directory_id
            await scene.until(lambda: scene.partition("t").directory_of(1) == new)
            await scene.elect("t")
            await scene.until(lambda: scene.partition("t").leader == 1)
            await scene.write("t")

        simulation.run(scenario())
