"""Envelope 0: what a client asked of a broker, passed on to the controller by that broker in the client's name (KIP-590).

Java brokers forward this way; ottla's ask the controller themselves. The answer is the inner response with its header, which the broker
passes back to the client as it is.
"""

from __future__ import annotations

import struct
from typing import Any, cast

from ottla.broker.dispatch import ANONYMOUS, Dispatcher, RequestContext, handles
from ottla.broker.handlers.topics import FORWARDED
from ottla.broker.server import Connection, Exchange
from ottla.model.errors import ErrorCode, ProtocolError
from ottla.protocol.apis import APIS
from ottla.protocol.framing import read_request_head
from ottla.protocol.messages.controller import EnvelopeRequest, EnvelopeResponse
from ottla.protocol.primitives import read_uvarint

FORWARDABLE = frozenset(FORWARDED) | {"DescribeQuorum"}
LENGTH_SIZE = 4


class _Forwarded:
    """What a handler sees of the connection that the client has with the broker."""

    def __init__(self, context: RequestContext, principal: str, address: str) -> None:
        self.listener = context.listener
        self.address = address
        self.session: dict[str, Any] = {**context.connection.session, "principal": principal}
        self.on_lost = None
        self.routes: dict[int, Any] = {}


@handles("Envelope", roles=("controller",))
async def envelope(request: EnvelopeRequest, context: RequestContext) -> EnvelopeResponse:
    if not context.node.quorum.leader.is_self:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    frame = bytearray(request.request_data)
    try:
        head = read_request_head(frame)
        api = APIS.get(head.api_key)
        if api is None or api.name not in FORWARDABLE:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        client = _Forwarded(context, principal_of(request.request_principal), _address(request.client_host_address))
        outcome = Dispatcher(context.node, "controller")(cast(Connection, client), frame)
    except ProtocolError:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    answer = outcome
    if isinstance(outcome, Exchange):
        answer = outcome.answer if outcome.later is None else await outcome.later.wait()
    content = b"".join(cast("list[bytes]", answer or []))  # nothing that may be forwarded answers with parts of files
    return EnvelopeResponse(response_data=content[LENGTH_SIZE:])


def principal_of(data: bytes | None) -> str:
    """`User:name` out of Kafka's DefaultPrincipalData 0: a version, then type and name as compact strings."""
    if not data:
        return ANONYMOUS
    try:
        [version] = struct.unpack_from(">h", data)
        kind, position = _compact_string(data, 2)
        name, _ = _compact_string(data, position)
    except (struct.error, IndexError, UnicodeDecodeError):
        raise ProtocolError("the principal of an envelope cannot be read") from None
    if version != 0:
        raise ProtocolError(f"the principal of an envelope has version {version}")
    return f"{kind}:{name}"


def _compact_string(data: bytes, position: int) -> tuple[str, int]:
    size, position = read_uvarint(data, position)
    end = position + size - 1
    if size == 0 or end > len(data):
        raise IndexError
    return str(data[position:end], "utf-8"), end


def _address(raw: bytes) -> str:
    """Four bytes are an IPv4 address, anything else is shown as it is."""
    return ".".join(map(str, raw)) if len(raw) == 4 else raw.hex()
