"""What a node may be in an epoch; each role has only its own fields (KIP-595, KIP-996).

| from | when | to |
|---|---|---|
| Unattached, Voted | election time-out (voters), at start soon | Prospective: asks who would vote for it, and changes nothing yet |
| Prospective | a majority would | Candidate, in the next epoch, voting for itself |
| Prospective | time-out, or a majority would not | Follower if a leader is known, else Unattached |
| Candidate | a majority voted for it | Leader |
| Candidate | time-out, or soon after a majority did not | Prospective |
| Unattached | votes for another | Voted |
| any | hears of a leader of its epoch or a later one | Follower |
| any | hears of a later epoch without a leader | Unattached |
| Follower | no fetch succeeded for the fetch time-out | Prospective (voters), Unattached (observers) |
| Follower | its leader resigned | Prospective, the sooner the longer its log |
| Leader | a majority has not fetched for 1.5 fetch time-outs, or shut-down | Resigned |
| Resigned | election time-out | Unattached, in the next epoch |
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.raft.log import OffsetAndEpoch
from ottla.raft.quorum_state import NOBODY
from ottla.raft.voters import ReplicaKey


@dataclass(slots=True)
class Unattached:
    """Knows the epoch and no leader whom it could follow."""

    epoch: int
    election_deadline_ms: int
    leader_id: int = NOBODY  # known by id, but not by address


@dataclass(slots=True)
class Voted:
    epoch: int
    voted: ReplicaKey
    election_deadline_ms: int


@dataclass(slots=True)
class Ballot:
    """Votes as they come in. Whoever has not answered is in neither set."""

    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)

    def is_won(self, majority: int) -> bool:
        return len(self.granted) >= majority

    def is_lost(self, voters: int, majority: int) -> bool:
        return voters - len(self.rejected) < majority


@dataclass(slots=True)
class Prospective:
    epoch: int
    election_deadline_ms: int
    leader_id: int = NOBODY
    ballot: Ballot = field(default_factory=Ballot)


@dataclass(slots=True)
class Candidate:
    epoch: int
    election_deadline_ms: int
    ballot: Ballot = field(default_factory=Ballot)


@dataclass(slots=True)
class SnapshotFetch:
    """A snapshot on its way from the leader."""

    snapshot: OffsetAndEpoch
    position: int = 0
    is_complete: bool = False  # all chunks are here, the shell is installing it


@dataclass(slots=True)
class Follower:
    epoch: int
    leader_id: int
    fetch_deadline_ms: int
    has_fetched: bool = False  # a leader that answers is not voted against
    snapshot: SnapshotFetch | None = None
    awaits_append: bool = False  # records were handed to the shell; the next fetch, which acknowledges them, waits for the disk
    leader_high_watermark: int = -1


@dataclass(slots=True)
class Progress:
    """How far a replica has followed this leader."""

    end_offset: int = -1  # -1: has not fetched in this epoch
    last_fetch_ms: int | None = None
    leader_end_then: int = -1  # where the leader's log ended at that fetch
    last_caught_up_ms: int | None = None
    directory_id: bytes = b"\x00" * 16


@dataclass(slots=True)
class ParkedFetch:
    """A fetch that waits for something to tell."""

    ticket: int
    offset: int
    max_bytes: int
    deadline_ms: int
    high_watermark: int  # as the fetcher knows it
    version: int
    node_id: int


@dataclass(slots=True)
class Leader:
    epoch: int
    epoch_start_offset: int  # of the leader-change record: what a majority has beyond it is committed
    check_quorum_deadline_ms: int
    next_begin_epoch_ms: int
    granting: frozenset[int]
    voters: dict[int, Progress] = field(default_factory=dict)  # all but itself
    observers: dict[tuple[int, bytes], Progress] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)  # voters that know that we lead
    fetched_lately: set[int] = field(default_factory=set)  # since the check of the quorum began
    parked: list[ParkedFetch] = field(default_factory=list)


@dataclass(slots=True)
class Resigned:
    """Led this epoch and no longer does; must not vote in it again."""

    epoch: int
    election_deadline_ms: int
    successors: tuple[int, ...] = ()
    unacknowledged: set[int] = field(default_factory=set)


Role = Unattached | Voted | Prospective | Candidate | Follower | Leader | Resigned
