"""The real broker and client in the simulated world: some seeds at every change, and the same bytes for the same seed."""

from __future__ import annotations

import pytest

from tests.simulation.run import run_seed

# Chosen for variety: kills, walls, full disks, pauses, clock jumps, controlled restarts all occur among them.
SEEDS = [(3, 1), (8, 1), (27, 1), (4, 3), (8, 3), (12, 3), (206, 3), (215, 3), (418, 3)]  # seed, brokers


@pytest.mark.parametrize(("seed", "brokers"), SEEDS)
def test_no_promise_is_broken(seed: int, brokers: int) -> None:
    outcome = run_seed(seed, brokers=brokers)
    story = "\n".join(outcome.story[-60:])
    again = f"python -m tests.simulation {seed} --brokers {brokers}"
    assert outcome.failure is None, f"seed {seed}: {outcome.failure}\n{story}\n{again}"
    assert outcome.acknowledged >= 2000
    assert outcome.faults >= 10


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    first, second, other = run_seed(14, brokers=3), run_seed(14, brokers=3), run_seed(15, brokers=3)
    assert (first.digest, first.events, first.story) == (second.digest, second.events, second.story)
    assert first.digest != other.digest
