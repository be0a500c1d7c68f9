from __future__ import annotations

import asyncio

import pytest

from ottla import ApiError
from ottla.client.errors import IllegalState, SettingError
from ottla.model.errors import ErrorCode
from tests.client.waiting import eventually

VERSIONS = [1, 2]


@pytest.fixture(params=VERSIONS, ids=["v1", "v2"])
def transactional(request, producer, name):
    """A transactional producer that takes the cluster for one of transaction.version 1 or 2."""

    async def make(**settings):
        made = await producer(transactional_id=f"t-{name}", **settings)
        assert made._cluster.features["transaction.version"] >= 2
        if request.param == 1:
            made._cluster.features = made._cluster.features | {"transaction.version": 1}
            made._cluster._features_epoch = 2**62  # no connection knows better
        return made

    return make


async def read(consumer, topic, isolation, partition=0):
    reader = await consumer(isolation_level=isolation)
    reader.assign([(topic, partition)])
    end = (await reader.end_offsets([(topic, partition)]))[topic, partition]
    found = []
    async with asyncio.timeout(15):
        while await reader.position((topic, partition)) < end:
            found += [record.value for record in await reader.poll(500)]
    return found


async def test_committed_is_seen_and_aborted_is_not(transactional, consumer, topic):
    sender = await transactional()
    await sender.init_transactions()
    for round in range(3):
        await sender.begin_transaction()
        await sender.send(topic, b"yes-%d" % round, partition=0)
        await sender.commit_transaction()
        await sender.begin_transaction()
        await (await sender.send(topic, b"no-%d" % round, partition=0))
        await sender.abort_transaction()
    yes = [b"yes-0", b"yes-1", b"yes-2"]
    # EndTxn answers before the last marker is written everywhere
    assert await eventually(lambda: read(consumer, topic, "read_committed"), lambda found: found == yes)
    assert await read(consumer, topic, "read_uncommitted") == [b"yes-0", b"no-0", b"yes-1", b"no-1", b"yes-2", b"no-2"]


async def test_open_transaction_is_not_seen_and_holds_the_reader_back(transactional, producer, consumer, topic):
    sender = await transactional()
    await sender.init_transactions()
    await sender.begin_transaction()
    await (await sender.send(topic, b"open", partition=0))
    await (await producer()).send_and_wait(topic, b"after", partition=0)
    reader = await consumer(isolation_level="read_committed")
    reader.assign([(topic, 0)])
    assert await reader.poll(200) == []
    assert (await reader.end_offsets([(topic, 0)]))[topic, 0] == 0
    await sender.commit_transaction()
    found = []
    async with asyncio.timeout(15):
        while len(found) < 2:
            found += [record.value for record in await reader.poll(500)]
    assert found == [b"open", b"after"]


async def test_block_commits_at_its_end_and_aborts_when_it_raises(transactional, consumer, topic):
    sender = await transactional()
    async with sender.transaction():
        for partition in range(3):
            await sender.send(topic, b"in", partition=partition)

    async def fail():
        async with sender.transaction():
            await (await sender.send(topic, b"out", partition=0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with sender.transaction():
        await sender.send(topic, b"again", partition=0)
    await eventually(lambda: read(consumer, topic, "read_committed"), lambda found: found == [b"in", b"again"])


async def test_offsets_are_committed_with_the_transaction_or_not_at_all(transactional, consumer, admin, topic, name):
    sender = await transactional()
    await sender.init_transactions()

    async def offset():
        found = await admin.group_offsets(name, [(topic, 0), (topic, 1)], require_stable=True)
        return {key.partition: committed.offset for key, committed in found.items()}

    await sender.begin_transaction()
    await sender.send(topic, b"x", partition=0)
    await sender.send_offsets_to_transaction({(topic, 0): 5}, name)
    await sender.commit_transaction()
    assert await offset() == {0: 5}
    await sender.begin_transaction()
    await sender.send_offsets_to_transaction({(topic, 0): 9, (topic, 1): 1}, name)
    await sender.abort_transaction()
    assert await offset() == {0: 5}


async def test_consume_transform_produce_is_exactly_once(transactional, producer, consumer, admin, topic, name):
    """Stopped at any point and started anew, each input counts once."""
    feeder = await producer()
    for n in range(60):
        await feeder.send(topic, b"%d" % n, partition=0)
    await feeder.flush()
    await admin.create_topic(f"out-{name}", 1)
    for attempt in range(4):
        sender = await transactional(linger_ms=0)
        await sender.init_transactions()
        reader = await consumer(
            group_id=name,
            enable_auto_commit=False,
            isolation_level="read_committed",
            heartbeat_interval_ms=50,
            max_poll_records=5,
        )
        reader.subscribe([topic])
        done = 0
        async with asyncio.timeout(20):
            while True:
                records = await reader.poll(1000)
                if not records and attempt == 3 and await reader.lag() == {(topic, number): 0 for number in range(3)}:
                    break
                if not records:
                    continue
                await sender.begin_transaction()
                for record in records:
                    await sender.send(f"out-{name}", record.value, partition=0)
                await sender.send_offsets_to_transaction({(topic, 0): records[-1].offset + 1}, reader.group_metadata())
                done += 1
                if done == 3 and attempt < 3:
                    await sender.flush()
                    break  # it dies here, with a transaction open
                await sender.commit_transaction()
        await reader.close()
        sender._transactions.state = type(sender._transactions.state).READY  # dead producers abort nothing
        await sender.close()
    found = await eventually(lambda: read(consumer, f"out-{name}", "read_committed"), lambda found: len(found) >= 60)
    assert [int(value) for value in found] == list(range(60))


async def test_second_producer_of_the_name_fences_the_first(transactional, topic):
    first = await transactional()
    await first.init_transactions()
    await first.begin_transaction()
    await (await first.send(topic, b"lost", partition=0))
    second = await transactional()
    await second.init_transactions()
    with pytest.raises(ApiError) as caught:
        await first.commit_transaction()
    assert caught.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    with pytest.raises(ApiError):
        await first.begin_transaction()
    async with second.transaction():
        await second.send(topic, b"kept", partition=0)


async def test_failed_record_breaks_the_transaction_until_it_is_aborted(transactional, consumer, admin, topic):
    await admin.set_topic_configs(topic, {"max.message.bytes": "500"})
    await eventually(lambda: admin.topic_configs(topic), lambda found: found["max.message.bytes"].value == "500")
    sender = await transactional()
    await sender.init_transactions()
    await sender.begin_transaction()
    await sender.send(topic, b"small", partition=0)
    delivery = await sender.send(topic, bytes(1000), partition=1)
    with pytest.raises(ApiError) as caught:
        await sender.commit_transaction()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(ApiError):
        await delivery
    with pytest.raises(ApiError):
        await sender.send(topic, b"more")
    await sender.abort_transaction()
    async with sender.transaction():
        await sender.send(topic, b"fine", partition=0)
    await eventually(lambda: read(consumer, topic, "read_committed"), lambda found: found == [b"fine"])


async def test_empty_transactions_cost_nothing(transactional):
    sender = await transactional()
    await sender.init_transactions()
    for end in (sender.commit_transaction, sender.abort_transaction):
        await sender.begin_transaction()
        await end()


async def test_calls_out_of_order_are_refused(transactional, producer, topic):
    sender = await transactional()
    with pytest.raises(IllegalState, match="init_transactions"):
        await sender.begin_transaction()
    await sender.init_transactions()
    with pytest.raises(IllegalState, match="begin_transaction"):
        await sender.send(topic, b"x")
    with pytest.raises(IllegalState, match="begin_transaction"):
        await sender.commit_transaction()
    await sender.begin_transaction()
    with pytest.raises(IllegalState, match="in a transaction"):
        await sender.begin_transaction()
    with pytest.raises(IllegalState, match="transactional_id"):
        await (await producer()).begin_transaction()
    with pytest.raises(SettingError):
        await producer(transactional_id="")


async def test_closing_aborts_what_is_open(transactional, producer, consumer, topic):
    sender = await transactional()
    await sender.init_transactions()
    await sender.begin_transaction()
    await (await sender.send(topic, b"gone", partition=0))
    await sender.close()
    await (await producer()).send_and_wait(topic, b"there", partition=0)
    await eventually(lambda: read(consumer, topic, "read_committed"), lambda found: found == [b"there"])


async def test_admin_sees_lists_and_fences_transactions(transactional, admin, topic, name):
    sender = await transactional()
    await sender.init_transactions()
    await sender.begin_transaction()
    await (await sender.send(topic, b"x", partition=2))
    listed = {row.id: row.state for row in await admin.list_transactions()}
    assert listed[f"t-{name}"] == "Ongoing"
    described = (await admin.describe_transactions([f"t-{name}"]))[f"t-{name}"]
    assert described.partitions == ((topic, 2),)
    [state] = (await admin.describe_producers([(topic, 2)]))[topic, 2]
    assert state.current_transaction_start_offset == 0
    fenced = (await admin.fence_producers([f"t-{name}"]))[f"t-{name}"]
    assert fenced.producer_id == described.producer_id
    with pytest.raises(ApiError):
        await sender.commit_transaction()
