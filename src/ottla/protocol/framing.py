"""Frames: a length, a header, a body. Bytes in, requests or responses out; no I/O.

Request headers are version 1, or 2 when the body is flexible; response headers 0 or 1 likewise, except that an ApiVersions
response always has header 0, because its sender cannot know yet what its reader speaks (KIP-511).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, NamedTuple

from ottla.model.errors import ProtocolError
from ottla.protocol.codec import Writer, encode_parts, writer
from ottla.protocol.primitives import read_uvarint
from ottla.protocol.schema import Message

API_VERSIONS_KEY = 18
_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")  # api key, version, correlation id, length of the client id
_REQUEST_SIZE = _REQUEST.size
_SIZED_REQUEST = struct.Struct(">ihhih")
_SIZE_AND_ID = struct.Struct(">ii")
_SIZE_AND_ID_AND_NO_TAGS = struct.Struct(">iix")


class RequestHead(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    position: int  # where the rest of the header (its tags, if flexible) or the body starts


SCRATCH_SIZE = 1 << 18
# A frame's claimed size is believed only so far before its bytes arrive: this much, or so many times what has arrived.
_FIRST_PIECE = 1 << 16
_SHOWN = 64  # bytes of what is no frame
BELIEF = 8


class FrameSizeError(ProtocolError):
    """A size out of bounds: mostly the peer speaks another protocol, and `start` has the first bytes of it."""

    def __init__(self, size: int, limit: int, start: bytes) -> None:
        super().__init__(f"a frame of {size} bytes; the limit is {limit}")
        self.start = start


class Frames:
    """Collects received bytes and cuts them into frames, as `asyncio.BufferedProtocol` wants it: `room`, then `filled`.

    Connections of one event loop may share a scratch buffer: nothing runs between `room` and `filled`, and what is left over
    moves out of it. The rest of a large frame is received straight into a buffer of its own, so a megabyte of records is
    copied once, by the kernel. A frame is a `bytearray` that belongs to its receiver, who may stamp offsets into it.
    """

    __slots__ = ("_belief", "_filled", "_frame", "_room", "_scratch", "_size", "_stub", "limit")

    def __init__(self, limit: int, scratch: bytearray | None = None, belief: int = BELIEF) -> None:
        self.limit = limit
        self._belief = belief
        self._scratch = bytearray(SCRATCH_SIZE) if scratch is None else scratch
        self._room = memoryview(self._scratch)
        self._stub = b""  # up to three bytes of a length
        self._frame: bytearray | None = None  # a frame that has begun
        self._size = 0  # how long it will be
        self._filled = 0  # how much of it is there

    @property
    def missing(self) -> int:
        """Bytes of the frame that has begun, if it is a large one."""
        return 0 if self._frame is None else self._size - self._filled

    def room(self) -> memoryview:
        """Where the next bytes received should go; never empty."""
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        if not self._stub:
            return self._room
        self._scratch[: len(self._stub)] = self._stub
        return self._room[len(self._stub) :]

    def filled(self, size: int) -> list[bytearray]:
        """`size` bytes were put into `room()`; the frames that this completes. Raises ProtocolError for a size out of bounds."""
        if self._frame is None:
            # What mostly comes is one whole frame and nothing else.
            if size >= 4 and not self._stub and _SIZE.unpack_from(self._scratch)[0] == size - 4 <= self.limit:
                return [self._scratch[4:size]]
            return self._cut(len(self._stub) + size)
        self._filled += size
        if self._filled < len(self._frame):
            return []
        frame = self._frame
        if self._filled < self._size:
            self._begin(frame, min(self._size, self._belief * len(frame)))
            return []
        self._frame = None
        return [frame]

    def feed(self, data: bytes) -> list[bytearray]:
        """The same for bytes that are already somewhere."""
        frames: list[bytearray] = []
        view = memoryview(data)
        while view:
            room = self.room()
            size = min(len(room), len(view))
            room[:size] = view[:size]
            frames += self.filled(size)
            view = view[size:]
        return frames

    def _cut(self, end: int) -> list[bytearray]:
        frames: list[bytearray] = []
        position, scratch = 0, self._scratch
        self._stub = b""
        while end - position >= 4:
            size = _SIZE.unpack_from(scratch, position)[0]
            if size < 0 or size > self.limit:
                raise FrameSizeError(size, self.limit, bytes(scratch[position : min(end, position + _SHOWN)]))
            start = position + 4
            if end - start < size:
                self._size = size
                self._begin(memoryview(scratch)[start:end], min(size, max(_FIRST_PIECE, self._belief * (end - start))))
                return frames
            frames.append(scratch[start : start + size])
            position = start + size
        self._stub = bytes(scratch[position:end])
        return frames

    def _begin(self, beginning: bytearray | memoryview, size: int) -> None:
        """A new buffer rather than a larger one: the loop still holds a view of the old."""
        self._frame = bytearray(size)
        self._frame[: len(beginning)] = beginning
        self._filled = len(beginning)


def read_request_head(frame: bytes | bytearray) -> RequestHead:
    try:
        api_key, api_version, correlation_id, length = _REQUEST.unpack_from(frame)
        if length < 0:
            return RequestHead(api_key, api_version, correlation_id, None, _REQUEST_SIZE)
        end = _REQUEST_SIZE + length
        if end > len(frame):
            raise ProtocolError("the client id runs past the end of the frame")
        return RequestHead(api_key, api_version, correlation_id, frame[_REQUEST_SIZE:end].decode(), end)
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"a request header that cannot be read: {error}") from None


def skip_tags(frame: bytes | bytearray, position: int) -> int:
    """The position after a tag section nobody here reads."""
    if frame[position : position + 1] == b"\x00":
        return position + 1
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
    body = encode_parts(request, version)
    return [request_head(type(request), version, correlation_id, client_id, sum(map(len, body))), *body]


def request_head(request: type[Message], version: int, correlation_id: int, client_id: str | None, size: int) -> bytes:
    """What stands before the body of a request, which has `size` bytes."""
    length, name = _named(client_id, request, version)
    return _SIZED_REQUEST.pack(_REQUEST_SIZE + len(name) + size, request.TYPE_KEY, version, correlation_id, length) + name


@lru_cache(maxsize=1024)
def _named(client_id: str | None, request: type[Message], version: int) -> tuple[int, bytes]:
    """The length of a client's name, the name, and behind it, where there is room for tags, that there are none."""
    name = b"" if client_id is None else client_id.encode()
    return -1 if client_id is None else len(name), name + b"\x00" if version in request.FLEXIBLE else name


def response_frame(response: Message, version: int, correlation_id: int) -> list[Any]:
    """The parts of a whole response, its length first. Parts that are not bytes need only know their length."""
    head, write = _response_writer(type(response), version)
    parts: list[Any] = [b""]
    write(response, parts.append)
    parts[0] = head.pack(sum(map(len, parts)) + head.size - _SIZE.size, correlation_id)
    return parts


@lru_cache(maxsize=None)
def _response_writer(response: type[Message], version: int) -> tuple[struct.Struct, Writer]:
    flexible = version in response.FLEXIBLE and response.TYPE_KEY != API_VERSIONS_KEY
    return _SIZE_AND_ID_AND_NO_TAGS if flexible else _SIZE_AND_ID, writer(response, version)


def response_body_start(frame: bytes | bytearray, flexible: bool) -> int:
    """Where the body of a response starts: after the correlation id and, if flexible, the tags."""
    return skip_tags(frame, 4) if flexible else 4
