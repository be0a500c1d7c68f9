"""What storage tests have in common: batches, logs on a disk, and reading everything back."""

from __future__ import annotations

from typing import Any

from ottla.host.disk import Disk
from ottla.model.ids import TopicPartition
from ottla.records.batch import check_batches, headers
from ottla.records.builder import build_batch
from ottla.records.record import Record, decode_batch
from ottla.storage.config import LogConfig
from ottla.storage.log import Log
from ottla.storage.types import AppendResult

PARTITION = TopicPartition("orders", 0)
TOPIC_ID = bytes(range(16))
FOLDER = "data/orders-0"
NOW = 1_700_000_000_000


def batch(*values: bytes | None, key: bytes | None = None, timestamp: int = NOW, **options: Any) -> bytearray:
    records = [Record(slot, timestamp + slot, key, value) for slot, value in enumerate(values)]
    return bytearray(build_batch(records, base_offset=0, **options))


def open_log(disk: Disk, config: LogConfig | None = None, now_ms: int = NOW, **options: Any) -> Log:
    return Log.open(disk, FOLDER, PARTITION, TOPIC_ID, config or LogConfig(), now_ms, **options)


def append(log: Log, *values: bytes | None, now_ms: int = NOW, epoch: int = 0, **options: Any) -> AppendResult:
    buffer = batch(*values, **options)
    return log.append_as_leader(buffer, check_batches(buffer), epoch, now_ms)


def send(log: Log, buffer: bytearray, now_ms: int = NOW, epoch: int = 0, **options: Any) -> AppendResult:
    return log.append_as_leader(buffer, check_batches(buffer), epoch, now_ms, **options)


def read_bytes(log: Log, offset: int, max_bytes: int = 1 << 20, upper_offset: int | None = None) -> bytes:
    """Everything from an offset on, as a reader would gather it slice by slice."""
    upper = log.log_end_offset if upper_offset is None else upper_offset
    found = []
    while offset < upper:
        part = log.read(offset, max_bytes, upper)
        if part.empty:
            break
        assert part.end_offset > offset, "a reader must get on"
        found.append(b"".join(piece.read() for piece in part.parts))
        assert len(found[-1]) == part.size
        offset = part.end_offset
    return b"".join(found)


def records_of(log: Log, offset: int | None = None, max_bytes: int = 1 << 20, upper_offset: int | None = None) -> list[Record]:
    start = log.log_start_offset if offset is None else offset
    content = read_bytes(log, start, max_bytes, upper_offset)
    check_batches(content)
    found = []
    for position, header in headers(content):
        if not header.is_control:
            found += [record for record in decode_batch(content, position) if record.offset >= start]
    return found


def values_of(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in records_of(log)]
