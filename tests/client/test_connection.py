from __future__ import annotations

import asyncio
import struct

import pytest

from ottla.client.connection import Connection, ConnectionOptions, connect
from ottla.client.errors import (
    ConnectionLost,
    ConnectionRefused,
    ConnectTimedOut,
    NetworkError,
    NotKafka,
    RequestTimedOut,
    TlsFailed,
    UnknownHost,
    VersionUnsupported,
)
from ottla.host.network import RealNetwork
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.versions import ApiVersionsResponse
from tests.client.peers import kafka_peer, raw_peer, versions_answer

QUICK = ConnectionOptions(setup_timeout_ms=200, request_timeout_ms=200)


async def open_to(port: int, options: ConnectionOptions = QUICK) -> Connection:
    return await connect(RealNetwork(), "127.0.0.1", port, options)


def answers(key, version, request):
    if key == 18:
        return versions_answer()
    return MetadataResponse(cluster_id=",".join(topic.name for topic in request.topics))


def question(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])


async def test_answers_come_back_to_the_request_that_asked():
    async with kafka_peer(answers) as port:
        connection = await open_to(port)
        replies = await asyncio.gather(*(connection.request(question(str(n))) for n in range(50)))
        assert [reply.cluster_id for reply in replies] == [str(n) for n in range(50)]
        connection.close()


async def test_in_flight_limit_holds_requests_back_and_loses_none():
    most = 0

    async with kafka_peer(answers) as port:
        connection = await open_to(port, ConnectionOptions(max_in_flight=3))

        async def ask(n):
            nonlocal most
            reply = await connection.request(question(str(n)))
            most = max(most, connection.in_flight)
            return reply.cluster_id

        assert await asyncio.gather(*(ask(n) for n in range(20))) == [str(n) for n in range(20)]
        assert most <= 3
        connection.close()


async def test_highest_common_version_is_chosen():
    async with kafka_peer(lambda key, version, request: versions_answer(Metadata=(0, 5), Fetch=(90, 99))) as port:
        connection = await open_to(port)
        assert connection.version_of(MetadataRequest) == 5
        assert connection.version_of(MetadataRequest, at_most=4) == 4
        with pytest.raises(VersionUnsupported, match="FetchRequest"):
            connection.version_of(FetchRequest)
        assert not connection.speaks(FetchRequest)
        connection.close()


async def test_peer_that_does_not_know_our_api_versions_is_asked_again_in_its_own():
    asked = []

    def old(key, version, request):
        asked.append(version)
        if version > 2:
            row = ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2)
            return ApiVersionsResponse(error_code=35, api_keys=[row]), 0
        return versions_answer()

    async with kafka_peer(old) as port:
        connection = await open_to(port)
        assert asked == [4, 2]
        connection.close()


async def test_nothing_listening_is_refused_by_name():
    async with raw_peer(lambda reader, writer: asyncio.sleep(0)) as port:
        pass
    with pytest.raises(ConnectionRefused, match=f"127.0.0.1:{port}"):
        await open_to(port)


async def test_unknown_host_is_named():
    with pytest.raises(UnknownHost, match=r"nosuch\.invalid"):
        await connect(RealNetwork(), "nosuch.invalid", 9092, QUICK)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", NotKafka),
        (b"<!DOCTYPE HTML><html>", NotKafka),
        (b"SSH-2.0-OpenSSH_9.6\r\n", NotKafka),
        (b"\x15\x03\x03\x00\x02\x02\x46", TlsFailed),
    ],
)
async def test_peer_that_is_not_kafka_is_recognised(reply, error):
    async def serve(reader, writer):
        await reader.read(10)
        writer.write(reply)

    async with raw_peer(serve) as port:
        with pytest.raises(error):
            await open_to(port)


async def test_line_reading_web_server_answers_at_once():
    """A server that waits for a whole line gets one: the first correlation id ends it."""

    async def serve(reader, writer):
        await reader.readline()
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with raw_peer(serve) as port:
        with pytest.raises(NotKafka, match="web server"):
            await open_to(port)


async def test_silent_peer_times_out():
    async with raw_peer(lambda reader, writer: reader.read()) as port:
        with pytest.raises((ConnectTimedOut, RequestTimedOut)):
            await open_to(port)


async def test_tls_to_a_plain_listener_is_explained():
    import ssl

    async def serve(reader, writer):
        await reader.read(10)
        writer.close()

    async with raw_peer(serve) as port:
        with pytest.raises(TlsFailed):
            await open_to(port, ConnectionOptions(setup_timeout_ms=500, tls=ssl.create_default_context()))


async def test_connection_cut_mid_frame_fails_every_request_under_way():
    def cut(key, version, request):
        return versions_answer() if key == 18 else struct.pack(">i", 1000) + b"CUT"

    async with kafka_peer(cut) as port:
        connection = await open_to(port)
        outcomes = await asyncio.gather(*(connection.request(question("x")) for _ in range(5)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 5
        assert not connection.is_open
        with pytest.raises(NetworkError):
            connection.send(question("x"))


async def test_slow_request_closes_the_connection():
    async with kafka_peer(lambda key, version, request: versions_answer() if key == 18 else None) as port:
        connection = await open_to(port)
        with pytest.raises(RequestTimedOut, match="MetadataRequest"):
            await connection.request(question("x"), timeout_ms=30)
        assert not connection.is_open


async def test_answer_out_of_line_closes_the_connection():
    def wrong(key, version, request):
        return versions_answer() if key == 18 else struct.pack(">ii", 4, 7)

    async with kafka_peer(wrong) as port:
        connection = await open_to(port)
        with pytest.raises(ConnectionLost, match="next in line"):
            await connection.request(question("x"))


async def test_answer_that_cannot_be_read_closes_the_connection():
    def garbled(key, version, request):
        return versions_answer() if key == 18 else struct.pack(">ii", 8, 0x0D0A0D0B) + b"\x00\xff\xff\xff"

    async with kafka_peer(garbled) as port:
        connection = await open_to(port)
        with pytest.raises(Exception, match="MetadataResponse"):
            await connection.request(question("x"))
        assert not connection.is_open
