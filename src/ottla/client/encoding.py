"""Batches as bytes, made when they are sent: all records of a batch in one tight loop.

`records.builder` makes the same bytes one record at a time, for those who must know the size after each; a property test holds
the two together.
"""

from __future__ import annotations

from ottla.client.accumulator import Batch, Row
from ottla.records.batch import stamp_producer
from ottla.records.builder import MAX_RECORD_OVERHEAD, assemble, attributes_of, encode_record, record_size_limit
from ottla.records.compression import compress
from ottla.records.record import decode_batch
from ottla.records.varint import NULL, varint

# Besides the overhead that Kafka counts: the lengths of key and value at their longest, and the number of headers.
PLAIN_OVERHEAD = MAX_RECORD_OVERHEAD + 11
_TABLED = 4096
_NUMBERS = [varint(number) for number in range(_TABLED)]


def row_size(row: Row) -> int:
    """At most so many bytes does a record take."""
    _, key, value, headers = row
    if headers:
        return record_size_limit(key, value, headers)
    return PLAIN_OVERHEAD + (len(key) if key is not None else 0) + (len(value) if value is not None else 0)


def encode_rows(rows: list[Row]) -> bytes:
    """The records of a batch, one behind the other, uncompressed."""
    numbers = _NUMBERS
    base = rows[0][0]
    parts: list[bytes] = []
    extend = parts.extend
    for delta, (timestamp, key, value, headers) in enumerate(rows):
        elapsed = timestamp - base
        key_size = len(key) if key is not None else -1
        value_size = len(value) if value is not None else -1
        if headers or delta >= _TABLED or not (0 <= elapsed < _TABLED and key_size < _TABLED and value_size < _TABLED):
            parts.append(encode_record(delta, elapsed, key, value, headers))
            continue
        key_prefix = numbers[key_size] if key_size >= 0 else NULL
        value_prefix = numbers[value_size] if value_size >= 0 else NULL
        prefix = b"\0" + numbers[elapsed] + numbers[delta] + key_prefix
        size = len(prefix) + len(value_prefix) + 1
        if key_size > 0:
            size += key_size
        if value_size > 0:
            size += value_size
        # Neither null nor empty parts need a place of their own.
        length = numbers[size] if size < _TABLED else varint(size)
        extend((length, prefix, key or b"", value_prefix, value or b"", b"\0"))
    return b"".join(parts)


def encode_batch(batch: Batch, codec: int, level: int | None, transactional: bool) -> bytes | bytearray | memoryview:
    """The batch as it goes on the wire, with the producer's identity and sequence of this moment."""
    identity = batch.identity
    if batch.encoded is not None:
        # In place: an earlier attempt is answered or its connection gone, so nobody else looks at these bytes.
        stamp_producer(batch.encoded, identity.producer_id, identity.epoch, batch.sequence, transactional)
        return batch.encoded
    rows = batch.rows
    return assemble(
        compress(codec, encode_rows(rows), level),
        record_count=len(rows),
        last_offset_delta=len(rows) - 1,
        base_timestamp=rows[0][0],
        max_timestamp=max(row[0] for row in rows),
        attributes=attributes_of(codec, transactional=transactional),
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=batch.sequence,
    )


def decoded_rows(encoded: bytearray | memoryview) -> list[Row]:
    """Back from a batch that was encoded by columns to its rows, for who must cut it."""
    return [(record.timestamp, record.key, record.value, tuple(record.headers)) for record in decode_batch(encoded)]
