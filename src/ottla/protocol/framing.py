"""Frames: a length, a header, a body. Bytes in, requests or responses out; no I/O.

Request headers are version 1, or 2 when the body is flexible; response headers 0 or 1 likewise, except that an ApiVersions
response always has header 0, because its sender cannot know yet what its reader speaks (KIP-511).
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from ottla.model.errors import ProtocolError
from ottla.protocol.codec import encode_parts
from ottla.protocol.primitives import read_uvarint
from ottla.protocol.schema import Message

API_VERSIONS_KEY = 18
_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")  # api key, version, correlation id, length of the client id
_SIZE_AND_ID = struct.Struct(">ii")


class RequestHead(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    position: int  # where the rest of the header (its tags, if flexible) or the body starts


class Frames:
    """Collects received bytes and cuts them into frames. A frame is handed out as one `bytes` of its own."""

    __slots__ = ("_buffer", "_limit")

    def __init__(self, limit: int) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """The frames completed by `data`. Raises ProtocolError for a size that is negative or over the limit."""
        buffer = self._buffer
        if not buffer and len(data) >= 4:
            size = _SIZE.unpack_from(data)[0]
            if size == len(data) - 4 and 0 <= size <= self._limit:
                return [data[4:]]  # by far the most common case: one whole frame
        buffer += data
        frames = []
        position, end = 0, len(buffer)
        while end - position >= 4:
            size = _SIZE.unpack_from(buffer, position)[0]
            if size < 0 or size > self._limit:
                raise ProtocolError(f"a frame of {size} bytes; the limit is {self._limit}")
            if end - position - 4 < size:
                break
            frames.append(bytes(memoryview(buffer)[position + 4 : position + 4 + size]))
            position += 4 + size
        if position:
            del buffer[:position]
        return frames


def read_request_head(frame: bytes) -> RequestHead:
    try:
        api_key, api_version, correlation_id, length = _REQUEST.unpack_from(frame)
        end = _REQUEST.size + max(length, 0)
        if end > len(frame):
            raise ProtocolError("the client id runs past the end of the frame")
        client_id = None if length < 0 else str(frame[_REQUEST.size : end], "utf-8")
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"a request header that cannot be read: {error}") from None
    return RequestHead(api_key, api_version, correlation_id, client_id, end)


def skip_tags(frame: bytes, position: int) -> int:
    """The position after a tag section nobody here reads."""
    try:
        count, position = read_uvarint(frame, position)
        for _ in range(count):
            _, position = read_uvarint(frame, position)
            size, position = read_uvarint(frame, position)
            position += size
    except IndexError:
        raise ProtocolError("a header's tags run past the end of the frame") from None
    if position > len(frame):
        raise ProtocolError("a header's tags run past the end of the frame")
    return position


def request_frame(request: Message, version: int, correlation_id: int, client_id: str | None) -> list[Any]:
    """The parts of a whole request, its length first."""
    name = b"" if client_id is None else client_id.encode()
    head = _REQUEST.pack(request.TYPE_KEY, version, correlation_id, -1 if client_id is None else len(name)) + name
    if version in request.FLEXIBLE:
        head += b"\x00"
    parts = [b"", head, *encode_parts(request, version)]
    parts[0] = _SIZE.pack(sum(map(len, parts)))
    return parts


def response_frame(response: Message, version: int, correlation_id: int) -> list[Any]:
    """The parts of a whole response, its length first. Parts that are not bytes need only know their length."""
    parts = [b"", *encode_parts(response, version)]
    flexible = version in response.FLEXIBLE and response.TYPE_KEY != API_VERSIONS_KEY
    parts[0] = _SIZE_AND_ID.pack(sum(map(len, parts)) + 4 + flexible, correlation_id) + (b"\x00" if flexible else b"")
    return parts


def response_body_start(frame: bytes, flexible: bool) -> int:
    """Where the body of a response starts: after the correlation id and, if flexible, the tags."""
    return skip_tags(frame, 4) if flexible else 4
