from __future__ import annotations

import asyncio

import pytest

from ottla import ApiError, Producer
from ottla.client.errors import ClientClosed, SerializationFailed, UnknownPartition
from ottla.client.partitioner import partition_of
from ottla.model.errors import ErrorCode
from tests.client.waiting import eventually


async def read_all(consumer, topic, count):
    """The first `count` records of all partitions, by partition."""
    reader = await consumer()
    info = await reader.partitions_for(topic)
    reader.assign([(topic, part.partition) for part in info.partitions])
    found = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await reader.poll(1000)
    return found


async def set_config(admin, topic, name, value):
    await admin.set_topic_configs(topic, {name: value})
    await eventually(lambda: admin.topic_configs(topic), lambda found: found[name].value == value)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_everything_about_a_record_comes_back(producer, consumer, topic, codec):
    sender = await producer(compression_type=codec)
    sent = [(b"k%d" % n, b"v%d" % n * 20, 1000 + n, (("a", b"1"), ("b", None), ("a", b"2"))) for n in range(50)]
    sent += [(None, None, 2000, ()), (b"", b"", 2001, ())]
    for key, value, time, headers in sent:
        await sender.send(topic, value, key=key, timestamp_ms=time, headers=headers, partition=1)
    await sender.flush()
    found = await read_all(consumer, topic, len(sent))
    assert [(record.key, record.value, record.timestamp, record.headers) for record in found] == sent
    assert [record.offset for record in found] == list(range(len(sent)))


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_delivery_tells_where_the_record_lies(producer, topic, acks):
    sender = await producer(acks=acks)
    first = await sender.send_and_wait(topic, b"x", partition=2, timestamp_ms=77)
    assert (first.topic, first.partition, first.timestamp) == (topic, 2, 77)
    second = await sender.send_and_wait(topic, b"y", partition=2)
    assert (first.offset, second.offset) == ((-1, -1) if acks == 0 else (0, 1))


async def test_callbacks_learn_the_offset_and_one_that_raises_harms_nobody(producer, topic, caplog):
    sender = await producer()
    heard = []

    def fine(metadata, error):
        heard.append((metadata.offset, error))

    def broken(metadata, error):
        raise ValueError("mine")

    for callback in (fine, broken, fine):
        await sender.send(topic, b"x", partition=0, on_delivery=callback)
    await sender.flush()
    assert heard == [(0, None), (2, None)]
    assert "callback_raised" in caplog.text


async def test_order_holds_within_a_partition(producer, consumer, topic):
    sender = await producer(batch_size=500, linger_ms=0)
    for n in range(3000):
        await sender.send(topic, b"%d" % n, key=b"%d" % (n % 7))
    await sender.flush()
    found = await read_all(consumer, topic, 3000)
    for key in {record.key for record in found}:
        numbers = [int(record.value) for record in found if record.key == key]
        assert numbers == sorted(numbers)
        assert {record.partition for record in found if record.key == key} == {partition_of(key, 3)}


async def test_records_without_a_key_reach_every_partition(producer, consumer, topic):
    sender = await producer(batch_size=1000, linger_ms=0)
    for _ in range(2000):
        await sender.send(topic, bytes(50))
    await sender.flush()
    found = await read_all(consumer, topic, 2000)
    assert {record.partition for record in found} == {0, 1, 2}


async def test_round_robin_and_your_own_partitioner(producer, topic):
    turns = await producer(partitioner="round_robin")
    assert sorted([(await turns.send_and_wait(topic, b"x")).partition for _ in range(6)]) == [0, 0, 1, 1, 2, 2]
    mine = await producer(partitioner=lambda topic, key, value, count: len(value) % count)
    assert (await mine.send_and_wait(topic, b"1234")).partition == 1
    wrong = await producer(partitioner=lambda *_: 17)
    with pytest.raises(UnknownPartition, match="17"):
        await wrong.send(topic, b"x")


async def test_serializers_are_plain_functions_and_one_that_raises_is_told(producer, consumer, topic):
    sender = await producer(
        key_serializer=str.encode, value_serializer=lambda value: None if value is None else str(value).encode()
    )
    await sender.send_and_wait(topic, 42, key="k", partition=0)
    [record] = await read_all(consumer, topic, 1)
    assert (record.key, record.value) == (b"k", b"42")
    with pytest.raises(SerializationFailed, match="key_serializer raised TypeError"):
        await sender.send(topic, 1, key=5)
    with pytest.raises(SerializationFailed, match="value must be bytes"):
        await (await producer()).send(topic, "text")


async def test_record_too_large_is_refused_at_once(producer, topic):
    sender = await producer(max_request_size=1000)
    with pytest.raises(ApiError) as caught:
        await sender.send(topic, bytes(1001))
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


async def test_record_too_large_for_the_topic_is_told_by_the_broker(producer, admin, topic):
    await set_config(admin, topic, "max.message.bytes", "500")
    sender = await producer()
    with pytest.raises(ApiError) as caught:
        await sender.send_and_wait(topic, bytes(1000), partition=0)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert (await sender.send_and_wait(topic, b"small", partition=0)).offset == 0


async def test_batch_too_large_for_the_topic_is_cut(producer, admin, consumer, topic):
    await set_config(admin, topic, "max.message.bytes", "1000")
    sender = await producer(batch_size=8000, linger_ms=50)
    deliveries = [await sender.send(topic, b"%03d" % n * 30, partition=0) for n in range(40)]
    assert [(await delivery).offset for delivery in deliveries] == list(range(40))
    found = await read_all(consumer, topic, 40)
    assert [int(record.value[:3]) for record in found] == list(range(40))


async def test_unknown_partition_is_an_error_that_names_the_known_ones(producer, topic):
    sender = await producer()
    for partition in (3, -1):
        with pytest.raises(UnknownPartition, match="0 to 2"):
            await sender.send(topic, b"x", partition=partition)


async def test_topic_that_does_not_exist_is_told_after_max_block(producer, name):
    sender = await producer(max_block_ms=300)
    with pytest.raises(ApiError) as caught:
        await sender.send(f"absent-{name}", b"x")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "create it first" in str(caught.value)


async def test_use_before_start_and_after_close_is_refused(bootstrap, topic):
    sender = Producer(bootstrap_servers=bootstrap)
    with pytest.raises(ClientClosed, match="not started"):
        await sender.send(topic, b"x")
    await sender.start()
    delivery = await sender.send(topic, b"x")
    await sender.close()
    assert (await delivery).offset >= 0  # close delivers what was buffered
    with pytest.raises(ClientClosed):
        await sender.send(topic, b"x")
    await sender.close()


async def test_memory_stays_within_its_limit(producer, consumer, topic):
    sender = await producer(buffer_memory=50_000, batch_size=5_000)
    most = 0
    for n in range(2000):
        await sender.send(topic, b"%04d" % n * 25, partition=0)
        most = max(most, sender._accumulator.used)
    await sender.flush()
    assert most <= 50_000
    assert sender._accumulator.used == 0
    assert len(await read_all(consumer, topic, 2000)) == 2000


async def test_many_tasks_share_one_producer(producer, topic):
    sender = await producer()
    results = await asyncio.gather(*(sender.send_and_wait(topic, b"x", partition=0) for _ in range(200)))
    assert sorted(result.offset for result in results) == list(range(200))


async def test_log_append_time_is_the_brokers(producer, admin, topic):
    await set_config(admin, topic, "message.timestamp.type", "LogAppendTime")
    sender = await producer()
    assert (await sender.send_and_wait(topic, b"x", timestamp_ms=5)).timestamp > 10**12
