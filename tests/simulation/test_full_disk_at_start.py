"""A node whose disk has no room for its start: it says so and ends, wherever in the start that is, and starts once there is room."""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.cluster import SimulatedBroker, SimulatedCluster
from tests.simulation.simulation import Simulation

PATIENCE_SECONDS = 5.0  # of virtual time: far more than a start takes, less than any time-out of one
PLENTY = 1 << 40


async def answers_or_starts(broker: SimulatedBroker) -> bool:
    """Whether the node serves in the end; AssertionError when it does neither that nor end."""
    ready = asyncio.ensure_future(broker.ready.wait())
    assert broker.machine.main is not None
    done, _ = await asyncio.wait((ready, broker.machine.main), timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    assert done, "it neither serves nor ends"
    return ready in done


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("life", ["first", "second"])
def test_a_start_that_a_full_disk_refuses_ends_at_once_and_the_next_one_succeeds(size: int, life: str) -> None:
    served, refused = 0, 0
    room = 0
    while not served:
        with Simulation(f"{size} {life} {room}") as simulation:
            cluster = SimulatedCluster(simulation, size)
            last = cluster.brokers[-1]

            async def play(cluster: SimulatedCluster = cluster, last: SimulatedBroker = last, room: int = room) -> bool:
                if life == "second":
                    await cluster.start()
                    await last.stop()
                else:
                    for other in cluster.brokers[:-1]:
                        other.start()
                    for other in cluster.brokers[:-1]:
                        await other.ready.wait()
                disk = last.machine.disk
                total, usable = disk.usage("/")
                disk.capacity = total - usable + room
                last.start()
                serves = await answers_or_starts(last)
                disk.capacity = PLENTY
                await last.ready.wait()
                return serves

            if simulation.run(play()):
                served += 1
            else:
                refused += 1
                assert simulation.journal.counts["refused starts"] >= 1
        room += 61
    assert refused > 3
