"""What `__consumer_offsets` holds: Kafka's own records, as values and as bytes, and which partition a group lives in.

A record's key starts with two bytes that say its type, its value with two bytes that say its version; a record without a
value is a tombstone. `DumpLogSegments --offsets-decoder` reads what `encode` writes. Types that ottla does not serve (share
and streams groups, say) decode to None: they are skipped here and stay in the log.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from ottla.model.ids import ZERO_UUID
from ottla.protocol import codec
from ottla.protocol.messages import group_records as stored
from ottla.protocol.primitives import uvarint
from ottla.protocol.schema import Message

KNOWN_OFFSETS = 10_000  # whose key is remembered as bytes: the next commit will be for the same partition
KNOWN_GROUPS = 10_000  # whose partition is remembered: every request of a group asks for it
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
_TYPE = Struct(">h")
_OFFSET_KEY = Struct(">hh")
_PARTITION = Struct(">i")
_OFFSET_HEAD = Struct(">hqi")
_TIMESTAMP = Struct(">q")

_OFFSET_VERSION = 4
_OFFSET_VERSION_WITH_EXPIRY = 1  # the only version that has the field
_GROUP_VERSION = 3

_BY_TYPE: dict[int, tuple[type[Message], type[Message]]] = {
    # Type 0 is an offset written by a Kafka before 0.9: the same key, and a value version that says so.
    0: (stored.OffsetCommitKey, stored.OffsetCommitValue),
    1: (stored.OffsetCommitKey, stored.OffsetCommitValue),
    2: (stored.GroupMetadataKey, stored.GroupMetadataValue),
    3: (stored.ConsumerGroupMetadataKey, stored.ConsumerGroupMetadataValue),
    4: (stored.ConsumerGroupPartitionMetadataKey, stored.ConsumerGroupPartitionMetadataValue),
    5: (stored.ConsumerGroupMemberMetadataKey, stored.ConsumerGroupMemberMetadataValue),
    6: (stored.ConsumerGroupTargetAssignmentMetadataKey, stored.ConsumerGroupTargetAssignmentMetadataValue),
    7: (stored.ConsumerGroupTargetAssignmentMemberKey, stored.ConsumerGroupTargetAssignmentMemberValue),
    8: (stored.ConsumerGroupCurrentMemberAssignmentKey, stored.ConsumerGroupCurrentMemberAssignmentValue),
    16: (stored.ConsumerGroupRegularExpressionKey, stored.ConsumerGroupRegularExpressionValue),
}


class GroupRecord(NamedTuple):
    """One record to append, or one that was read back. With a producer id it belongs to that producer's open transaction."""

    key: Message
    value: Message | None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


def encode(record: GroupRecord) -> tuple[bytes, bytes | None]:
    if type(record.value) is stored.OffsetCommitValue and record.value.expire_timestamp < 0:
        assert isinstance(record.key, stored.OffsetCommitKey)
        return _encode_offset(record.key, record.value)
    key = _TYPE.pack(record.key.TYPE_KEY) + codec.encode(record.key, 0)
    if record.value is None:
        return key, None
    version = _value_version(record.value)
    return key, _TYPE.pack(version) + codec.encode(record.value, version)


def _encode_offset(key: stored.OffsetCommitKey, value: stored.OffsetCommitValue) -> tuple[bytes, bytes]:
    """By hand, in a fifth of the time: of all records this is the one that is written thousands of times a second."""
    tags = b"\x00" if value.topic_id == ZERO_UUID else b"\x01\x00\x10" + value.topic_id
    head = _OFFSET_HEAD.pack(_OFFSET_VERSION, value.offset, value.leader_epoch)
    metadata = value.metadata.encode()
    return (
        _offset_key(key.group, key.topic, key.partition),
        b"".join((head, uvarint(len(metadata) + 1), metadata, _TIMESTAMP.pack(value.commit_timestamp), tags)),
    )


@lru_cache(maxsize=KNOWN_OFFSETS)
def _offset_key(group: str, topic: str, partition: int) -> bytes:
    group_bytes, topic_bytes = group.encode(), topic.encode()
    parts = (_OFFSET_KEY.pack(1, len(group_bytes)), group_bytes, _TYPE.pack(len(topic_bytes)), topic_bytes)
    return b"".join((*parts, _PARTITION.pack(partition)))


def decode(
    key: bytes, value: bytes | None, producer_id: int = NO_PRODUCER_ID, producer_epoch: int = NO_PRODUCER_EPOCH
) -> GroupRecord | None:
    """None when the type is not one of ours."""
    (kind,) = _TYPE.unpack_from(key)
    if kind not in _BY_TYPE:
        return None
    key_class, value_class = _BY_TYPE[kind]
    # Anything after the fields that we know was written by a newer version and is not ours to judge.
    key_message, _ = codec.read_from(key_class, 0, key, _TYPE.size)
    if value is None:
        return GroupRecord(key_message, None, producer_id, producer_epoch)
    (version,) = _TYPE.unpack_from(value)
    value_message, _ = codec.read_from(value_class, version, value, _TYPE.size)
    return GroupRecord(key_message, value_message, producer_id, producer_epoch)


def _value_version(value: Message) -> int:
    if isinstance(value, stored.OffsetCommitValue):
        return _OFFSET_VERSION if value.expire_timestamp < 0 else _OFFSET_VERSION_WITH_EXPIRY
    return _GROUP_VERSION if isinstance(value, stored.GroupMetadataValue) else 0


def java_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 code units, in 32 bits with a sign."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        code = (code * 31 + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return code - (1 << 32) if code & 0x80000000 else code


@lru_cache(maxsize=KNOWN_GROUPS)
def partition_for(group_id: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` whose leader coordinates the group.

    The absolute value, not the value without its sign bit: the two differ for every negative hash. Kafka takes the one
    number that has no absolute value for 0.
    """
    code = java_hash(group_id)
    return 0 if code == -(1 << 31) else abs(code) % partition_count
