"""Parts of replies over real sockets: order, files, a slow reader, a reader that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.host.disk import FileRange, RealDisk
from ottla.host.network import OFF, NameNotFound, RealNetwork
from ottla.host.sending import READ_INSTEAD_OF_SENDFILE, Part, Sender, SocketSender, TransportSender, sender_for

WAIT_SECONDS = 20
LARGE = 8 << 20  # more than any socket buffer takes at once


class Writer(asyncio.Protocol):
    """The end that sends."""

    def __init__(self, make: Callable[[asyncio.Transport, Callable[[], None]], Sender]) -> None:
        loop = asyncio.get_running_loop()
        self._make = make
        self.ready: asyncio.Future[Writer] = loop.create_future()
        self.drained = asyncio.Event()
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.sender = self._make(transport, self.drained.set)
        self.ready.set_result(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.sender.close()
        self.lost.set()


class Reader(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = bytearray()
        self.expected = 0
        self.complete = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if len(self.received) >= self.expected > 0:
            self.complete.set()


@pytest.fixture(params=["unix socket", "TCP"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By which both ends are joined."""
    if request.param == "TCP":
        monkeypatch.setenv(OFF, "1")


async def connected(make: Any) -> tuple[Writer, Reader]:
    writer, reader = Writer(make), Reader()
    listener = await RealNetwork().listen("127.0.0.1", 0, lambda: writer)
    await RealNetwork().connect("127.0.0.1", listener.port, lambda: reader)
    await asyncio.wait_for(writer.ready, WAIT_SECONDS)
    await listener.close()
    return writer, reader


def parts_of(folder: Path) -> tuple[list[Part], bytes]:
    file = RealDisk().open(f"{folder}/log", create=True)
    content = bytes(range(256)) * (LARGE // 256)
    file.append(content)
    small = READ_INSTEAD_OF_SENDFILE // 2
    ranges = [(0, small), (10, LARGE - 10), (LARGE - small, small), (5, 3 * READ_INSTEAD_OF_SENDFILE)]
    parts: list[Part] = []
    expected = b""
    for index, (position, size) in enumerate(ranges):
        head = b"head %d;" % index
        parts += [head, memoryview(b"more;"), FileRange(file, position, size)]
        expected += head + b"more;" + content[position : position + size]
    return [*parts, bytearray(b"tail")], expected + b"tail"


@pytest.mark.parametrize("make", [sender_for, lambda transport, _: TransportSender(transport)], ids=["sendfile", "transport"])
async def test_buffers_and_file_ranges_arrive_in_order(make: Any, tmp_path: Path) -> None:
    parts, expected = parts_of(tmp_path)
    writer, reader = await connected(make)
    reader.expected = 2 * len(expected)
    writer.sender.send(parts)
    writer.sender.send(parts)
    assert writer.sender.queued > 0
    await asyncio.wait_for(reader.complete.wait(), WAIT_SECONDS)
    assert reader.received == expected * 2
    writer.transport.close()


async def test_a_reader_that_stops_is_waited_for_and_the_owner_told_when_it_has_everything() -> None:
    writer, reader = await connected(sender_for)
    assert isinstance(writer.sender, SocketSender)
    reader.transport.pause_reading()
    message = b"x" * LARGE
    reader.expected = 2 * LARGE
    writer.sender.send([message])
    queued = writer.sender.queued
    assert 0 < queued < LARGE
    writer.sender.send([message])
    assert writer.sender.queued == queued + LARGE
    assert not writer.drained.is_set()
    reader.transport.resume_reading()
    await asyncio.wait_for(reader.complete.wait(), WAIT_SECONDS)
    await asyncio.wait_for(writer.drained.wait(), WAIT_SECONDS)
    assert writer.sender.queued == 0
    writer.transport.close()


async def test_a_reader_that_goes_away_ends_the_sending() -> None:
    writer, reader = await connected(sender_for)
    reader.transport.pause_reading()
    writer.sender.send([b"x" * LARGE])
    reader.transport.abort()
    await asyncio.wait_for(writer.lost.wait(), WAIT_SECONDS)
    assert writer.sender.queued == 0


async def test_a_name_without_an_address_and_a_port_without_a_listener_are_told_apart() -> None:
    with pytest.raises(NameNotFound):
        await RealNetwork().connect("no-such-host.invalid", 1, Reader)
    listener = await RealNetwork().listen("127.0.0.1", 0, Reader)
    with pytest.raises(OSError, match="in use"):
        await RealNetwork().listen("127.0.0.1", listener.port, Reader)
    await listener.close()
    with pytest.raises(ConnectionRefusedError):
        await RealNetwork().connect("127.0.0.1", listener.port, Reader)
