"""What the machine knows of the metadata log: where it begins and ends, and which epoch wrote what. The shell has the bytes.

In: what was appended, flushed, truncated, or replaced by a snapshot. Out: comparisons: whose log is longer, where two diverge.

Invariants: epochs and their start offsets both rise; `flushed_offset <= end_offset`; `generation` rises with every truncation, so
that a flush which began before one is not mistaken for a flush of what came after.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class OffsetAndEpoch(NamedTuple):
    """An end of a log: the offset after its last record, and that record's epoch. A snapshot is named by it."""

    offset: int
    epoch: int


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class Fit(Enum):
    """What a fetcher's last offset and epoch are to a leader."""

    VALID = "read on"
    DIVERGING = "truncate to where the leader's epoch ends, or earlier"
    SNAPSHOT = "what you need is no longer in the log"


class LogView:
    def __init__(
        self,
        *,
        start_offset: int = 0,
        end_offset: int = 0,
        epochs: Iterable[tuple[int, int]] = (),
        snapshot: OffsetAndEpoch | None = None,
    ) -> None:
        """`epochs` is the leader-epoch checkpoint, `snapshot` the latest one on disk. What is there at start is taken as flushed."""
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.flushed_offset = end_offset
        self.generation = 0
        self.snapshot = snapshot
        self._epochs = [EpochStart(*row) for row in epochs]

    @property
    def last_epoch(self) -> int:
        if self._epochs:
            return self._epochs[-1].epoch
        return self.snapshot.epoch if self.snapshot is not None else 0

    @property
    def end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self.end_offset, self.last_epoch)

    @property
    def epochs(self) -> tuple[EpochStart, ...]:
        return tuple(self._epochs)

    def is_no_longer_than(self, other: OffsetAndEpoch) -> bool:
        """Raft's comparison (§5.4.1): the later last epoch wins, then the greater length."""
        return (other.epoch, other.offset) >= (self.last_epoch, self.end_offset)

    def epoch_end(self, epoch: int) -> OffsetAndEpoch:
        """Where the greatest epoch not above `epoch` ends here."""
        entries = self._with_start()
        index = bisect_right(entries, epoch, key=lambda entry: entry.epoch) - 1
        if index < 0:
            return OffsetAndEpoch(entries[0].start_offset if entries else self.start_offset, epoch)
        end = entries[index + 1].start_offset if index + 1 < len(entries) else self.end_offset
        return OffsetAndEpoch(end, entries[index].epoch)

    def _with_start(self) -> list[EpochStart]:
        """A log that begins with a snapshot also knows the epoch of the record before its first."""
        snapshot = self.snapshot
        if snapshot is None or snapshot.offset < self.start_offset:
            return self._epochs
        if self._epochs and self._epochs[0].epoch <= snapshot.epoch:
            return self._epochs
        return [EpochStart(snapshot.epoch, min(snapshot.offset, self.start_offset)), *self._epochs]

    def fit(self, offset: int, epoch: int) -> tuple[Fit, OffsetAndEpoch]:
        """What to tell a fetcher whose log ends with this offset and epoch, and the place that goes with it."""
        if offset == 0 and self.snapshot is not None and self.snapshot.offset > 0:
            return Fit.SNAPSHOT, self.snapshot  # an empty log is filled faster by a snapshot than record by record
        if offset == 0 and epoch == 0 and self.start_offset == 0:
            return Fit.VALID, OffsetAndEpoch(0, 0)
        if self.snapshot is not None and (offset < self.start_offset or self._is_before_start(epoch)):
            return Fit.SNAPSHOT, self.snapshot
        end = self.epoch_end(epoch)
        if end.epoch != epoch or end.offset < offset:
            return Fit.DIVERGING, end
        return Fit.VALID, OffsetAndEpoch(offset, epoch)

    def _is_before_start(self, epoch: int) -> bool:
        """Whether the epoch lies before everything this log can still tell of."""
        entries = self._with_start()
        return self.start_offset > 0 and bool(entries) and epoch < entries[0].epoch

    def truncation_point(self, diverging: OffsetAndEpoch) -> int:
        """Where to cut a follower's log when the leader's epoch ends there (KIP-595)."""
        if diverging.epoch == 0:
            return min(diverging.offset, self.end_offset)
        own = self.epoch_end(diverging.epoch)
        return min(own.offset, diverging.offset) if own.epoch == diverging.epoch else own.offset

    # What happens to the log ----------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Records to come are of this epoch."""
        self.append(self.end_offset, ((epoch, self.end_offset),))

    def append(self, end_offset: int, epochs: Iterable[tuple[int, int]] = ()) -> None:
        assert end_offset >= self.end_offset, "an append cannot shorten the log"
        for epoch, start_offset in epochs:
            if not self._epochs or epoch > self._epochs[-1].epoch:
                self._epochs.append(EpochStart(epoch, start_offset))
        self.end_offset = end_offset

    def flush(self, end_offset: int, generation: int) -> None:
        if generation == self.generation:
            self.flushed_offset = max(self.flushed_offset, min(end_offset, self.end_offset))

    def truncate(self, offset: int) -> None:
        self.end_offset = offset
        self.flushed_offset = min(self.flushed_offset, offset)
        self._epochs = [entry for entry in self._epochs if entry.start_offset < offset]
        self.generation += 1

    def install(self, snapshot: OffsetAndEpoch) -> None:
        """A snapshot from the leader replaces everything."""
        self.snapshot = snapshot
        self.start_offset = self.end_offset = self.flushed_offset = snapshot.offset
        self._epochs = []
        self.generation += 1

    def move_start(self, offset: int) -> None:
        """What lies before is deleted, because a snapshot has it."""
        self.start_offset = max(self.start_offset, offset)
        kept = [entry for entry in self._epochs if entry.start_offset > self.start_offset]
        dropped = len(self._epochs) - len(kept)
        if dropped:
            first = self._epochs[dropped - 1]
            kept.insert(0, EpochStart(first.epoch, self.start_offset))
        self._epochs = kept
