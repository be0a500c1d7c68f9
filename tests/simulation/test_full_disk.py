"""A broker whose disk takes no more: others lead what it led, and it comes back when there is room."""

from __future__ import annotations

import asyncio

import pytest

from ottla.model.settings import BROKER_SETTINGS
from tests.simulation.scene import LIMIT_S, RECORDS, Scene
from tests.simulation.simulation import Simulation

SESSION_S = BROKER_SETTINGS["broker.session.timeout.ms"].default / 1000


@pytest.mark.parametrize("room", [0, 3_000])
@pytest.mark.parametrize("victim", [1, 2, 3])
def test_leadership_leaves_a_full_disk_and_returns_when_there_is_room(victim: int, room: int) -> None:
    """One of the three is the controller as well, whose own log is on that disk."""
    with Simulation(victim) as simulation:
        scene = Scene(simulation)

        async def scenario() -> None:
            others = [node_id for node_id in (1, 2, 3) if node_id != victim]
            await scene.cluster.start()
            await scene.create("led", [victim, *others])
            await scene.create("followed", [others[0], victim, others[1]])
            await scene.write("led")
            await scene.write("followed")
            scene.fill_disk(victim, room)
            began = simulation.loop.time()
            await scene.write("led")
            await scene.write("followed")
            assert simulation.loop.time() - began < 2 * SESSION_S
            assert scene.partition("led").leader in others
            assert victim not in {*scene.partition("led").isr, *scene.partition("followed").isr}
            assert scene.image.brokers[victim].fenced
            scene.make_room(victim)
            await scene.until(lambda: all(len(scene.partition(name).isr) == 3 for name in ("led", "followed")))
            await scene.elect("led")
            await scene.until(lambda: scene.partition("led").leader == victim)
            await scene.write("led")
            await scene.until(lambda: all(scene.log_end(node_id, "led") == 3 * RECORDS for node_id in (1, 2, 3)))

        simulation.run(scenario())


def test_a_lone_node_with_a_full_disk_serves_what_it_has() -> None:
    with Simulation(4) as simulation:
        scene = Scene(simulation, size=1)

        async def scenario() -> None:
            await scene.cluster.start()
            await scene.create("t", [1])
            await scene.write("t")
            scene.fill_disk(1)
            writing = asyncio.ensure_future(scene.write("t"))
            await asyncio.sleep(2 * SESSION_S)
            assert not writing.done()
            assert not scene.image.brokers[1].fenced
            assert scene.partition("t").leader == 1
            scene.make_room(1)
            await asyncio.wait_for(writing, LIMIT_S)
            assert scene.log_end(1, "t") == 2 * RECORDS

        simulation.run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_when_all_disks_are_full_somebody_still_leads(seed: int) -> None:
    with Simulation(seed) as simulation:
        scene = Scene(simulation)

        async def scenario() -> None:
            await scene.cluster.start()
            await scene.create("t", [1, 2, 3], [2, 3, 1], [3, 1, 2])
            for index in range(3):
                await scene.write("t", index)
            for node_id in (1, 2, 3):
                scene.fill_disk(node_id, 3_000)
            writing = [asyncio.ensure_future(scene.write("t", index)) for index in range(3)]
            await asyncio.sleep(2 * SESSION_S)
            assert any(not broker.fenced for broker in scene.image.brokers.values())
            for node_id in (1, 2, 3):
                scene.make_room(node_id)
            await asyncio.wait_for(asyncio.gather(*writing), LIMIT_S)
            await scene.until(lambda: all(len(scene.partition("t", index).isr) == 3 for index in range(3)))

        simulation.run(scenario())
