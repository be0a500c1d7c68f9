"""What a partition knows of its producers: sequences, epochs, open transactions (KIP-98, KIP-360, KIP-890).

A batch is *staged* before it is written (`Staging.data`, `.marker`: all refusals happen here and change nothing) and *committed*
once it is (`ProducerStates.commit`: cannot fail). Followers and recovery go the same way with Origin.REPLICATION, which
refuses nothing, because a leader has judged already.

Invariants:
- `ongoing` is in order of first offsets: transactions begin at the log's end, so insertion order is that order.
- A transaction leaves `ongoing` with its marker and stays in `unreplicated` until the high watermark has passed the marker;
  the first unstable offset is the smallest first offset of both.
- Entries are values: committing replaces them, so a staged copy never shares state with the live one.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import NO_SEQUENCE, NO_TIMESTAMP, TRANSACTIONAL_BIT, BatchHeader
from ottla.records.control import EndTransaction
from ottla.storage.config import LogConfig
from ottla.storage.transaction_index import AbortedEntry
from ottla.storage.types import CLIENT, COORDINATOR, REPLICATION, Origin, ProducerSummary

REMEMBERED_BATCHES = 5  # as many as an idempotent producer may have in flight
NO_EPOCH = -1
MAX_EPOCH = 32767
MAX_SEQUENCE = 0x7FFFFFFF
_new = tuple.__new__  # what a NamedTuple calls, without the call: two are made for every batch
STRICT_MARKERS = 2  # the transaction version from which a marker's epoch must exceed the transaction's (KIP-890 part 2)


class SentBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry(NamedTuple):
    producer_epoch: int
    batches: tuple[SentBatch, ...]  # the last five of this epoch, oldest first
    coordinator_epoch: int
    last_timestamp: int
    transaction_start: int  # first offset of the open transaction; -1: none

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


UNKNOWN_PRODUCER = ProducerEntry(NO_EPOCH, (), -1, NO_TIMESTAMP, -1)


class VerificationGuard:
    """Identity is all it has: it ties an append to the verification that allowed it (KIP-890)."""

    __slots__ = ()


class Verification:
    """A transaction's first append to this partition waits for its coordinator's word."""

    __slots__ = ("epoch", "guard", "lowest_sequence", "since_ms", "supports_epoch_bump")

    def __init__(self, since_ms: int, sequence: int, epoch: int, supports_epoch_bump: bool) -> None:
        self.since_ms = since_ms
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump
        self.guard = VerificationGuard()

    def see(self, sequence: int, epoch: int) -> None:
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


class CompletedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # the marker's
    aborted: bool


class Duplicate(Exception):
    """Not an error: the answer of the first time is given again."""

    def __init__(self, batch: SentBatch) -> None:
        super().__init__(batch)
        self.batch = batch


class ProducerStates:
    __slots__ = ("_first_unstable", "entries", "ongoing", "unreplicated", "verifications")

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.ongoing: dict[int, int] = {}  # first offset → producer id
        self.unreplicated: dict[int, int] = {}  # first offset → marker's offset
        self.verifications: dict[int, Verification] = {}
        self._first_unstable: int | None = None

    @property
    def first_unstable(self) -> int | None:
        return self._first_unstable

    def _settle(self) -> None:
        candidates = [*self.unreplicated, *([next(iter(self.ongoing))] if self.ongoing else [])]
        self._first_unstable = min(candidates, default=None)

    def load(self, entries: dict[int, ProducerEntry]) -> None:
        """From a snapshot, into an empty state."""
        self.entries = entries
        open_transactions = sorted((entry.transaction_start, producer_id) for producer_id, entry in entries.items())
        self.ongoing = {start: producer_id for start, producer_id in open_transactions if start >= 0}
        self._settle()

    def commit(self, staging: Staging) -> list[AbortedEntry]:
        """The staged batches are in the log. Returns what belongs into its transaction index."""
        self.entries.update(staging.entries)
        for producer_id in staging.verified:
            self.verifications.pop(producer_id, None)
        aborted = []
        if staging.started or staging.completed:
            self.ongoing.update(staging.started)
            for transaction in staging.completed:
                if transaction.aborted:
                    aborted.append(AbortedEntry(*transaction[:3], self._stable_offset_after(transaction)))
                if self.ongoing.pop(transaction.first_offset, None) is not None:
                    self.unreplicated[transaction.first_offset] = transaction.last_offset
            self._settle()
        return aborted

    def _stable_offset_after(self, completed: CompletedTransaction) -> int:
        """What the last stable offset becomes with this marker, replication aside."""
        for first_offset, producer_id in self.ongoing.items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def high_watermark_moved(self, offset: int) -> None:
        if self.unreplicated:
            self.unreplicated = {first: last for first, last in self.unreplicated.items() if last >= offset}
            self._settle()

    def expire(self, now_ms: int, after_ms: int) -> None:
        gone = [key for key, entry in self.entries.items() if expired(entry, now_ms, after_ms)]
        for key in gone:
            del self.entries[key]
        stale = [key for key, verification in self.verifications.items() if now_ms - verification.since_ms >= after_ms]
        for key in stale:
            del self.verifications[key]

    def has_ongoing(self, producer_id: int, producer_epoch: int) -> bool:
        entry = self.entries.get(producer_id)
        return entry is not None and entry.transaction_start >= 0 and entry.producer_epoch == producer_epoch

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, now_ms: int, supports_epoch_bump: bool
    ) -> VerificationGuard | None:
        entry = self.entries.get(producer_id)
        if entry is not None and epoch < entry.producer_epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {producer_id} is {epoch}, which is smaller than the last seen epoch {entry.producer_epoch}",
            )
        if self.has_ongoing(producer_id, epoch):
            return None
        verification = self.verifications.get(producer_id)
        if verification is None:
            verification = Verification(now_ms, sequence, epoch, supports_epoch_bump)
            self.verifications[producer_id] = verification
        verification.see(sequence, epoch)
        return verification.guard

    def summaries(self) -> list[ProducerSummary]:
        return [
            ProducerSummary(
                producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_start,
            )
            for producer_id, entry in self.entries.items()
        ]


def expired(entry: ProducerEntry, now_ms: int, after_ms: int) -> bool:
    """A producer with an open transaction is never forgotten."""
    return entry.transaction_start < 0 and now_ms - entry.last_timestamp >= after_ms


class Staging:
    """What one append would change. Several batches of one producer build on each other; nothing is live until committed."""

    __slots__ = ("_config", "_guard", "_origin", "_states", "completed", "entries", "started", "verified")

    def __init__(self, states: ProducerStates, origin: Origin, config: LogConfig, guard: VerificationGuard | None = None) -> None:
        self._states = states
        self._origin = origin
        self._config = config
        self._guard = guard
        self.entries: dict[int, ProducerEntry] = {}
        self.started: dict[int, int] = {}
        self.completed: list[CompletedTransaction] = []
        self.verified: list[int] = []  # a verification ends with the first batch or marker of its transaction

    def _entry(self, producer_id: int) -> ProducerEntry:
        return self.entries.get(producer_id) or self._states.entries.get(producer_id) or UNKNOWN_PRODUCER

    def data(self, header: BatchHeader, first_offset: int, timestamp: int) -> None:
        """A batch of records. `first_offset` and `timestamp` are those it is stored with. Raises Duplicate or ApiError."""
        producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
        transactional = bool(header.attributes & TRANSACTIONAL_BIT)
        entry = self._entry(producer_id)
        start = entry.transaction_start
        batches = entry.batches
        in_line = (
            entry.producer_epoch == epoch
            and batches
            and sequence == batches[-1].last_sequence + 1
            and transactional == (start >= 0)
            and not self._states.verifications
        )
        if not in_line:  # nearly every batch is the next in line, and there is nothing to check
            self._check(entry, header, transactional)
            if entry.producer_epoch != epoch:
                batches = ()
            if start < 0 and transactional:
                start = first_offset
                self.started[first_offset] = producer_id
            if transactional:
                self.verified.append(producer_id)
        delta = header.last_offset_delta
        last_sequence = (sequence + delta) & MAX_SEQUENCE if sequence >= 0 else NO_SEQUENCE
        batch = _new(SentBatch, (sequence, last_sequence, first_offset, first_offset + delta, timestamp))
        sent = (*batches[1 - REMEMBERED_BATCHES :], batch)
        self.entries[producer_id] = _new(ProducerEntry, (epoch, sent, entry.coordinator_epoch, timestamp, start))

    def _check(self, entry: ProducerEntry, header: BatchHeader, transactional: bool) -> None:
        if self._origin is CLIENT:
            self._check_duplicate(header)
        if transactional and self._origin in (CLIENT, COORDINATOR):
            self._check_verified(header)
        self._check_epoch(entry, header.producer_id, header.producer_epoch)
        if self._origin is CLIENT:
            self._check_sequence(entry, header)
        if entry.transaction_start >= 0 and not transactional:
            self._refuse(ErrorCode.INVALID_TXN_STATE, f"Expected transactional write from producer {header.producer_id}")

    def marker(self, header: BatchHeader, end: EndTransaction, offset: int, timestamp: int, version: int = 0) -> None:
        """A commit or abort marker. One without an open transaction is written all the same and completes nothing."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        entry = self._entry(producer_id)
        self._check_epoch(entry, producer_id, epoch, version)
        if entry.coordinator_epoch > end.coordinator_epoch:
            self._refuse(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch for producerId {producer_id}: {end.coordinator_epoch} (zombie), {entry.coordinator_epoch} (current)",
            )
        if entry.transaction_start >= 0:
            self.completed.append(CompletedTransaction(producer_id, entry.transaction_start, offset, not end.commit))
        self.verified.append(producer_id)
        batches = entry.batches if entry.producer_epoch == epoch else ()
        self.entries[producer_id] = ProducerEntry(epoch, batches, end.coordinator_epoch, timestamp, -1)

    def _refuse(self, code: ErrorCode, message: str) -> None:
        if self._origin is not REPLICATION:
            raise ApiError(code, message)

    def _check_duplicate(self, header: BatchHeader) -> None:
        entry = self._states.entries.get(header.producer_id)
        if entry is None or entry.producer_epoch != header.producer_epoch:
            return
        first, last = header.base_sequence, header.last_sequence
        for batch in entry.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                raise Duplicate(batch)

    def _check_verified(self, header: BatchHeader) -> None:
        """Either the transaction is open here already, or its coordinator has vouched for it (the guard is the current one)."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        staged = self.entries.get(producer_id)
        if self._states.has_ongoing(producer_id, epoch) or (staged is not None and staged.transaction_start >= 0):
            return
        entry = self._states.entries.get(producer_id)
        if entry is not None and epoch < entry.producer_epoch:
            self._refuse_epoch(producer_id, epoch, entry.producer_epoch)
        verification = self._states.verifications.get(producer_id)
        vouched = verification is not None and verification.guard is self._guard
        if self._config.verify_transactions and not vouched:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")

    def _check_epoch(self, entry: ProducerEntry, producer_id: int, epoch: int, version: int = 0) -> None:
        current = entry.producer_epoch
        if version >= STRICT_MARKERS:
            if epoch > current:
                return
            # A coordinator that retries a marker which was written: the transaction is over, so writing it again is harmless.
            if epoch == current and (entry.transaction_start < 0 or epoch == MAX_EPOCH):
                return
        elif epoch >= current:
            return
        self._refuse_epoch(producer_id, epoch, current)

    def _refuse_epoch(self, producer_id: int, epoch: int, current: int) -> None:
        self._refuse(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"Epoch of producer {producer_id} is {epoch}, which is smaller than the last seen epoch {current}",
        )

    def _check_sequence(self, entry: ProducerEntry, header: BatchHeader) -> None:
        producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
        before = self._states.entries.get(producer_id)
        verification = self._states.verifications.get(producer_id)
        if verification is not None:
            empty = before is None or not before.batches
            if (verification.supports_epoch_bump and sequence and empty) or sequence > verification.lowest_sequence:
                self._refuse_sequence(
                    f"{sequence} (incoming seq. number), {verification.lowest_sequence} (earliest seen sequence)"
                )
        if epoch != entry.producer_epoch:
            if sequence and entry.producer_epoch != NO_EPOCH:
                self._refuse_sequence(f"{sequence} (incoming seq. number) for the new epoch {epoch} of producer {producer_id}")
            return
        # A producer whose records were all deleted may continue with any sequence.
        last = entry.last_sequence
        if before is not None and sequence != last + 1 and not (sequence == 0 and last == MAX_SEQUENCE):
            self._refuse_sequence(f"{sequence} (incoming seq. number), {last} (current end sequence number)")

    def _refuse_sequence(self, detail: str) -> None:
        raise ApiError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"Out of order sequence number: {detail}")
