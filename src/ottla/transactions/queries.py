"""DescribeTransactions and ListTransactions: what may be asked of a shard, so that a hanging transaction can be found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import re2

from ottla.model.errors import ErrorCode
from ottla.protocol.messages.transactions import DescribeTransactionsResponse, ListTransactionsResponse
from ottla.transactions.states import STATES_BY_TEXT, Transaction, TransactionState


def describe(transactional_id: str, transaction: Transaction | None) -> DescribeTransactionsResponse.TransactionState:
    described = DescribeTransactionsResponse.TransactionState
    if not transactional_id:
        return described(error_code=ErrorCode.INVALID_REQUEST)
    if transaction is None:
        return described(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=transactional_id)
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(partition)
    return described(
        transactional_id=transactional_id,
        transaction_state=transaction.state.text,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_timestamp_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[described.TopicData(topic=topic, partitions=partitions) for topic, partitions in by_topic.items()],
    )


def listing(
    transactions: Iterable[Transaction],
    state_filters: Sequence[str],
    producer_id_filters: Sequence[int],
    duration_filter_ms: int,
    transactional_id_pattern: str | None,
    now_ms: int,
) -> ListTransactionsResponse:
    """An empty filter lets all through; a state that Kafka does not know is named in the answer and matches nothing."""
    unknown = [text for text in state_filters if text not in STATES_BY_TEXT]
    states = {STATES_BY_TEXT[text] for text in state_filters if text in STATES_BY_TEXT}
    pattern: Any = None
    if transactional_id_pattern:
        try:
            pattern = re2.compile(transactional_id_pattern)
        except re2.error:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)

    def asked_for(transaction: Transaction) -> bool:
        return (
            (not producer_id_filters or transaction.producer_id in producer_id_filters)
            and (not state_filters or transaction.state in states)
            and (duration_filter_ms < 0 or now_ms - transaction.start_timestamp_ms > duration_filter_ms)
            and (pattern is None or pattern.fullmatch(transaction.transactional_id) is not None)
            and transaction.state is not TransactionState.DEAD
        )

    listed = [
        ListTransactionsResponse.TransactionState(
            transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state.text
        )
        for each in transactions
        if asked_for(each)
    ]
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=listed)
