"""From a frame to a handler and back to the parts of a reply. A dispatcher only calls; what requests mean is in `handlers/`.

A handler is a function of (request, context). It returns the response, or an awaitable of it when it must wait, or `Parked`; None means
that no reply is wanted. Raising ApiError answers with that code wherever the response has a place for it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

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


class RequestContext:
    """Who asks, how, and of whom."""

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
# Serves a frame whose body begins at a position without making a message of it, or gives None: then it is served as any other.
Shortcut = Callable[["Node", Connection, bytearray, RequestHead, int], Exchange | None]
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

    def __init__(self, node: Node, role: str) -> None:
        self._node = node
        self._served = served_by(role)

    def __call__(self, connection: Connection, frame: bytearray) -> Exchange:
        head = read_request_head(frame)
        served = self._served.get(head.api_key)
        if served is None:
            named = APIS.get(head.api_key)
            raise ProtocolError(f"API key {head.api_key} ({named.name if named else 'unknown'}) is not served here")
        version = head.api_version
        if head.api_key == API_VERSIONS_KEY and version not in served.api.versions:
            return self._unknown_api_versions(served, connection, head)
        read, has_tags = served.reader(version)
        position = skip_tags(frame, head.position) if has_tags else head.position
        if served.shortcut is not None and (exchange := served.shortcut(self._node, connection, frame, head, position)):
            return exchange
        context = RequestContext(self._node, connection, served.api, version, head.client_id)
        try:
            # What follows the request is not looked at, as in Kafka: librdkafka 2.x sends Metadata 13 with three bytes too many.
            request, _ = read(frame, position)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ProtocolError(f"{served.api.name} version {version} cannot be read: {error}") from None
        return self._exchange(served, request, context, head)

    def _exchange(self, served: Served, request: Message, context: RequestContext, head: RequestHead) -> Exchange:
        try:
            response = served.handler(request, context)
        except ApiError as error:
            response = refusal(request, context.api, error)
        except Exception:
            log.exception("request failed api=%s version=%d", context.api.name, context.version)
            response = refusal(request, context.api, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
        if response is None or isinstance(response, Message):
            return Exchange(finished(response, context, head))
        lets_next_start = served.lets_next_start
        if inspect.iscoroutine(response):
            response = asyncio.ensure_future(response)
            lets_next_start = False  # a coroutine has only just begun: its order is not fixed yet
        later = _Later(request, context, head)
        if isinstance(response, Parked):
            response.deliver_to(later.deliver)
            later.abandon = response.leave
        else:
            response.add_done_callback(later.finish)
            later.abandon = response.cancel
        return Exchange(None, later, lets_next_start)

    def _unknown_api_versions(self, served: Served, connection: Connection, head: RequestHead) -> Exchange:
        """A client newer than us is told, in the form every client reads, what to come back with (KIP-511)."""
        context = RequestContext(self._node, connection, served.api, 0, head.client_id)
        response = served.handler(served.api.request(), context)
        response.error_code = ErrorCode.UNSUPPORTED_VERSION
        return Exchange(response_frame(response, 0, head.correlation_id))


class _Later(Later):
    """Turns the response of a handler that had to wait into the answer of a connection."""

    __slots__ = ("_context", "_head", "_request")

    def __init__(self, request: Message, context: RequestContext, head: RequestHead) -> None:
        super().__init__()
        self._request = request
        self._context = context
        self._head = head

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
            answer = finished(response if failure is None else self._refusal(failure), self._context, self._head)
        except ProtocolError as error:
            self.give(None, error)
            return
        self.give(answer)

    def _refusal(self, failure: BaseException) -> Message:
        if isinstance(failure, ApiError):
            return refusal(self._request, self._context.api, failure)
        log.error("request failed api=%s version=%d", self._context.api.name, self._context.version, exc_info=failure)
        return refusal(self._request, self._context.api, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))


def finished(response: Message | None, context: RequestContext, head: RequestHead) -> Answer:
    if response is None:
        return None
    return response_frame(response, context.version, head.correlation_id)
