"""A network door that fails on purpose: connections cut in the middle of a frame, requests that never arrive, slow answers.

It stands where the client's real network would, so the client and its broker are the real ones. From a seed, as far as the
order of events on real sockets allows.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Iterable
from typing import Any

from ottla.client.cluster import real_world
from ottla.host import World
from ottla.host.network import Listener, Network, ProtocolFactory, RealNetwork
from tests.feeding import feed


class Chaos(Network):
    def __init__(self, seed: int, *, cut_read: float = 0.0, cut_write: float = 0.0, delay_ms: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.cut_read = cut_read
        self.cut_write = cut_write
        self.delay_ms = delay_ms
        self.cuts = 0
        self.connections: set[_Tap] = set()
        self._real = RealNetwork()

    async def listen(
        self, host: str, port: int, factory: ProtocolFactory, tls: ssl.SSLContext | None = None, *, accepting: bool = True
    ) -> Listener:
        return await self._real.listen(host, port, factory, tls, accepting=accepting)

    async def connect(self, host: str, port: int, factory: ProtocolFactory, tls: ssl.SSLContext | None = None) -> None:
        await self._real.connect(host, port, lambda: _Tap(self, factory()), tls)

    def cut_all(self) -> None:
        for tap in list(self.connections):
            tap.cut()

    def calm(self) -> None:
        """From now on the network is a good one."""
        self.cut_read = self.cut_write = self.delay_ms = 0.0

    def world(self) -> World:
        real = real_world()
        return World(real.clock, real.random, self, real.disk, real.workers)


class _Tap(asyncio.Protocol):
    """Between a transport and the client's protocol."""

    def __init__(self, chaos: Chaos, inner: Any) -> None:
        self._chaos = chaos
        self._inner = inner
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._chaos.connections.add(self)
        self._inner.connection_made(_Writer(self, transport))

    def data_received(self, data: bytes) -> None:
        chaos = self._chaos
        if chaos.random.random() < chaos.cut_read:
            feed(self._inner, data[: chaos.random.randrange(len(data))])
            self.cut()
        elif chaos.delay_ms:
            loop = asyncio.get_running_loop()
            loop.call_later(chaos.delay_ms / 1000, self._deliver, data)
        else:
            feed(self._inner, data)

    def _deliver(self, data: bytes) -> None:
        if self in self._chaos.connections:
            feed(self._inner, data)

    def write(self, data: bytes) -> None:
        chaos = self._chaos
        if chaos.random.random() < chaos.cut_write:
            self._transport.write(data[: chaos.random.randrange(len(data) + 1)])
            self.cut(gently=True)
        else:
            self._transport.write(data)

    def cut(self, *, gently: bool = False) -> None:
        self._chaos.cuts += 1
        self._chaos.connections.discard(self)
        if gently:
            self._transport.close()
        else:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._chaos.connections.discard(self)
        self._inner.connection_lost(error)


class _Writer(asyncio.Transport):
    def __init__(self, tap: _Tap, transport: Any) -> None:
        super().__init__()
        self._tap = tap
        self._transport = transport

    def write(self, data: Any) -> None:
        self._tap.write(bytes(data))

    def writelines(self, parts: Iterable[Any]) -> None:
        self._tap.write(b"".join(parts))

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        closing: bool = self._transport.is_closing()
        return closing
