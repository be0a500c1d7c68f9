"""Who is on the same machine is reached by a unix socket, and nobody can tell but by its speed."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ottla.host import network
from ottla.host.network import OFF, Listener, RealNetwork, peer_host

HOST = "127.0.0.1"
NOBODY = 65534
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract unix sockets are Linux's")


class End(asyncio.Protocol):
    def __init__(self) -> None:
        self.made: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.set_result(transport)


class Meeting:
    """A listener, and both ends of one connection to it."""

    def __init__(self, listening: RealNetwork, connecting: RealNetwork, host: str = HOST) -> None:
        self._listening, self._connecting, self._host = listening, connecting, host

    async def __aenter__(self) -> Meeting:
        ends: asyncio.Queue[End] = asyncio.Queue()

        def accept() -> End:
            end = End()
            ends.put_nowait(end)
            return end

        self.listener: Listener = await self._listening.listen(HOST, 0, accept)
        near = End()
        await self._connecting.connect(self._host, self.listener.port, lambda: near)
        self.near, self.far = await near.made, await (await ends.get()).made
        return self

    async def __aexit__(self, *_: object) -> None:
        self.near.close()
        self.far.close()
        await self.listener.close()

    @property
    def family(self) -> int:
        return int(self.near.get_extra_info("socket").family)


@pytest.mark.parametrize("host", [HOST, "localhost"])
async def test_who_listens_on_this_machine_is_reached_by_a_unix_socket(host: str) -> None:
    async with Meeting(RealNetwork(), RealNetwork(), host) as met:
        assert met.family == socket.AF_UNIX
        assert peer_host(met.far) == HOST


@pytest.mark.parametrize("who", ["listener", "client"])
async def test_who_wants_tcp_alone_has_it(who: str) -> None:
    ours = [RealNetwork(unix_sockets=who != each) for each in ("listener", "client")]
    async with Meeting(*ours) as met:
        assert met.family == socket.AF_INET
        assert peer_host(met.far) == HOST


async def test_a_variable_of_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFF, "1")
    async with Meeting(RealNetwork(), RealNetwork()) as met:
        assert met.family == socket.AF_INET


async def test_a_listener_that_lets_nobody_in_yet_refuses_everybody() -> None:
    listener = await RealNetwork().listen(HOST, 0, End, accepting=False)
    with pytest.raises(ConnectionRefusedError):
        await RealNetwork().connect(HOST, listener.port, End)
    await listener.accept()
    await RealNetwork().connect(HOST, listener.port, End)
    await listener.close()


async def test_a_closed_listener_refuses_everybody() -> None:
    listener = await RealNetwork().listen(HOST, 0, End)
    await listener.close()
    with pytest.raises(ConnectionRefusedError):
        await RealNetwork().connect(HOST, listener.port, End)


async def test_another_users_unix_socket_is_not_taken_for_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = await RealNetwork(unix_sockets=False).listen(HOST, 0, End)
    with impostor(f"\0ottla/{HOST}:{listener.port}", monkeypatch):
        end = End()
        await RealNetwork().connect(HOST, listener.port, lambda: end)
        assert (await end.made).get_extra_info("socket").family == socket.AF_INET
    await listener.close()


@contextmanager
def impostor(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody else listens by this name: as root we can be somebody else, otherwise we pretend that we are."""
    if os.geteuid() != 0:
        monkeypatch.setattr(network.os, "geteuid", lambda: NOBODY)
    with socket.socket(socket.AF_UNIX) as listening:
        if os.geteuid() != 0:
            listening.bind(name)
            listening.listen()
            yield
            return
        os.seteuid(NOBODY)
        try:
            listening.bind(name)
            listening.listen()
        finally:
            os.seteuid(0)
        yield
