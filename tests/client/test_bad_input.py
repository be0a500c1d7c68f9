"""Every client, pointed at the wrong thing: a clear typed error at once or at the documented time-out, never a hang."""

from __future__ import annotations

import asyncio

import pytest

from ottla import Admin, ApiError, Consumer, Producer
from ottla.client.admin import ConfigResource
from ottla.client.admin.base import AdminBase
from ottla.client.admin.types import LATEST
from ottla.client.errors import (
    ClientClosed,
    ConnectionRefused,
    ConnectTimedOut,
    NetworkError,
    NoBrokerAvailable,
    NotKafka,
    PartialFailure,
    RequestTimedOut,
    TlsFailed,
    UnknownHost,
    UnknownPartition,
)
from ottla.model.errors import ErrorCode
from tests.client.peers import raw_peer
from tests.client.waiting import eventually, poll_forever

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


# Questions that a good broker must refuse ------------------------------------------------------------------------------------


async def test_consumer_of_a_topic_that_does_not_exist_is_told_at_the_documented_timeout(consumer, name):
    reader = await consumer(default_api_timeout_ms=300, retry_backoff_ms=20)
    reader.assign([(f"missing-{name}", 0)])
    with pytest.raises(ApiError, match=f"missing-{name} does not exist") as caught:
        await poll_forever(reader)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_subscriber_to_a_topic_that_does_not_exist_is_warned_and_waits_for_it(
    consumer, producer, admin, name, protocol, caplog
):
    reader = await consumer(group_id=name, group_protocol=protocol, metadata_max_age_ms=200)
    reader.subscribe([f"later-{name}"])
    assert await reader.poll(300) == []
    assert f"later-{name} does not exist" in caplog.text
    await admin.create_topic(f"later-{name}", 1)
    await eventually(lambda: admin.latest_offsets([(f"later-{name}", 0)]))
    await (await producer()).send_and_wait(f"later-{name}", b"now it does")
    async with asyncio.timeout(30):
        assert [record.value async for record in _first(reader)] == [b"now it does"]


async def _first(reader):
    async for record in reader:
        yield record
        return


async def test_partition_that_does_not_exist_is_named_with_those_that_do(consumer, topic):
    reader = await consumer()
    reader.assign([(topic, 7)])
    with pytest.raises(UnknownPartition, match=r"3 partitions \(0 to 2\)"):
        await poll_forever(reader)


async def test_admin_is_told_of_what_is_missing(admin, name, topic, monkeypatch):
    monkeypatch.setattr(AdminBase, "_topic_patience_ms", 100.0)
    for question in (
        admin.describe_topic(f"missing-{name}"),
        admin.delete_topic(f"missing-{name}"),
        admin.create_partitions(f"missing-{name}", 3),
        admin.describe_configs([ConfigResource.topic(f"missing-{name}")]),
        admin.earliest_offsets([(f"missing-{name}", 0), (f"missing-{name}", 1)]),
        admin.list_offsets({(topic, 0): LATEST, (f"missing-{name}", 0): LATEST}),
        admin.delete_records({(f"missing-{name}", 0): 1}),
        admin.describe_producers([(f"missing-{name}", 0)]),
    ):
        with pytest.raises((ApiError, PartialFailure)) as caught:
            async with asyncio.timeout(10):
                await question
        errors = caught.value.errors.values() if isinstance(caught.value, PartialFailure) else [caught.value]
        assert {error.code for error in errors} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    with pytest.raises(UnknownPartition):
        await admin.latest_offsets([(topic, 9)])


@pytest.mark.parametrize("client", CLIENTS)
async def test_use_before_start_and_after_close_is_refused(bootstrap, client):
    made = client(bootstrap_servers=bootstrap)
    use = {Admin: lambda: made.list_topics(), Producer: lambda: made.send("t"), Consumer: lambda: made.poll()}[client]
    with pytest.raises(ClientClosed, match="not started"):
        await use()
    await made.start()
    await made.close()
    await made.close()  # twice is once
    for after in (use, made.start):
        with pytest.raises(ClientClosed, match="is closed"):
            await after()
