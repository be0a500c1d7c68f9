"""A connection answers in order, whatever finishes first; a peer that breaks the protocol is closed, and only it."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import Any

import pytest

from ottla.broker.config import Settings
from ottla.broker.server import Connection, Exchange, Later, Server
from ottla.model.errors import ProtocolError
from tests.feeding import feed

MAX_WAITING_REQUESTS = 7


def server(**properties: int) -> Server:
    """Names with underscores for dots."""
    given = {"socket_request_max_bytes": 1000, "queued_max_requests": MAX_WAITING_REQUESTS, **properties}
    return Server(Settings({name.replace("_", "."): str(value) for name, value in given.items()}))


class Wire(asyncio.Transport):
    """The far end of an imaginary wire: it keeps what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False
        self.reading = True
        self.untaken = 0

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.untaken

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Script:
    """A dispatcher whose answers the test gives when it likes: a frame's first byte says how it is to be treated."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.later: dict[bytes, Later] = {}
        self.abandoned: list[bytes] = []

    def __call__(self, connection: Connection, frame: bytearray) -> Exchange:
        name = bytes(frame)
        self.started.append(name)
        if name.startswith(b"bad"):
            raise ProtocolError("a bad frame")
        if name.startswith((b"wait", b"pass")):
            self.later[name] = Later()
            self.later[name].abandon = lambda: self.abandoned.append(name)
            return Exchange(None, self.later[name], lets_next_start=name.startswith(b"pass"))
        return Exchange([name])


class Ends:
    def __init__(self, at: Server | None = None) -> None:
        self.script = Script()
        self.wire = Wire()
        self.connection = (at or server()).factory("PLAINTEXT", self.script)()
        self.connection.connection_made(self.wire)

    def send(self, *frames: bytes) -> None:
        self.send_bytes(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    def send_bytes(self, data: bytes) -> None:
        feed(self.connection, data)

    def answer(self, name: bytes) -> None:
        self.script.later[name].give([name])


async def test_replies_leave_in_request_order_although_a_later_one_is_ready_first() -> None:
    ends = Ends()
    ends.send(b"pass-1", b"pass-2", b"now-3")
    assert ends.script.started == [b"pass-1", b"pass-2", b"now-3"]
    ends.answer(b"pass-2")
    assert ends.wire.written == b""
    ends.answer(b"pass-1")
    assert ends.wire.written == b"pass-1pass-2now-3"


async def test_the_next_request_starts_only_when_the_one_before_is_answered() -> None:
    ends = Ends()
    ends.send(b"wait-1", b"now-2")
    assert ends.script.started == [b"wait-1"]
    ends.answer(b"wait-1")
    assert ends.wire.written == b"wait-1now-2"


async def test_a_request_without_reply_holds_nothing_up() -> None:
    ends = Ends()
    ends.send(b"pass-1")
    ends.script.later[b"pass-1"].give(None)
    ends.send(b"now-2")
    assert ends.wire.written == b"now-2"


async def test_a_client_that_sends_ahead_without_end_is_read_no_further() -> None:
    ends = Ends()
    ends.send(b"wait-1", *[b"now"] * (MAX_WAITING_REQUESTS + 1))
    assert not ends.wire.reading
    ends.answer(b"wait-1")
    assert ends.wire.reading
    assert ends.wire.written == b"wait-1" + b"now" * (MAX_WAITING_REQUESTS + 1)


@pytest.mark.parametrize(
    "data", [struct.pack(">i", -1), struct.pack(">i", 1001), struct.pack(">i", 2**31 - 1), struct.pack(">i", 3) + b"bad"]
)
async def test_garbage_closes_the_connection_with_one_line_in_the_log(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    ends = Ends()
    with caplog.at_level(logging.WARNING):
        ends.send_bytes(data)
    assert ends.wire.aborted
    assert len(caplog.records) == 1


async def test_a_lost_connection_cancels_what_its_requests_wait_for() -> None:
    ends = Ends()
    ends.send(b"wait-1")
    ends.connection.connection_lost(None)
    assert ends.script.abandoned == [b"wait-1"]
    ends.answer(b"wait-1")  # too late, and nobody minds


class Over:
    """A connection over a real socket, which the loop reads only when the test waits."""

    def __init__(self) -> None:
        self.script = Script()
        self.theirs, self._ours = socket.socketpair()
        self.theirs.setblocking(False)
        self.connection = server().factory("PLAINTEXT", self.script)()

    async def begin(self) -> Over:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self.connection, self._ours)
        return self

    def send(self, *names: bytes) -> None:
        self.theirs.send(b"".join(struct.pack(">i", len(name)) + name for name in names))

    async def hear(self, size: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.theirs, size)


async def test_a_request_is_served_before_the_loop_has_heard_of_it() -> None:
    over = await Over().begin()
    assert not over.connection.look()
    over.send(b"now-1")
    assert over.connection.look()
    assert over.theirs.recv(100) == b"now-1"
    assert not over.connection.look()
    over.send(b"now-2")
    assert await over.hear(100) == b"now-2"
    assert over.script.started == [b"now-1", b"now-2"]
    over.connection.close()


async def test_what_is_looked_for_may_come_in_pieces() -> None:
    over = await Over().begin()
    over.theirs.send(struct.pack(">i", 5) + b"no")
    assert over.connection.look()
    over.theirs.send(b"w-1")
    assert await over.hear(100) == b"now-1"
    over.connection.close()


async def test_a_client_that_is_read_no_further_is_not_looked_at_either() -> None:
    over = await Over().begin()
    over.send(b"wait-1", *[b"now"] * MAX_WAITING_REQUESTS)
    assert over.connection.look()
    over.send(b"more")
    assert not over.connection.look()
    over.script.later[b"wait-1"].give([b"wait-1"])
    assert over.connection.look()
    over.connection.close()


async def test_an_end_is_left_to_the_loop_to_see() -> None:
    over = await Over().begin()
    lost = asyncio.Event()
    over.connection.on_lost = lost.set
    over.theirs.close()
    assert not over.connection.look()
    await lost.wait()
    assert not over.connection.look()


async def test_what_fails_while_it_is_looked_at_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    over = await Over().begin()
    lost = asyncio.Event()
    over.connection.on_lost = lost.set
    over.connection._dispatch = lambda connection, frame: 1 // 0
    over.send(b"now-1")
    with caplog.at_level(logging.ERROR):
        assert over.connection.look()
    await lost.wait()
    assert len(caplog.records) == 1


async def test_a_long_poll_ends_when_the_next_request_comes_in() -> None:
    ends = Ends()
    ends.send(b"wait-1")
    ends.connection.interrupt = lambda: ends.answer(b"wait-1")
    ends.send(b"now-2")
    assert ends.wire.written == b"wait-1now-2"
    ends.send(b"wait-3", b"now-4")
    assert ends.wire.written == b"wait-1now-2"  # it was the other one's poll


async def test_a_connection_over_which_nothing_goes_is_closed_and_one_in_use_is_not() -> None:
    at = server(connections_max_idle_ms=1000)
    silent, talking, waiting = Ends(at), Ends(at), Ends(at)
    waiting.send(b"wait-1")
    for now_ms in (0, 500, 999):
        talking.send(b"now")
        at.close_silent(now_ms)
    assert not silent.wire.aborted
    at.close_silent(1000)
    assert (silent.wire.aborted, talking.wire.aborted, waiting.wire.aborted) == (True, False, False)
    at.close_silent(2000)
    assert (talking.wire.aborted, waiting.wire.aborted) == (True, False)
    waiting.answer(b"wait-1")
    at.close_silent(3000)
    assert waiting.wire.aborted


async def test_a_client_that_takes_its_answer_slowly_is_not_idle() -> None:
    at = server(connections_max_idle_ms=1000)
    slow = Ends(at)
    for now_ms, left in ((0, 5000), (999, 5000), (1000, 4000), (1999, 4000)):
        slow.wire.untaken = left
        at.close_silent(now_ms)
        assert not slow.wire.aborted
    at.close_silent(2000)
    assert slow.wire.aborted


async def test_minus_one_keeps_silent_connections() -> None:
    at = server(connections_max_idle_ms=-1)
    silent = Ends(at)
    for now_ms in (0, 10**9, 10**12):
        at.close_silent(now_ms)
    assert not silent.wire.aborted
