"""The network between the nodes of an embedded cluster, which can be cut.

Each node has its own door; all of them share one `Switchboard`, which knows every connection between two nodes by both its ends.
A cut is silent, as when a cable is pulled: neither end reads any more, what is sent waits in the kernel, new connections get no
answer. When it is mended the waiting bytes arrive, as TCP would send them again. Clients are not cut off: only nodes from nodes.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from dataclasses import dataclass, field
from typing import cast

from ottla.host.network import Listener, Network, ProtocolFactory

# The port of the node that made a connection, and the one it was made to. The first alone is not enough: the kernel gives the same
# one to connections that lead to different places.
Ports = tuple[int, int]
RETRY_S = 0.02  # how often a connection that gets no answer looks whether the cut was mended


@dataclass(eq=False)
class End:
    """One end of a connection between nodes."""

    node: int
    peer: int
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def hold(self) -> None:
        self._soon("pause_reading")

    def release(self) -> None:
        self._soon("resume_reading")

    def _soon(self, method: str) -> None:
        def act() -> None:
            if not self.transport.is_closing():
                getattr(self.transport, method)()

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(act)


@dataclass
class Switchboard:
    """Shared by the threads of all nodes, hence the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    listening: dict[int, int] = field(default_factory=dict)  # port → node
    dialled: dict[Ports, int] = field(default_factory=dict)  # → the node that made the connection
    accepted: dict[Ports, End] = field(default_factory=dict)  # → the end that took it; its peer is -1 until it is known
    cuts: set[frozenset[int]] = field(default_factory=set)
    ends: set[End] = field(default_factory=set)

    def is_cut(self, one: int, other: int) -> bool:
        return frozenset((one, other)) in self.cuts

    def cut(self, one: int, other: int) -> None:
        with self.lock:
            self.cuts.add(frozenset((one, other)))
            held = [end for end in self.ends if {end.node, end.peer} == {one, other}]
        for end in held:
            end.hold()

    def mend(self, one: int, other: int) -> None:
        with self.lock:
            self.cuts.discard(frozenset((one, other)))
            held = [end for end in self.ends if {end.node, end.peer} == {one, other}]
        for end in held:
            end.release()

    def add_dialled(self, end: End, ports: Ports) -> None:
        with self.lock:
            self.dialled[ports] = end.node
            self.ends.add(end)
            taken = self.accepted.get(ports)
            if taken is not None:
                taken.peer = end.node
                self.ends.add(taken)
            cut = self.is_cut(end.node, end.peer)
        if cut:
            end.hold()
            if taken is not None:
                taken.hold()

    def add_accepted(self, end: End, ports: Ports) -> None:
        """A client's connection never gets a peer and is never cut. A node's may be taken before its maker has noted it."""
        with self.lock:
            self.accepted[ports] = end
            end.peer = self.dialled.get(ports, -1)
            cut = end.peer >= 0 and self.is_cut(end.node, end.peer)
            if end.peer >= 0:
                self.ends.add(end)
        if cut:
            end.hold()

    def remove(self, end: End, ports: Ports, was_dialled: bool) -> None:
        with self.lock:
            self.ends.discard(end)
            (self.dialled if was_dialled else self.accepted).pop(ports, None)


class NodeNetwork:
    """The network door of one node."""

    def __init__(self, node: int, switchboard: Switchboard, inner: Network) -> None:
        self._node, self._switchboard, self._inner = node, switchboard, inner
        self._listeners: list[Listener] = []
        self._transports: set[asyncio.Transport] = set()

    async def listen(
        self, host: str, port: int, factory: ProtocolFactory, tls: ssl.SSLContext | None = None, *, accepting: bool = True
    ) -> Listener:
        listener = await self._inner.listen(host, port, lambda: self._watched(factory(), None), tls, accepting=accepting)
        self._switchboard.listening[listener.port] = self._node
        self._listeners.append(listener)
        return listener

    async def connect(self, host: str, port: int, factory: ProtocolFactory, tls: ssl.SSLContext | None = None) -> None:
        peer = self._switchboard.listening.get(port)
        while peer is not None and self._switchboard.is_cut(self._node, peer):  # noqa: ASYNC110 - mended from another thread
            await asyncio.sleep(RETRY_S)
        await self._inner.connect(host, port, lambda: self._watched(factory(), -1 if peer is None else peer), tls)

    async def vanish(self) -> None:
        """As the kernel does for a process that dies: nothing listens any more, every connection is broken."""
        for listener in self._listeners:
            await listener.close()
        for transport in list(self._transports):
            transport.abort()

    def _watched(self, protocol: asyncio.BaseProtocol, peer: int | None) -> asyncio.BaseProtocol:
        """`protocol` itself, with its coming and going noted: a wrapper between it and the transport would cost every byte."""
        made, lost = protocol.connection_made, protocol.connection_lost
        noted: list[tuple[End, Ports]] = []
        board = self._switchboard

        def connection_made(made_with: asyncio.BaseTransport) -> None:
            transport = cast(asyncio.Transport, made_with)  # uvloop's own is no subclass
            made(transport)
            end = End(self._node, -1 if peer is None else peer, asyncio.get_running_loop(), transport)
            names = ("peername", "sockname") if peer is None else ("sockname", "peername")
            ports = (_port(transport, names[0]), _port(transport, names[1]))
            noted.append((end, ports))
            self._transports.add(transport)
            (board.add_accepted if peer is None else board.add_dialled)(end, ports)

        def connection_lost(error: Exception | None) -> None:
            for end, ports in noted:
                board.remove(end, ports, peer is not None)
                self._transports.discard(end.transport)
            lost(error)

        protocol.connection_made = connection_made  # type: ignore[method-assign,assignment]
        protocol.connection_lost = connection_lost  # type: ignore[method-assign,assignment]
        return protocol


def _port(transport: asyncio.Transport, name: str) -> int:
    address = transport.get_extra_info(name)
    return int(address[1]) if address else -1
