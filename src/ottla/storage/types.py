"""Values that go into and come out of a log."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ottla.host.disk import FileRange


class Origin(IntEnum):
    """Who appends, which decides what is checked (the numbers are ours, they stay in memory)."""

    REPLICATION = 0  # a leader accepted it already: nothing is refused
    COORDINATOR = 1  # group or transaction coordinator: producer epochs are checked, sequences are absent
    CLIENT = 2  # everything is checked
    RAFT_LEADER = 3  # the metadata quorum: offsets and epochs are stamped by the caller


# By themselves, for those who compare with every append: before Python 3.12 a member is slow to find in its enum.
REPLICATION, COORDINATOR, CLIENT, RAFT_LEADER = Origin


class AppendResult(NamedTuple):
    first_offset: int
    last_offset: int
    log_append_time_ms: int  # -1 under CreateTime
    log_start_offset: int
    duplicate: bool  # a retried batch: nothing was written, the offsets are those of the first time

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1


class LogSlice(NamedTuple):
    """Whole batches on their way to a reader, never decoded."""

    parts: list[FileRange]
    size: int  # bytes in all parts
    base_offset: int  # of the first batch: may lie below the offset asked for; the offset asked for when there is none
    end_offset: int  # no record in the parts is at or above this offset

    @property
    def empty(self) -> bool:
        return self.size == 0


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


class ProducerSummary(NamedTuple):
    """One row of DescribeProducers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_transaction_start_offset: int  # -1: none


class OffsetAndEpoch(NamedTuple):
    offset: int
    epoch: int
