"""A log directory read without a broker: `option("segments", DIR)`, ottla's or Apache Kafka's, up to the high watermark.

The driver finds the partitions (folders `topic-N`), where each begins (the log start checkpoint, or the first segment) and where it
ends (the high watermark's checkpoint: what lies beyond is not yet agreed). An executor finds its first batch by the sparse offset
index and reads on, a few megabytes of whole batches at a time. A partition without a checkpoint entry has nothing agreed.

read_committed: the driver reads the batch headers of each partition once, and so knows the aborted transactions and the first open
one, before which reading must end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ottla.model.ids import TopicPartition
from ottla.records.batch import HEADER_SIZE, MAGIC, BatchHeader, read_header
from ottla.records.control import AbortedTransaction, read_end_transaction
from ottla.records.record import decode_batch
from ottla.spark import planning, topics
from ottla.spark.options import EARLIEST, LATEST, OptionError, Options, parse_offsets
from ottla.spark.ranges import DataLost, OffsetRange
from ottla.spark.reading import Fetched
from ottla.storage import checkpoints, files

READ_BYTES = 8 << 20  # of batches at a time; a larger batch is read alone
_FOLDER = re.compile(r"(.+)-(\d+)")
_NEEDS_A_BROKER = (
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp",
)  # fmt: skip


class Aborted(NamedTuple):
    """A transaction that was aborted, from its first record to its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int


class Plan(NamedTuple):
    start: dict[TopicPartition, int]
    end: dict[TopicPartition, int]
    aborted: dict[TopicPartition, tuple[Aborted, ...]]


def plan(options: Options) -> Plan:
    """On the driver. Raises OptionError."""
    for name in _NEEDS_A_BROKER:
        if options.text(name) is not None:
            raise OptionError(f"option {name} needs a broker and cannot be used with segments; filter on the timestamp instead")
    directory = Path(options.text("segments") or "")
    if not directory.is_dir():
        raise OptionError(f"option segments names {directory}, which is no directory")
    partitions = _chosen(directory, options)
    earliest = {key: _log_start(directory, key) for key in partitions}
    agreed = _checkpoint(directory, checkpoints.HIGH_WATERMARKS)
    latest = {key: max(agreed.get(key, 0), earliest[key]) for key in partitions}
    aborted: dict[TopicPartition, tuple[Aborted, ...]] = {}
    if options.isolation_level == "read_committed":
        for key in partitions:
            latest[key], aborted[key] = scan_transactions(_folder(directory, key), latest[key])
    start = _asked(options, "startingOffsets", EARLIEST, partitions)
    end = _asked(options, "endingOffsets", LATEST, partitions)
    planning.check_order(options, start, end)
    places = {EARLIEST: earliest, LATEST: latest}
    start, end = ({key: places[at][key] if at in places else at for key, at in each.items()} for each in (start, end))
    for key in partitions:
        if start[key] < earliest[key] and options.flag("failOnDataLoss", True):
            raise DataLost(f"{key}: offset {start[key]} is gone, the log now starts at {earliest[key]}")
    return Plan(
        {key: max(start[key], earliest[key]) for key in partitions},
        {key: min(end[key], latest[key]) for key in partitions},
        aborted,
    )


def _chosen(directory: Path, options: Options) -> list[TopicPartition]:
    """What the options name; without a choice, all topics but internal ones."""
    found = [
        TopicPartition(match[1], int(match[2]))
        for folder in directory.iterdir()
        if folder.is_dir() and (match := _FOLDER.fullmatch(folder.name)) is not None
    ]
    if options.partitions:
        wanted = [TopicPartition(*key) for key in options.partitions]
        missing = [str(key) for key in wanted if key not in found]
    elif options.topics:
        wanted = [key for key in found if key.topic in options.topics]
        missing = [topic for topic in options.topics if all(topic != key.topic for key in found)]
    else:
        matching = topics.matching(options.pattern or "", {key.topic for key in found})
        wanted, missing = [key for key in found if key.topic in matching], []
    if missing:
        raise OptionError(f"there is no log of {', '.join(missing)} in {directory}")
    return sorted(wanted)


def _asked(options: Options, name: str, default: int, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    text = options.text(name)
    asked = default if text is None else parse_offsets(name, text)
    out = {}
    for key in partitions:
        offset = asked if isinstance(asked, int) else asked.get(key.topic, {}).get(key.partition)
        if offset is None:
            raise OptionError(f"option {name} lacks {key}; use -2 for earliest and -1 for latest")
        out[key] = offset
    return out


def _folder(directory: Path, key: TopicPartition) -> Path:
    return directory / f"{key.topic}-{key.partition}"


def _checkpoint(directory: Path, name: str) -> dict[TopicPartition, int]:
    path = directory / name
    return (checkpoints.read_offsets(path.read_bytes()) or {}) if path.exists() else {}


def _segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == files.LOG and files.offset_of(path.name) is not None)


def _base(segment: Path) -> int:
    offset = files.offset_of(segment.name)
    assert offset is not None
    return offset


def _log_start(directory: Path, key: TopicPartition) -> int:
    segments = _segments(_folder(directory, key))
    first = _base(segments[0]) if segments else 0
    return max(first, _checkpoint(directory, checkpoints.LOG_START_OFFSETS).get(key, 0))


def _batch_headers(segment: Path, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Whole batches of the current format, from a position on; what is cut off at the end is not yet written."""
    size = segment.stat().st_size
    with segment.open("rb") as file:
        while size - position >= HEADER_SIZE:
            file.seek(position)
            header = read_header(file.read(HEADER_SIZE))
            if header.magic != MAGIC or header.size < HEADER_SIZE or position + header.size > size:
                return
            yield position, header
            position += header.size


def scan_transactions(folder: Path, high_watermark: int) -> tuple[int, tuple[Aborted, ...]]:
    """The last stable offset, and every transaction that was aborted below it."""
    open_: dict[int, int] = {}
    aborted: list[Aborted] = []
    for segment in _segments(folder):
        for position, header in _batch_headers(segment):
            if header.base_offset >= high_watermark:
                break
            if not header.is_transactional:
                continue
            if not header.is_control:
                open_.setdefault(header.producer_id, header.base_offset)
                continue
            with segment.open("rb") as file:
                file.seek(position)
                records = decode_batch(file.read(header.size), 0)
            first = open_.pop(header.producer_id, None)
            ending = read_end_transaction(records[0]) if records else None
            if first is not None and ending is not None and not ending.commit:
                aborted.append(Aborted(header.producer_id, first, header.base_offset))
    return min([high_watermark, *open_.values()]), tuple(aborted)


def read(directory: str, wanted: OffsetRange, aborted: tuple[Aborted, ...]) -> Iterator[Fetched]:
    """In an executor: the batches of a range, a few megabytes at a time."""
    segments = _segments(_folder(Path(directory), TopicPartition(wanted.topic, wanted.partition)))
    for number, segment in enumerate(segments):
        if _base(segment) >= wanted.end or (number + 1 < len(segments) and _base(segments[number + 1]) <= wanted.start):
            continue
        yield from _pieces(segment, wanted, aborted)


def _pieces(segment: Path, wanted: OffsetRange, aborted: tuple[Aborted, ...]) -> Iterator[Fetched]:
    begin: int | None = None
    first = last = end = 0
    for position, header in _batch_headers(segment, _indexed(segment, wanted.start)):
        if header.base_offset >= wanted.end:
            break
        if header.last_offset < wanted.start:
            continue
        if begin is not None and position + header.size - begin > READ_BYTES:
            yield _piece(segment, begin, end, wanted, aborted, first, last)
            begin = None
        if begin is None:
            begin, first = position, header.base_offset
        end, last = position + header.size, header.last_offset
    if begin is not None:
        yield _piece(segment, begin, end, wanted, aborted, first, last)


def _piece(
    segment: Path, begin: int, end: int, wanted: OffsetRange, aborted: tuple[Aborted, ...], first: int, last: int
) -> Fetched:
    with segment.open("rb") as file:
        file.seek(begin)
        data = file.read(end - begin)
    void = [AbortedTransaction(*each[:2]) for each in aborted if each.first_offset <= last and each.marker_offset >= first]
    return Fetched(data, tuple(void), wanted.start)


def _indexed(segment: Path, offset: int) -> int:
    """The position of a batch at or before an offset. Kafka preallocates the index of the active segment: zeros at its end."""
    path = segment.with_suffix(files.INDEX)
    if not path.exists():
        return 0
    content = path.read_bytes()
    entries = np.frombuffer(content, ">u4", count=len(content) // 8 * 2).reshape(-1, 2)
    entries = entries[entries[:, 1] > 0]
    slot = int(np.searchsorted(entries[:, 0], offset - _base(segment), "right")) - 1
    return int(entries[slot, 1]) if slot >= 0 else 0
