"""From a frame to a handler and back to the parts of a reply. A dispatcher only calls; what requests mean is in `handlers/`.

A handler is a function of (request, context). It returns the response, or an awaitable of it when it must wait, or `Parked`; None means
that no reply is wanted. Raising ApiError answers with that code wherever the response has a place for it.

Requests of one connection mostly begin alike: the same API, version and client id. What follows from these is worked out once
(`Route`) and found again by comparing bytes.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.access import throttle_time_ms
from ottla.broker.purgatory import Parked
from ottla.broker.refusals import refusal
from ottla.broker.server import Answer, Connection, Exchange, Later
from ottla.model.errors import ApiError, ErrorCode, ProtocolError
from ottla.protocol.apis import APIS, BY_NAME, Api
from ottla.protocol.codec import Reader, reader
from ottla.protocol.framing import API_VERSIONS_KEY, RequestHead, read_request_head, response_frame, skip_tags
from ottla.protocol.schema import Message

if TYPE_CHECKING:
    from ottla.broker.node import Node

log = logging.getLogger("ottla.dispatch")
ANONYMOUS = "User:ANONYMOUS"
_KIND_AND_ID = struct.Struct(">ii")  # how a request begins: API key and version as one number, and the correlation id
_KIND_AND_ID_SIZE = _KIND_AND_ID.size


class RequestContext:
    """Who asks, how, and of whom. The same object for all requests that a connection begins in the same way: nobody changes it."""

    __slots__ = ("address", "api", "client_id", "connection", "listener", "node", "principal", "version")

    def __init__(self, node: Node, connection: Connection, api: Api, version: int, client_id: str | None) -> None:
        self.node = node
        self.connection = connection
        self.api = api
        self.version = version
        self.client_id = client_id or ""
        self.listener = connection.listener
        self.address = connection.address
        self.principal: str = connection.session.get("principal", ANONYMOUS)


Handler = Callable[[Any, RequestContext], Any]
# Serves a frame, whose body begins at a position, under a correlation id without making a message of it; None: serve it as any other.
Shortcut = Callable[[bytearray, int, int, RequestContext], Answer | Exchange]
Throttle = Callable[[RequestContext], int | None]  # `access.throttle_time_ms`
F = TypeVar("F", bound=Handler)


class Served:
    """A row of the table with its handler. `readers` has what decoding a version takes, compiled on first use."""

    __slots__ = ("api", "handler", "lets_next_start", "readers", "shortcut")

    def __init__(self, api: Api, handler: Handler, lets_next_start: bool, shortcut: Shortcut | None = None) -> None:
        self.api = api
        self.handler = handler
        self.lets_next_start = lets_next_start
        self.shortcut = shortcut
        self.readers: dict[int, tuple[Reader, bool]] = {}

    def reader(self, version: int) -> tuple[Reader, bool]:
        """The reader and whether the header has tags. Raises ProtocolError for a version that is not served."""
        found = self.readers.get(version)
        if found is None:
            if version not in self.api.versions:
                raise ProtocolError(f"{self.api.name} version {version} is not served, only {self.api.versions}")
            found = self.readers[version] = reader(self.api.request, version), version in self.api.request.FLEXIBLE
        return found


class Route:
    """Where requests go whose headers differ only in their correlation ids. `head` is what follows that id in such a frame, the client's
    name and the tags, so a frame that has the same bytes there has its body at the same `position`."""

    __slots__ = ("context", "handler", "head", "lets_next_start", "position", "read", "shortcut", "version")

    def __init__(self, served: Served, context: RequestContext, read: Reader, head: bytes, *, may_be_short: bool) -> None:
        self.context = context
        self.version = context.version
        self.handler = served.handler
        self.lets_next_start = served.lets_next_start
        self.shortcut = served.shortcut if may_be_short else None
        self.read = read
        self.head = head
        self.position = _KIND_AND_ID_SIZE + len(head)


_SERVED: dict[str, dict[int, Served]] = {"broker": {}, "controller": {}}


def handles(
    name: str, *, roles: tuple[str, ...] = ("broker",), lets_next_start: bool = False, shortcut: Shortcut | None = None
) -> Callable[[F], F]:
    """Register a handler for a request of the table. `lets_next_start`: its order is fixed once it has returned."""

    def register(handler: F) -> F:
        api = BY_NAME[name]
        for role in roles:
            assert api.key not in _SERVED[role], f"{name} has two handlers"
            _SERVED[role][api.key] = Served(api, handler, lets_next_start, shortcut)
        return handler

    return register


def served_by(role: str) -> dict[int, Served]:
    return _SERVED[role]


class Dispatcher:
    """Serves the requests of one listener, which has one role."""

    def __init__(self, node: Node, role: str, throttle: Throttle = throttle_time_ms) -> None:
        self._node = node
        self._throttle = throttle
        self._served = served_by(role)

    def __call__(self, connection: Connection, frame: bytearray) -> Answer | Exchange:
        route = None
        try:
            kind, correlation_id = _KIND_AND_ID.unpack_from(frame)
            route = connection.routes.get(kind)
            if route is None or not frame.startswith(route.head, _KIND_AND_ID_SIZE):
                head = read_request_head(frame)
                route = self._route(connection, frame, head)
                if route is None:
                    return self._unknown_api_versions(connection, head)
                connection.routes[kind] = route
            if route.shortcut is not None:
                outcome = self._short(route, route.shortcut, frame, correlation_id)
                if outcome is not None:
                    return outcome
            # What follows the request is not looked at, as in Kafka: librdkafka 2.x sends Metadata 13 with three bytes too many.
            request, _ = route.read(frame, route.position)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            named = "a request" if route is None else f"{route.context.api.name} version {route.version}"
            raise ProtocolError(f"{named} cannot be read: {error}") from None
        return self._answer(route, request, correlation_id)

    def _route(self, connection: Connection, frame: bytearray, head: RequestHead) -> Route | None:
        """None for ApiVersions of a version that is not served. Raises ProtocolError for anything else that is not."""
        served = self._served.get(head.api_key)
        if served is None:
            named = APIS.get(head.api_key)
            raise ProtocolError(f"API key {head.api_key} ({named.name if named else 'unknown'}) is not served here")
        if head.api_key == API_VERSIONS_KEY and head.api_version not in served.api.versions:
            return None
        read, has_tags = served.reader(head.api_version)
        position = skip_tags(frame, head.position) if has_tags else head.position
        context = RequestContext(self._node, connection, served.api, head.api_version, head.client_id)
        may_be_short = self._throttle(context) is None
        return Route(served, context, read, bytes(frame[_KIND_AND_ID_SIZE:position]), may_be_short=may_be_short)

    def _short(self, route: Route, shortcut: Shortcut, frame: bytearray, correlation_id: int) -> Answer | Exchange:
        try:
            return shortcut(frame, route.position, correlation_id, route.context)
        except Exception as error:
            log.exception("request failed api=%s version=%d", route.context.api.name, route.version)
            raise ProtocolError(f"{route.context.api.name} failed: {error}") from None

    def _answer(self, route: Route, request: Message, correlation_id: int) -> Answer | Exchange:
        context = route.context
        try:
            response = route.handler(request, context)
        except ApiError as error:
            response = refusal(request, context.api, error)
        except Exception:
            log.exception("request failed api=%s version=%d", context.api.name, context.version)
            response = refusal(request, context.api, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
        if response is None:
            return None
        if isinstance(response, Message):
            return self._frame(response, context, correlation_id)
        later = _Later(request, context, correlation_id, self._frame)
        lets_next_start = route.lets_next_start
        if isinstance(response, Parked):
            response.deliver_to(later.deliver)
            later.abandon = response.leave
            return Exchange(None, later, lets_next_start)
        if inspect.iscoroutine(response):
            response = asyncio.ensure_future(response)
            lets_next_start = False  # a coroutine has only just begun: its order is not fixed yet
        response.add_done_callback(later.finish)
        later.abandon = response.cancel
        return Exchange(None, later, lets_next_start)

    def _frame(self, response: Message, context: RequestContext, correlation_id: int) -> Answer:
        throttle_ms = self._throttle(context)
        if throttle_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = throttle_ms
        return response_frame(response, context.version, correlation_id)

    def _unknown_api_versions(self, connection: Connection, head: RequestHead) -> Answer:
        """A client newer than us is told, in the form every client reads, what to come back with (KIP-511)."""
        served = self._served[API_VERSIONS_KEY]
        context = RequestContext(self._node, connection, served.api, 0, head.client_id)
        response = served.handler(served.api.request(), context)
        response.error_code = ErrorCode.UNSUPPORTED_VERSION
        return self._frame(response, context, head.correlation_id)


class _Later(Later):
    """Turns the response of a handler that had to wait into the answer of a connection."""

    __slots__ = ("_context", "_correlation_id", "_frame", "_request")

    def __init__(
        self,
        request: Message,
        context: RequestContext,
        correlation_id: int,
        frame: Callable[[Message, RequestContext, int], Answer],
    ) -> None:
        super().__init__()
        self._frame = frame
        self._request = request
        self._context = context
        self._correlation_id = correlation_id

    def finish(self, response: asyncio.Future[Any]) -> None:
        if response.cancelled():
            self.cancel()
            return
        # Asked for even if nobody waits for the answer any more, so that asyncio does not complain.
        failure = response.exception()
        self.deliver(None if failure is not None else response.result(), failure)

    def deliver(self, response: Message | None, failure: BaseException | None) -> None:
        if self.is_done:
            return
        try:
            reply = response if failure is None else self._refusal(failure)
            answer = None if reply is None else self._frame(reply, self._context, self._correlation_id)
        except ProtocolError as error:
            self.give(None, error)
            return
        self.give(answer)

    def _refusal(self, failure: BaseException) -> Message:
        if isinstance(failure, ApiError):
            return refusal(self._request, self._context.api, failure)
        log.error("request failed api=%s version=%d", self._context.api.name, self._context.version, exc_info=failure)
        return refusal(self._request, self._context.api, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
