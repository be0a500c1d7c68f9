"""Internal records made readable: those of `__cluster_metadata`, `__consumer_offsets`, `__transaction_state`, and control records.

In: key and value of one record as bytes. Out: a plain mapping, `{"type": …, fields}`; what a newer Kafka wrote and this build
does not know is shown with its numbers and its bytes, never refused.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from ottla.model.errors import ApiError, ProtocolError
from ottla.model.ids import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, uuid_text
from ottla.protocol import codec
from ottla.protocol.messages import control_records, group_records, metadata_records, transaction_records
from ottla.protocol.primitives import read_uvarint
from ottla.protocol.schema import Message, Struct
from ottla.records.control import ControlType, read_control_type, read_end_transaction
from ottla.records.record import Record

METADATA, OFFSETS, TRANSACTIONS, NOTHING = "metadata", "offsets", "transactions", "none"
KINDS = (METADATA, OFFSETS, TRANSACTIONS, NOTHING)
_KIND_OF_TOPIC = {METADATA_TOPIC: METADATA, OFFSETS_TOPIC: OFFSETS, TRANSACTIONS_TOPIC: TRANSACTIONS}

_CONTROL_VALUES: dict[ControlType, type[Message]] = {
    ControlType.LEADER_CHANGE: control_records.LeaderChangeMessage,
    ControlType.SNAPSHOT_HEADER: control_records.SnapshotHeaderRecord,
    ControlType.SNAPSHOT_FOOTER: control_records.SnapshotFooterRecord,
    ControlType.KRAFT_VERSION: control_records.KRaftVersionRecord,
    ControlType.KRAFT_VOTERS: control_records.VotersRecord,
}


def kind_of_folder(folder: str) -> str:
    """What the records of a partition's folder are, by its name: `__consumer_offsets-7` has offsets."""
    return _KIND_OF_TOPIC.get(folder.rpartition("-")[0], NOTHING)


def decode_internal(kind: str, record: Record) -> dict[str, Any] | None:
    """The record's fields, or None where there is nothing to decode."""
    try:
        if kind == METADATA:
            return _metadata(record.value)
        if kind == OFFSETS:
            return _keyed(record, group_records)
        if kind == TRANSACTIONS:
            return _keyed(record, transaction_records)
    except (ProtocolError, IndexError, ValueError) as error:
        return {"type": "unreadable", "reason": str(error)}
    return None


def decode_control(record: Record) -> dict[str, Any]:
    try:
        control_type = read_control_type(record.key)
        end = read_end_transaction(record)
        if end is not None:
            return {"type": "commit" if end.commit else "abort", "coordinator_epoch": end.coordinator_epoch}
        message = _CONTROL_VALUES.get(control_type)
        value = record.value or b""
        name = control_type.name.lower().replace("_", "-")
        if message is None:
            return {"type": name}
        # The value begins with its own version, which is also the version it is written in.
        return {"type": name} | fields(codec.decode(message, int.from_bytes(value[:2], "big"), value))
    except (ApiError, ProtocolError) as error:
        return {"type": "unreadable", "reason": str(error)}


def fields(value: Struct) -> dict[str, Any]:
    """A message as plain values: ids as Kafka prints them, other bytes in base64."""
    return {name: _field(getattr(value, name), field.kind == "uuid") for name, field in value.__fields__.items()}


def _field(value: Any, is_uuid: bool) -> Any:
    if isinstance(value, Struct):
        return fields(value)
    if isinstance(value, list):
        return [_field(item, is_uuid) for item in value]
    if isinstance(value, bytes | memoryview):
        return uuid_text(bytes(value)) if is_uuid else base64.b64encode(bytes(value)).decode()
    return value


def _metadata(value: bytes | None) -> dict[str, Any] | None:
    """Frame version, type and version as unsigned varints, then the message (KIP-631)."""
    if value is None:
        return None
    _frame, position = read_uvarint(value, 0)
    type_key, position = read_uvarint(value, position)
    version, position = read_uvarint(value, position)
    message = _messages(metadata_records, "Record").get(type_key)
    if message is None or version not in message.VERSIONS:
        return {"type": f"unknown type {type_key}", "version": version}
    return {"type": _name(message, "Record"), "version": version} | fields(codec.decode(message, version, value, position))


def _keyed(record: Record, module: Any) -> dict[str, Any] | None:
    """Coordinators' records: the key begins with its type, the value with its version."""
    key, value = record.key, record.value
    if key is None or len(key) < 2:
        return None
    type_key = int.from_bytes(key[:2], "big")
    # Types 0 and 1 of offsets are one thing in two versions; Kafka 4 names the first "legacy".
    key_message = _messages(module, "Key").get(type_key)
    if key_message is None:
        return {"type": f"unknown type {type_key}"}
    decoded: dict[str, Any] = {"type": _name(key_message, "Key"), "key": fields(codec.decode(key_message, 0, key, 2))}
    value_message = _messages(module, "Value").get(type_key)
    if value is None or value_message is None:
        return decoded | {"value": None}
    version = int.from_bytes(value[:2], "big")
    if version not in value_message.VERSIONS:
        return decoded | {"value": {"unknown version": version}}
    return decoded | {"value": fields(codec.decode(value_message, version, value, 2))}


def _messages(module: Any, suffix: str) -> dict[int, type[Message]]:
    found = (item for name, item in vars(module).items() if name.endswith(suffix))
    return {item.TYPE_KEY: item for item in found if isinstance(item, type) and issubclass(item, Message) and item is not Message}


def _name(message: type[Message], suffix: str) -> str:
    """`PartitionChangeRecord` → `partition-change`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", message.__name__.removesuffix(suffix)).lower()
