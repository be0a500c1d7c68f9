"""Whose connection is whose in an embedded cluster."""

from __future__ import annotations

import asyncio
import socket
import ssl

from ottla.embedded.network import NodeNetwork, Switchboard
from ottla.embedded.properties import HOST, free_ports
from ottla.host.network import ProtocolFactory, RealNetwork

LIMIT_S = 5.0


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def connected(local: int, port: int) -> socket.socket:
    """As the kernel may choose it for any connection: a local port that another one has as well, to somewhere else."""
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((HOST, local))
    await asyncio.get_running_loop().sock_connect(made, (HOST, port))
    return made


class From(RealNetwork):
    """Connects from one local port."""

    def __init__(self, local: int) -> None:
        super().__init__(unix_sockets=False)
        self._local = local

    async def connect(self, host: str, port: int, factory: ProtocolFactory, tls: ssl.SSLContext | None = None) -> None:
        await asyncio.get_running_loop().create_connection(factory, sock=await connected(self._local, port))


async def test_a_client_is_not_cut_off_because_a_node_has_the_same_port_to_another_node() -> None:
    board = Switchboard()
    local, second, third = free_ports(3)
    nodes = [NodeNetwork(node, board, From(local)) for node in (1, 2, 3)]
    await nodes[1].listen(HOST, second, Echo)
    await nodes[2].listen(HOST, third, Echo)
    await nodes[0].connect(HOST, second, Echo)
    loop = asyncio.get_running_loop()
    with await connected(local, third) as client:
        board.cut(1, 3)
        await loop.sock_sendall(client, b"?")
        async with asyncio.timeout(LIMIT_S):
            assert await loop.sock_recv(client, 1) == b"?"
    for node in nodes:
        await node.vanish()
