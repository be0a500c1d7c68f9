"""How a transaction ends: by its producer (EndTxn, version 1 or 2) or against it (time-out, InitProducerId of another).

Version 2 (KIP-890) bumps the epoch with the Prepare record, so a repeated EndTxn shows itself by an epoch one behind ours:

    state             same epoch            epoch one behind (a retry)        other
    ----------------  --------------------  --------------------------------  ---------------
    Ongoing           decide                PRODUCER_FENCED                   PRODUCER_FENCED
    Empty             abort of nothing      PRODUCER_FENCED                   PRODUCER_FENCED
    Prepare*          PRODUCER_FENCED       CONCURRENT_TRANSACTIONS if it     PRODUCER_FENCED
                                            asks the same, else INVALID_TXN_STATE
    Complete*         abort of nothing      NONE if it asks the same,         PRODUCER_FENCED
                                            else INVALID_TXN_STATE
"Abort of nothing" lets a client that never got a record through end its transaction all the same; a commit of nothing is
INVALID_TXN_STATE. When the bump used up the last epoch, the producer id before the rotation at the last epoch is a retry too.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.model.errors import ApiError, ErrorCode
from ottla.transactions.producer_ids import ProducerIds
from ottla.transactions.states import (
    DECIDED,
    EPOCH_BUMP_AT_END,
    LAST_CLIENT_EPOCH,
    MAX_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    TransactionState,
)


@dataclass(frozen=True, slots=True)
class Ending:
    before: Transaction
    prepared: Transaction


def decide_ending(
    transaction: Transaction,
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    transaction_version: int,
    producer_ids: ProducerIds,
    now_ms: int,
) -> Ending | None:
    """None: it was ended that way before. Raises ApiError with what the client is to be told."""
    if transaction_version < EPOCH_BUMP_AT_END:
        if _repeats_version_1(transaction, producer_id, producer_epoch, commit):
            return None
        epoch, last = transaction.producer_epoch, transaction.last_producer_epoch
        return Ending(transaction, transaction.prepared(commit, epoch, last, NO_PRODUCER_ID, 0, now_ms))
    if _repeats_version_2(transaction, producer_id, producer_epoch, commit):
        return None
    return _bumped(transaction, commit, transaction_version, producer_ids, now_ms)


def fenced(transaction: Transaction, transaction_version: int, producer_ids: ProducerIds, now_ms: int) -> Ending:
    """Abort against the will of the producer: its epoch is bumped, so that nothing it still sends is taken."""
    assert transaction.state is TransactionState.ONGOING
    if transaction_version >= EPOCH_BUMP_AT_END:
        return _bumped(transaction, False, transaction_version, producer_ids, now_ms)
    epoch = min(transaction.producer_epoch + 1, MAX_PRODUCER_EPOCH)
    return Ending(transaction, transaction.prepared(False, epoch, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, 0, now_ms))


def _bumped(transaction: Transaction, commit: bool, version: int, producer_ids: ProducerIds, now_ms: int) -> Ending:
    next_producer_id = producer_ids.take() if transaction.epoch_exhausted else NO_PRODUCER_ID
    last = transaction.producer_epoch
    epoch = min(last + 1, MAX_PRODUCER_EPOCH)
    return Ending(transaction, transaction.prepared(commit, epoch, last, next_producer_id, version, now_ms))


def _repeats_version_1(transaction: Transaction, producer_id: int, producer_epoch: int, commit: bool) -> bool:
    if transaction.producer_id != producer_id:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if transaction.producer_epoch != producer_epoch:
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    if transaction.state is TransactionState.ONGOING:
        return False
    if transaction.state is TransactionState.EMPTY:
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    return _asks_the_same(transaction, commit)


def _repeats_version_2(transaction: Transaction, producer_id: int, producer_epoch: int, commit: bool) -> bool:
    state = transaction.state
    lost_rotation = (
        transaction.previous_producer_id == producer_id
        and producer_epoch == LAST_CLIENT_EPOCH
        and transaction.producer_epoch == 0
    )
    if transaction.producer_id != producer_id and not lost_rotation:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    one_behind = transaction.producer_epoch == producer_epoch + 1
    same = transaction.producer_epoch == producer_epoch
    if state in DECIDED:
        if not one_behind:
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        return _asks_the_same(transaction, commit)
    if state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT) and (one_behind or lost_rotation):
        return _asks_the_same(transaction, commit)
    if not same:
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    if commit and state is not TransactionState.ONGOING:
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    return False


def _asks_the_same(transaction: Transaction, commit: bool) -> bool:
    """A decided or finished transaction is asked to end again."""
    committed = transaction.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    if committed != commit:
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    if transaction.state in DECIDED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return True
