"""Random histories of three and five replicas: crashes, cuts, losses, slow disks, snapshots. The laws hold after every event."""

from __future__ import annotations

import pytest

from tests.raft.world import World


def chaos(voters: int, observers: int, seed: int, events: int) -> World:
    world = World(voters, observers, seed)
    random = world.random
    world.delay_ms = (1, random.choice([2, 20, 200]))
    world.flush_delay_ms = (0, random.choice([0, 5, 50]))
    world.loss = random.choice([0.0, 0.02, 0.2])
    world.start()
    proposals = 0
    for _ in range(events):
        world.step()
        dice = random.random()
        if dice < 0.10:
            for replica in world.up:
                if replica.machine.is_leader:
                    proposals += 1
                    replica.propose(f"r{proposals}")
        elif dice < 0.105 and len(world.up) > 1:
            random.choice(world.up).crash()
        elif dice < 0.115:
            down = [replica for replica in world.replicas.values() if not replica.is_up]
            if down:
                random.choice(down).start()
        elif dice < 0.12:
            one, other = random.sample(sorted(world.replicas), 2)
            world.cut.add(frozenset({one, other}))
        elif dice < 0.125 and world.cut:
            world.cut.discard(random.choice(sorted(world.cut, key=sorted)))
        elif dice < 0.127:
            random.choice(world.up).snapshot()
        world.check()
    return world


def heal(world: World) -> None:
    """All are up and connected: they must agree again, on all that was ever committed and on something new."""
    world.cut.clear()
    world.loss = 0.0
    world.delay_ms = (1, 2)
    world.flush_delay_ms = (0, 1)
    for replica in world.replicas.values():
        if not replica.is_up:
            replica.start()
    world.run_until(lambda: world.leader() is not None)
    marker = f"healed at {world.now_ms}"

    def is_agreed() -> bool:
        leader = world.leader()
        if leader is not None and not any(content == marker for _, content in leader.records):
            leader.propose(marker)
        return all(
            replica.machine.high_watermark > 0
            and (replica.machine.epoch, marker) in world.committed
            and len(world.committed) <= replica.machine.high_watermark
            for replica in world.up
        )

    world.run_until(is_agreed)
    for replica in world.up:
        assert replica.committed()[: len(world.committed)] == world.committed


@pytest.mark.parametrize("seed", range(12))
def test_three_voters_and_an_observer_keep_the_laws_and_heal(seed: int) -> None:
    heal(chaos(3, 1, seed, 2500))


@pytest.mark.parametrize("seed", range(100, 106))
def test_five_voters_keep_the_laws_and_heal(seed: int) -> None:
    heal(chaos(5, 0, seed, 2500))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1150))
def test_many_histories_keep_the_laws(seed: int) -> None:
    heal(chaos(3 if seed % 2 else 5, seed % 3, seed, 4000))
