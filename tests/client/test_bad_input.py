"""Every client, pointed at the wrong thing: a clear typed error at once or at the documented time-out, never a hang."""

from __future__ import annotations

import asyncio

import pytest

from ottla import Admin, Consumer, Producer
from ottla.client.errors import (
    ConnectionRefused,
    ConnectTimedOut,
    NetworkError,
    NoBrokerAvailable,
    NotKafka,
    RequestTimedOut,
    TlsFailed,
    UnknownHost,
)
from tests.client.peers import raw_peer

CLIENTS = [Admin, Producer, Consumer]


async def web_server(reader, writer):
    await reader.readline()
    writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


async def tls_server(reader, writer):
    await reader.read(5)
    writer.write(b"\x15\x03\x03\x00\x02\x02\x0a")


async def silence(reader, writer):
    await reader.read()


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("server", "error"), [(web_server, NotKafka), (tls_server, TlsFailed), (silence, (ConnectTimedOut, RequestTimedOut))]
)
async def test_wrong_port_is_named(client, server, error):
    async with raw_peer(server) as port:
        with pytest.raises(error, match=f"127.0.0.1:{port}"):
            async with asyncio.timeout(5), client(bootstrap_servers=f"127.0.0.1:{port}", socket_connection_setup_timeout_ms=200):
                pass


@pytest.mark.parametrize("client", CLIENTS)
async def test_no_broker_there_is_told_at_once(client):
    async with raw_peer(silence) as port:
        pass
    with pytest.raises(ConnectionRefused, match="is the broker running"):
        async with asyncio.timeout(5), client(bootstrap_servers=f"127.0.0.1:{port}"):
            pass
    with pytest.raises(UnknownHost):
        async with asyncio.timeout(5), client(bootstrap_servers="nosuch.invalid:9092"):
            pass


async def test_every_bootstrap_server_is_tried_and_each_reason_given():
    async with raw_peer(web_server) as web, raw_peer(silence) as gone:
        pass
    async with raw_peer(web_server) as web:
        with pytest.raises(NoBrokerAvailable) as caught:
            async with asyncio.timeout(5), Admin(bootstrap_servers=f"127.0.0.1:{web},127.0.0.1:{gone}"):
                pass
    assert {type(cause) for cause in caught.value.causes.values()} == {NotKafka, ConnectionRefused}
    assert isinstance(caught.value, NetworkError)


async def test_one_good_bootstrap_server_is_enough(bootstrap):
    async with raw_peer(silence) as gone:
        pass
    async with Admin(bootstrap_servers=[f"127.0.0.1:{gone}", bootstrap]) as admin:
        assert (await admin.describe_cluster()).brokers
