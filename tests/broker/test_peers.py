"""Telling a broker that is gone from one that is silent."""

from __future__ import annotations

import asyncio
import socket

from ottla.broker.peers import is_gone
from ottla.host.network import RealNetwork
from tests.compatibility.wire import free_port


def listening() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", free_port()))
    made.listen()
    made.setblocking(False)
    return made


async def gone(listener: socket.socket, limit_ms: float = 5_000) -> bool:
    return await is_gone(RealNetwork(), *listener.getsockname(), limit_ms=limit_ms)


async def test_a_port_that_refuses_is_gone() -> None:
    listener = listening()
    address = listener.getsockname()
    listener.close()
    assert await is_gone(RealNetwork(), *address, limit_ms=5_000)


async def test_a_process_that_is_being_killed_is_gone_although_its_port_took_one_more_connection() -> None:
    """The kernel closes the files of a killed process one by one: the port may outlive the connection that gave it away."""
    listener = listening()
    asked = asyncio.create_task(gone(listener))
    taken, _ = await asyncio.get_running_loop().sock_accept(listener)
    taken.close()
    listener.close()
    assert await asked


async def test_a_broker_that_takes_connections_and_says_nothing_is_not_gone() -> None:
    listener = listening()
    assert not await gone(listener, limit_ms=100)
    listener.close()
