"""The values replication speaks of: a partition as the metadata log has it, a proposal to change its in-sync set, epochs' ends.

Words, as Kafka uses them:
- the *in-sync set* (ISR) is what the controller has committed; any of its members may be elected leader;
- the *maximal* in-sync set also counts a member the leader has proposed to add and still counts one it has proposed to remove
  (KIP-497). The high watermark waits for all of the maximal set: whichever proposal wins, what is acknowledged is safe;
- the *leader epoch* grows with every leader, the *partition epoch* with every change of the partition's record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NO_LEADER = -1
NO_EPOCH = -1
NO_OFFSET = -1
UNKNOWN_BROKER_EPOCH = -1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as PartitionRecord and PartitionChangeRecord describe it."""

    leader_id: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: frozenset[int]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0  # 1 after an unclean election, until the leader says it has recovered


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the leader asks of the controller (AlterPartition): this in-sync set, each member with the broker epoch it fetched
    with, so that a broker that restarted meanwhile is refused (KIP-903)."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]  # (broker id, broker epoch), by id
    leader_recovery_state: int = 0

    @property
    def members(self) -> frozenset[int]:
        return frozenset(broker_id for broker_id, _ in self.isr)


class Progress(NamedTuple):
    """What came of an event at the leader."""

    high_watermark_moved: bool = False  # wake those who wait for acknowledgements or for records
    proposal: Proposal | None = None  # send it; report the answer with `altered` or `alter_failed`
    follower_start_moved: bool = False  # wake those who wait until everybody has dropped what was deleted


NOTHING = Progress()


class EpochEnd(NamedTuple):
    """Where an epoch ends: the offset at which the first later one starts, and the largest known epoch before that offset.

    As Kafka's epoch cache answers: for the latest epoch it is the log's end; an epoch before all known ones keeps its own
    number and ends where the first begins; of an epoch after all known ones nothing can be said.
    """

    epoch: int
    end_offset: int
