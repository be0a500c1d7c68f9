"""A large frame over a real socket: how often its reader is woken, and that nothing of it, and nothing behind it, is waited for in vain."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ottla.host.receiving import LEAST, MOST, LowMark

LIMIT_S = 20
PIECE = 16 << 10


class Reader(asyncio.BufferedProtocol):
    """Receives a frame of known size, then whatever comes behind it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._buffer = bytearray(size + 100)
        self.received = self.wakings = 0
        self.whole, self.behind, self.lost = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._mark = LowMark(transport)
        self._mark.expect(self._size)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self.received :]

    def buffer_updated(self, nbytes: int) -> None:
        self.received += nbytes
        self.wakings += 1
        self._mark.expect(max(0, self._size - self.received))
        if self.received >= self._size:
            self.whole.set()
        if self.received > self._size:
            self.behind.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()


@asynccontextmanager
async def joined(size: int) -> AsyncIterator[tuple[socket.socket, Reader]]:
    """A plain socket that sends, and a reader of ours."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        loop = asyncio.get_running_loop()
        transport, reader = await loop.create_connection(lambda: Reader(size), *listening.getsockname())
        with listening.accept()[0] as sender:
            sender.setblocking(False)
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                yield sender, reader
            finally:
                transport.close()


async def send(sender: socket.socket, size: int) -> None:
    """In pieces, between which the reader may run."""
    for start in range(0, size, PIECE):
        await asyncio.get_running_loop().sock_sendall(sender, bytes(min(PIECE, size - start)))
        await asyncio.sleep(0)


async def test_who_reads_a_large_frame_is_woken_for_much_of_it() -> None:
    size = 8 << 20
    async with asyncio.timeout(LIMIT_S), joined(size) as (sender, reader):
        await send(sender, size)
        await reader.whole.wait()
        assert reader.wakings <= 4 * size // MOST, "each time for an eighth of a megabyte at least"


async def test_the_last_bytes_and_what_follows_are_not_waited_for() -> None:
    for size in (LEAST + 1, MOST - 1, MOST + LEAST + 7, 3 * MOST):
        async with asyncio.timeout(LIMIT_S), joined(size) as (sender, reader):
            await send(sender, size)
            await reader.whole.wait()
            await send(sender, 1)
            await reader.behind.wait()
            assert reader.received == size + 1


async def test_a_peer_that_goes_away_in_the_middle_is_missed_at_once() -> None:
    async with asyncio.timeout(LIMIT_S), joined(MOST) as (sender, reader):
        await send(sender, LEAST)
        sender.close()
        await reader.lost.wait()
        assert reader.received == LEAST


async def test_where_there_is_no_such_mark_nothing_happens() -> None:
    here, there = socket.socketpair()
    with there:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=here)
        mark = LowMark(transport)
        mark.expect(MOST)
        assert here.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        transport.close()
