"""The transaction coordinator of one partition of `__transaction_state`: requests in, records, replies and effects out.

In:  `decide(request, context)` with one of `requests`, from clients, other brokers, timers and the marker sender.
Out: a `Decision` of `model.machine`. Its records are `TransactionRecord`s, its effects are `Markers`: once the Prepare record is
     committed, the shell writes a marker into every partition named and then decides `MarkersWritten`.

Invariants:
- a Prepare record decides the outcome; nothing but its Complete record may follow it;
- of two producers with one transactional id at most one can write: the older has a smaller epoch, or an earlier producer id;
- after a load, `loaded` gives the markers of every decided transaction again: writing a marker twice does no harm.

Error codes are those of Kafka 4.3's TransactionCoordinator, in its order of checks. One check has no twin: Kafka answers
CONCURRENT_TRANSACTIONS while a record waits for its append; here the record is applied when it is appended, later requests
see it, and their replies wait for it to be committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.model.errors import ApiError, ErrorCode
from ottla.model.machine import Decision, Reply, Timer
from ottla.transactions.ending import Ending, decide_ending, fenced
from ottla.transactions.queries import describe, listing
from ottla.transactions.records import TransactionRecord
from ottla.transactions.requests import (
    ABORT_TIMED_OUT,
    NO_TICKET,
    REMOVE_EXPIRED,
    AddPartitions,
    Context,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    ListTransactions,
    Markers,
    MarkersWritten,
    ProducerIdReply,
    TimedOut,
    TransactionSettings,
    VerifyPartitions,
)
from ottla.transactions.states import (
    DECIDED,
    LAST_CLIENT_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TWO_PHASE_COMMIT_TIMEOUT_MS,
    VALID_PREVIOUS,
    Transaction,
    TransactionState,
)

# One decision is one batch in the log; what is left over is found by the next round.
MAX_ABORTS_PER_ROUND = 1000
MAX_EXPIRATIONS_PER_ROUND = 1000

TransactionDecision = Decision[TransactionRecord, None]


class TransactionShard:
    """The state of one partition: transactional ids to transactions."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.transactions: dict[str, Transaction] = {}
        self._handlers: dict[type, Callable[[Any, Context], TransactionDecision]] = {
            InitProducerId: self._init_producer_id,
            AddPartitions: self._add_partitions,
            VerifyPartitions: self._verify_partitions,
            EndTransaction: self._end_transaction,
            MarkersWritten: self._markers_written,
            DescribeTransaction: self._describe,
            ListTransactions: self._list,
            TimedOut: self._timed_out,
        }

    def loaded(self, context: Context) -> TransactionDecision:
        """To be decided first, once the log is replayed: what was decided and not finished is finished now."""
        decided = [transaction for transaction in self.transactions.values() if transaction.state in DECIDED]
        timers = (self._timer(ABORT_TIMED_OUT), self._timer(REMOVE_EXPIRED))
        return Decision(effects=tuple(markers_of(transaction) for transaction in decided), timers=timers)

    def decide(self, request: Any, context: Context) -> TransactionDecision:
        """Reads state and changes nothing but `context.producer_ids`, from which an id may be taken."""
        return self._handlers[type(request)](request, context)

    def apply(self, record: TransactionRecord) -> None:
        if record.transaction is None:
            self.transactions.pop(record.transactional_id, None)
        else:
            self.transactions[record.transactional_id] = record.transaction

    # InitProducerId ------------------------------------------------------------------------------------------------------

    def _init_producer_id(self, request: InitProducerId, context: Context) -> TransactionDecision:
        try:
            self._check_init(request)
            transaction = self.transactions.get(request.transactional_id)
            if transaction is None:
                transaction = Transaction(request.transactional_id, context.producer_ids.take())
            if request.expected_producer_id != NO_PRODUCER_ID and not _may_continue(transaction, request):
                raise ApiError(ErrorCode.PRODUCER_FENCED)
            if transaction.state in DECIDED:
                raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
            if transaction.state is TransactionState.ONGOING:
                # The client comes back until the abort is done, and its epoch is then bumped once more.
                ending = fenced(transaction, context.transaction_version, context.producer_ids, context.now_ms)
                return self._end(ending, context, ProducerIdReply(ErrorCode.CONCURRENT_TRANSACTIONS))
            timeout_ms = TWO_PHASE_COMMIT_TIMEOUT_MS if request.enable_two_phase_commit else request.timeout_ms
            made = _next_epoch(transaction, request, timeout_ms, context)
        except ApiError as error:
            return _answer(context, ProducerIdReply(error.code))
        reply = ProducerIdReply(ErrorCode.NONE, made.producer_id, made.producer_epoch)
        return _write(context, reply, transaction, made)

    def _check_init(self, request: InitProducerId) -> None:
        if not request.transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if (request.expected_producer_id == NO_PRODUCER_ID) != (request.expected_producer_epoch == NO_PRODUCER_EPOCH):
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if request.enable_two_phase_commit and not self.settings.transaction_two_phase_commit_enable:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if request.keep_prepared_transaction:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        valid = 0 < request.timeout_ms <= self.settings.transaction_max_timeout_ms
        if not (valid or request.enable_two_phase_commit):
            raise ApiError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)

    # Partitions ----------------------------------------------------------------------------------------------------------

    def _add_partitions(self, request: AddPartitions, context: Context) -> TransactionDecision:
        transaction, error = self._find_writer(request.transactional_id, request.producer_id, request.producer_epoch)
        if transaction is None:
            return _answer(context, error)
        if transaction.state is TransactionState.ONGOING and request.partitions <= transaction.partitions:
            return _answer(context, ErrorCode.NONE)
        joined = transaction.joined_by(request.partitions, request.transaction_version, context.now_ms)
        return _write(context, ErrorCode.NONE, transaction, joined)

    def _verify_partitions(self, request: VerifyPartitions, context: Context) -> TransactionDecision:
        transaction, error = self._find_writer(request.transactional_id, request.producer_id, request.producer_epoch)
        if transaction is None:
            return _answer(context, dict.fromkeys(request.partitions, error))
        missing = ErrorCode.TRANSACTION_ABORTABLE
        part_of = transaction.partitions
        return _answer(context, {each: ErrorCode.NONE if each in part_of else missing for each in request.partitions})

    def _find_writer(self, transactional_id: str, producer_id: int, producer_epoch: int) -> tuple[Transaction | None, ErrorCode]:
        """The transaction, if this producer may write into it now; otherwise None and why not."""
        if not transactional_id:
            return None, ErrorCode.INVALID_REQUEST
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.producer_id != producer_id:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if transaction.producer_epoch != producer_epoch:
            return None, ErrorCode.PRODUCER_FENCED
        if transaction.state in DECIDED:
            return None, ErrorCode.CONCURRENT_TRANSACTIONS
        return transaction, ErrorCode.NONE

    # Ends ----------------------------------------------------------------------------------------------------------------

    def _end_transaction(self, request: EndTransaction, context: Context) -> TransactionDecision:
        try:
            if not request.transactional_id:
                raise ApiError(ErrorCode.INVALID_REQUEST)
            transaction = self.transactions.get(request.transactional_id)
            if transaction is None:
                raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            ending = decide_ending(
                transaction,
                request.producer_id,
                request.producer_epoch,
                request.commit,
                request.transaction_version,
                context.producer_ids,
                context.now_ms,
            )
        except ApiError as error:
            return _answer(context, ProducerIdReply(error.code))
        if ending is None:
            return _answer(context, ProducerIdReply(ErrorCode.NONE, transaction.producer_id, transaction.producer_epoch))
        after = ending.prepared.completed(context.now_ms)
        return self._end(ending, context, ProducerIdReply(ErrorCode.NONE, after.producer_id, after.producer_epoch))

    def _end(self, ending: Ending, context: Context, reply: Any) -> TransactionDecision:
        records, effects = _finish(ending, context.now_ms)
        return Decision(records, replies=_answer(context, reply).replies, effects=effects)

    def _markers_written(self, request: MarkersWritten, context: Context) -> TransactionDecision:
        transaction = self.transactions.get(request.transactional_id)
        if transaction is None or transaction.state not in DECIDED:
            return Decision()
        if (transaction.producer_id, transaction.producer_epoch) != (request.producer_id, request.producer_epoch):
            return Decision()
        return _write(context, None, transaction, transaction.completed(context.now_ms))

    # Timers --------------------------------------------------------------------------------------------------------------

    def _timed_out(self, request: TimedOut, context: Context) -> TransactionDecision:
        return self._abort_timed_out(context) if request.key == ABORT_TIMED_OUT else self._remove_expired(context)

    def _abort_timed_out(self, context: Context) -> TransactionDecision:
        """The epoch is bumped, so that the producer that was too slow learns of it at its next write."""
        records: list[TransactionRecord] = []
        effects: list[Markers] = []
        for transaction in self.transactions.values():
            if not transaction.timed_out(context.now_ms) or len(records) >= MAX_ABORTS_PER_ROUND:
                continue
            try:
                ending = fenced(transaction, context.transaction_version, context.producer_ids, context.now_ms)
            except ApiError:
                continue  # no producer id is left for an exhausted epoch; the next round finds it again
            more_records, more_effects = _finish(ending, context.now_ms)
            records += more_records
            effects += more_effects
        return Decision(tuple(records), timers=(self._timer(ABORT_TIMED_OUT),), effects=tuple(effects))

    def _remove_expired(self, context: Context) -> TransactionDecision:
        after_ms = self.settings.transactional_id_expiration_ms
        expired = [each.transactional_id for each in self.transactions.values() if each.expired(context.now_ms, after_ms)]
        records = tuple(TransactionRecord(each, None) for each in expired[:MAX_EXPIRATIONS_PER_ROUND])
        return Decision(records, timers=(self._timer(REMOVE_EXPIRED),))

    def _timer(self, key: str) -> Timer:
        settings = self.settings
        if key == ABORT_TIMED_OUT:
            return Timer(key, settings.transaction_abort_timed_out_transaction_cleanup_interval_ms)
        return Timer(key, settings.transaction_remove_expired_transaction_cleanup_interval_ms)

    # Questions -----------------------------------------------------------------------------------------------------------

    def _describe(self, request: DescribeTransaction, context: Context) -> TransactionDecision:
        return _answer(context, describe(request.transactional_id, self.transactions.get(request.transactional_id)))

    def _list(self, request: ListTransactions, context: Context) -> TransactionDecision:
        return _answer(
            context,
            listing(
                self.transactions.values(),
                request.state_filters,
                request.producer_id_filters,
                request.duration_filter_ms,
                request.transactional_id_pattern,
                context.now_ms,
            ),
        )


def markers_of(transaction: Transaction) -> Markers:
    """What a decided transaction still needs. With version 2 the markers carry the bumped epoch."""
    return Markers(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.state is TransactionState.PREPARE_COMMIT,
        transaction.partitions,
        transaction.client_transaction_version,
    )


def _may_continue(transaction: Transaction, request: InitProducerId) -> bool:
    """Whether the producer that asks is the one we know, one we never knew (expired, say), or the one before a rotation that
    did not hear of its new id. Its epoch is looked at when it is bumped."""
    return (
        transaction.producer_epoch == NO_PRODUCER_EPOCH
        or request.expected_producer_id == transaction.producer_id
        or (
            request.expected_producer_id == transaction.previous_producer_id
            and request.expected_producer_epoch >= LAST_CLIENT_EPOCH
        )
    )


def _next_epoch(transaction: Transaction, request: InitProducerId, timeout_ms: int, context: Context) -> Transaction:
    expected = request.expected_producer_epoch
    continues = expected != NO_PRODUCER_EPOCH
    epoch = transaction.producer_epoch
    if transaction.epoch_exhausted and (not continues or expected == epoch):
        last = epoch if continues else NO_PRODUCER_EPOCH
        return transaction.initialised(context.producer_ids.take(), 0, last, timeout_ms, context.now_ms)
    if transaction.epoch_exhausted:
        # Kafka fails an internal check here and answers with this code: a stale producer meets an epoch that cannot grow.
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
    if not continues:
        bumped, last = epoch + 1, NO_PRODUCER_EPOCH
    elif expected == epoch or epoch == NO_PRODUCER_EPOCH:
        bumped, last = epoch + 1, epoch
    elif expected == transaction.last_producer_epoch:
        bumped, last = epoch, expected  # a retry whose first answer was lost
    else:
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    return transaction.initialised(transaction.producer_id, bumped, last, timeout_ms, context.now_ms)


def _finish(ending: Ending, now_ms: int) -> tuple[tuple[TransactionRecord, ...], tuple[Markers, ...]]:
    """The records and effects of an end. If nothing was written nothing needs a marker, and both records go as one batch."""
    prepared = ending.prepared
    if prepared.partitions:
        return (_record(ending.before, prepared),), (markers_of(prepared),)
    return (_record(ending.before, prepared), _record(prepared, prepared.completed(now_ms))), ()


def _record(before: Transaction, after: Transaction) -> TransactionRecord:
    assert before.state in VALID_PREVIOUS[after.state], f"{before.state.text} cannot become {after.state.text}"
    return TransactionRecord(after.transactional_id, after)


def _write(context: Context, reply: Any, before: Transaction, after: Transaction) -> TransactionDecision:
    return Decision((_record(before, after),), replies=_answer(context, reply).replies)


def _answer(context: Context, reply: Any) -> TransactionDecision:
    return Decision(replies=() if context.ticket == NO_TICKET else (Reply(context.ticket, reply),))
