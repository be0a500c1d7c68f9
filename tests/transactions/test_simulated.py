"""Some seeds at every change; `python -m tests.transactions.simulated SEED COUNT --brokers N` plays more."""

from __future__ import annotations

import pytest

from tests.transactions.simulated import run_seed


@pytest.mark.parametrize(("seed", "brokers"), [(1, 1), (8, 1), (5, 3)])
def test_transactions_stay_whole_whatever_happens_to_the_brokers(seed: int, brokers: int) -> None:
    outcome = run_seed(seed, brokers)
    story = "\n".join(outcome.story[-60:])
    assert outcome.failure is None, (
        f"{outcome.failure}\n{story}\npython -m tests.transactions.simulated {seed} --brokers {brokers}"
    )
    assert outcome.faults >= 10
    assert outcome.committed >= 20, "a run in which nothing is committed proves nothing"
