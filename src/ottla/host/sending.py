"""Sending: the parts of a reply, buffers and file ranges, onto a connection in order."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, Union

from ottla.host.disk import FileRange

Part = Union[bytes, bytearray, memoryview, FileRange]
READ_INSTEAD_OF_SENDFILE = 1 << 15  # a smaller file range is read and sent together with what surrounds it
MAX_SENDFILE = 1 << 20


class Sender(Protocol):
    """Puts parts onto a connection in order. Never blocks: what the peer does not take yet is queued."""

    @property
    def queued(self) -> int:
        """Bytes that wait for the peer."""

    def send(self, parts: Sequence[Part]) -> int:
        """How many bytes these are."""

    def receive_into(self, room: memoryview) -> int:
        """What the peer has sent already and the transport has not read yet, 0 at the end. OSError when there is nothing, or worse."""

    def close(self) -> None: ...


def sender_for(transport: asyncio.Transport, drained: Callable[[], None]) -> Sender:
    """The fastest sender that this transport allows. `drained` is called when a queue has emptied."""
    connected = transport.get_extra_info("socket")
    if connected is None or transport.get_extra_info("sslcontext") is not None or not hasattr(os, "sendfile"):
        return TransportSender(transport)
    return SocketSender(connected.fileno(), transport, drained)


class TransportSender:
    """For TLS, the simulator and systems without sendfile: file ranges are read and written."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    @property
    def queued(self) -> int:
        return self._transport.get_write_buffer_size()

    def send(self, parts: Sequence[Part]) -> int:
        joined = b"".join([part.read() if isinstance(part, FileRange) else part for part in parts])
        self._transport.write(joined)
        return len(joined)

    def receive_into(self, room: memoryview) -> int:
        raise BlockingIOError

    def close(self) -> None:
        """The transport is its owner's to close."""


class SocketSender:
    """Writes to the socket itself, at once, and sends files from the page cache.

    uvloop has no `sendfile` and refuses `add_writer` on a descriptor it owns, so this one is a duplicate. The transport only
    reads; it is never written to, so nothing overtakes. What is read past it (`receive_into`) it does not find: it hears at
    most that there was something.
    """

    def __init__(self, descriptor: int, transport: asyncio.Transport, drained: Callable[[], None]) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(False)
        self._take, self._receive = self._socket.send, self._socket.recv_into
        self._transport = transport
        self._drained = drained
        self._queue: deque[Part] = deque()
        self._waiting = False
        self.queued = 0

    def send(self, parts: Sequence[Part]) -> int:
        """The common reply is a few small buffers and an idle socket: one copy and one call."""
        try:
            joined = b"".join(parts)  # type: ignore[arg-type]
        except TypeError:
            return self._enqueue(_gathered(parts))  # a file range is among them
        size, taken = len(joined), 0
        if not self._queue:
            try:
                taken = self._take(joined)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self._give_up()
                return size
        if taken < size:
            self._enqueue([memoryview(joined)[taken:]])
        return size

    def receive_into(self, room: memoryview) -> int:
        return self._receive(room)

    def _enqueue(self, parts: list[Part]) -> int:
        size = sum(map(len, parts))
        self._queue.extend(parts)
        self.queued += size
        if not self._waiting:
            self._push()
        return size

    def _taken(self, content: bytes | bytearray | memoryview, flags: int = 0) -> int:
        """How many bytes the socket took; none when it is full."""
        try:
            return self._socket.send(content, flags)
        except (BlockingIOError, InterruptedError):
            return 0

    def _push(self) -> None:
        try:
            while self._queue:
                done = self._send_file() if self._queue[0].__class__ is FileRange else self._send_bytes()
                if not done:
                    self._wait()
                    return
        except OSError:
            self._give_up()
            return
        if self._waiting:
            self._waiting = False
            asyncio.get_running_loop().remove_writer(self._socket.fileno())
            self._drained()

    def _send_bytes(self) -> bool:
        """False when the socket is full."""
        part = self._queue[0]
        assert not isinstance(part, FileRange)
        followed = len(self._queue) > 1 and self._queue[1].__class__ is FileRange
        sent = self._taken(part, socket.MSG_MORE if followed else 0)
        self.queued -= sent
        if sent < len(part):
            self._queue[0] = memoryview(part)[sent:]
            return False
        self._queue.popleft()
        return True

    def _send_file(self) -> bool:
        part = self._queue[0]
        assert isinstance(part, FileRange)
        descriptor = part.file.fileno()
        assert descriptor is not None
        try:
            sent = os.sendfile(self._socket.fileno(), descriptor, part.position, min(part.size, MAX_SENDFILE))
        except (BlockingIOError, InterruptedError):
            return False
        if sent == 0:
            raise OSError("a file is shorter than the range promised from it")
        self.queued -= sent
        if sent == part.size:
            self._queue.popleft()
        else:
            self._queue[0] = FileRange(part.file, part.position + sent, part.size - sent)
        return True

    def _wait(self) -> None:
        if not self._waiting:
            self._waiting = True
            asyncio.get_running_loop().add_writer(self._socket.fileno(), self._push)

    def _give_up(self) -> None:
        """The peer is gone; the transport's owner hears of it through `connection_lost`."""
        self.close()
        self._transport.abort()

    def close(self) -> None:
        self._queue.clear()
        self.queued = 0
        if self._socket.fileno() < 0:
            return
        if self._waiting:
            self._waiting = False
            asyncio.get_running_loop().remove_writer(self._socket.fileno())
        self._socket.close()


def _gathered(parts: Sequence[Part]) -> list[Part]:
    """Neighbouring buffers joined, small file ranges read into them; what is large stays apart."""
    gathered: list[Part] = []
    run: list[bytes | bytearray | memoryview] = []
    for part in parts:
        if not isinstance(part, FileRange):
            run.append(part)
        elif part.size < READ_INSTEAD_OF_SENDFILE:
            run.append(part.read())
        else:
            gathered += [b"".join(run), part] if run else [part]
            run = []
    if run:
        gathered.append(b"".join(run))
    return gathered
