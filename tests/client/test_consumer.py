from __future__ import annotations

import asyncio
import re

import pytest

from ottla import ApiError, Consumer, TopicPartition
from ottla.client.errors import ClientClosed, ConcurrentUse, IllegalState, NoOffsetForPartition, SerializationFailed, SettingError
from ottla.client.partitioner import partition_of
from ottla.model.errors import ErrorCode
from tests.client.waiting import poll_forever


@pytest.fixture
async def filled(producer, topic) -> str:
    """Thirty records in each of three partitions, values 0 to 29, a second apart."""
    sender = await producer(batch_size=400)
    for n in range(30):
        for partition in range(3):
            await sender.send(topic, b"%d" % n, partition=partition, timestamp_ms=1_000_000 + n * 1000)
    await sender.flush()
    return topic


async def take(reader: Consumer, count: int) -> list:
    found = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await reader.poll(1000)
    return found


async def test_poll_returns_every_record_once_and_in_order(consumer, filled):
    reader = await consumer(max_poll_records=7)
    reader.assign([(filled, 0), (filled, 1), (filled, 2)])
    found = []
    async with asyncio.timeout(20):
        while len(found) < 90:
            records = await reader.poll(1000)
            assert len(records) <= 7
            found += records
    for partition in range(3):
        mine = [record for record in found if record.partition == partition]
        assert [int(record.value) for record in mine] == list(range(30))
        assert [record.offset for record in mine] == list(range(30))
    assert await reader.poll(10) == []
    assert await reader.lag() == {(filled, number): 0 for number in range(3)}


async def test_iteration_gives_one_record_at_a_time_and_the_position_follows(consumer, filled):
    reader = await consumer()
    reader.assign([(filled, 0)])
    seen = []
    async for record in reader:
        seen.append(int(record.value))
        assert await reader.position((filled, 0)) == record.offset + 1
        if len(seen) == 30:
            break
    assert seen == list(range(30))


async def test_seek_by_offset_time_beginning_and_end(consumer, filled):
    reader = await consumer()
    part = TopicPartition(filled, 1)
    reader.assign([part])
    reader.seek(part, 25)
    assert [int(record.value) for record in await take(reader, 5)] == [25, 26, 27, 28, 29]
    reader.seek_to_time(1_010_000, [part])
    assert (await take(reader, 1))[0].offset == 10
    reader.seek_to_beginning()
    assert (await take(reader, 1))[0].offset == 0
    reader.seek_to_end([part])
    assert await reader.position(part) == 30
    reader.seek_to_time(9_000_000_000_000)
    assert await reader.position(part) == 30
    with pytest.raises(IllegalState):
        reader.seek(part, -1)
    with pytest.raises(IllegalState, match="not assigned"):
        reader.seek((filled, 0), 0)


@pytest.mark.parametrize(
    ("policy", "expected"), [("earliest", 0), ("latest", 30), ("by_duration:PT1H", 30), ("by_duration:P30000D", 0)]
)
async def test_start_without_a_position_follows_the_policy(consumer, filled, policy, expected):
    reader = await consumer(auto_offset_reset=policy)
    reader.assign([(filled, 0)])
    assert await reader.position((filled, 0)) == expected


async def test_policy_none_is_an_error_and_so_is_an_offset_that_is_not_there(consumer, filled):
    reader = await consumer(auto_offset_reset="none")
    reader.assign([(filled, 0)])
    with pytest.raises(NoOffsetForPartition):
        await reader.poll(5000)
    reader.seek((filled, 0), 999)
    with pytest.raises(ApiError) as caught:
        await poll_forever(reader)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_offset_out_of_range_follows_the_policy(consumer, filled):
    reader = await consumer(auto_offset_reset="earliest")
    reader.assign([(filled, 0)])
    reader.seek((filled, 0), 999)
    assert (await take(reader, 1))[0].offset == 0


async def test_paused_partitions_return_nothing_until_resumed(consumer, filled):
    reader = await consumer()
    reader.assign([(filled, 0), (filled, 1)])
    await take(reader, 1)
    reader.pause([(filled, 0)])
    assert reader.paused() == {(filled, 0)}
    reader.seek_to_beginning()
    found = await take(reader, 30)
    assert {record.partition for record in found} == {1}
    reader.resume([(filled, 0)])
    assert {record.partition for record in await take(reader, 30)} == {0}


async def test_offsets_are_known_without_reading(consumer, filled):
    reader = await consumer()
    parts = [(filled, 0), (filled, 2)]
    assert await reader.beginning_offsets(parts) == dict.fromkeys(parts, 0)
    assert await reader.end_offsets(parts) == dict.fromkeys(parts, 30)
    found = await reader.offsets_for_times({(filled, 0): 1_005_500, (filled, 2): 9_000_000_000})
    assert found[filled, 0].offset == 6
    assert found[filled, 2] is None


async def test_commits_are_kept_for_the_group(consumer, filled, name):
    reader = await consumer(group_id=name, enable_auto_commit=False)
    reader.assign([(filled, 0), (filled, 1)])
    assert await reader.committed([(filled, 0)]) == {}
    await reader.commit({(filled, 0): 12})
    assert (await reader.committed([(filled, 0)]))[filled, 0].offset == 12
    again = await consumer(group_id=name, enable_auto_commit=False)
    again.assign([(filled, 0)])
    assert await again.position((filled, 0)) == 12


async def test_commit_in_the_background_tells_its_callback(consumer, filled, name):
    reader = await consumer(group_id=name, enable_auto_commit=False)
    reader.assign([(filled, 0)])
    await take(reader, 30)
    heard: asyncio.Future = asyncio.get_running_loop().create_future()
    reader.commit_async(callback=lambda offsets, error: heard.set_result((offsets, error)))
    offsets, error = await asyncio.wait_for(heard, 10)
    assert error is None
    assert offsets[filled, 0].offset == 30
    assert (await reader.committed([(filled, 0)]))[filled, 0].offset == 30


async def test_commit_without_a_group_is_refused(consumer, filled):
    reader = await consumer()
    reader.assign([(filled, 0)])
    with pytest.raises(IllegalState, match="group_id"):
        await reader.commit({(filled, 0): 1})
    with pytest.raises(IllegalState, match="group_id"):
        reader.commit_async({(filled, 0): 1})
    with pytest.raises(IllegalState, match="group_id"):
        reader.subscribe([filled])


async def test_deserializers_are_plain_functions_and_one_that_raises_can_be_passed_over(consumer, producer, topic):
    sender = await producer()
    for value in (b"1", b"two", b"3"):
        await sender.send_and_wait(topic, value, partition=0, key=b"k")
    reader = await consumer(value_deserializer=int, key_deserializer=bytes.decode)
    reader.assign([(topic, 0)])
    [record] = await take(reader, 1)
    assert (record.key, record.value) == ("k", 1)
    with pytest.raises(SerializationFailed, match="offset 1"):
        await reader.poll(5000)
    with pytest.raises(SerializationFailed, match="offset 1"):  # it does not go away by itself
        await reader.poll(5000)
    reader.seek((topic, 0), 2)
    assert [record.value for record in await take(reader, 1)] == [3]


async def test_two_tasks_inside_one_consumer_are_told(consumer, topic):
    reader = await consumer()
    reader.assign([(topic, 0)])
    first = asyncio.create_task(reader.poll(2000))
    await asyncio.sleep(0)
    with pytest.raises(ConcurrentUse):
        await reader.poll(0)
    first.cancel()


async def test_reading_nothing_using_after_close_and_wrong_subscriptions_are_refused(bootstrap, consumer, name):
    reader = await consumer(group_id=name)
    with pytest.raises(IllegalState, match="subscribe"):
        await reader.poll(10)
    with pytest.raises(SettingError, match="collection of names"):
        reader.subscribe("orders")
    with pytest.raises(SettingError, match="either"):
        reader.subscribe(["a"], pattern="b")
    with pytest.raises(ClientClosed, match="not started"):
        await Consumer(bootstrap_servers=bootstrap).poll()
    await reader.close()
    with pytest.raises(ClientClosed):
        await reader.poll()
    with pytest.raises(ClientClosed):
        reader.subscribe(["a"])


async def test_records_that_arrive_later_are_returned(consumer, producer, topic):
    reader = await consumer()
    reader.assign([(topic, 0)])
    assert await reader.poll(50) == []
    waiting = asyncio.create_task(take(reader, 1))
    await (await producer()).send_and_wait(topic, b"late", partition=0)
    assert [record.value for record in await waiting] == [b"late"]


@pytest.mark.parametrize("sessions", [True, False])
async def test_fetch_sessions_change_nothing_but_the_wire(consumer, filled, sessions):
    reader = await consumer(enable_fetch_sessions=sessions, max_partition_fetch_bytes=200)
    reader.assign([(filled, number) for number in range(3)])
    assert len(await take(reader, 90)) == 90
    reader.assign([(filled, 0)])
    reader.seek_to_beginning()
    assert len(await take(reader, 30)) == 30


async def test_pattern_finds_topics_by_their_whole_name(consumer, admin, producer, name):
    await admin.create_topic(f"{name}-in-a", 1)
    await admin.create_topic(f"{name}-out", 1)
    reader = await consumer(group_id=name, heartbeat_interval_ms=50, session_timeout_ms=6000)
    reader.subscribe(pattern=re.compile(f"{name}-in-.*"))
    sender = await producer()
    for topic in (f"{name}-in-a", f"{name}-out"):
        await sender.send_and_wait(topic, topic.encode())
    assert [record.topic for record in await take(reader, 1)] == [f"{name}-in-a"]
    assert reader.assignment() == {(f"{name}-in-a", 0)}


async def test_arrow_batches_hold_the_same_records(consumer, filled):
    pytest.importorskip("pyarrow")
    reader = await consumer()
    reader.assign([(filled, 0), (filled, 1)])
    rows = []
    async with asyncio.timeout(20):
        async for batch in reader.arrow(headers=True):
            rows += batch.to_pylist()
            if len(rows) == 60:
                break
    for partition in range(2):
        mine = [row for row in rows if row["partition"] == partition]
        assert [row["offset"] for row in mine] == list(range(30))
        assert [int(row["value"]) for row in mine] == list(range(30))
        assert {row["topic"] for row in mine} == {filled}
    assert await reader.position((filled, 0)) == 30
    reader.seek((filled, 0), 17)
    async with asyncio.timeout(20):
        async for batch in reader.arrow():
            assert batch.column("offset").to_pylist() == list(range(17, 30))
            break


async def test_arrow_batches_are_sent_and_read_back(producer, consumer, topic):
    pa = pytest.importorskip("pyarrow")
    sender = await producer(compression_type="zstd")
    keys = [b"%d" % (n % 5) if n % 3 else None for n in range(5000)]
    batch = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array([b"%d" % n for n in range(5000)])})
    for delivery in await sender.send_arrow(topic, batch):
        assert (await delivery).offset >= 0
    reader = await consumer()
    reader.assign([(topic, number) for number in range(3)])
    found = await take(reader, 5000)
    assert sorted(int(record.value) for record in found) == list(range(5000))
    plain = await producer()
    for record in found[:50]:
        if record.key is not None:
            assert (await plain.send_and_wait(topic, b"", key=record.key)).partition == record.partition


async def test_arrow_rows_without_a_partition_go_where_their_key_does(producer, consumer, topic):
    pa = pytest.importorskip("pyarrow")
    sender = await producer()
    rows = [
        {"key": b"%d" % number, "value": b"%d" % number, "partition": number % 3 if number % 2 else None} for number in range(60)
    ]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32())]))
    await sender.send_arrow(topic, batch)
    await sender.flush()
    reader = await consumer()
    reader.assign([(topic, number) for number in range(3)])
    for record in await take(reader, 60):
        asked = rows[int(record.value)]["partition"]
        assert record.partition == (partition_of(record.key, 3) if asked is None else asked)
    with pytest.raises(SerializationFailed, match="outside 0 to 2"):
        await sender.send_arrow(topic, batch.set_column(2, "partition", pa.array([3] + [None] * 59, pa.int32())))
