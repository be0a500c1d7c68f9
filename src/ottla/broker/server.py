"""One connection of a client: frames in, replies out in the order of their requests.

As in Kafka, the next request of a connection starts when the one before is answered, so a client sees its own writes.
A request whose order is fixed once its handler has returned (Produce: appended, waiting only for replicas) lets the next one
start. Replies leave in order whatever happens. A follower's long poll ends early when its next request comes in behind it
(`interrupt`): it has something better to do than wait.

A client that does not read its replies stops being read itself (`MAX_QUEUED_BYTES`); one that sends garbage is closed, with
one line in the log. So is a connection that is one too many (`max.connections`, `max.connections.per.ip`), and one over which
nothing goes for long (`connections.max.idle.ms`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, cast

from ottla.broker.config import Settings
from ottla.host.attention import Look
from ottla.host.network import peer_host
from ottla.host.sending import Part, Sender, sender_for
from ottla.model.errors import ProtocolError
from ottla.model.settings import INT_MAX
from ottla.protocol.framing import SCRATCH_SIZE, Frames

log = logging.getLogger("ottla.server")
MAX_QUEUED_BYTES = 64 << 20
SMALL_REPLY = 1 << 14  # a client that got more is busy with it

Answer = list[Part] | None  # the parts of a reply; None when the request wants none (acks=0)


class Later:
    """An answer to come. Its connection is told at once, where a future's waiter would be told in a later turn of the loop: on the
    way of a small reply each turn counts."""

    __slots__ = ("_told", "abandon", "answer", "failure", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self.answer: Answer = None
        self.failure: ProtocolError | None = None
        self.abandon: Callable[[], object] | None = None  # called when nobody wants the answer any more
        self._told: Callable[[], None] | None = None

    def tell(self, told: Callable[[], None]) -> None:
        """Call this when the answer is there."""
        self._told = told

    def give(self, answer: Answer, failure: ProtocolError | None = None) -> None:
        """With `failure` there is none, and the connection must be closed. Whoever gave up is not told."""
        if not self.is_done:
            self.is_done, self.answer, self.failure = True, answer, failure
            self.abandon = None  # else both would keep each other, and a megabyte of records, until garbage is looked for
            if self._told is not None:
                self._told()

    async def wait(self) -> Answer:
        """For those who are no connection."""
        done = asyncio.Event()
        self.tell(done.set)
        try:
            while not self.is_done:
                await done.wait()
        finally:
            self.cancel()
        if self.failure is not None:
            raise self.failure
        return self.answer

    def cancel(self) -> None:
        if not self.is_done:
            self.is_done = True
            if self.abandon is not None:
                self.abandon()


class Exchange:
    """A request that was started and not answered: its answer comes later, or must wait for those before it."""

    __slots__ = ("answer", "later", "lets_next_start")

    def __init__(self, answer: Answer = None, later: Later | None = None, lets_next_start: bool = False) -> None:
        self.answer = answer
        self.later = later
        self.lets_next_start = lets_next_start


Dispatch = Callable[["Connection", bytearray], Answer | Exchange]


class Connection(asyncio.BufferedProtocol):
    def __init__(self, server: Server, listener: str, dispatch: Dispatch) -> None:
        self._server = server
        self._dispatch = dispatch
        self._frames = Frames(server.settings["socket.request.max.bytes"], server.scratch)
        self._most_waiting: int = server.settings["queued.max.requests"]
        self._waiting: deque[bytearray] = deque()  # frames not started
        self._exchanges: deque[Exchange] = deque()  # started, not answered, in order
        self._blocked = False  # the last exchange must be answered before the next starts
        self._paused = False
        self._was_heard = True  # since somebody last looked whether it was
        self._silent_since_ms = 0.0
        self._left = 0  # bytes that waited for the peer at that time
        self._transport: asyncio.Transport | None = None
        self._sender: Sender | None = None
        self.on_lost: Callable[[], None] | None = None
        self.on_answer: Callable[[Look], None] | None = None  # instead of the server's
        self.interrupt: Callable[[], None] | None = None  # ends the long poll under way
        self.listener = listener
        self.address = ""
        self.session: dict[str, Any] = {}  # what a connection remembers of itself: client software, authentication
        self.routes: dict[int, Any] = {}  # what the dispatcher remembers of the requests seen here, by API key and version

    # Called by the loop -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's is one without inheriting from it
        self.address = peer_host(transport)
        excess = self._server.excess(self)
        if excess:
            self._refuse(ProtocolError(excess))
            return
        self._sender = sender_for(transport, self._resume)
        self._server.connections[self] = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._was_heard = True
        try:
            frames = self._frames.filled(nbytes)
            if not frames:
                return
            if len(frames) == 1 and not self._waiting and not self._blocked and self._transport is not None:
                self._serve(frames[0])
                if self._paused or self._sender.queued > MAX_QUEUED_BYTES:  # type: ignore[union-attr]
                    self._pause_or_resume_reading()
                return
            self._waiting.extend(frames)
            self._start()
            if self._waiting and self.interrupt is not None:
                self.interrupt()
        except ProtocolError as error:
            self._refuse(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.pop(self, None)
        if self._sender is not None:
            self._sender.close()
        self._waiting.clear()
        for exchange in self._exchanges:
            if exchange.later is not None:
                exchange.later.cancel()
        self._exchanges.clear()
        self.routes.clear()  # they know this connection
        self._transport = None
        if self.on_lost is not None:
            self.on_lost()

    def pause_writing(self) -> None:
        """TransportSender only; reading stops through `queued` all the same."""

    def resume_writing(self) -> None:
        self._resume()

    # ---------------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def close_if_silent(self, now_ms: float, limit_ms: int) -> None:
        """If nothing was asked, answered or taken since `limit_ms` ago, or since the first call after that: time is told from call to
        call, so that a request need not look at a clock."""
        left = 0 if self._sender is None else self._sender.queued
        if self._was_heard or self._exchanges or left != self._left:
            self._was_heard, self._left, self._silent_since_ms = False, left, now_ms
        elif now_ms - self._silent_since_ms >= limit_ms:
            log.info("connection closed address=%s listener=%s reason=idle", self.address, self.listener)
            self.close()

    def look(self) -> bool:
        """Serve what has come although the loop has not said so yet; whether there was anything. As by the loop, nothing runs between
        `room` and `buffer_updated`, and whatever cannot be served closes the connection."""
        if self._paused or self._sender is None:
            return False
        try:
            size = self._sender.receive_into(self._frames.room())
        except OSError:
            return False
        if not size or self._transport is None or self._transport.is_closing():
            return False
        try:
            self.buffer_updated(size)
        except Exception:
            log.exception("connection failed address=%s listener=%s", self.address, self.listener)
            self._transport.abort()
        return True

    @property
    def is_idle(self) -> bool:
        return not self._exchanges and not self._waiting and (self._sender is None or self._sender.queued == 0)

    def _refuse(self, error: ProtocolError) -> None:
        log.warning("connection refused address=%s listener=%s reason=%s", self.address, self.listener, error)
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()

    def _start(self) -> None:
        """Start what may start; stop reading when too much waits."""
        while self._waiting and not self._blocked and self._transport is not None:
            self._serve(self._waiting.popleft())
        self._pause_or_resume_reading()

    def _serve(self, frame: bytearray) -> None:
        outcome = self._dispatch(self, frame)
        if outcome.__class__ is not Exchange and not self._exchanges:
            self._send(outcome)  # type: ignore[arg-type]
            return
        exchange = outcome if isinstance(outcome, Exchange) else Exchange(outcome)
        later = exchange.later
        if later is None and not self._exchanges:
            self._send(exchange.answer)
            return
        self._exchanges.append(exchange)
        if later is not None:
            self._blocked = not exchange.lets_next_start
            later.tell(self._answered)

    def _answered(self) -> None:
        if self._transport is None:
            return
        while self._exchanges:
            exchange = self._exchanges[0]
            if exchange.later is not None:
                if not exchange.later.is_done:
                    break
                if exchange.later.failure is not None:
                    self._refuse(exchange.later.failure)
                    return
                exchange.answer = exchange.later.answer
            self._exchanges.popleft()
            self._send(exchange.answer)
        if not self._exchanges:
            self._blocked = False
            self.interrupt = None
        if self._waiting or self._paused or (self._sender is not None and self._sender.queued):
            self._resume()

    def _send(self, answer: Answer) -> None:
        if answer is not None and self._sender is not None:
            size = self._sender.send(answer)
            on_answer = self.on_answer or self._server.on_answer
            if on_answer is not None and size < SMALL_REPLY and not self._waiting and not self._exchanges:
                on_answer(self.look)

    def _resume(self) -> None:
        try:
            self._start()
        except ProtocolError as error:
            self._refuse(error)

    def _pause_or_resume_reading(self) -> None:
        if self._transport is None or self._sender is None:
            return
        full = self._sender.queued > MAX_QUEUED_BYTES or len(self._waiting) >= self._most_waiting
        if full != self._paused and not self._transport.is_closing():
            self._paused = full
            (self._transport.pause_reading if full else self._transport.resume_reading)()


class Server:
    """The connections of a node, over all its listeners. Those of `trusted` ones are not counted: brokers and controllers come there."""

    def __init__(self, settings: Settings, trusted: Collection[str] = ()) -> None:
        self.settings = settings
        self._trusted = trusted
        self.scratch = bytearray(SCRATCH_SIZE)
        self.connections: dict[Connection, None] = {}  # in order of arrival
        self.on_answer: Callable[[Look], None] | None = None  # told of every small reply, and where the next request may come

    def factory(self, listener: str, dispatch: Dispatch) -> Callable[[], Connection]:
        return lambda: Connection(self, listener, dispatch)

    def excess(self, connection: Connection) -> str:
        """Why one more connection is too many, if it is. Counted anew, because mostly there is no limit."""
        if connection.listener in self._trusted:
            return ""
        most, most_of_one = self.settings["max.connections"], self.settings["max.connections.per.ip"]
        if most == most_of_one == INT_MAX:
            return ""
        addresses = [other.address for other in self.connections if other.listener not in self._trusted]
        if len(addresses) >= most:
            return f"there are {len(addresses)} connections, and max.connections is {most}"
        if addresses.count(connection.address) >= most_of_one:
            return (
                f"its address has {addresses.count(connection.address)} connections, and max.connections.per.ip is {most_of_one}"
            )
        return ""

    def close_silent(self, now_ms: float) -> None:
        limit_ms = self.settings["connections.max.idle.ms"]
        for connection in list(self.connections) if limit_ms >= 0 else ():
            connection.close_if_silent(now_ms, limit_ms)

    def close(self) -> None:
        for connection in list(self.connections):
            connection.close()
