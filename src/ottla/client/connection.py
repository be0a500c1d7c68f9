"""One connection to one broker: requests out, answers back, in order, many under way at once.

In: a `Network` door, an address, `ConnectionOptions`. Out: `await connection.request(message)` gives the decoded answer. Clients
and brokers (fetchers, controller requests) share this class, so it knows no policy: no retries, no metadata, no back-off.

Invariants
- Answers arrive in the order of the requests; one that does not closes the connection.
- A request that runs out of time closes the connection, because whatever is behind it on the wire waits as well.
- Every request ends: with its answer, or with a `NetworkError` when the connection closes.
- The version of a request is the highest that both ends speak, as the peer told in its ApiVersions answer.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ottla.client.errors import (
    ConnectionLost,
    ConnectionRefused,
    ConnectTimedOut,
    NetworkError,
    NotKafka,
    RequestTimedOut,
    TlsFailed,
    UnknownHost,
    VersionUnsupported,
)
from ottla.host.network import NameNotFound, Network
from ottla.host.receiving import LowMark
from ottla.model.errors import ApiError, ErrorCode, OttlaError, ProtocolError
from ottla.protocol.apis import APIS
from ottla.protocol.codec import decode
from ottla.protocol.framing import API_VERSIONS_KEY, Frames, FrameSizeError, request_frame, request_head, skip_tags
from ottla.protocol.messages.versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.schema import Message, Versions

SOFTWARE_NAME = "ottla"
SOFTWARE_VERSION = "0.1.0"
DEFAULT_MAX_FRAME = 512 << 20
DEFAULT_MAX_IN_FLIGHT = 1000
SETUP_MAX_FRAME = 1 << 20  # a list of versions is a few kilobytes; a TLS alert taken for a length is some 350 MB
SCRATCH_SIZE = 1 << 16  # for small answers; the rest of a large one is received where it stays
BELIEF = 1024  # in a broker that was chosen, more than in whoever connects: so an answer of megabytes is hardly ever copied
# Line ends in the first correlation id make a web server answer its complaint at once instead of waiting for more.
FIRST_CORRELATION_ID = 0x0D0A0D0A
LAST_CORRELATION_ID = 0x7FFFFFFF
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")

M = TypeVar("M", bound=Message)
Authenticate = Callable[["Connection"], Awaitable[None]]
# Sees the body of an answer, from a position of its frame, before it is decoded, and may dispose of it: the body of the next request of
# the same kind is then sent at once, in the place of the one answered.
Again = Callable[[bytearray, int], bytes | None]


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    client_id: str | None = None
    tls: ssl.SSLContext | None = None
    authenticate: Authenticate | None = None  # called once versions are known, before anything else is sent
    setup_timeout_ms: float = 10_000
    request_timeout_ms: float = 30_000
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    max_frame: int = DEFAULT_MAX_FRAME


class _Pending:
    __slots__ = ("again", "correlation_id", "delay", "future", "has_tags", "request", "until", "version")

    def __init__(
        self, request: type[Message], version: int, delay: float, future: asyncio.Future[Any], again: Again | None
    ) -> None:
        self.request = request
        self.version = version
        self.delay = delay  # seconds that the peer has
        self.future = future
        self.again = again
        self.has_tags = version in request.FLEXIBLE and request.TYPE_KEY != API_VERSIONS_KEY  # in the header of the answer
        self.correlation_id = -1
        self.until = 0.0  # loop time


async def connect(network: Network, host: str, port: int, options: ConnectionOptions | None = None) -> Connection:
    """Connect, agree on versions, authenticate. Raises a `NetworkError` that names the address and what went wrong."""
    connection = Connection(host, port, options or ConnectionOptions())
    try:
        await connection._set_up(network)
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError) and not isinstance(error, OttlaError):
            raise _explain(error, connection) from error
        raise
    return connection


def _explain(error: OSError, connection: Connection) -> NetworkError:
    where = connection.address
    if isinstance(error, NameNotFound):
        return UnknownHost(f"{where}: the host name has no address; check the spelling of bootstrap_servers ({error})")
    if isinstance(error, ssl.SSLError):
        return TlsFailed(
            f"{where}: TLS failed ({error.reason or error}); check the port, security_protocol and the trusted certificates"
        )
    if isinstance(error, ConnectionRefusedError):
        return ConnectionRefused(f"{where}: nothing listens there; is the broker running, and is that its port?")
    if isinstance(error, TimeoutError):
        return ConnectTimedOut(
            f"{where}: no Kafka broker answered within {connection.options.setup_timeout_ms:g} ms; "
            "check the address and the firewall, and whether the listener expects TLS"
        )
    if connection.options.tls is not None:
        return TlsFailed(f"{where}: the peer broke the TLS handshake off ({error}); is that listener plain text?")
    return ConnectionLost(f"{where}: {error}")


class Connection(asyncio.BufferedProtocol):
    """Made by `connect`. `versions` and `features` are what the peer told about itself."""

    def __init__(self, host: str, port: int, options: ConnectionOptions) -> None:
        self.host = host
        self.port = port
        self.options = options
        self.versions: dict[int, Versions] = {}
        self.features: dict[str, int] = {}  # finalized features: name, level
        self.features_epoch = -1
        self.sent = 0  # requests so far
        self.throttled_until = 0.0  # loop time before which the peer wants no more (KIP-219); callers that can wait should
        self.on_lost: Callable[[Connection, NetworkError], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._low_mark: LowMark | None = None
        self._pending: deque[_Pending] = deque()
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._next_id = FIRST_CORRELATION_ID
        self._closed: NetworkError | None = None
        self._chosen: dict[type[Message], int] = {}
        self._frames = Frames(SETUP_MAX_FRAME, bytearray(SCRATCH_SIZE), BELIEF)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_open(self) -> bool:
        return self._closed is None and self._transport is not None

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    # Requests ----------------------------------------------------------------------------------------------------------

    def version_of(self, request: type[Message], at_most: int | None = None) -> int:
        """The highest version of a request that both ends speak; raises `VersionUnsupported` if there is none."""
        chosen = self._chosen.get(request)
        if chosen is None:
            chosen = self._chosen[request] = self._choose(request)
        if at_most is not None and at_most < chosen:
            if at_most < self.versions[request.TYPE_KEY].first:
                raise VersionUnsupported(f"{self.address} no longer speaks {request.__name__} v{at_most}")
            return at_most
        return chosen

    def speaks(self, request: type[Message]) -> bool:
        try:
            self.version_of(request)
        except VersionUnsupported:
            return False
        return True

    def _choose(self, request: type[Message]) -> int:
        theirs = self.versions.get(request.TYPE_KEY)
        ours = request.VERSIONS
        if theirs is None:
            raise VersionUnsupported(f"{self.address} does not serve {request.__name__}")
        highest = min(ours.last, theirs.last)
        if highest < max(ours.first, theirs.first):
            raise VersionUnsupported(f"{self.address} speaks {request.__name__} {theirs}; we speak {ours}")
        return highest

    async def request(self, request: Message, *, version: int | None = None, timeout_ms: float | None = None) -> Any:
        """Send a request and wait for its answer; waits first while `max_in_flight` requests are under way."""
        while len(self._pending) >= self.options.max_in_flight and self._closed is None:
            room = self._loop.create_future()
            self._waiting_for_room.append(room)
            await room
        return await self.send(request, version=version, timeout_ms=timeout_ms)

    def send(
        self, request: Message, *, version: int | None = None, timeout_ms: float | None = None, again: Again | None = None
    ) -> asyncio.Future[Any]:
        """Write a request now; the future gives the answer, with `again` the first that it left. The caller keeps to the in-flight limit."""
        if self._closed is not None:
            raise self._closed
        if version is None:
            version = self.version_of(type(request))
        delay = (self.options.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        pending = _Pending(type(request), version, delay, self._loop.create_future(), again)
        pending.correlation_id = self._write(request, version)
        self._await_answer(pending)
        return pending.future

    def send_unanswered(self, request: Message, *, version: int | None = None) -> None:
        """Write a request that brokers do not answer: Produce with acks=0."""
        if self._closed is not None:
            raise self._closed
        self._write(request, self.version_of(type(request)) if version is None else version)

    def _write(self, request: Message, version: int) -> int:
        assert self._transport is not None
        correlation_id = self._correlation_id()
        self._transport.writelines(request_frame(request, version, correlation_id, self.options.client_id))
        return correlation_id

    def _write_again(self, pending: _Pending, body: bytes) -> None:
        assert self._transport is not None
        pending.correlation_id = correlation_id = self._correlation_id()
        head = request_head(pending.request, pending.version, correlation_id, self.options.client_id, len(body))
        self._transport.write(head + body)
        self._await_answer(pending)

    def _correlation_id(self) -> int:
        given = self._next_id
        self.sent += 1
        self._next_id = 0 if given == LAST_CORRELATION_ID else given + 1
        return given

    def _await_answer(self, pending: _Pending) -> None:
        """One timer for all requests: mostly an answer comes long before its time is up, and the timer finds others to wait for."""
        pending.until = until = self._loop.time() + pending.delay
        self._pending.append(pending)
        if self._timer is None or until < self._timer_due:
            self._arm(until)

    def _arm(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = until
        self._timer = self._loop.call_at(until, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if not self._pending:
            return
        first = min(self._pending, key=lambda pending: pending.until)
        if first.until > self._loop.time():
            self._arm(first.until)
            return
        name = first.request.__name__
        self._fail(RequestTimedOut(f"{self.address} did not answer {name} within {first.delay * 1000:g} ms"))

    # Set-up ------------------------------------------------------------------------------------------------------------

    async def _set_up(self, network: Network) -> None:
        async with asyncio.timeout(self.options.setup_timeout_ms / 1000):
            await network.connect(self.host, self.port, lambda: self, self.options.tls)
            await self._negotiate(ApiVersionsRequest.VERSIONS.last)
            if self.options.authenticate is not None:
                await self.options.authenticate(self)

    async def _negotiate(self, version: int) -> None:
        """Ask what the peer speaks. One that does not know this version says so in the form of version 0 (KIP-511)."""
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        reply: ApiVersionsResponse = await self.send(request, version=version, timeout_ms=self.options.setup_timeout_ms)
        if reply.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
            theirs = next((row.max_version for row in reply.api_keys if row.api_key == API_VERSIONS_KEY), 0)
            await self._negotiate(max(0, min(version - 1, theirs)))
            return
        if reply.error_code:
            raise ApiError(ErrorCode(reply.error_code), f"{self.address} refused ApiVersions v{version}")
        self.versions = {row.api_key: Versions(row.min_version, row.max_version) for row in reply.api_keys}
        self.features = {row.name: row.max_version_level for row in reply.finalized_features}
        self.features_epoch = reply.finalized_features_epoch
        self._frames.limit = self.options.max_frame

    # asyncio.BufferedProtocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._low_mark = LowMark(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._frames.filled(nbytes)
        except FrameSizeError as error:
            self._fail(self._unreadable(error.start))
            return
        if self._low_mark is not None:
            self._low_mark.expect(self._frames.missing)
        for frame in frames:
            if self._closed is None:
                self._answer(frame)

    def _answer(self, frame: bytearray) -> None:
        correlation_id = _INT32.unpack_from(frame)[0] if len(frame) >= _INT32.size else None
        if not self._pending or self._pending[0].correlation_id != correlation_id:
            self._fail(ConnectionLost(f"{self.address} answered request {correlation_id}, which is not the next in line"))
            return
        pending = self._pending.popleft()
        try:
            if pending.again is not None and not pending.future.done() and self._goes_on(pending, pending.again, frame):
                return
            self._make_room()
            if pending.future.done():  # the caller gave up; the answer is of no use
                return
            message = _decode_answer(pending, frame)
            if throttle_ms := getattr(message, "throttle_time_ms", 0):
                self.throttled_until = self._loop.time() + throttle_ms / 1000
            pending.future.set_result(message)
        except ProtocolError as error:
            pending.future.set_exception(error)
            self._fail(ConnectionLost(f"{self.address} sent an answer that cannot be read: {error}"))

    def _goes_on(self, pending: _Pending, again: Again, frame: bytearray) -> bool:
        body = again(frame, _body_start(pending, frame))
        if body is None:
            return False
        self._write_again(pending, body)
        return True

    def _make_room(self) -> None:
        while self._waiting_for_room and len(self._pending) < self.options.max_in_flight:
            room = self._waiting_for_room.popleft()
            if not room.done():
                room.set_result(None)
                break

    def _unreadable(self, start: bytes) -> NetworkError:
        if start[:1] in (b"\x15", b"\x16") and start[1:2] == b"\x03":
            return TlsFailed(f"{self.address} speaks TLS; set security_protocol to SSL (or SASL_SSL)")
        if start.startswith((b"HTTP/", b"<")):
            return NotKafka(f"{self.address} is a web server ({start[:40]!r}), not a Kafka broker; check the port")
        return NotKafka(f"{self.address} sent {start[:16]!r}, which is not the Kafka protocol; check the port")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(ConnectionLost(f"{self.address} closed the connection" + (f": {error}" if error else "")))

    # Ending ------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close at once; requests under way fail with `ConnectionLost`."""
        self._fail(ConnectionLost(f"the connection to {self.address} was closed"))

    def _fail(self, error: NetworkError) -> None:
        if self._closed is not None:
            return
        self._closed = error
        if self._transport is not None:
            self._transport.close()
        pending, self._pending = self._pending, deque()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for entry in pending:
            if not entry.future.done():
                entry.future.set_exception(error)
                entry.future.exception()  # nobody may be waiting any more; that is not worth a complaint
        while self._waiting_for_room:
            room = self._waiting_for_room.popleft()
            if not room.done():
                room.set_result(None)
        if self.on_lost is not None:
            self.on_lost(self, error)


def _decode_answer(pending: _Pending, frame: bytearray) -> Message:
    response, version = APIS[pending.request.TYPE_KEY].response, pending.version
    # The peer may not know this version: the error code comes first in every version, so it can be read before the rest.
    if response is ApiVersionsResponse and _INT16.unpack_from(frame, _INT32.size)[0] == ErrorCode.UNSUPPORTED_VERSION:
        version = 0
    return decode(response, version, frame, _body_start(pending, frame))


def _body_start(pending: _Pending, frame: bytearray) -> int:
    return skip_tags(frame, _INT32.size) if pending.has_tags else _INT32.size
