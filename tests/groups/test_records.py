"""Records of `__consumer_offsets`: Kafka's bytes, and Kafka's hash."""

from __future__ import annotations

import pytest

from ottla.groups.records import GroupRecord, decode, encode, java_hash, partition_for
from ottla.protocol import codec
from ottla.protocol.messages import group_records as stored


def test_the_hash_is_javas():
    # The right-hand sides are what `"…".hashCode()` prints in a Java shell.
    assert java_hash("") == 0
    assert java_hash("a") == 97
    assert java_hash("console-consumer-12345") == 158455506
    assert java_hash("my-group") == -1906497762
    assert java_hash("𝄞") == 1772394


def test_a_group_with_a_negative_hash_lives_where_kafka_looks_for_it():
    """The absolute value, not the value without its sign bit."""
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("my-group", 50) == 1906497762 % 50


def test_an_offset_commit_has_kafkas_bytes():
    key = stored.OffsetCommitKey(group="g", topic="t", partition=3)
    value = stored.OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=5, topic_id=bytes(15) + b"\x01")
    encoded_key, encoded_value = encode(GroupRecord(key, value))
    assert encoded_key == bytes.fromhex("0001 0001 67 0001 74 00000003")
    assert encoded_value == bytes.fromhex("0004 0000000000000007 00000002 02 6d 0000000000000005 01 00 10" + "00" * 15 + "01")


@pytest.mark.parametrize("metadata", ["", "m", "x" * 127, "é" * 300])
@pytest.mark.parametrize("topic_id", [bytes(16), b"0123456789abcdef"])
def test_the_offset_written_by_hand_is_the_one_the_codec_writes(metadata: str, topic_id: bytes):
    key = stored.OffsetCommitKey(group="gruppe-ü", topic="t" * 249, partition=2**31 - 1)
    value = stored.OffsetCommitValue(offset=2**62, leader_epoch=-1, metadata=metadata, commit_timestamp=7, topic_id=topic_id)
    by_codec = b"\x00\x01" + codec.encode(key, 0), b"\x00\x04" + codec.encode(value, 4)
    assert encode(GroupRecord(key, value)) == by_codec


def test_an_offset_with_a_time_to_live_is_written_in_the_version_that_has_the_field():
    value = stored.OffsetCommitValue(offset=7, metadata="", commit_timestamp=5, expire_timestamp=9)
    _, encoded = encode(GroupRecord(stored.OffsetCommitKey(group="g", topic="t", partition=0), value))
    assert encoded is not None
    assert encoded[:2] == b"\x00\x01"
    assert encoded[-8:] == (9).to_bytes(8, "big")


def test_a_members_record_has_kafkas_bytes():
    """Written by Kafka 4.3. The null behind the last tag is a 0, not a -1 as in line."""
    value = bytes.fromhex("0000 00 00 04 616e6e 0b 2f3132372e302e302e31 01 03 742a 0000ea60 00 01 00 01 00")
    key = bytes.fromhex("0005 0001 67 0001 6d")
    record = decode(key, value)
    assert record is not None
    assert record.value.subscribed_topic_regex == "t*"
    assert record.value.classic_member_metadata is None
    assert encode(record) == (key, value)


def test_a_tombstone_has_a_key_and_nothing_else():
    record = GroupRecord(stored.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="a.*"), None)
    key, value = encode(record)
    assert key[:2] == b"\x00\x10"
    assert value is None
    assert decode(key, None) == record


def test_an_offset_of_an_old_kafka_is_read():
    decoded = decode(bytes.fromhex("0000 0001 67 0001 74 00000003"), bytes.fromhex("0000 0000000000000007 0000 0000000000000005"))
    assert decoded is not None
    assert decoded.key == stored.OffsetCommitKey(group="g", topic="t", partition=3)
    assert decoded.value == stored.OffsetCommitValue(offset=7, commit_timestamp=5)


@pytest.mark.parametrize("kind", [9, 15, 17, 21, 99])
def test_a_type_of_record_that_is_not_ours_is_passed_over(kind: int):
    assert decode(kind.to_bytes(2, "big") + b"\x00\x01g", b"\x00\x00rest") is None
