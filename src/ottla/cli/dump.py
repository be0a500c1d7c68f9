"""The files of a log, read for people: each yields rows (plain mappings), in the order of the file.

In: the path of a file that Kafka or ottla wrote, told by its name. Out: rows with a `kind`; damage is a row of kind `error` that
says where it is, and ends the file: a dump is most needed when something is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ottla.cli.decoding import decode_control, decode_internal, kind_of_folder
from ottla.cli.output import time_text
from ottla.model.errors import ApiError
from ottla.records.batch import HEADER_SIZE, MAGIC, BatchHeader, crc_of, read_header
from ottla.records.record import Record, decode_records, unpack

Rows = Iterator[dict[str, Any]]
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
MAX_BATCH_SIZE = 1 << 30  # a length beyond this is damage: nothing that long is ever taken into memory


def dump_file(path: Path, *, records: bool, decoder: str | None) -> Rows:
    """Rows of one file. `decoder` is one of `decoding.KINDS`, or None to go by the folder's name."""
    if path.suffix in (".log", ".checkpoint") or path.name.endswith((".log.deleted", ".log.swap", ".log.cleaned")):
        kind = decoder or ("metadata" if path.suffix == ".checkpoint" else kind_of_folder(path.resolve().parent.name))
        return _batches(path, records, kind)
    reader = _READERS.get(path.suffix) or _READERS.get(path.name)
    if reader is None:
        return iter(
            [_error(f"{path.name} is no file of a log: expected .log, .index, .timeindex, .txnindex, .snapshot, .checkpoint …")]
        )
    return reader(path)


def _error(reason: str, position: int | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": "error", "reason": reason}
    return row if position is None else row | {"position": position}


def _batches(path: Path, with_records: bool, decoder: str) -> Rows:
    size, position = path.stat().st_size, 0
    with path.open("rb") as file:
        while position < size:
            head = file.read(HEADER_SIZE)
            if len(head) < HEADER_SIZE:
                yield _error(f"{len(head)} bytes at the end are no whole batch", position)
                return
            header = read_header(head)
            if header.magic != MAGIC or not HEADER_SIZE <= header.size <= MAX_BATCH_SIZE:
                yield _error(f"no batch of magic 2 (magic {header.magic}, length {header.batch_length})", position)
                return
            if position + header.size > size:
                yield _error(f"a batch of {header.size} bytes is cut off: {size - position} are left", position)
                return
            batch = head + file.read(header.size - HEADER_SIZE)
            whole = crc_of(batch, 0, header.size) == header.crc
            yield _batch_row(header, position, whole)
            if not whole:
                yield _error("the checksum does not fit the batch", position)
            elif with_records or header.is_control:
                yield from _record_rows(batch, header, decoder, position)
            position += header.size


def _batch_row(header: BatchHeader, position: int, whole: bool) -> dict[str, Any]:
    return {
        "kind": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "position": position,
        "size": header.size,
        "leader_epoch": header.leader_epoch,
        "compression": CODECS.get(header.codec, f"unknown ({header.codec})"),
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon": header.delete_horizon,
        "crc": header.crc,
        "valid": whole,
    }


def _record_rows(batch: bytes, header: BatchHeader, decoder: str, position: int) -> Rows:
    try:
        records = decode_records(header, unpack(batch, 0, header))
    except ApiError as error:
        yield _error(str(error), position)
        return
    for record in records:
        yield _record_row(record, header, decoder)


def _record_row(record: Record, header: BatchHeader, decoder: str) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": "record", "offset": record.offset, "timestamp": record.timestamp}
    if header.is_control:
        return row | {"kind": "control", "decoded": decode_control(record)}
    row |= {"key": record.key, "value": record.value, "headers": [{"key": key, "value": value} for key, value in record.headers]}
    decoded = decode_internal(decoder, record)
    return row if decoded is None else row | {"decoded": decoded}


def _base_offset(path: Path) -> int:
    digits = path.name.split(".")[0]
    return int(digits) if digits.isdigit() else 0


def _offset_index(path: Path) -> Rows:
    from ottla.storage.index import OFFSET_ENTRY

    base = _base_offset(path)
    for entry, (offset, position) in _entries(path, OFFSET_ENTRY):
        if (offset, position) != (0, 0) or entry == 0:  # Kafka sizes a live index ahead of use: the rest is zeros
            yield {"kind": "offset index", "offset": base + offset, "position": position}


def _time_index(path: Path) -> Rows:
    from ottla.storage.index import TIME_ENTRY

    base = _base_offset(path)
    for entry, (timestamp, offset) in _entries(path, TIME_ENTRY):
        if (timestamp, offset) != (0, 0) or entry == 0:
            yield {"kind": "time index", "timestamp": timestamp, "time": time_text(timestamp), "offset": base + offset}


def _entries(path: Path, entry: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    content = path.read_bytes()
    yield from enumerate(entry.iter_unpack(content[: len(content) // entry.size * entry.size]))


def _transaction_index(path: Path) -> Rows:
    from ottla.storage.transaction_index import parse

    for entry in parse(path.read_bytes()):
        yield {"kind": "aborted transaction"} | entry._asdict()


def _producer_snapshot(path: Path) -> Rows:
    from ottla.storage.snapshots import CorruptSnapshot, decode

    try:
        entries = decode(path.read_bytes())
    except CorruptSnapshot as error:
        yield _error(f"the snapshot is damaged: {error}")
        return
    for producer_id, entry in entries.items():
        last = entry.batches[-1] if entry.batches else None
        yield {
            "kind": "producer",
            "producer_id": producer_id,
            "producer_epoch": entry.producer_epoch,
            "first_sequence": last.first_sequence if last else -1,
            "last_sequence": entry.last_sequence,
            "last_offset": last.last_offset if last else -1,
            "last_timestamp": entry.last_timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "transaction_start": entry.transaction_start if entry.transaction_start >= 0 else None,
        }


def _lines(names: tuple[str, ...], kind: str) -> Callable[[Path], Rows]:
    """A checkpoint: a version line, a count line, then one line an entry."""

    def read(path: Path) -> Rows:
        from ottla.storage.checkpoints import read_lines

        lines = read_lines(path.read_bytes())
        if lines is None:
            yield _error(f"{path.name} is not a whole checkpoint of version 0")
            return
        for line in lines:
            cells = line.rsplit(" ", len(names) - 1)
            yield {"kind": kind} | {
                name: int(cell) if cell.lstrip("-").isdigit() else cell for name, cell in zip(names, cells, strict=False)
            }

    return read


def _properties(path: Path) -> Rows:
    from ottla.storage.checkpoints import read_properties

    yield {"kind": "properties"} | read_properties(path.read_bytes().replace(b": ", b"="))


def _json(path: Path) -> Rows:
    import json

    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        yield _error(f"{path.name} is not JSON")
        return
    yield {"kind": path.name} | (content if isinstance(content, dict) else {"content": content})


_OFFSETS = _lines(("topic", "partition", "offset"), "checkpoint")
_READERS: dict[str, Callable[[Path], Rows]] = {
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _transaction_index,
    ".snapshot": _producer_snapshot,
    "leader-epoch-checkpoint": _lines(("leader_epoch", "start_offset"), "leader epoch"),
    "recovery-point-offset-checkpoint": _OFFSETS,
    "replication-offset-checkpoint": _OFFSETS,
    "log-start-offset-checkpoint": _OFFSETS,
    "cleaner-offset-checkpoint": _OFFSETS,
    "partition.metadata": _properties,
    "meta.properties": _properties,
    "quorum-state": _json,
    ".kafka_cleanshutdown": _json,
}


def files_of(path: Path) -> list[Path]:
    """The file itself, or the files of a partition's folder that can be read, in order of name."""
    if not path.is_dir():
        return [path]
    known = (".log", ".checkpoint")
    return sorted(
        file
        for file in path.iterdir()
        if file.is_file() and (file.suffix in known or file.suffix in _READERS or file.name in _READERS)
    )
