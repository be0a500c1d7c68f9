"""Control records: what the log writes into itself, and what it makes of the records around it.

The key of each is a version and a type; the value of a transaction marker is the coordinator's epoch. The values of the quorum's
control records are messages (`protocol.messages.control_records`), which this package does not know: they pass as bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from heapq import heapify, heappop
from typing import NamedTuple

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import NO_LEADER_EPOCH, BatchHeader, headers
from ottla.records.builder import build_batch
from ottla.records.record import Record, decode_batch

_KEY = struct.Struct(">hh")  # version, type
_MARKER = struct.Struct(">hi")  # version, coordinator epoch
_VERSION = 0


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1  # written by someone newer: to be skipped


class EndTransaction(NamedTuple):
    commit: bool
    coordinator_epoch: int


class AbortedTransaction(NamedTuple):
    """As a fetch response lists them: whatever this producer wrote from that offset to its next marker is void."""

    producer_id: int
    first_offset: int


def control_key(control_type: ControlType) -> bytes:
    return _KEY.pack(_VERSION, control_type)


def read_control_type(key: bytes | None) -> ControlType:
    """Later versions may append fields and add types; both are read as far as they are known."""
    if key is None or len(key) < _KEY.size:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a control record's key is too short")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"a control record's key has version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def read_end_transaction(record: Record) -> EndTransaction | None:
    """None for a control record that ends no transaction."""
    control_type = read_control_type(record.key)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    value = record.value or b""
    if len(value) < _MARKER.size or value[0] & 0x80:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a transaction marker whose value cannot be read")
    return EndTransaction(control_type is ControlType.COMMIT, _MARKER.unpack_from(value)[1])


def control_batch(
    control_type: ControlType, value: bytes, *, base_offset: int, timestamp: int, leader_epoch: int = NO_LEADER_EPOCH
) -> bytes:
    """A quorum's control record, in a batch of its own."""
    record = Record(base_offset, timestamp, control_key(control_type), value)
    return build_batch([record], control=True, leader_epoch=leader_epoch)


def end_transaction_batch(
    end: EndTransaction,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """The marker that ends a transaction in one partition: one control record, transactional, without a sequence."""
    key = control_key(ControlType.COMMIT if end.commit else ControlType.ABORT)
    return build_batch(
        [Record(base_offset, timestamp, key, _MARKER.pack(_VERSION, end.coordinator_epoch))],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        leader_epoch=leader_epoch,
    )


def visible_batches(
    buffer: bytes | bytearray | memoryview, aborted: Iterable[AbortedTransaction] = ()
) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of the batches whose records an application sees.

    Control batches are left out; so are the batches of aborted transactions, which a read-committed fetch lists. A producer is
    void from the listed first offset up to its abort marker, and may then begin anew.
    """
    waiting = [(transaction.first_offset, transaction.producer_id) for transaction in aborted]
    heapify(waiting)
    void: set[int] = set()
    for position, header in headers(buffer):
        while waiting and waiting[0][0] <= header.last_offset:
            void.add(heappop(waiting)[1])
        if header.is_control:
            if header.producer_id in void and _is_abort(buffer, position):
                void.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in void):
            yield position, header


def _is_abort(buffer: bytes | bytearray | memoryview, position: int) -> bool:
    records = decode_batch(buffer, position)
    return bool(records) and read_control_type(records[0].key) is ControlType.ABORT
