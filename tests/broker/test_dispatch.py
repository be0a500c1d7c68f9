"""A dispatcher that remembers how a connection's requests begin sees in each frame what one without memory sees."""

from __future__ import annotations

import struct
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.access import throttle_time_ms
from ottla.broker.config import Settings
from ottla.broker.dispatch import Dispatcher, Handler, RequestContext, Served, Throttle
from ottla.broker.server import Answer, Connection, Exchange, Server
from ottla.model.errors import ApiError, ErrorCode, ProtocolError
from ottla.protocol.apis import BY_NAME
from ottla.protocol.codec import decode, encode
from ottla.protocol.framing import response_body_start
from ottla.protocol.messages.classic_groups import HeartbeatRequest, HeartbeatResponse

HEARTBEAT = BY_NAME["Heartbeat"]
FLEXIBLE = 4
TAGS = (b"\x00", b"\x01\x05\x02ab", b"\x01\x05\x02ac")


def heartbeat(version: int, correlation_id: int, client_id: str | None, tags: bytes, generation: int) -> bytearray:
    name = None if client_id is None else client_id.encode()
    head = struct.pack(">hhih", HEARTBEAT.key, version, correlation_id, -1 if name is None else len(name)) + (name or b"")
    body = encode(HeartbeatRequest(group_id="g", generation_id=generation, member_id="m"), version)
    return bytearray(head + (tags if version >= FLEXIBLE else b"") + body)


class Asked:
    """A dispatcher of heartbeats that keeps what its handler was given, and the connection that it serves."""

    def __init__(self, throttle: Throttle = throttle_time_ms, handler: Handler | None = None) -> None:
        self.seen: list[tuple[int, str, int]] = []
        self.dispatcher = Dispatcher(cast(Any, None), "broker", throttle)
        self.dispatcher._served = {HEARTBEAT.key: Served(HEARTBEAT, handler or self._handler, False, self._short)}
        self.connection = Connection(Server(Settings({})), "PLAINTEXT", self.dispatcher)

    def _handler(self, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        assert context.connection is self.connection
        self.seen.append((context.version, context.client_id, request.generation_id))
        return HeartbeatResponse(throttle_time_ms=request.generation_id)

    def _short(self, frame: bytearray, position: int, correlation_id: int, context: RequestContext) -> Answer:
        return [b"short"] if context.client_id == "hasty" else None

    def ask(self, frame: bytearray) -> bytes:
        answer = self.dispatcher(self.connection, frame)
        return b"".join(cast("list[bytes]", answer))


headers = st.tuples(
    st.sampled_from([3, 4]),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([None, "", "a", "ab", "ä"]),
    st.sampled_from(TAGS),
    st.integers(0, 99),
)


@given(st.lists(headers, max_size=20))
def test_each_request_is_read_by_its_own_header_whatever_came_before(rows: list[tuple[int, int, str | None, bytes, int]]) -> None:
    asked = Asked()
    for version, correlation_id, client_id, tags, generation in rows:
        reply = asked.ask(heartbeat(version, correlation_id, client_id, tags, generation))
        assert asked.seen[-1] == (version, client_id or "", generation)
        assert struct.unpack_from(">ii", reply) == (len(reply) - 4, correlation_id)
        body = response_body_start(reply[4:], version >= FLEXIBLE) + 4
        assert decode(HeartbeatResponse, version, reply, body).throttle_time_ms == generation


@pytest.mark.parametrize("version", [3, 4])
def test_a_frame_that_ends_early_is_refused_although_one_like_it_was_served(version: int) -> None:
    asked, whole = Asked(), heartbeat(version, 7, "someone", b"\x00", 1)
    for _ in range(2):
        asked.ask(whole)
        for size in range(len(whole)):
            with pytest.raises(ProtocolError):
                asked.ask(whole[:size])
    assert len(asked.seen) == 2


def told(reply: bytes) -> int:
    """The throttle time in the answer to a flexible heartbeat."""
    response: HeartbeatResponse = decode(HeartbeatResponse, FLEXIBLE, reply, response_body_start(reply[4:], True) + 4)
    return response.throttle_time_ms


def test_one_function_gives_every_answer_its_throttle_time_and_whom_it_limits_no_shortcut() -> None:
    limits: dict[str, int] = {"hasty": 250, "patient": 0}
    asked = Asked(lambda context: limits.get(context.client_id))
    assert told(asked.ask(heartbeat(FLEXIBLE, 1, "hasty", b"\x00", 0))) == 250
    limits["hasty"] = 300
    assert told(asked.ask(heartbeat(FLEXIBLE, 2, "hasty", b"\x00", 0))) == 300
    assert told(asked.ask(heartbeat(FLEXIBLE, 3, "patient", b"\x00", 0))) == 0
    del limits["hasty"]
    asked.connection.routes.clear()
    assert asked.ask(heartbeat(FLEXIBLE, 4, "hasty", b"\x00", 0)) == b"short"


async def test_an_answer_that_comes_later_and_a_refusal_have_their_throttle_time_too() -> None:
    async def late(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        return HeartbeatResponse()

    def refused(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        raise ApiError(ErrorCode.NOT_COORDINATOR)

    asked = Asked(lambda context: 70, late)
    exchange = asked.dispatcher(asked.connection, heartbeat(FLEXIBLE, 1, None, b"\x00", 0))
    assert isinstance(exchange, Exchange)
    assert exchange.later is not None
    assert told(b"".join(cast("list[bytes]", await exchange.later.wait()))) == 70
    assert told(Asked(lambda context: 80, refused).ask(heartbeat(FLEXIBLE, 1, None, b"\x00", 0))) == 80
