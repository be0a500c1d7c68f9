"""Buffers and file ranges arrive in order over a real socket that takes only a little at a time."""

from __future__ import annotations

import asyncio
import pathlib
import socket

import pytest

from ottla.host.disk import FileRange, RealDisk
from ottla.host.sending import SocketSender


class Peer(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        end.setblocking(False)
    return ours, theirs


async def _receive(end: socket.socket, size: int) -> bytes:
    loop, received = asyncio.get_running_loop(), b""
    while len(received) < size:
        received += await loop.sock_recv(end, 65536)
    return received


async def test_parts_and_file_ranges_arrive_whole_and_in_order(
    pair: tuple[socket.socket, socket.socket], tmp_path: pathlib.Path
) -> None:
    ours, theirs = pair
    content = bytes(index % 251 for index in range(300_000))
    file = RealDisk().open(str(tmp_path / "segment"), create=True)
    file.append(content)
    drained = asyncio.Event()
    sender = SocketSender(ours.fileno(), Peer(), drained.set)
    sender.send([b"head", FileRange(file, 1000, 200_000), b"small", FileRange(file, 5, 10), b"tail"])
    sender.send([b"next"])
    expected = b"head" + content[1000:201_000] + b"small" + content[5:15] + b"tailnext"
    assert await _receive(theirs, len(expected)) == expected
    await drained.wait()
    assert sender.queued == 0
    sender.close()


async def test_a_deleted_file_is_still_sent(pair: tuple[socket.socket, socket.socket], tmp_path: pathlib.Path) -> None:
    ours, theirs = pair
    disk, path = RealDisk(), str(tmp_path / "segment")
    file = disk.open(path, create=True)
    file.append(b"x" * 100_000)
    part = FileRange(file, 0, 100_000)
    del file
    disk.remove(path)
    sender = SocketSender(ours.fileno(), Peer(), lambda: None)
    sender.send([part])
    assert await _receive(theirs, 100_000) == b"x" * 100_000
    sender.close()


async def test_a_peer_that_is_gone_aborts_the_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    peer = Peer()
    sender = SocketSender(ours.fileno(), peer, lambda: None)
    sender.send([b"anyone?"])
    sender.send([b"anyone?"])
    assert peer.aborted
    assert sender.queued == 0
