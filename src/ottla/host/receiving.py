"""Receiving: how much must have arrived before the loop is woken for it.

The kernel wakes who reads a socket for every few packets: for an answer of 4 MB some thirty times, and each time costs the sender
and the reader more than the copying of what came. Who knows that a large frame has begun says how much of it is missing, and is
woken for half megabytes. It stays a hint: the kernel wakes earlier when it has no room for as much, or when the peer is gone.
"""

from __future__ import annotations

import asyncio
import socket
import sys

LEAST = 1 << 16  # bytes; for less it is not worth the calls
MOST = 1 << 19  # with four times as much, sender and reader no longer work side by side
_TCP = (socket.AF_INET, socket.AF_INET6)


class LowMark:
    """Of one connection. TCP without TLS has one, on Linux; elsewhere nothing happens."""

    __slots__ = ("_size", "_socket")

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        connected = transport.get_extra_info("socket") if sys.platform == "linux" else None
        has_one = connected is not None and connected.family in _TCP and transport.get_extra_info("sslcontext") is None
        self._socket = connected if has_one else None
        self._size = 1

    def expect(self, missing: int) -> None:
        """So many bytes of a frame are missing; 0: none has begun."""
        size = min(missing, MOST) if missing >= LEAST else 1
        if size != self._size and self._socket is not None:
            self._size = size
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
