"""Random lives of a cluster: whatever is asked of the controller, its partitions stay sound, and its log tells all of it."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest

from ottla.metadata import records as frames
from ottla.metadata import snapshot
from ottla.metadata.controller import Controller
from ottla.metadata.image import NO_LEADER, ClusterImage, Partition
from ottla.metadata.loader import Loader
from ottla.metadata.state import Context
from ottla.protocol.messages.configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.controller import UnregisterBrokerRequest
from ottla.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
)
from tests.metadata.driver import Driver, Rules

BROKERS = (1, 2, 3, 4, 5)


class Life:
    def __init__(self, seed: int, **settings: Any) -> None:
        self.random = Random(seed)
        self.cluster = Driver(imbalance_check_interval_ms=20_000, unclean_check_interval_ms=30_000, **settings)
        self.cluster.start(*BROKERS)
        self.lives = dict.fromkeys(BROKERS, 1)
        self.topics = 0

    def act(self) -> None:
        actions = [
            self.create, self.delete, self.kill, self.kill, self.rise, self.rise, self.restart, self.shut_down, self.shrink,
            self.expand, self.expand, self.move, self.cancel, self.elect, self.wait, self.widen, self.set_minimum, self.unregister,
        ]  # fmt: skip
        self.random.choice(actions)()

    def any_partition(self) -> tuple[str, int, Partition] | None:
        rows = [(topic.name, index, partition) for topic, index, partition in self.cluster.image.each_partition()]
        return self.random.choice(rows) if rows else None

    def create(self) -> None:
        if len(self.cluster.image.topics) < 6:
            self.topics += 1
            unclean = {"unclean_leader_election_enable": "true"} if self.random.random() < 0.3 else {}
            self.cluster.create(
                f"t{self.topics}", partitions=self.random.randint(1, 4), factor=self.random.randint(1, 4), **unclean
            )

    def delete(self) -> None:
        if self.cluster.image.topic_ids and self.random.random() < 0.3:
            name = self.random.choice(sorted(self.cluster.image.topic_ids))
            self.cluster.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=name)]))

    def broker(self, fenced: bool) -> int | None:
        rows = [broker.broker_id for broker in self.cluster.image.brokers.values() if broker.fenced is fenced]
        return self.random.choice(rows) if rows else None

    def kill(self) -> None:
        broker_id = self.broker(fenced=False)
        if broker_id is not None:
            self.cluster.kill(broker_id)

    def rise(self) -> None:
        broker_id = self.broker(fenced=True)
        if broker_id is not None:
            self.cluster.beat(broker_id)

    def restart(self) -> None:
        """In a new life, which may or may not know how the last one ended."""
        broker_id = self.random.choice(BROKERS)
        known = self.cluster.image.brokers.get(broker_id)
        self.lives[broker_id] += 1
        knows = known is not None and known.fenced and self.random.random() < 0.5
        self.cluster.register(
            broker_id, life=self.lives[broker_id], previous_epoch=known.epoch if knows and known is not None else -1
        )

    def shut_down(self) -> None:
        broker_id = self.broker(fenced=False)
        if broker_id is not None:
            self.cluster.beat(broker_id, want_shut_down=True)

    def shrink(self) -> None:
        found = self.any_partition()
        if found is not None and found[2].leader != NO_LEADER:
            isr = [row for row in found[2].isr if row == found[2].leader or self.random.random() < 0.5]
            self.cluster.alter_isr(found[0], found[1], isr)

    def expand(self) -> None:
        found = self.any_partition()
        if found is not None and found[2].leader != NO_LEADER:
            more = [row for row in found[2].replicas if row not in found[2].isr and self.random.random() < 0.7]
            self.cluster.alter_isr(found[0], found[1], [*found[2].isr, *more])

    def reassign(self, replicas: list[int] | None) -> None:
        found = self.any_partition()
        if found is not None:
            topic = AlterPartitionReassignmentsRequest.ReassignableTopic
            row = topic.ReassignablePartition(partition_index=found[1], replicas=replicas)
            self.cluster.ask(AlterPartitionReassignmentsRequest(topics=[topic(name=found[0], partitions=[row])]))

    def move(self) -> None:
        self.reassign(self.random.sample(BROKERS, self.random.randint(1, 4)))

    def cancel(self) -> None:
        self.reassign(None)

    def elect(self) -> None:
        self.cluster.ask(ElectLeadersRequest(election_type=self.random.randint(0, 1), topic_partitions=None))

    def wait(self) -> None:
        self.cluster.sleep(self.random.choice([100, 5_000, 40_000]))

    def widen(self) -> None:
        found = self.any_partition()
        if found is not None:
            row = CreatePartitionsRequest.CreatePartitionsTopic(name=found[0], count=self.random.randint(1, 6), assignments=None)
            self.cluster.ask(CreatePartitionsRequest(topics=[row]))

    def set_minimum(self) -> None:
        found = self.any_partition()
        if found is not None:
            resource = IncrementalAlterConfigsRequest.AlterConfigsResource
            value = str(self.random.randint(1, 3))
            row = resource.AlterableConfig(name="min.insync.replicas", config_operation=0, value=value)
            request = resource(resource_type=2, resource_name=found[0], configs=[row])
            self.cluster.ask(IncrementalAlterConfigsRequest(resources=[request]))

    def unregister(self) -> None:
        broker_id = self.broker(fenced=True)
        if broker_id is not None and self.random.random() < 0.3:
            self.cluster.ask(UnregisterBrokerRequest(broker_id=broker_id))


def check(before: ClusterImage, after: ClusterImage, eligible_enabled: bool) -> None:
    for topic, index, partition in after.each_partition():
        where = f"{topic.name}-{index}: {partition}"
        assert set(partition.isr) <= set(partition.replicas), where
        assert len(set(partition.replicas)) == len(partition.replicas) == len(partition.directories), where
        assert not set(partition.isr) & set(partition.eligible_leaders), where
        assert set(partition.adding) | set(partition.removing) <= set(partition.replicas), where
        if partition.leader != NO_LEADER:
            assert partition.leader in partition.isr, where
            assert after.brokers[partition.leader].is_active, where
        if not eligible_enabled:
            assert partition.isr, where
            assert not partition.eligible_leaders, where
        former = before.topics[topic.topic_id].partitions.get(index) if topic.topic_id in before.topics else None
        if former is not None and former != partition:
            assert partition.leader_epoch >= former.leader_epoch, where
            if former.leader != partition.leader:
                assert partition.leader_epoch > former.leader_epoch, where


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("eligible", [True, False])
def test_partitions_stay_sound_and_the_log_tells_everything(seed: int, eligible: bool) -> None:
    levels = {"metadata.version": 30} | ({"eligible.leader.replicas.version": 1} if eligible else {})
    life = Life(seed, bootstrap_features=levels)
    cluster = life.cluster
    for _ in range(150):
        before = cluster.image
        life.act()
        check(before, cluster.image, eligible)
    loader = Loader()
    values = [frames.encode(record, 30) for record in cluster.log]
    image, _ = loader.apply_batch([frames.decode(value) for value in values], len(values) - 1, -1)
    assert image == cluster.image
    assert snapshot.load(snapshot.to_records(image), image.offset, image.epoch) == image
    replayed = Controller(cluster.settings, Rules())
    for offset, record in enumerate(cluster.log):
        replayed.apply(record, offset)
    assert replayed.image == cluster.image
    assert replayed._state.colliding == cluster.controller._state.colliding
    assert replayed._state.registered_at == cluster.controller._state.registered_at


def test_deciding_changes_nothing() -> None:
    life = Life(99)
    for _ in range(60):
        life.act()
    state = life.cluster.controller._state
    kept = copy.deepcopy((state.image, state.sessions, state.colliding, state.registered_at))
    request = ElectLeadersRequest(election_type=1, topic_partitions=None)
    life.cluster.controller.decide(request, Context(now_ms=0, next_offset=0))
    assert (state.image, state.sessions, state.colliding, state.registered_at) == kept
