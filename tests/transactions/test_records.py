"""The bytes of `__transaction_state`. The hash values and the bytes were made by Java and Kafka 4.3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model.ids import TopicPartition
from ottla.transactions.records import TransactionRecord, decode_record, encode_record, java_hash, partition_for
from ottla.transactions.states import Transaction, TransactionState


@pytest.mark.parametrize(
    ("text", "hashed"),
    [("", 0), ("a", 97), ("copy", 3059573), ("polygenelubricants", -(2**31)), ("grüße", 98768023), ("🚀", 1773027)],
)
def test_the_hash_is_javas(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


def test_partitions_are_chosen_as_kafka_chooses_them() -> None:
    assert partition_for("polygenelubricants", 50) == 0, "the one number whose absolute value does not exist"
    assert partition_for("copy", 50) == 3059573 % 50


epochs = st.integers(-1, 2**15 - 1)
ids = st.integers(-1, 2**63 - 1)
partitions = st.frozensets(st.builds(TopicPartition, st.text(min_size=1, max_size=8), st.integers(0, 2**31 - 1)), max_size=5)


@given(st.text(min_size=1, max_size=20), ids, epochs, st.sampled_from(TransactionState), partitions, ids, ids, st.integers(0, 2))
def test_a_record_comes_back_as_it_was(
    name: str,
    producer_id: int,
    epoch: int,
    state: TransactionState,
    members: frozenset[TopicPartition],
    before: int,
    after: int,
    level: int,
) -> None:
    made = Transaction(
        name,
        producer_id,
        epoch,
        state,
        60_000,
        frozenset() if state is TransactionState.EMPTY else members,
        5,
        6,
        previous_producer_id=before if level else -1,
        next_producer_id=after if level else -1,
        client_transaction_version=level if level else 0,
    )
    record = TransactionRecord(name, made)
    assert decode_record(*encode_record(record, level)) == record


def test_a_tombstone_has_no_value() -> None:
    key, value = encode_record(TransactionRecord("copy", None), 2)
    assert value is None
    assert decode_record(key, None) == TransactionRecord("copy", None)


def test_what_a_newer_kafka_wrote_is_skipped() -> None:
    key, value = encode_record(TransactionRecord("copy", Transaction("copy", 1)), 2)
    assert value is not None
    assert decode_record(b"\x00\x07" + key[2:], value) is None
    assert decode_record(key, b"\x00\x09" + value[2:]) is None


def test_the_bytes_are_kafkas() -> None:
    """Made by Kafka 4.3's TransactionLog.keyToBytes and valueToBytes."""
    member = frozenset({TopicPartition("a", 0)})
    ongoing = Transaction("copy", 1000, 3, TransactionState.ONGOING, 60_000, member, 7, 8, 2, 999, 1001, 2)
    key, value = encode_record(TransactionRecord("copy", ongoing), 2)
    assert key.hex() == "00000004636f7079"
    assert value == bytes.fromhex(
        "000100000000000003e800030000ea60010202610200000000000000000000000008000000000000000703"
        "000800000000000003e7010800000000000003e902020002"
    )
    empty = Transaction("copy", 1000, 0, TransactionState.EMPTY, 60_000, frozenset(), -1, 8, -1, 1000)
    assert encode_record(TransactionRecord("copy", empty), 2)[1] == bytes.fromhex(
        "000100000000000003e800000000ea6000000000000000000008ffffffffffffffff01000800000000000003e8"
    )
