"""Random histories of three and five replicas: crashes, cuts, losses, slow disks, snapshots. The laws hold after every event."""

from __future__ import annotations

import pytest

from tests.raft.world import World


def chaos(voters: int, observers: int, seed: int, rounds: int) -> World:
    world = World(voters, observers, seed)
    random = world.random
    world.delay_ms = (1, random.choice([2, 20, 200]))
    world.flush_delay_ms = (0, random.choice([0, 20, 100]))
    world.loss = random.choice([0.0, 0.02, 0.2])
    world.start()
    for _ in range(rounds):
        action = random.choice(
            [_propose, _propose, _propose, _crash_leader, _crash, _crash_all, _start, _start, _split, _join, _snapshot]
        )
        action(world)
        world.check()
        world.run(random.choice([0, 1, 10, 100, 1000, 4000]))
    return world


def _propose(world: World) -> None:
    for replica in world.up:
        if replica.machine.is_leader:
            for _ in range(world.random.randint(1, 4)):
                if replica.machine.is_leader:
                    world.proposals += 1
                    replica.propose(f"r{world.proposals}")


def _crash_leader(world: World) -> None:
    """Right after it has written something, so that logs diverge."""
    leader = world.leader()
    if leader is not None:
        _propose(world)
        world.run(world.random.choice([0, 0, 2, 5]))
        leader.crash()


def _crash(world: World) -> None:
    if world.up:
        world.random.choice(world.up).crash()


def _crash_all(world: World) -> None:
    """A power cut: what was not synced is gone everywhere at once."""
    for replica in world.up:
        replica.crash()
    for replica in world.replicas.values():
        if world.random.random() < 0.8:
            replica.start()


def _start(world: World) -> None:
    for replica in world.replicas.values():
        if not replica.is_up and world.random.random() < 0.7:
            replica.start()


def _split(world: World) -> None:
    """Two halves, now and then one way or another askew."""
    side = {node_id for node_id in world.replicas if world.random.random() < 0.5}
    for one in side:
        for other in set(world.replicas) - side:
            if world.random.random() < 0.9:
                world.cut.add(frozenset({one, other}))


def _join(world: World) -> None:
    world.cut.clear()


def _snapshot(world: World) -> None:
    if world.up:
        world.random.choice(world.up).snapshot()


def heal(world: World) -> None:
    """All are up and connected: they must agree again, on all that was ever committed and on something new."""
    world.cut.clear()
    world.loss = 0.0
    world.delay_ms = (1, 2)
    world.flush_delay_ms = (0, 1)
    for replica in world.replicas.values():
        if not replica.is_up:
            replica.start()
    marker = f"healed at {world.now_ms}"

    def is_agreed() -> bool:
        leader = world.leader()
        if leader is not None and not any(content == marker for _, content in leader.records):
            leader.propose(marker)
        agreed = len(world.committed)
        return any(content == marker for _, content in world.committed[-3:]) and all(
            replica.machine.high_watermark >= agreed for replica in world.up
        )

    world.run_until(is_agreed)
    for replica in world.up:
        assert replica.committed() == world.committed[: replica.machine.high_watermark]
        assert replica.machine.leader_id == world.leaders[replica.machine.epoch]


@pytest.mark.parametrize("seed", range(12))
def test_three_voters_and_an_observer_keep_the_laws_and_heal(seed: int) -> None:
    heal(chaos(3, 1, seed, 80))


@pytest.mark.parametrize("seed", range(100, 106))
def test_five_voters_keep_the_laws_and_heal(seed: int) -> None:
    heal(chaos(5, 0, seed, 80))


@pytest.mark.parametrize("seed", range(200, 204))
def test_four_voters_keep_the_laws_and_heal(seed: int) -> None:
    heal(chaos(4, 0, seed, 80))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_many_histories_keep_the_laws(seed: int) -> None:
    heal(chaos(3 if seed % 2 else 5, seed % 3, seed, 200))
