"""Connections to other nodes, made when they are first needed and made again when they are lost."""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.client.connection import Connection, ConnectionOptions, connect
from ottla.client.errors import ConnectionLost, ConnectionRefused, NetworkError
from ottla.host.network import Network
from ottla.protocol.schema import Message

SETUP_TIMEOUT_MS = 2_000
PROBE_LIMIT_MS = 2_000
PROBE_AGAIN_MS = 20
MAX_PEERS = 1_000


class Peers:
    """One connection per address. Requests over it are answered in order, so a slow one delays those behind it: whoever sends
    long polls keeps `Peers` of its own."""

    def __init__(self, network: Network, client_id: str) -> None:
        self._network = network
        self._client_id = client_id
        self._connections: dict[tuple[str, int], Connection] = {}
        self._connecting: dict[tuple[str, int], asyncio.Task[Connection]] = {}

    async def request(self, host: str, port: int, request: Message, *, version: int | None = None, timeout_ms: float) -> Any:
        """The answer. Raises NetworkError: no connection, a lost one, or no answer in time."""
        connection = await self._connection(host, port)
        if version is None:
            version = connection.version_of(type(request))
        return await connection.request(request, version=version, timeout_ms=timeout_ms)

    async def _connection(self, host: str, port: int) -> Connection:
        address = (host, port)
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        task = self._connecting.get(address)
        if task is None:
            assert len(self._connecting) < MAX_PEERS
            options = ConnectionOptions(client_id=self._client_id, setup_timeout_ms=SETUP_TIMEOUT_MS)
            task = asyncio.get_running_loop().create_task(connect(self._network, host, port, options))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connected(address, done))
        connection = self._connections[address] = await asyncio.shield(task)
        return connection

    def disconnect(self) -> None:
        """Requests under way fail with a NetworkError now; the next ones connect again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connected(self, address: tuple[str, int], done: asyncio.Task[Connection]) -> None:
        self._connecting.pop(address, None)
        if not done.cancelled():
            done.exception()  # those who waited may have given up; that is not worth a complaint

    def close(self) -> None:
        self.disconnect()
        for task in self._connecting.values():
            task.cancel()


async def is_gone(network: Network, host: str, port: int, *, limit_ms: float = PROBE_LIMIT_MS) -> bool:
    """Whether nobody listens there: the port itself says no. Silence, or any other trouble, is no proof.

    A connection that is made and lost at once is looked into again: the kernel closes the files of a killed process one by one,
    and its port may be the last of them.
    """
    options = ConnectionOptions(setup_timeout_ms=min(SETUP_TIMEOUT_MS, limit_ms))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_ms / 1000
    while loop.time() < deadline:
        try:
            connection = await connect(network, host, port, options)
        except ConnectionRefused:
            return True
        except ConnectionLost:
            await asyncio.sleep(PROBE_AGAIN_MS / 1000)
        except NetworkError:
            return False
        else:
            connection.close()
            return False
    return False
