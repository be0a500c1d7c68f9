"""The records of `__transaction_state`, as Kafka writes them: `DumpLogSegments --transaction-log-decoder` reads ours.

Key and value both begin with an int16: the record type for the key, the schema version for the value. Version 1 of the value
is flexible and carries the producer ids before and after; it is written from feature level 1 of `transaction.version` on.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.model.ids import TopicPartition
from ottla.protocol.codec import decode, encode
from ottla.protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue
from ottla.transactions.states import FLEXIBLE_RECORDS, Transaction, TransactionState

_KEY_VERSION = 0


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """The new state of one transactional id; None is a tombstone."""

    transactional_id: str
    transaction: Transaction | None


def partition_for(transactional_id: str, partition_count: int) -> int:
    """Which partition of `__transaction_state`, hence which broker, coordinates this id."""
    hashed = java_hash(transactional_id)
    return (0 if hashed == -(2**31) else abs(hashed)) % partition_count


def java_hash(text: str) -> int:
    """String.hashCode of Java, over UTF-16 units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for position in range(0, len(units), 2):
        hashed = (31 * hashed + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return hashed - (1 << 32) if hashed >= 1 << 31 else hashed


def encode_record(record: TransactionRecord, transaction_version: int) -> tuple[bytes, bytes | None]:
    """Key and value of the record that makes this state durable."""
    key = encode(TransactionLogKey(transactional_id=record.transactional_id), _KEY_VERSION)
    key = _KEY_VERSION.to_bytes(2, "big") + key
    if record.transaction is None:
        return key, None
    version = 1 if transaction_version >= FLEXIBLE_RECORDS else 0
    return key, version.to_bytes(2, "big") + encode(_value_of(record.transaction), version)


def decode_record(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """None for a type or version that a newer Kafka may have written: it is skipped, and kept in the log."""
    if int.from_bytes(key[:2], "big") != _KEY_VERSION:
        return None
    transactional_id = decode(TransactionLogKey, _KEY_VERSION, bytes(key), 2).transactional_id
    if value is None:
        return TransactionRecord(transactional_id, None)
    version = int.from_bytes(value[:2], "big")
    if version not in TransactionLogValue.VERSIONS:
        return None
    return TransactionRecord(
        transactional_id, _transaction_of(transactional_id, decode(TransactionLogValue, version, bytes(value), 2))
    )


def _value_of(transaction: Transaction) -> TransactionLogValue:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(partition)
    schema = TransactionLogValue.PartitionsSchema
    empty = transaction.state is TransactionState.EMPTY
    return TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.state),
        transaction_partitions=None if empty else [schema(topic=t, partition_ids=p) for t, p in by_topic.items()],
        transaction_last_update_timestamp_ms=transaction.last_update_timestamp_ms,
        transaction_start_timestamp_ms=transaction.start_timestamp_ms,
        client_transaction_version=transaction.client_transaction_version,
    )


def _transaction_of(transactional_id: str, value: TransactionLogValue) -> Transaction:
    return Transaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        state=TransactionState(value.transaction_status),
        timeout_ms=value.transaction_timeout_ms,
        partitions=frozenset(
            TopicPartition(named.topic, partition)
            for named in value.transaction_partitions or ()
            for partition in named.partition_ids
        ),
        start_timestamp_ms=value.transaction_start_timestamp_ms,
        last_update_timestamp_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_transaction_version=value.client_transaction_version,
    )
