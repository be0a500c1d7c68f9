"""Where a consumer stands in each of its partitions, and what it has fetched but not returned yet. Plain values, no I/O.

Invariants of a `Position`
- `offset` is that of the next record to return; None until it is known (committed, or by `auto_offset_reset`).
- `fetch_offset` is where the next fetch begins: `offset`, or behind what is buffered.
- What is buffered lies between the two without a gap; a seek throws it away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.client.errors import DeserializationFailed, UnreadableRecords
from ottla.client.settings import Deserializer
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition
from ottla.records.batch import BatchHeader, crc_of
from ottla.records.control import AbortedTransaction, visible_batches
from ottla.records.record import Headers, decode_records, unpack

COMMITTED = -100  # a reset to the committed offset, and to the policy where there is none
POLICY = -101  # a reset by `auto_offset_reset`
MAX_CHUNKS = 2  # fetched answers of one partition that wait: one being returned, one behind it


class ConsumerRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: Headers
    is_log_append_time: bool
    leader_epoch: int


class Chunk:
    """The records of one partition in one fetch answer."""

    __slots__ = ("aborted", "data", "next_offset")

    def __init__(self, data: Any, aborted: tuple[AbortedTransaction, ...], next_offset: int) -> None:
        self.data = data
        self.aborted = aborted
        self.next_offset = next_offset


@dataclass(frozen=True, slots=True)
class Decoding:
    check_crcs: bool
    key: Deserializer | None
    value: Deserializer | None

    @property
    def is_plain(self) -> bool:
        return self.key is None and self.value is None


class Position:
    __slots__ = (
        "batches",
        "buffered",
        "chunks",
        "current",
        "epoch",
        "fetch_epoch",
        "fetch_offset",
        "fetching",
        "high_watermark",
        "index",
        "key",
        "last_stable_offset",
        "log_start_offset",
        "offset",
        "paused",
        "preferred",
        "preferred_until_ms",
        "records",
        "reset",
        "retry_at_ms",
    )

    def __init__(self, key: TopicPartition, reset: int = COMMITTED) -> None:
        self.key = key
        self.offset: int | None = None
        self.epoch = -1
        self.reset: int | None = reset  # what the offset is to be: COMMITTED, POLICY, or a timestamp of ListOffsets
        self.paused = False
        self.fetching = False
        self.retry_at_ms = 0.0
        self.preferred = -1
        self.preferred_until_ms = 0.0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.fetch_offset = -1
        self.fetch_epoch = -1  # of the record before it; lets a broker tell that the log was cut (KIP-320)
        self.clear()

    def clear(self) -> None:
        """Forget what was fetched."""
        self.chunks: deque[Chunk] = deque()
        self.current: Chunk | None = None
        self.batches: Iterator[tuple[int, BatchHeader]] | None = None
        self.records: list[ConsumerRecord] = []
        self.index = 0
        self.buffered = 0
        if self.offset is not None:
            self.fetch_offset, self.fetch_epoch = self.offset, self.epoch

    def seek(self, offset: int, epoch: int = -1) -> None:
        self.offset, self.epoch, self.reset = offset, epoch, None
        self.clear()

    def reset_to(self, reset: int) -> None:
        self.offset, self.epoch, self.reset = None, -1, reset
        self.clear()

    @property
    def has_room(self) -> bool:
        return len(self.chunks) + (self.current is not None) < MAX_CHUNKS

    def add(self, chunk: Chunk, leader_epoch: int) -> None:
        self.chunks.append(chunk)
        self.buffered += len(chunk.data)
        self.fetch_offset, self.fetch_epoch = chunk.next_offset, leader_epoch

    # Records -----------------------------------------------------------------------------------------------------------

    def take(self, limit: int, decoding: Decoding) -> list[ConsumerRecord]:
        """Up to `limit` records; moves the position behind them."""
        while self.index >= len(self.records):
            if not self._fill(decoding):
                return []
        taken = self.records[self.index : self.index + limit]
        if not decoding.is_plain:
            taken = _deserialized(taken, decoding)
        self.index += len(taken)
        last = taken[-1]
        self.offset, self.epoch = last.offset + 1, last.leader_epoch
        if self.index >= len(self.records):
            self.records, self.index = [], 0
        return taken

    def _fill(self, decoding: Decoding) -> bool:
        """Decode the next batch. False when nothing is buffered any more; then the position is behind all that was."""
        if self.batches is None and not self._open_chunk():
            return False
        assert self.batches is not None
        assert self.current is not None
        assert self.offset is not None
        found = None
        try:
            found = next(self.batches, None)
            if found is not None and found[1].last_offset >= self.offset:
                self.records, self.index = self._decode(*found, decoding.check_crcs), 0
        except ApiError as error:
            raise self.drop_unreadable(error, found[1] if found is not None else None) from error
        if found is not None:
            return True
        self.offset = max(self.offset, self.current.next_offset)
        self.buffered -= len(self.current.data)
        self.current = self.batches = None
        return self._open_chunk()

    def drop_unreadable(self, error: ApiError, header: BatchHeader | None) -> UnreadableRecords:
        """What was fetched is forgotten, so it is fetched again from here: good bytes may come then, or the same error."""
        self.clear()
        offset = self.offset or 0
        first, following = (offset, offset + 1) if header is None else (header.base_offset, header.next_offset)
        return UnreadableRecords(error, self.key, first, following)

    def _open_chunk(self) -> bool:
        if not self.chunks:
            return False
        self.current = self.chunks.popleft()
        self.batches = visible_batches(self.current.data, self.current.aborted)
        return True

    def _decode(self, position: int, header: BatchHeader, check_crc: bool) -> list[ConsumerRecord]:
        assert self.current is not None
        assert self.offset is not None
        data = self.current.data
        if check_crc and crc_of(data, position, header.size) != header.crc:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a record batch with a wrong checksum")
        records = decode_records(header, unpack(data, position, header))
        if header.base_offset < self.offset:
            records = [record for record in records if record[0] >= self.offset]
        topic, number = self.key
        append_time, epoch = header.is_log_append_time, header.leader_epoch
        make = tuple.__new__
        return [
            make(ConsumerRecord, (topic, number, offset, time, key, value, headers, append_time, epoch))
            for offset, time, key, value, headers in records
        ]

    def take_chunk(self) -> Chunk | None:
        """A whole fetched answer, for who decodes by columns; the caller moves the position."""
        if self.current is None and not self._open_chunk():
            return None
        chunk = self.current
        assert chunk is not None
        self.current = self.batches = None
        self.records, self.index = [], 0
        self.buffered -= len(chunk.data)
        return chunk


def _deserialized(records: list[ConsumerRecord], decoding: Decoding) -> list[ConsumerRecord]:
    """Up to the first that cannot be read; if that is the very first, its error is raised."""
    made: list[ConsumerRecord] = []
    for record in records:
        try:
            key = _deserialize("key", decoding.key, record.key, record)
            value = _deserialize("value", decoding.value, record.value, record)
        except DeserializationFailed:
            if made:
                return made
            raise
        made.append(record._replace(key=key, value=value))
    return made


def _deserialize(what: str, deserializer: Deserializer | None, data: bytes | None, record: ConsumerRecord) -> Any:
    if deserializer is None or data is None:
        return data
    try:
        return deserializer(data)
    except Exception as error:
        partition = TopicPartition(record.topic, record.partition)
        raise DeserializationFailed(
            f"the {what}_deserializer raised {type(error).__name__} at {partition} offset {record.offset}: {error}; "
            "seek past it to go on",
            partition,
            record.offset,
        ) from error
