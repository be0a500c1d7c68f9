"""Metadata records as the values of log records: how they are framed, and at which version each is written.

A value is `frame version (1), api key, version` as unsigned varints, then the message (KIP-631). In: a message of
`protocol.messages.metadata_records`. Out: bytes, and back. A record type or version that this build does not know is kept
as `OpaqueRecord`: `apply` skips it and a snapshot writes it again, so a newer peer's facts survive us.

Versions are those that a Kafka 4.3 controller writes at the given `metadata.version`, so that its bytes and ours agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ottla.model.errors import ProtocolError
from ottla.protocol import codec
from ottla.protocol.messages import metadata_records
from ottla.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from ottla.protocol.primitives import read_uvarint, uvarint
from ottla.protocol.schema import Message

FRAME_VERSION = 1

# The levels of metadata.version that change what records look like (`MetadataVersion` of Kafka 4.3).
LEVEL_3_3_IV3 = 7  # the oldest that Kafka 4 still speaks
LEVEL_3_4_IV0 = 8  # RegisterBrokerRecord 2
LEVEL_3_6_IV0 = 12  # the leader epoch no longer rises when the in-sync set shrinks
LEVEL_3_7_IV2 = 17  # directory ids
LEVEL_4_0_IV1 = 23  # eligible leader replicas
LEVEL_4_3_IV0 = 30  # cordoned log directories
LATEST_LEVEL = LEVEL_4_3_IV0


@dataclass(frozen=True, slots=True)
class OpaqueRecord:
    """A record of a type or version that this build does not know."""

    type_key: int
    version: int
    body: bytes


MetadataRecord = Message | OpaqueRecord

_TYPES: dict[int, type[Message]] = {
    value.TYPE_KEY: value
    for value in vars(metadata_records).values()
    if isinstance(value, type) and issubclass(value, Message) and value.TYPE_KEY >= 0
}


def version_of(record: Message, metadata_version: int) -> int:
    """The version at which a Kafka controller at this metadata.version writes the record."""
    if isinstance(record, RegisterBrokerRecord):
        return _first_at_least(metadata_version, ((LEVEL_4_3_IV0, 4), (LEVEL_3_7_IV2, 3), (LEVEL_3_4_IV0, 2)), 1)
    if isinstance(record, PartitionRecord | PartitionChangeRecord):
        return _first_at_least(metadata_version, ((LEVEL_4_0_IV1, 2), (LEVEL_3_7_IV2, 1)), 0)
    if isinstance(record, BrokerRegistrationChangeRecord):
        # Kafka writes the lowest version that can say it, whatever the level.
        if record.cordoned_log_dirs is not None:
            return 3
        if record.log_dirs:
            return 2
        return 1 if record.in_controlled_shutdown else 0
    return record.VERSIONS.first


def _first_at_least(level: int, rows: Iterable[tuple[int, int]], otherwise: int) -> int:
    return next((version for since, version in rows if level >= since), otherwise)


def encode(record: MetadataRecord, metadata_version: int) -> bytes:
    """The value of a log record."""
    if isinstance(record, OpaqueRecord):
        return _frame(record.type_key, record.version) + record.body
    version = version_of(record, metadata_version)
    return _frame(record.TYPE_KEY, version) + codec.encode(record, version)


def _frame(type_key: int, version: int) -> bytes:
    return uvarint(FRAME_VERSION) + uvarint(type_key) + uvarint(version)


def decode(value: bytes | memoryview) -> MetadataRecord:
    """Read the value of a log record; a frame that is no frame is a `ProtocolError`."""
    buffer = bytes(value)
    try:
        frame_version, position = read_uvarint(buffer, 0)
        type_key, position = read_uvarint(buffer, position)
        version, position = read_uvarint(buffer, position)
    except IndexError:
        raise ProtocolError("a metadata record ends within its frame") from None
    if frame_version != FRAME_VERSION:
        raise ProtocolError(f"a metadata record has frame version {frame_version}, not {FRAME_VERSION}")
    kind = _TYPES.get(type_key)
    if kind is None or version not in kind.VERSIONS:
        return OpaqueRecord(type_key, version, buffer[position:])
    return codec.decode(kind, version, buffer, position)
