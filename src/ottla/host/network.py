"""Connections, as asyncio transports and protocols: the real ones come from the loop, the simulated ones from the simulator.

A broker that listens without TLS on Linux can also be reached by a unix socket, whose name is its address: of what two brokers of one
machine say to each other over TCP, most of the time is the kernel's, which makes packets of it (a small message takes its sender
12 µs instead of 1.5). A broker of the same machine takes it, if it belongs to the same user, or to root: nobody else may
stand in for an address. The names are abstract ones: they belong to a network namespace, as addresses do, and go with the process.
Clients use TCP, which holds more than the 200 kB that wait in a unix socket: they mostly want much at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from typing import Protocol

ProtocolFactory = Callable[[], asyncio.BaseProtocol]
BACKLOG = 1024
OFF = "OTTLA_TCP_ONLY"  # an environment variable, for who wants to see all bytes on the network
_NAMES = "\0ottla/"  # how the unix sockets of this module begin
_OWNER = struct.Struct("iii")  # process, user, group
_LOCALHOST = ("127.0.0.1", "::1")


class NameNotFound(OSError):
    """The host has no address: a misspelt name, or a resolver that does not answer."""


class Listener(Protocol):
    @property
    def port(self) -> int: ...

    async def accept(self) -> None:
        """Let connections in, if they were kept out so far."""

    async def close(self) -> None:
        """Stop accepting; connections already made are their owner's to close."""


class Network(Protocol):
    async def listen(
        self, host: str, port: int, factory: ProtocolFactory, tls: ssl.SSLContext | None = None, *, accepting: bool = True
    ) -> Listener:
        """Port 0 takes any free one. Raises OSError when the address is taken.

        Without `accepting` the address is taken, and everybody is refused until `Listener.accept`."""

    async def connect(self, host: str, port: int, factory: ProtocolFactory, tls: ssl.SSLContext | None = None) -> None:
        """Returns once `connection_made` was called. Raises OSError when nobody answers, NameNotFound when the host has no address."""


def peer_host(transport: asyncio.BaseTransport) -> str:
    """The address of who is at the other end; over a unix socket, who is on this machine has the one that it asked for."""
    peer = transport.get_extra_info("peername")
    if isinstance(peer, tuple):
        return str(peer[0])
    connected = transport.get_extra_info("socket")
    name = connected.getsockname() if connected is not None and connected.family == _UNIX else b""
    named = os.fsdecode(name)
    return named.removeprefix(_NAMES).rpartition(":")[0] if named.startswith(_NAMES) else ""


class _RealListener:
    def __init__(self, server: asyncio.Server, factory: ProtocolFactory, has_unix_sockets: bool) -> None:
        self._server = server
        self._factory = factory
        self._addresses = [listening.getsockname()[:2] for listening in server.sockets] if has_unix_sockets else []
        self._nearby: list[asyncio.Server] = []
        self._port = int(server.sockets[0].getsockname()[1])  # kept, because a closed server has no sockets to ask

    @property
    def port(self) -> int:
        return self._port

    async def accept(self) -> None:
        await self._server.start_serving()
        loop = asyncio.get_running_loop()
        for host, port in self._addresses:
            listening = _listening(host, port)
            if listening is not None:
                self._nearby.append(await loop.create_unix_server(self._factory, sock=listening, backlog=BACKLOG))
        self._addresses = []

    async def close(self) -> None:
        for server in (self._server, *self._nearby):
            server.close()


class RealNetwork:
    """Without `unix_sockets` all goes over TCP, so that both ends of a connection have a port."""

    def __init__(self, *, unix_sockets: bool = True) -> None:
        self._unix_sockets = unix_sockets and sys.platform == "linux" and not os.environ.get(OFF)

    async def listen(
        self, host: str, port: int, factory: ProtocolFactory, tls: ssl.SSLContext | None = None, *, accepting: bool = True
    ) -> Listener:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(factory, host or None, port, ssl=tls, backlog=BACKLOG, start_serving=False)
        listener = _RealListener(server, factory, self._unix_sockets and tls is None)
        if accepting:
            await listener.accept()
        return listener

    async def connect(self, host: str, port: int, factory: ProtocolFactory, tls: ssl.SSLContext | None = None) -> None:
        loop = asyncio.get_running_loop()
        if self._unix_sockets and tls is None:
            connected = _connected(host, port)
            if connected is not None:
                await loop.create_unix_connection(factory, sock=connected)
                return
        try:
            await loop.create_connection(factory, host, port, ssl=tls, server_hostname=host if tls else None)
        except socket.gaierror as error:
            raise NameNotFound(str(error)) from None


# Unix sockets -------------------------------------------------------------------------------------------------------------

_UNIX = getattr(socket, "AF_UNIX", None)


def _name(host: str, port: int) -> str:
    return f"{_NAMES}{host}:{port}"


def _listening(host: str, port: int) -> socket.socket | None:
    """None where the name is taken: then there is TCP alone."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.bind(_name(host, port))
    except OSError:
        made.close()
        return None
    return made


def _connected(host: str, port: int) -> socket.socket | None:
    """To an address of this machine, if ours, or root, listens there by such a name. A name of a host is not looked up for this."""
    for address in _LOCALHOST if host == "localhost" else (host,) if _is_address(host) else ():
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.connect(_name(address, port))
            owner = _OWNER.unpack(made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _OWNER.size))[1]
        except OSError:
            made.close()
            continue
        if owner in (0, os.geteuid()):
            return made
        made.close()
    return None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
