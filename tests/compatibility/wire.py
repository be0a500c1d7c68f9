"""One blocking connection that speaks any API in any version with our own codec: what the judges hold both systems against.

It also sends raw bytes, so that it can say what no client would.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Self

from ottla.embedded.properties import free_ports
from ottla.protocol.apis import APIS
from ottla.protocol.codec import decode
from ottla.protocol.framing import API_VERSIONS_KEY, request_frame, response_body_start
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.schema import Message

TIMEOUT_S = 30.0


class Closed(Exception):
    """The peer closed the connection instead of answering."""


class Wire:
    def __init__(self, address: tuple[str, int], *, client_id: str | None = "judge", timeout_s: float = TIMEOUT_S) -> None:
        self.socket = socket.create_connection(address, timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client_id = client_id
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def ask(self, request: Message, version: int) -> Any:
        """Send a request and read its response, as our declaration of it."""
        self.tell(request, version)
        return self.read_response(request.TYPE_KEY, version)

    def tell(self, request: Message, version: int) -> int:
        self._correlation_id += 1
        parts = request_frame(request, version, self._correlation_id, self.client_id)
        self.send_raw(b"".join(bytes(part) for part in parts))
        return self._correlation_id

    def send_raw(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def read_response(self, api_key: int, version: int) -> Any:
        frame = self.read_frame()
        got = struct.unpack_from(">i", frame)[0]
        assert got == self._correlation_id, f"answer {got} to request {self._correlation_id}"
        response = APIS[api_key].response
        start = response_body_start(frame, version in response.FLEXIBLE and api_key != API_VERSIONS_KEY)
        return decode(response, version, frame, start)

    def read_frame(self) -> bytes:
        return self.read_exactly(struct.unpack(">i", self.read_exactly(4))[0])

    def read_exactly(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self.socket.recv(min(size, 1 << 20))
            except ConnectionResetError:
                raise Closed from None
            if not part:
                raise Closed
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def ask(address: tuple[str, int], request: Message, version: int) -> Any:
    """One request on a connection of its own."""
    with Wire(address) as wire:
        return wire.ask(request, version)


def address_of(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    return host, int(port)


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def wait_until(
    what: str, condition: Callable[[], Any], *, limit_s: float = 60.0, alive: Callable[[], bool] = lambda: True
) -> Any:
    """Poll the outside world for something that has no event to wait for. Returns what the condition gave."""
    deadline = time.monotonic() + limit_s
    while True:
        if value := condition():
            return value
        if not alive():
            raise AssertionError(f"the process ended while waiting for {what}")
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {limit_s} s")
        time.sleep(0.02)


def serves(address: tuple[str, int], brokers: int = 1) -> bool:
    """Whether a node answers Metadata with so many brokers and a controller."""
    try:
        with Wire(address, timeout_s=5) as wire:
            answer = wire.ask(MetadataRequest(topics=[]), 4)
        return len(answer.brokers) >= brokers and answer.controller_id >= 0
    except (OSError, Closed):
        return False
