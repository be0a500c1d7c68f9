"""Bytes into a protocol that says itself where they should go."""

from __future__ import annotations

import asyncio


def feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """As a transport does that received them."""
    while data:
        room = memoryview(protocol.get_buffer(len(data)))
        size = min(len(room), len(data))
        room[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]
