"""What goes into the machine, and what it wants done.

The shell's duty for each `Effects`, in this order:

1. `persist`: write the quorum-state file and sync it;
2. `truncate_to`: cut the log; `install_snapshot` chunks: write them;
3. `append_records` (a follower's) or `leader_change` (a new leader's first record): append to the log;
4. `send` requests, `replies`, and `reads`;
5. `high_watermark`, `leadership`: tell the node; 6. call `step(Tick(), …)` at `wake_at_ms`, at the latest.

After 3, and after every append of its own as leader, the shell steps `Appended` at once and `Flushed` when the bytes are synced.
Nothing may be sent before what stands above it is done: a vote that is not on disk must not be cast, and a follower's next fetch
acknowledges what it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ottla.model.machine import Reply, Ticket
from ottla.protocol.messages.control_records import LeaderChangeMessage
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.quorum import FetchSnapshotResponse
from ottla.raft.log import OffsetAndEpoch
from ottla.raft.quorum_state import QuorumState
from ottla.raft.voters import Address, VoterSet


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Received:
    """A request from a peer, an observer or a tool: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot, DescribeQuorum."""

    ticket: Ticket
    request: Any
    version: int
    wall_ms: int = 0  # the time of day, for DescribeQuorum


@dataclass(frozen=True, slots=True)
class Answered:
    request_id: int
    response: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """A request got no answer: no connection, a closed one, or a time-out of the shell's.

    `refused` says that the peer's port refused a connection: no process is there. With pre-votes it does no harm to ask for an
    election at once then, instead of waiting for the fetch time-out.
    """

    request_id: int
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Appended:
    """The log is longer. `epochs` has each epoch that begins in what was appended, with its first offset."""

    end_offset: int
    epochs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Flushed:
    """Everything below `end_offset` is synced. `generation` is `machine.log.generation` when the flush began."""

    end_offset: int
    generation: int


@dataclass(frozen=True, slots=True)
class SnapshotMade:
    """The shell has written a snapshot of what is committed below this end."""

    snapshot: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """The shell has deleted the log before this offset; a snapshot has it."""

    start_offset: int


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """The shell has put the fetched snapshot in place of log and image."""

    snapshot: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class VotersLearned:
    """A voters record (KIP-853) was appended at this offset, or found in a snapshot."""

    offset: int
    voters: VoterSet


@dataclass(frozen=True, slots=True)
class Resign:
    """Give leadership up, for a clean shut-down; harmless to others."""


# Out --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """A request to a node. Answer with `Answered` or `Failed` under the same id."""

    request_id: int
    node_id: int
    address: Address
    request: Any
    version: int


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Fill the response's records from the log, at most `max_bytes` but at least one batch, and send it.

    The response has one topic with one partition; its high watermark is set already.
    """

    ticket: Ticket
    offset: int
    max_bytes: int
    response: FetchResponse


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """Fill the response's `unaligned_records` and `size` from the snapshot's file, and send it.

    A position beyond the end of the file is POSITION_OUT_OF_RANGE, a snapshot that is gone SNAPSHOT_NOT_FOUND.
    """

    ticket: Ticket
    snapshot: OffsetAndEpoch
    position: int
    max_bytes: int
    response: FetchSnapshotResponse


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A piece of the leader's snapshot, in order. After the last: install it, then step `SnapshotInstalled`."""

    snapshot: OffsetAndEpoch
    position: int
    data: Any
    is_last: bool


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads. `leader_id` is -1 while nobody is known to."""

    leader_id: int
    epoch: int
    is_self: bool


@dataclass(slots=True)
class Effects:
    persist: QuorumState | None = None
    truncate_to: int | None = None
    snapshot_chunk: SnapshotChunk | None = None
    append_records: Any = None
    leader_change: LeaderChangeMessage | None = None
    send: list[Send] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    reads: list[ReadLog | ReadSnapshot] = field(default_factory=list)
    high_watermark: int | None = None
    leadership: Leadership | None = None
    wake_at_ms: int | None = None
