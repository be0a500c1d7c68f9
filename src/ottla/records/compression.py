"""The four codecs of a record batch, both ways, and never more unpacked than the caller allows.

In: the bytes after a batch header, or the records to be put there. Out: the other of the two. The limit on what unpacks is
a hard one: no codec ever allocates more than `limit` bytes (and its own window), whatever a hostile batch declares.

- gzip: RFC 1952 members, read through `zlib`, which can stop at a size.
- snappy: Java clients frame it (`\\x82SNAPPY\\0`, two versions, then blocks each with its size), librdkafka and others write
  one bare block. Both are read; the Java framing is written.
- lz4: frames with independent 64 kB blocks, no content size and a right header checksum (Kafka wrote wrong ones before magic 2).
  Java refuses linked blocks, so the frame is put together here from single blocks.
- zstd: any frames.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import cramjam

from ottla.model.errors import ApiError, ErrorCode

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")  # by codec id; `uncompressed` and `producer` are a topic's words, not codecs

# For readers that have no limit of their own: far above any batch that a broker would have accepted, far below exhaustion.
DEFAULT_LIMIT = 512 * 1024 * 1024
_FIRST_GUESS = 64 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_SIZE = struct.Struct(">i")

_LZ4_HEADER = bytes.fromhex("04224d18604082")  # magic; version 1, independent blocks; 64 kB; header checksum
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x80000000  # the block was not worth compressing
_LZ4_END = bytes(4)
_LZ4_SIZE = struct.Struct("<I")

DEFAULT_LEVELS = {GZIP: -1, LZ4: 9, ZSTD: 3}  # `compression.{gzip,lz4,zstd}.level`; snappy has none
_LEVELS = {GZIP: (1, 9), LZ4: (1, 17), ZSTD: (-131072, 22)}


def codec_id(name: str) -> int:
    """The id of a producer's `compression.type`. Raises ValueError for a name that is none."""
    if name not in NAMES:
        raise ValueError(f"{name!r} is no codec: there are {', '.join(NAMES)}")
    return NAMES.index(name)


def level_range(codec: int) -> tuple[int, int]:
    """The levels that the settings allow, besides the default."""
    return _LEVELS[codec]


def compress(codec: int, data: bytes, level: int | None = None) -> bytes:
    """`level` None is the codec's default, as Kafka's."""
    if codec == NONE:
        return data
    if codec == GZIP:
        packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        return _compress_snappy(data)
    if codec == LZ4:
        return _compress_lz4(data, level)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=DEFAULT_LEVELS[ZSTD] if level is None else level))
    raise _unsupported(codec)


def decompress(codec: int, data: bytes | bytearray | memoryview, limit: int = DEFAULT_LIMIT) -> bytes:
    """Raises ApiError: CORRUPT_MESSAGE for what does not unpack, MESSAGE_TOO_LARGE for what unpacks to more than `limit` bytes."""
    if codec == NONE:
        return bytes(data)
    try:
        if codec == GZIP:
            return _decompress_gzip(data, limit)
        if codec == SNAPPY:
            return _decompress_snappy(data, limit)
        if codec == LZ4:
            return _decompress_growing(cramjam.lz4, data, limit)
        if codec == ZSTD:
            return _decompress_growing(cramjam.zstd, data, limit)
    except (cramjam.DecompressionError, zlib.error, struct.error) as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{NAMES[codec]} data that does not unpack: {error}") from None
    raise _unsupported(codec)


def _unsupported(codec: int) -> ApiError:
    return ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no codec {codec}")


def _too_large(codec_name: str, limit: int) -> ApiError:
    return ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"{codec_name} data unpacks to more than {limit} bytes")


def _decompress_gzip(data: bytes | bytearray | memoryview, limit: int) -> bytes:
    unpacked = []
    while True:
        member = zlib.decompressobj(31)
        part = member.decompress(data, limit + 1)  # one more than allowed tells "just full" from "too much"
        limit -= len(part)
        if limit < 0:
            raise _too_large("gzip", limit + len(part))
        unpacked.append(part)
        if not member.eof:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "gzip data that ends too early")
        data = member.unused_data
        if not data:
            return part if len(unpacked) == 1 else b"".join(unpacked)


def _decompress_growing(module: Any, data: bytes | bytearray | memoryview, limit: int) -> bytes:
    """Into a buffer of a guessed size, and again into a larger one when that was too small.

    A declared content size is not trusted: guessing costs at most a second pass over data that turned out to shrink well.
    """
    size = min(limit, max(_FIRST_GUESS, 4 * len(data)))
    while True:
        target = bytearray(size)
        try:
            written = module.decompress_into(data, target)
            return bytes(memoryview(target)[:written])
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise
            if size >= limit:
                raise _too_large(module.__name__, limit) from None
        size = min(limit, 8 * size)


def _compress_snappy(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts.append(_SIZE.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: bytes | bytearray | memoryview, limit: int) -> bytes:
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, limit)
    unpacked = []
    position, end = len(_XERIAL_HEADER), len(view)
    while position < end:
        size = _SIZE.unpack_from(view, position)[0]
        position += 4
        if size <= 0 or size > end - position:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"a snappy block claims {size} bytes of {end - position}")
        unpacked.append(_decompress_snappy_block(view[position : position + size], limit))
        limit -= len(unpacked[-1])
        position += size
    return b"".join(unpacked)


def _decompress_snappy_block(view: memoryview, limit: int) -> bytes:
    """A bare block begins with its unpacked size, which the unpacker holds it to."""
    size = cramjam.snappy.decompress_raw_len(view)
    if size > limit:
        raise _too_large("snappy", limit)
    target = bytearray(size)
    written = cramjam.snappy.decompress_raw_into(view, target)
    return bytes(memoryview(target)[:written])


def _compress_lz4(data: bytes, level: int | None) -> bytes:
    """Kafka's default level 9 means the fast compressor; any other level the thorough one."""
    if level is None or level == DEFAULT_LEVELS[LZ4]:
        mode: dict[str, Any] = {"mode": "fast", "acceleration": 1}
    else:
        mode = {"mode": "high_compression", "compression": min(level, 12)}
    parts: list[bytes | memoryview] = [_LZ4_HEADER]
    view = memoryview(data)
    for start in range(0, len(data), _LZ4_BLOCK):
        raw = view[start : start + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(raw, store_size=False, **mode))
        if len(block) < len(raw):
            parts += (_LZ4_SIZE.pack(len(block)), block)
        else:
            parts += (_LZ4_SIZE.pack(len(raw) | _LZ4_STORED), raw)
    parts.append(_LZ4_END)
    return b"".join(parts)
