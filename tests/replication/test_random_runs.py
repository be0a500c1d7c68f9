"""Thousands of random steps of leader, followers and controller: the laws of replication hold after each."""

from __future__ import annotations

import random

import pytest

from .imaginary import ImaginaryCluster

STEPS = 400


def step(cluster: ImaginaryCluster, dice: random.Random, number: int) -> None:
    broker_id = dice.choice(list(cluster.brokers))
    act = dice.random()
    if act < 0.22:
        cluster.produce(broker_id, number)
    elif act < 0.60:
        cluster.fetch(broker_id, dice.randint(0, 3))
    elif act < 0.72:
        cluster.learn(broker_id)
    elif act < 0.82:
        cluster.answer(broker_id)
    elif act < 0.88:
        cluster.now_ms += dice.choice([1, 100, 2000])
        cluster.tick(broker_id)
    elif act < 0.92:
        cluster.start(broker_id)
    elif act < 0.94:
        cluster.kill(broker_id)
    elif act < 0.96:
        cluster.fence(broker_id)  # while it goes on believing in itself
    else:
        cluster.elect(broker_id)


def heal(cluster: ImaginaryCluster) -> None:
    """Everybody is back, nothing is lost on the way: the cluster must come to rest with all in sync."""
    for broker_id in cluster.brokers:
        cluster.start(broker_id)
    for _ in range(3 * STEPS):
        cluster.now_ms += 1
        for broker_id in cluster.brokers:
            cluster.learn(broker_id)
            cluster.fetch(broker_id, 50)
            cluster.answer(broker_id)
        cluster.check()
        if len(cluster.state.isr) == len(cluster.brokers):
            break


@pytest.mark.parametrize("min_isr", [1, 2])
@pytest.mark.parametrize("broker_count", [2, 3, 5])
def test_no_acknowledged_record_is_lost_and_replicas_agree(broker_count: int, min_isr: int) -> None:
    acknowledged = elections = 0
    for seed in range(40):
        dice = random.Random(f"{broker_count}-{min_isr}-{seed}")
        cluster = ImaginaryCluster(broker_count, min_isr)
        for number in range(STEPS):
            step(cluster, dice, number)
            cluster.check()
        heal(cluster)
        assert cluster.state.isr == frozenset(cluster.brokers), f"seed {seed}: not all came back into sync"
        logs = [broker.log.records for broker in cluster.brokers.values()]
        for _ in range(STEPS):
            for broker_id in cluster.brokers:
                cluster.fetch(broker_id, 50)
        assert all(log == logs[0] for log in logs), f"seed {seed}: the logs differ at rest"
        acknowledged += len(cluster.acknowledged)
        elections += cluster.state.leader_epoch
    assert acknowledged > 100, "a run in which nothing is acknowledged proves nothing"
    assert elections > 100


def test_the_laws_can_be_broken_by_acknowledging_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker is worth its salt: a leader that takes its own end for committed is found out."""
    from ottla.replication.leader import PartitionLeader

    def hasty(self: PartitionLeader, now_ms: int) -> bool:
        self.high_watermark = self.log_end_offset
        return True

    monkeypatch.setattr(PartitionLeader, "_advance", hasty)
    with pytest.raises(AssertionError):
        test_no_acknowledged_record_is_lost_and_replicas_agree(3, 1)
