"""Connections between simulated nodes: asyncio transports whose bytes take time and may not arrive.

A connection is TCP as its users see it: bytes arrive in order or not at all. What is sent is cut into pieces at drawn places, so
that no reader may count on whole frames. Between two nodes there may be a delay, a bandwidth, and a wall in either direction:
bytes behind a wall wait (TCP sends them again) until it falls, and a connection that is attempted through one times out.
Connections are independent of each other, so their bytes overtake each other freely.

A cut resets a connection at a drawn byte: the reader gets part of what was on its way, both ends learn of it, unless a wall
keeps the news from one of them. A killed process resets its connections, a machine without power says nothing at all.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Any

from ottla.host.network import NameNotFound, ProtocolFactory
from tests.simulation.journal import Journal
from tests.simulation.loop import Process, SimulatedLoop

HIGH_WATER = 64 * 1024
MAX_PIECE = 64 * 1024
CONNECT_TIMEOUT_SECONDS = 10.0
FIRST_PORT = 30_000
_HERE = frozenset({"", "0.0.0.0", "::", "127.0.0.1", "::1", "localhost"})


@dataclass(slots=True)
class Link:
    """How one node reaches another."""

    delay_seconds: float = 0.0005
    jitter_seconds: float = 0.0005
    bytes_per_second: float = 100e6


class Internet:
    """What lies between all nodes."""

    def __init__(self, loop: SimulatedLoop, seed: int | str, journal: Journal) -> None:
        self.loop = loop
        self.journal = journal
        self.random = random.Random(f"internet {seed}")
        self.default = Link()
        self._links: dict[tuple[str, str], Link] = {}
        self._walls: set[tuple[str, str]] = set()
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        self._connections: list[Connection] = []
        self._next_port = FIRST_PORT
        self.hosts: set[str] = set()
        self.up: set[str] = set()  # hosts whose machine runs

    def link(self, source: str, target: str) -> Link:
        return self._links.get((source, target), self.default)

    def set_link(self, source: str, target: str, link: Link) -> None:
        self._links[source, target] = link

    def forget_links(self) -> None:
        self._links.clear()

    def walled(self, source: str, target: str) -> bool:
        return (source, target) in self._walls

    def build_wall(self, source: str, target: str) -> None:
        """Nothing passes from source to target any more (the other way is another wall)."""
        self._walls.add((source, target))

    def tear_down_walls(self) -> None:
        self._walls.clear()
        for connection in tuple(self._connections):
            for stream in connection.streams:
                stream.move()

    def machine_up(self, host: str) -> None:
        """Whoever kept sending to the machine while it was off now gets its answer: it knows of no such connection."""
        self.up.add(host)
        for connection in self.connections():
            for stream, end in zip(connection.streams, reversed(connection.ends)):
                if stream.unanswered and end.address[0] == host:
                    end.outgoing.cut()

    def connections(self) -> list[Connection]:
        return list(self._connections)

    def port(self) -> int:
        self._next_port += 1
        return self._next_port

    def travel_seconds(self, source: str, target: str, size: int) -> float:
        link = self.link(source, target)
        return link.delay_seconds + self.random.expovariate(1.0) * link.jitter_seconds + size / link.bytes_per_second


class SimulatedListener:
    def __init__(self, network: SimulatedNetwork, port: int, factory: ProtocolFactory, process: Process) -> None:
        self._network = network
        self._port = port
        self.factory = factory
        self.process = process
        self.accepting = True

    @property
    def port(self) -> int:
        return self._port

    async def accept(self) -> None:
        self.accepting = True

    async def close(self) -> None:
        self._network.internet._listeners.pop((self._network.host, self._port), None)


class SimulatedNetwork:
    """One node's door. `process` is who runs on the node at the moment."""

    def __init__(self, internet: Internet, host: str) -> None:
        self.internet = internet
        self.host = host
        self.process: Process | None = None
        internet.hosts.add(host)

    async def listen(
        self, host: str, port: int, factory: ProtocolFactory, tls: ssl.SSLContext | None = None, *, accepting: bool = True
    ) -> SimulatedListener:
        assert tls is None, "TLS is not simulated"
        assert self.process is not None
        port = port or self.internet.port()
        if (self.host, port) in self.internet._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = SimulatedListener(self, port, factory, self.process)
        listener.accepting = accepting
        self.internet._listeners[self.host, port] = listener
        return listener

    async def connect(self, host: str, port: int, factory: ProtocolFactory, tls: ssl.SSLContext | None = None) -> None:
        assert tls is None, "TLS is not simulated"
        assert self.process is not None
        target = self.host if host in _HERE else host
        internet = self.internet
        if target not in internet.hosts:
            raise NameNotFound(f"{host} has no address")
        await asyncio.sleep(internet.travel_seconds(self.host, target, 0))
        if internet.walled(self.host, target) or internet.walled(target, self.host):
            await asyncio.sleep(CONNECT_TIMEOUT_SECONDS)
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        listener = internet._listeners.get((target, port))
        if listener is None or listener.process.dead or not listener.accepting:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        connection = Connection(internet, self.process, (self.host, internet.port()), listener.process, (target, port))
        internet._connections.append(connection)
        accepting, connecting = connection.ends
        listener.process.call_soon(_accept, accepting, listener.factory)
        try:
            await asyncio.sleep(internet.travel_seconds(target, self.host, 0))
        except asyncio.CancelledError:
            connecting.abort()
            raise
        connecting.begin(factory())

    def drop_everything(self, *, quietly: bool) -> None:
        """The process is gone. Its peers get a reset, or (quietly) nothing."""
        for key in [key for key in self.internet._listeners if key[0] == self.host]:
            del self.internet._listeners[key]
        for connection in self.internet.connections():
            for end in connection.ends:
                if end.process is self.process:
                    connection.lose_end(end, quietly=quietly)


def _accept(end: SimulatedTransport, factory: ProtocolFactory) -> None:
    end.begin(factory())  # type: ignore[arg-type]


class Connection:
    """Two ends and two streams."""

    def __init__(
        self,
        internet: Internet,
        client: Process,
        client_address: tuple[str, int],
        server: Process,
        server_address: tuple[str, int],
    ) -> None:
        self.internet = internet
        accepting = SimulatedTransport(self, server, server_address, client_address)
        connecting = SimulatedTransport(self, client, client_address, server_address)
        self.ends = (accepting, connecting)
        self.streams = (Stream(self, accepting, connecting), Stream(self, connecting, accepting))
        accepting.outgoing, connecting.outgoing = self.streams
        connecting.incoming, accepting.incoming = self.streams

    @property
    def hosts(self) -> tuple[str, str]:
        """Client and server."""
        return self.ends[1].address[0], self.ends[0].address[0]

    def cut(self) -> None:
        """Reset it: a drawn part of what is under way still arrives, then each end learns of it, unless a wall stands before it."""
        for stream in self.streams:
            stream.cut()

    def lose_end(self, end: SimulatedTransport, *, quietly: bool) -> None:
        """The process at this end is no more."""
        end.closed = True
        if quietly:
            end.outgoing.silence()
        else:
            end.outgoing.cut()
        self.forget_if_over()

    def forget_if_over(self) -> None:
        if all(end.closed for end in self.ends) and self in self.internet._connections:
            self.internet._connections.remove(self)


def _reset() -> Exception:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


class Stream:
    """Bytes on their way in one direction, then perhaps an end: None for a clean one, an exception for a reset."""

    def __init__(self, connection: Connection, source: SimulatedTransport, target: SimulatedTransport) -> None:
        self._internet = connection.internet
        self._source = source
        self._target = target
        self._queue: deque[bytes | Exception | None] = deque()
        self._busy = False  # a piece is under way
        self._ended = False  # nothing more may be sent
        self.unanswered = False  # bytes went to a machine that is off
        self.size = 0  # bytes sent and not yet read

    def send(self, data: bytes) -> None:
        if self._ended:
            return
        start = 0
        while start < len(data):
            size = min(MAX_PIECE, len(data) - start)
            if self._internet.random.random() < 0.1:
                size = self._internet.random.randrange(size) + 1
            self._queue.append(data[start : start + size])
            start += size
        self.size += len(data)
        self.move()

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._queue.append(None)
            self.move()

    def cut(self) -> None:
        """Of what waits, a drawn part arrives, down to half a piece."""
        waiting = [piece for piece in self._queue if isinstance(piece, bytes) and piece]
        self._queue.clear()
        kept = self._internet.random.randrange(len(waiting) + 1)
        self._queue.extend(waiting[:kept])
        if kept < len(waiting):
            self._queue.append(waiting[kept][: self._internet.random.randrange(len(waiting[kept]))])
        self._queue.append(_reset())
        self._ended = True
        self.move()

    def silence(self) -> None:
        self._queue.clear()
        self._ended = True

    def delivered(self, size: int) -> None:
        self.size -= size
        if not self._source.closed:
            self._source.process.call_soon(self._source.drained)

    def move(self) -> None:
        if self._busy or not self._queue:
            return
        hosts = self._source.address[0], self._target.address[0]
        if self._internet.walled(*hosts):
            return
        piece = self._queue[0]
        self._busy = True
        seconds = self._internet.travel_seconds(*hosts, len(piece) if isinstance(piece, bytes) else 0)
        self._internet.loop.call_later(seconds, self._arrive, context=self._internet.loop.outside.context)

    def _arrive(self) -> None:
        self._busy = False
        source, target = self._source, self._target
        if not self._queue or self._internet.walled(source.address[0], target.address[0]):
            return
        piece = self._queue.popleft()
        self._internet.journal.event(
            "arrive", str(source.address), str(target.address), piece if isinstance(piece, bytes) else "end"
        )
        if target.process.dead or target.closed:
            if not isinstance(piece, Exception):  # a reset is not answered
                self._nobody_there()
        else:
            target.process.call_soon(target.receive, piece)
        self.move()

    def _nobody_there(self) -> None:
        """A machine that runs answers bytes for a connection it does not know with a reset; one without power does not."""
        if self._target.address[0] in self._internet.up:
            self._target.outgoing.cut()
        else:
            self.unanswered = True


class SimulatedTransport(asyncio.Transport):
    """One end. A transport of asyncio's in every respect that the broker and the client use."""

    outgoing: Stream
    incoming: Stream

    def __init__(self, connection: Connection, process: Process, address: tuple[str, int], peer: tuple[str, int]) -> None:
        super().__init__({"sockname": address, "peername": peer})
        self.process = process
        self.address = address
        self.closed = False
        self._connection = connection
        self._protocol: Any = None
        self._received: deque[bytes | Exception | None] = deque()
        self._reading = True
        self._writing_paused = False
        self._limits = (HIGH_WATER // 4, HIGH_WATER)

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._hand_over()

    # -- what arrives

    def receive(self, piece: bytes | Exception | None) -> None:
        self._received.append(piece)
        self._hand_over()

    def _hand_over(self) -> None:
        while self._received and self._reading and self._protocol is not None and not self.closed:
            piece = self._received.popleft()
            if isinstance(piece, bytes):
                self.incoming.delivered(len(piece))
            if isinstance(piece, Exception):
                self.lose(piece)
            elif piece is None:
                if not self._protocol.eof_received():
                    self.close()
            elif isinstance(self._protocol, asyncio.BufferedProtocol):
                self._fill(self._protocol, piece)
            elif piece:
                self._protocol.data_received(piece)

    def _fill(self, protocol: asyncio.BufferedProtocol, piece: bytes) -> None:
        while piece and not self.closed:
            target = memoryview(protocol.get_buffer(len(piece)))
            size = min(len(target), len(piece))
            target[:size] = piece[:size]
            protocol.buffer_updated(size)
            piece = piece[size:]

    def drained(self) -> None:
        if self._writing_paused and self.outgoing.size <= self._limits[0] and not self.closed:
            self._writing_paused = False
            self._protocol.resume_writing()

    def lose(self, error: Exception | None) -> None:
        """This end is done; its protocol hears of it once."""
        if self.closed:
            return
        self.closed = True
        self._connection.forget_if_over()
        self.process.call_soon(self._tell_lost, error)

    def _tell_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    # -- asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed or self.process.dead or not data:
            return
        self.outgoing.send(bytes(data))
        if self.outgoing.size > self._limits[1] and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """What was written still leaves; then the peer reads an end."""
        if not self.closed and not self.process.dead:
            self.outgoing.end()
            self.lose(None)

    def abort(self) -> None:
        if not self.closed and not self.process.dead:
            self.outgoing.cut()
            self.lose(None)

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.process.call_soon(self._hand_over)

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        high = HIGH_WATER if high is None else high
        self._limits = (high // 4 if low is None else low, high)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._limits

    def get_write_buffer_size(self) -> int:
        return self.outgoing.size

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol  # type: ignore[no-any-return]

    def can_write_eof(self) -> bool:
        return False
