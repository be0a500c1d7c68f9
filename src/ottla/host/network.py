"""Connections, as asyncio transports and protocols: the real ones come from the loop, the simulated ones from the simulator."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


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


class _RealListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self._port = int(server.sockets[0].getsockname()[1])  # kept, because a closed server has no sockets to ask

    @property
    def port(self) -> int:
        return self._port

    async def accept(self) -> None:
        await self._server.start_serving()

    async def close(self) -> None:
        self._server.close()


class RealNetwork:
    async def listen(
        self, host: str, port: int, factory: ProtocolFactory, tls: ssl.SSLContext | None = None, *, accepting: bool = True
    ) -> Listener:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(factory, host or None, port, ssl=tls, backlog=1024, start_serving=accepting)
        return _RealListener(server)

    async def connect(self, host: str, port: int, factory: ProtocolFactory, tls: ssl.SSLContext | None = None) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(factory, host, port, ssl=tls, server_hostname=host if tls else None)
        except socket.gaierror as error:
            raise NameNotFound(str(error)) from None
