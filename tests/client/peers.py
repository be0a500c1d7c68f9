"""Small peers over real sockets that answer with exactly the bytes a test gives them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ottla.protocol.apis import APIS
from ottla.protocol.codec import read_from
from ottla.protocol.framing import read_request_head, response_frame, skip_tags
from ottla.protocol.messages.versions import ApiVersionsResponse
from ottla.protocol.schema import Message

Answer = Callable[[int, int, Message], Message | bytes | None]


def versions_answer(**overrides: tuple[int, int]) -> ApiVersionsResponse:
    """An ApiVersions answer with everything we declare, except what the test narrows."""
    rows = {api.name: (api.versions.first, api.versions.last) for api in APIS.values()} | overrides
    keys = {api.name: api.key for api in APIS.values()}
    return ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=keys[name], min_version=low, max_version=high)
            for name, (low, high) in rows.items()
        ]
    )


@asynccontextmanager
async def raw_peer(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]) -> AsyncIterator[int]:
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            await serve(reader, writer)  # type: ignore[misc]
        except (asyncio.IncompleteReadError, ConnectionError):
            pass

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()


@asynccontextmanager
async def kafka_peer(answer: Answer) -> AsyncIterator[int]:
    """`answer(key, version, request)` gives a message (sent with the right header), raw bytes, or None for silence."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
            head = read_request_head(frame)
            request_class = APIS[head.api_key].request
            known = head.api_version in request_class.VERSIONS
            position = skip_tags(frame, head.position) if head.api_version in request_class.FLEXIBLE else head.position
            request = read_from(request_class, head.api_version, frame, position)[0] if known else None
            reply = answer(head.api_key, head.api_version, request)
            if isinstance(reply, tuple):  # a message in another version than was asked
                reply, version = reply
            else:
                version = head.api_version
            if isinstance(reply, Message):
                writer.writelines(response_frame(reply, version, head.correlation_id))
            elif reply is not None:
                writer.write(reply)
                if reply.endswith(b"CUT"):
                    writer.close()
            await writer.drain()

    async with raw_peer(serve) as port:
        yield port
