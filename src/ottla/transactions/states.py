"""The states of a transactional id, and one transaction as a value.

    from               event                                   to
    -----------------  --------------------------------------  -----------------------------
    (none)             InitProducerId                          Empty
    Empty, Complete*   InitProducerId                          Empty
    Empty, Complete*   AddPartitionsToTxn, AddOffsetsToTxn     Ongoing
    Ongoing            the same, further partitions            Ongoing
    Ongoing            EndTxn commit                           PrepareCommit
    Ongoing            EndTxn abort, time-out, InitProducerId  PrepareAbort
    Empty, Complete*   EndTxn abort (version 2, KIP-890)       PrepareAbort
    PrepareCommit      every marker is written                 CompleteCommit
    PrepareAbort       every marker is written                 CompleteAbort
    Empty, Complete*   idle for `transactional.id.expiration`  Dead, that is: a tombstone, and gone

Once a Prepare record is committed the outcome is decided and can only be finished. Kafka's PrepareEpochFence exists only
while it waits for its own append; here a decision is applied at once, so the state is known by name and never entered.

Two versions of the protocol live side by side. In version 1 a producer keeps its epoch until it asks for another. In version 2
(KIP-890) every end of a transaction bumps the epoch, so that a late record of a finished transaction can never be mistaken
for one of the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from ottla.model.ids import TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1
MAX_PRODUCER_EPOCH = 2**15 - 1
# Clients never get the last epoch, so that the coordinator can always fence whoever holds the one before.
LAST_CLIENT_EPOCH = MAX_PRODUCER_EPOCH - 1
TWO_PHASE_COMMIT_TIMEOUT_MS = 2**31 - 1

# Levels of the feature `transaction.version`: 1 writes flexible records, 2 is KIP-890.
FLEXIBLE_RECORDS = 1
EPOCH_BUMP_AT_END = 2


class TransactionState(IntEnum):
    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def text(self) -> str:
        """As DescribeTransactions and ListTransactions spell it."""
        return _TEXTS[self]


_TEXTS = {state: state.name.title().replace("_", "") for state in TransactionState}
STATES_BY_TEXT = {text: state for state, text in _TEXTS.items()}

_S = TransactionState
AT_REST = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
DECIDED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
VALID_PREVIOUS = {
    _S.EMPTY: AT_REST,
    _S.ONGOING: AT_REST | {_S.ONGOING},
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: AT_REST | {_S.ONGOING},
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: AT_REST,
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}


@dataclass(frozen=True, slots=True)
class Transaction:
    """All that is known of one transactional id.

    `last_producer_epoch` is the epoch before the latest bump, by which a retried InitProducerId is recognised (KIP-360).
    Kafka's record has no room for it, so it is the one field that a reload forgets.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    state: TransactionState = TransactionState.EMPTY
    timeout_ms: int = 0
    partitions: frozenset[TopicPartition] = frozenset()
    start_timestamp_ms: int = NO_TIMESTAMP
    last_update_timestamp_ms: int = NO_TIMESTAMP
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_transaction_version: int = 0

    @property
    def epoch_exhausted(self) -> bool:
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    @property
    def bumps_epoch_at_end(self) -> bool:
        return self.client_transaction_version >= EPOCH_BUMP_AT_END

    def timed_out(self, now_ms: int) -> bool:
        return (
            self.state is TransactionState.ONGOING
            and self.timeout_ms != TWO_PHASE_COMMIT_TIMEOUT_MS
            and self.start_timestamp_ms + self.timeout_ms < now_ms
        )

    def expired(self, now_ms: int, expiration_ms: int) -> bool:
        return self.state in AT_REST and self.last_update_timestamp_ms <= now_ms - expiration_ms

    # Each of the following is one arrow of the table; all of them remember the producer id they came from.

    def initialised(self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int) -> Transaction:
        return replace(
            self,
            state=TransactionState.EMPTY,
            previous_producer_id=self.producer_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_timestamp_ms=NO_TIMESTAMP,
            last_update_timestamp_ms=now_ms,
        )

    def joined_by(self, partitions: frozenset[TopicPartition], transaction_version: int, now_ms: int) -> Transaction:
        return replace(
            self,
            state=TransactionState.ONGOING,
            previous_producer_id=self.producer_id,
            partitions=self.partitions | partitions,
            start_timestamp_ms=now_ms if self.state in AT_REST else self.start_timestamp_ms,
            last_update_timestamp_ms=now_ms,
            client_transaction_version=transaction_version,
        )

    def prepared(
        self, commit: bool, epoch: int, last_epoch: int, next_producer_id: int, transaction_version: int, now_ms: int
    ) -> Transaction:
        return replace(
            self,
            state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            previous_producer_id=self.producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            next_producer_id=next_producer_id,
            # An abort of nothing has no start of its own, and a finished transaction must have one.
            start_timestamp_ms=now_ms if self.state in AT_REST else self.start_timestamp_ms,
            last_update_timestamp_ms=now_ms,
            client_transaction_version=transaction_version,
        )

    def completed(self, now_ms: int) -> Transaction:
        """If the epoch ran out at the end of the transaction, its successor id takes over once the markers are written."""
        rotates = self.bumps_epoch_at_end and self.next_producer_id != NO_PRODUCER_ID
        committed = self.state is TransactionState.PREPARE_COMMIT
        return replace(
            self,
            state=TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT,
            previous_producer_id=self.producer_id,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            producer_epoch=0 if rotates else self.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            last_update_timestamp_ms=now_ms,
        )
