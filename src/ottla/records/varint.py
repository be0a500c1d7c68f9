"""Zigzag varints, the only numbers inside a record: lengths and deltas (the plain, one at a time kind; `columns` has the other).

`protocol.primitives` has a reader of its own: the two packages do not know each other, and here a malformed number is a
corrupt record (an error code), there a broken protocol (a closed connection).
"""

from __future__ import annotations

from ottla.model.errors import ApiError, ErrorCode

MAX_BYTES = 10  # of 64 bits
MAX_LENGTH_BYTES = 5  # of 32 bits
_TABLED = 1024  # numbers from -_TABLED to _TABLED - 1 are encoded once and for all


def read_varint(buffer: bytes, position: int) -> tuple[int, int]:
    """The number at `position` and the position after it. Raises IndexError past the end of the buffer."""
    byte = buffer[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value, shift = byte & 0x7F, 7
    for _ in range(MAX_BYTES - 1):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= 0xFFFFFFFFFFFFFFFF
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a number inside a record is longer than 64 bits")


def _encode(value: int) -> bytes:
    zigzag = ((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


_NUMBERS = [_encode(value) for value in range(_TABLED)]
_MINUS_ONE = _encode(-1)


def varint(value: int) -> bytes:
    return _NUMBERS[value] if 0 <= value < _TABLED else _encode(value)


def varint_size(value: int) -> int:
    """How many bytes `varint(value)` has."""
    return max(1, (((value << 1) ^ (value >> 63)).bit_length() + 6) // 7)


NULL = _MINUS_ONE  # the length of a key or value that is not there
