from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import ottla.sync
from ottla import ApiError
from ottla.client.errors import (
    ClientClosed,
    ConnectionRefused,
    IllegalState,
    SerializationFailed,
    SettingError,
    UnknownPartition,
    WaitTimedOut,
)
from ottla.handover import MAX_RECORDS
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.client.peers import kafka_peer, versions_answer


@pytest.fixture
def sync_topic(bootstrap, name):
    with ottla.sync.Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(name, 1)
        yield name


def test_produce_and_consume_without_asyncio(bootstrap, sync_topic):
    heard = []
    with ottla.sync.Producer(bootstrap_servers=bootstrap) as producer:
        first = producer.send(sync_topic, b"0", on_delivery=lambda metadata, error: heard.append(threading.current_thread().name))
        assert first.result().offset == 0
        assert first.done
        for n in range(1, 10):
            producer.send(sync_topic, b"%d" % n)
        producer.flush()
    assert heard == ["ottla"]
    with ottla.sync.Consumer(bootstrap_servers=bootstrap, group_id=sync_topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([sync_topic])
        found = []
        for record in consumer:
            found.append(int(record.value))
            if len(found) == 10:
                break
        consumer.commit()
    assert found == list(range(10))
    with ottla.sync.Admin(bootstrap_servers=bootstrap) as admin:
        assert admin.group_offsets(sync_topic)[sync_topic, 0].offset == 10


def test_leaving_a_loop_early_loses_nothing(bootstrap, sync_topic, name):
    with ottla.sync.Producer(bootstrap_servers=bootstrap) as producer:
        for n in range(10):
            producer.send(sync_topic, b"%d" % n)
    seen = []
    for stop in (4, 10):
        with ottla.sync.Consumer(bootstrap_servers=bootstrap, group_id=name, auto_offset_reset="earliest") as consumer:
            consumer.subscribe([sync_topic])
            for record in consumer:
                seen.append(int(record.value))
                if len(seen) == stop:
                    break
    assert seen == list(range(10))


def test_transactions_without_asyncio(bootstrap, sync_topic, name):
    with ottla.sync.Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        with producer.transaction():
            producer.send(sync_topic, b"yes")

        def fail():
            with producer.transaction():
                producer.send(sync_topic, b"no")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
    with ottla.sync.Consumer(
        bootstrap_servers=bootstrap, group_id=name, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([sync_topic])
        assert [record.value for record in consumer.poll(10_000)] == [b"yes"]


def test_errors_are_raised_to_the_caller(bootstrap, sync_topic):
    with pytest.raises(SettingError, match="did you mean linger_ms"):
        ottla.sync.Producer(linger=1)
    with pytest.raises(ConnectionRefused), ottla.sync.Admin(bootstrap_servers="127.0.0.1:1"):
        pass
    with ottla.sync.Admin(bootstrap_servers=bootstrap) as admin, pytest.raises(ApiError):
        admin.describe_topic("absent")
    assert "describe_topic" in dir(ottla.sync.Admin())


def read_all(bootstrap, topic, count):
    with ottla.sync.Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        found = []
        while len(found) < count:
            found += [record.value for record in consumer.poll(10_000)]
        return found


def test_what_is_sent_keeps_its_order_whichever_way_it_is_sent(bootstrap, sync_topic):
    with ottla.sync.Producer(bootstrap_servers=bootstrap) as producer:
        count = 3 * MAX_RECORDS
        fates = []
        for n in range(count):
            if n % 1000 == 500:
                assert producer.send_and_wait(sync_topic, b"%d" % n).offset == n
            else:
                fates.append((n, producer.send(sync_topic, b"%d" % n)))
        producer.flush()
        assert all(sent.done and sent.result().offset == n for n, sent in fates)
    assert read_all(bootstrap, sync_topic, count) == [b"%d" % n for n in range(count)]


def test_threads_may_share_a_producer_and_each_keeps_its_order(bootstrap, sync_topic):
    def send(thread):
        for n in range(500):
            producer.send(sync_topic, b"%d %d" % (thread, n))

    with ottla.sync.Producer(bootstrap_servers=bootstrap) as producer, ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(4)))
    found = [tuple(map(int, value.split())) for value in read_all(bootstrap, sync_topic, 2000)]
    assert all([n for thread, n in found if thread == each] == list(range(500)) for each in range(4))


def test_what_was_sent_before_a_transaction_ends_belongs_to_it(bootstrap, sync_topic, name):
    with ottla.sync.Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        for number in range(20):
            with producer.transaction():
                for _ in range(5):
                    producer.send(sync_topic, b"%d" % number)
        with pytest.raises(IllegalState, match=name):
            producer.send(sync_topic, b"outside")
    assert read_all(bootstrap, sync_topic, 100) == [b"%d" % (n // 5) for n in range(100)]


def test_a_callback_may_send(bootstrap, sync_topic):
    over = threading.Event()

    def heard(metadata, error):
        if metadata.offset < 3:
            producer.send(sync_topic, b"again", on_delivery=heard)
        else:
            over.set()

    with ottla.sync.Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(sync_topic, b"first", on_delivery=heard)
        assert over.wait(20)


def test_a_record_that_can_never_be_sent_is_refused_by_send_itself(bootstrap, sync_topic):
    with ottla.sync.Producer(bootstrap_servers=bootstrap, max_request_size=2000, value_serializer=str.encode) as producer:
        with pytest.raises(SerializationFailed):
            producer.send(sync_topic, 7)
        with pytest.raises(UnknownPartition):
            producer.send(sync_topic, "v", partition=9)
        with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
            producer.send(sync_topic, "v" * 3000)
    with pytest.raises(ClientClosed):
        producer.send(sync_topic, "v")


async def test_a_record_that_finds_no_room_says_so_at_the_documented_timeout():
    def answer(key, version, request):
        """Knows one topic, and never answers a Produce."""
        if isinstance(request, MetadataRequest):
            topic = MetadataResponse.MetadataResponseTopic
            part = topic.MetadataResponsePartition(partition_index=0, leader_id=1, replica_nodes=[1])
            return MetadataResponse(
                brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)],
                topics=[topic(name="t", topic_id=b"t" * 16, partitions=[part])],
            )
        return versions_answer() if key == 18 else None

    def play():
        settings = {"enable_idempotence": False, "buffer_memory": 2000, "max_request_size": 2000, "batch_size": 500}
        producer = ottla.sync.Producer(bootstrap_servers=f"127.0.0.1:{port}", linger_ms=0, max_block_ms=200, **settings).start()
        heard = []
        sent = [producer.send("t", b"x" * 300, on_delivery=lambda *told: heard.append(told)) for _ in range(20)]
        with pytest.raises(WaitTimedOut, match="buffer_memory"):
            sent[-1].result(20)
        assert sent[-1].done
        assert isinstance(heard[-1][1], WaitTimedOut)
        asyncio.run_coroutine_threadsafe(producer._object.close(0), ottla.sync.background_loop()).result(20)

    async with kafka_peer(answer) as port:
        await asyncio.to_thread(play)
