"""Variable-length integers, the only Kafka primitive that `struct` cannot read (KIP-482, appendix of the protocol guide).

In: a bytes-like object and a position. Out: the value and the position after it. A peer that breaks the encoding gets
`ProtocolError`, which closes its connection and nothing else.
"""

from __future__ import annotations

from ottla.model.errors import ProtocolError

MAX_UVARINT32_BYTES = 5
MAX_UVARINT64_BYTES = 10


def uvarint_tail(buffer: bytes | bytearray, position: int, first: int) -> tuple[int, int]:
    """Finish an unsigned varint whose first byte had its continuation bit set; `position` is after that byte."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise ProtocolError("an unsigned varint is longer than 32 bits")


def read_uvarint(buffer: bytes | bytearray, position: int) -> tuple[int, int]:
    first = buffer[position]
    if first < 0x80:
        return first, position + 1
    return uvarint_tail(buffer, position + 1, first)


def read_varint(buffer: bytes | bytearray, position: int) -> tuple[int, int]:
    """A zigzag varint of up to 64 bits, as records use for lengths and deltas."""
    value = shift = 0
    for _ in range(MAX_UVARINT64_BYTES):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise ProtocolError("a varint is longer than 64 bits")


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Nearly every length on the wire is small, so the encodings of small values are made once.
SMALL = [_encode(value) for value in range(4096)]


def uvarint(value: int) -> bytes:
    return SMALL[value] if 0 <= value < 4096 else _encode(value)


def varint(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))
