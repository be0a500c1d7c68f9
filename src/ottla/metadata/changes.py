"""One partition's next state: who leads, who is in sync, who may lead later, and where the replicas are.

In: a partition, what is wanted of it, and who may lead. Out: a `PartitionChangeRecord` with what differs, or nothing. Every
change of leadership in the cluster is made here, in this order:

1. a reassignment completes once all its targets are in sync;
2. replicas that leave the in-sync set below `min.insync.replicas` stay eligible to lead (KIP-966);
3. a leader is elected: the current one if it may, else the first replica in sync (or eligible, when none is in sync), else
   the last known leader, else, if unclean election was asked for, the first live replica;
4. the leader epoch rises (by naming the leader, even the old one) when a replica is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from ottla.metadata.delta import NO_LEADER_CHANGE
from ottla.metadata.image import NO_LEADER, RECOVERING, Partition, Topic
from ottla.metadata.records import LEVEL_3_6_IV0, LEVEL_3_7_IV2
from ottla.metadata.state import ControllerState
from ottla.protocol.messages.metadata_records import PartitionChangeRecord


class Election(Enum):
    ONLINE = "the current leader if it may lead, else the first that may"
    PREFERRED = "the first replica if it may lead, else as ONLINE"
    UNCLEAN = "as ONLINE, and at last any live replica"


@dataclass(slots=True)
class PartitionChange:
    """A change under construction: fields left as None mean "as it is"."""

    state: ControllerState
    topic: Topic
    index: int
    partition: Partition
    may_lead: Callable[[int], bool]
    election: Election = Election.ONLINE
    isr: list[int] | None = None
    replicas: list[int] | None = None
    adding: list[int] | None = None
    removing: list[int] | None = None
    recovery_state: int | None = None
    directories: dict[int, bytes] = field(default_factory=dict)
    unclean_replicas: frozenset[int] = frozenset()
    min_insync_replicas: int | None = None  # given when many partitions of a topic change at once

    def build(self) -> PartitionChangeRecord | None:
        target = _Target(self)
        target.complete_reassignment()
        target.remember_eligible()
        target.elect()
        target.raise_leader_epoch_if_replicas_left()
        return target.record()


def propose(
    state: ControllerState, topic: Topic, index: int, partition: Partition, active: Callable[[int], bool] | None = None
) -> PartitionChange:
    """A change that may elect whoever is active and has its directory online."""
    is_active = active or state.is_active
    brokers = state.image.brokers

    def may_lead(broker_id: int) -> bool:
        if broker_id not in brokers or not is_active(broker_id):
            return False
        return brokers[broker_id].has_online_directory(partition.directory_of(broker_id))

    return PartitionChange(state, topic, index, partition, may_lead)


class _Target:
    """The partition as it is going to be."""

    def __init__(self, change: PartitionChange) -> None:
        before = change.partition
        self.change = change
        self.before = before
        self.eligible_enabled = change.state.image.eligible_leaders_enabled
        self.isr = _or(change.isr, before.isr)
        self.replicas = _or(change.replicas, before.replicas)
        self.adding = _or(change.adding, before.adding)
        self.removing = _or(change.removing, before.removing)
        self.eligible = list(before.eligible_leaders)
        self.leader = NO_LEADER_CHANGE
        self.recovery_state = before.recovery_state if change.recovery_state is None else change.recovery_state
        self.was_unclean = False

    def complete_reassignment(self) -> None:
        if not self.adding and not self.removing:
            return
        replicas = [replica for replica in self.replicas if replica not in self.removing]
        isr = [replica for replica in self.isr if replica not in self.removing]
        if not replicas or not isr or not set(replicas) <= set(isr):
            return
        self.replicas, self.isr, self.adding, self.removing = replicas, isr, [], []

    def remember_eligible(self) -> None:
        if not self.eligible_enabled:
            return
        minimum = self.change.min_insync_replicas
        if minimum is None:
            minimum = self.change.state.min_insync_replicas(self.change.topic)
        if len(self.isr) >= minimum:
            self.eligible = []
            return
        candidates = sorted({*self.eligible, *self.before.isr})
        self.eligible = [
            replica for replica in candidates if replica not in self.isr and replica not in self.change.unclean_replicas
        ]

    def elect(self) -> None:
        leader, unclean = self._elected()
        if leader == self.before.leader:
            return
        if leader in self.eligible:
            self.isr = [leader]
            self.eligible.remove(leader)
        self.leader = leader
        if unclean:
            # Nobody else may have what the new leader has: the others must copy from it, and records may be lost.
            self.isr = [leader]
            self.was_unclean = True
            self.recovery_state = RECOVERING

    def _elected(self) -> tuple[int, bool]:
        candidates = [self.before.leader, *self.replicas]
        if self.change.election is Election.PREFERRED:
            candidates.insert(0, self.replicas[0])
        for replica in candidates:
            if self._is_valid(replica):
                return replica, False
        if self._last_known_may_lead():
            return self.before.last_known_eligible[0], True
        if self.change.election is Election.UNCLEAN:
            for replica in self.replicas:
                if self.change.may_lead(replica):
                    return replica, True
        return NO_LEADER, False

    def _is_valid(self, replica: int) -> bool:
        in_line = replica in self.isr if self.isr else replica in self.eligible
        return in_line and self.change.may_lead(replica)

    def _last_known_may_lead(self) -> bool:
        """When nobody is left who surely has everything, the last leader alone is as good as it gets (KIP-966)."""
        known = self.before.last_known_eligible
        return self.eligible_enabled and not self.isr and not self.eligible and len(known) == 1 and self.change.may_lead(known[0])

    def raise_leader_epoch_if_replicas_left(self) -> None:
        if self.leader == NO_LEADER_CHANGE and not set(self.before.replicas) <= set(self.replicas):
            self.leader = self.before.leader

    def record(self) -> PartitionChangeRecord | None:
        record = PartitionChangeRecord(topic_id=self.change.topic.topic_id, partition_id=self.change.index, leader=self.leader)
        eligible = [] if self.was_unclean or not self.eligible_enabled else self.eligible
        if eligible != list(self.before.eligible_leaders):
            record.eligible_leader_replicas = eligible
        if (self.isr or self.eligible_enabled) and self.isr != list(self.before.isr):
            record.isr = self.isr
        self._old_levels_raise_epoch_on_shrink(record)
        self._set_last_known(record)
        self._set_assignment(record)
        if self.recovery_state != self.before.recovery_state:
            record.leader_recovery_state = self.recovery_state
        blank = PartitionChangeRecord(topic_id=record.topic_id, partition_id=record.partition_id)
        return None if record == blank else record

    def _old_levels_raise_epoch_on_shrink(self, record: PartitionChangeRecord) -> None:
        if self.change.state.image.metadata_version >= LEVEL_3_6_IV0 or record.isr is None:
            return
        if record.leader == NO_LEADER_CHANGE and not set(self.before.isr) <= set(record.isr):
            record.leader = self.before.leader

    def _set_last_known(self, record: PartitionChangeRecord) -> None:
        if not self.eligible_enabled:
            if self.before.last_known_eligible:
                record.last_known_elr = []
            return
        known = self.before.last_known_eligible
        if record.isr == [] and known != (self.before.leader,):
            if self.before.leader != NO_LEADER:
                record.last_known_elr = [self.before.leader]
        elif known and (record.leader >= 0 or (record.leader == NO_LEADER_CHANGE and self.before.leader != NO_LEADER)):
            record.last_known_elr = []

    def _set_assignment(self, record: PartitionChangeRecord) -> None:
        before, state = self.before, self.change.state
        if state.image.metadata_version >= LEVEL_3_7_IV2:
            known = dict(zip(before.replicas, before.directories, strict=True)) | self.change.directories
            directories = [known[replica] if replica in known else state.default_directory(replica) for replica in self.replicas]
            if directories != list(before.directories):
                record.directories = directories
        if self.replicas != list(before.replicas):
            record.replicas = self.replicas
        if self.removing != list(before.removing):
            record.removing_replicas = self.removing
        if self.adding != list(before.adding):
            record.adding_replicas = self.adding


def _or(wanted: list[int] | None, present: Iterable[int]) -> list[int]:
    return list(present if wanted is None else wanted)
