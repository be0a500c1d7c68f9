"""Captures frames of foreign clients talking to Apache Kafka 4.3, for `golden.json`.

    python -m tests.protocol.capture tests/protocol/golden.json

A proxy stands between: Kafka advertises the proxy's address, so every connection of every client passes through it. Of each
(client, API, version, direction) it keeps the two smallest frames that differ in length, so that the file stays small.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from ottla.protocol.apis import APIS
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.wire import free_port

KEPT = 2
LARGEST_FRAME = 6_000  # bytes; of frames that are all larger the smallest is kept


class Capture:
    """The proxy. `client` is the name under which frames are filed at the moment."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.client = ""
        self.frames: dict[tuple[str, int, int, str], dict[int, bytes]] = defaultdict(dict)

    async def serve(self, port: int) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", port)
        async with server:
            await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        asked: dict[int, tuple[int, int]] = {}
        client = self.client
        await asyncio.gather(
            self._pump(reader, up_writer, lambda frame: self._request(client, asked, frame)),
            self._pump(up_reader, writer, lambda frame: self._response(client, asked, frame)),
        )

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, see: Callable[[bytes], None]) -> None:
        try:
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(struct.unpack(">i", size)[0])
                see(frame)
                writer.write(size + frame)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _request(self, client: str, asked: dict[int, tuple[int, int]], frame: bytes) -> None:
        api_key, version, correlation_id = struct.unpack_from(">hhi", frame)
        asked[correlation_id] = api_key, version
        self._keep(client, api_key, version, "request", frame)

    def _response(self, client: str, asked: dict[int, tuple[int, int]], frame: bytes) -> None:
        api_key, version = asked.pop(struct.unpack_from(">i", frame)[0])
        if api_key == 18 and struct.unpack_from(">h", frame, 4)[0] == 35:
            version = 0  # UNSUPPORTED_VERSION is said in the oldest form
        self._keep(client, api_key, version, "response", frame)

    def _keep(self, client: str, api_key: int, version: int, direction: str, frame: bytes) -> None:
        kept = self.frames[client, api_key, version, direction]
        kept.setdefault(len(frame), frame)
        while len(kept) > KEPT or (len(kept) > 1 and max(kept) > LARGEST_FRAME):
            del kept[max(kept)]

    def rows(self) -> list[dict[str, object]]:
        return [
            {"client": client, "api": api_key, "version": version, "direction": direction, "frame": frame.hex()}
            for (client, api_key, version, direction), kept in sorted(self.frames.items())
            if api_key in APIS
            for _, frame in sorted(kept.items())
        ]


def main(path: Path) -> None:
    from tests.protocol.capture_clients import CLIENTS

    proxy_port = free_port()
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy_port}"}
    settings = advertised | {"group.consumer.heartbeat.interval.ms": "5000", "log.cleaner.dedupe.buffer.size": "8388608"}
    with tempfile.TemporaryDirectory() as folder, KafkaPeer(Path(folder), settings=settings) as kafka:
        capture = Capture(kafka.ports[0])
        Thread(target=lambda: asyncio.run(capture.serve(proxy_port)), daemon=True).start()
        for name, run in CLIENTS.items():
            capture.client = name
            run(f"127.0.0.1:{proxy_port}")
            print(f"{name}: {sum(1 for key in capture.frames if key[0] == name)} kinds of frames")
        rows = capture.rows()
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f"[\n{lines}\n]\n")
    print(f"{len(rows)} frames, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
