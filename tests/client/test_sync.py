from __future__ import annotations

import threading

import pytest

import ottla.sync
from ottla import ApiError
from ottla.client.errors import ConnectionRefused, SettingError


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
