"""Batches out of records: the bytes that Kafka's own client writes for the same input.

`BatchBuilder` collects records one by one, knows its size at every moment (an accumulator asks) and is built once; the
producer's id, epoch and sequence are given only then, because a producer may not know them while it fills the batch.
`build_batch` makes a batch of records that have their offsets already, gaps allowed: coordinators, compaction, recompression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from crc32c import crc32c

from ottla.records.batch import (
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    LENGTH_PREFIX,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from ottla.records.compression import NONE, compress
from ottla.records.record import Record
from ottla.records.varint import NULL, varint, varint_size

# Length, attributes, timestamp delta, offset delta at their longest: what a record may cost besides key, value and headers.
MAX_RECORD_OVERHEAD = 21

HeaderPairs = Sequence[tuple[str, bytes | None]]


def encode_record(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: HeaderPairs = ()
) -> bytes:
    """One record with its length in front."""
    parts = [
        b"\x00",
        varint(timestamp_delta),
        varint(offset_delta),
        NULL if key is None else varint(len(key)) + key,
        NULL if value is None else varint(len(value)),
        value or b"",
        varint(len(headers)) if headers else b"\x00",
    ]
    for name, content in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        parts += (varint(len(encoded)), encoded)
        parts += (NULL,) if content is None else (varint(len(content)), content)
    body = b"".join(parts)
    return varint(len(body)) + body


def record_size_limit(key: bytes | None, value: bytes | None, headers: HeaderPairs = ()) -> int:
    """At most so many bytes does a record need, whatever its place in a batch: Kafka's estimate, byte for byte.

    A producer holds it against `max.request.size` and `batch.size` before it has a batch.
    """
    size = MAX_RECORD_OVERHEAD + varint_size(len(headers))
    size += varint_size(-1 if key is None else len(key)) + len(key or b"")
    size += varint_size(-1 if value is None else len(value)) + len(value or b"")
    for name, content in headers:
        name_size = len(name) if name.isascii() else len(name.encode("utf-8", "surrogateescape"))
        size += varint_size(name_size) + name_size
        size += varint_size(-1 if content is None else len(content)) + len(content or b"")
    return size


def assemble(
    payload: bytes,
    *,
    record_count: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    attributes: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """A header for `payload` (compressed already, as `attributes` says), with its crc."""
    fields = (
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    return header_for(payload, fields, base_offset, leader_epoch) + payload


def header_for(payload: bytes | memoryview, fields: tuple[int, ...], base_offset: int, leader_epoch: int) -> bytes:
    """`fields` are those of the header that the crc covers, in their order."""
    length = HEADER_SIZE - LENGTH_PREFIX + len(payload)
    checked = HEADER.pack(0, 0, 0, 0, 0, *fields)[CRC_START:]
    crc = crc32c(payload, crc32c(checked))
    return HEADER.pack(base_offset, length, leader_epoch, MAGIC, crc, *fields)


def attributes_of(
    codec: int = NONE,
    *,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
    delete_horizon: bool = False,
) -> int:
    return (
        codec
        | (TIMESTAMP_TYPE_BIT if log_append_time else 0)
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (CONTROL_BIT if control else 0)
        | (DELETE_HORIZON_BIT if delete_horizon else 0)
    )


class BatchBuilder:
    """Records for one partition, in order. `size` is exact before compression, the batch header included."""

    __slots__ = ("_base_timestamp", "_codec", "_level", "_max_timestamp", "_records", "size")

    def __init__(self, codec: int = NONE, level: int | None = None) -> None:
        self._codec = codec
        self._level = level
        self._records: list[bytes] = []
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP
        self.size = HEADER_SIZE

    def __len__(self) -> int:
        """How many records there are."""
        return len(self._records)

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: HeaderPairs = ()) -> int:
        """Returns the record's offset delta, by which its offset will be known once the batch has one."""
        delta = len(self._records)
        if not delta:
            self._base_timestamp = timestamp
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        encoded = encode_record(delta, timestamp - self._base_timestamp, key, value, headers)
        self._records.append(encoded)
        self.size += len(encoded)
        return delta

    def build(
        self,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        base_offset: int = 0,
        leader_epoch: int = NO_LEADER_EPOCH,
    ) -> bytes:
        """The batch. May be called again with another sequence: the records stay."""
        assert self._records, "a batch without records is written by compaction only"
        return assemble(
            compress(self._codec, b"".join(self._records), self._level),
            record_count=len(self._records),
            last_offset_delta=len(self._records) - 1,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            base_offset=base_offset,
            attributes=attributes_of(self._codec, transactional=transactional),
            leader_epoch=leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    codec: int = NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
    delete_horizon: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """A batch of records that keep their offsets.

    `base_offset` and `last_offset` are those of the first and last record unless given: a compacted batch keeps the range it
    had. `log_append_time` makes it a LogAppendTime batch of that moment; `delete_horizon` (KIP-534) takes the place of the base
    timestamp. At least one record; `empty_batch` is for none.
    """
    kept = list(records)
    first = kept[0].offset if base_offset is None else base_offset
    base_timestamp = kept[0].timestamp if delete_horizon is None else delete_horizon
    encoded = [
        encode_record(record.offset - first, record.timestamp - base_timestamp, record.key, record.value, record.headers)
        for record in kept
    ]
    return assemble(
        compress(codec, b"".join(encoded), level),
        record_count=len(kept),
        last_offset_delta=(kept[-1].offset if last_offset is None else last_offset) - first,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in kept) if log_append_time is None else log_append_time,
        base_offset=first,
        attributes=attributes_of(
            codec,
            log_append_time=log_append_time is not None,
            transactional=transactional,
            control=control,
            delete_horizon=delete_horizon is not None,
        ),
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def build_pairs(
    pairs: Sequence[tuple[bytes, bytes | None]],
    timestamp: int,
    *,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
) -> bytes:
    """What `build_batch` makes of plain keys and values at one moment, in half the time: a coordinator writes nothing else.

    With a producer they belong to its transaction.
    """
    parts: list[bytes] = []
    for delta, (key, value) in enumerate(pairs):
        head = b"\x00\x00" + varint(delta) + varint(len(key)) + key
        body = head + NULL + b"\x00" if value is None else head + varint(len(value)) + value + b"\x00"
        parts += (varint(len(body)), body)
    return assemble(
        b"".join(parts),
        record_count=len(pairs),
        last_offset_delta=len(pairs) - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        attributes=NONE if producer_id == NO_PRODUCER_ID else TRANSACTIONAL_BIT,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def empty_batch(header: BatchHeader) -> bytes:
    """What compaction leaves of a batch whose records are all gone but whose producer's sequence must be remembered."""
    return assemble(
        b"",
        record_count=0,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=header.max_timestamp,
        base_offset=header.base_offset,
        attributes=header.attributes & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT),
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
