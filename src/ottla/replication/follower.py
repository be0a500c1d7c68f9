"""One partition at a follower: where to fetch, what to cut off, and what it may take for committed.

In:  `appended` after fetched records are in the local log, `heard` for the rest of every Fetch answer, and the ends of epochs in the
     local log, looked up by the shell.
Out: the next `FetchPosition`, and `Truncate` or `Restart` when the local log parts from the leader's.

Invariants:
- the high watermark is never above the local log's end, and goes back only when the log itself is cut below it, which happens
  after an unclean election alone;
- nothing is cut unless the leader of the current epoch has shown that it does not have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ottla.replication.state import EpochEnd, PartitionState


class FetchPosition(NamedTuple):
    offset: int
    last_fetched_epoch: int  # -1: the log is empty
    current_leader_epoch: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the local log to end at `offset`, then call `truncated`."""

    offset: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Throw the local log away and begin anew at `offset`, because the leader no longer has what comes next; then call
    `truncated`."""

    offset: int


class PartitionFollower:
    """Made when the metadata log names another broker the leader; a new leader epoch updates it."""

    __slots__ = ("broker_id", "high_watermark", "last_epoch", "leader_epoch", "leader_id", "log_end_offset", "partition_epoch")

    def __init__(self, broker_id: int, state: PartitionState, log_end_offset: int, last_epoch: int, high_watermark: int) -> None:
        self.broker_id = broker_id
        self.log_end_offset = log_end_offset
        self.last_epoch = last_epoch
        self.high_watermark = min(max(high_watermark, 0), log_end_offset)
        self.leader_id = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.updated(state)

    def updated(self, state: PartitionState) -> bool:
        """New metadata; whether there is another leader or epoch to fetch from."""
        assert state.leader_id != self.broker_id
        if state.partition_epoch < self.partition_epoch:
            return False
        changed = (state.leader_id, state.leader_epoch) != (self.leader_id, self.leader_epoch)
        self.leader_id, self.leader_epoch, self.partition_epoch = state.leader_id, state.leader_epoch, state.partition_epoch
        return changed

    @property
    def position(self) -> FetchPosition:
        return FetchPosition(self.log_end_offset, self.last_epoch, self.leader_epoch)

    def appended(self, log_end_offset: int, last_epoch: int) -> None:
        self.log_end_offset = log_end_offset
        self.last_epoch = last_epoch

    def heard(self, leader_high_watermark: int) -> bool:
        """The leader's high watermark, after the records of the same answer are appended; whether ours moved.

        Right after an election the leader itself may not know all that is committed: a smaller number than ours is no news.
        """
        committed = min(leader_high_watermark, self.log_end_offset)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def diverged(self, leader: EpochEnd, local: EpochEnd | None) -> Truncate:
        """The answer said that our log parts from the leader's (KIP-595). `local` is what our log says of `leader.epoch`.

        If we have that epoch, the shorter end counts. If our largest epoch not above it is an earlier one, everything after
        the end of that is unknown to the leader; the next fetch may show that more must go.
        """
        if local is None:
            return Truncate(min(leader.end_offset, self.log_end_offset))
        if local.epoch != leader.epoch:
            return Truncate(min(local.end_offset, self.log_end_offset))
        return Truncate(min(local.end_offset, leader.end_offset, self.log_end_offset))

    def out_of_range(self, leader_start_offset: int, leader_end_offset: int) -> Truncate | Restart | None:
        """The leader answered OFFSET_OUT_OF_RANGE; these are its log's start and end, asked for since."""
        if leader_end_offset < self.log_end_offset:
            return Truncate(leader_end_offset)  # an unclean leader knows less than we do
        if leader_start_offset > self.log_end_offset:
            return Restart(leader_start_offset)
        return None  # it was passing; fetch again

    def truncated(self, log_end_offset: int, last_epoch: int) -> None:
        self.log_end_offset = log_end_offset
        self.last_epoch = last_epoch
        self.high_watermark = min(self.high_watermark, log_end_offset)
