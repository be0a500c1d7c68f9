from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from ottla import ApiError, Consumer, RebalanceListener
from ottla.client.errors import WaitTimedOut
from ottla.client.membership import Phase
from ottla.model.errors import ErrorCode
from tests.client.waiting import eventually, poll_forever

QUICK = {"heartbeat_interval_ms": 50, "session_timeout_ms": 6000, "retry_backoff_ms": 20}
PROTOCOLS = ["classic", "consumer"]


def settings(protocol: str, **more) -> dict:
    return {"group_protocol": protocol} | (QUICK if protocol == "classic" else {"retry_backoff_ms": 20}) | more


class Polling:
    """A consumer that polls by itself and notes what it got."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.records: list = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self.records += await self.consumer.poll(100)

    @property
    def owned(self) -> set:
        return set(self.consumer.assignment())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled() and (error := self._task.exception()):
            raise error


@asynccontextmanager
async def polling(consumer: Consumer):
    running = Polling(consumer)
    try:
        yield running
    finally:
        await running.stop()


async def until(condition) -> None:
    async def ask():
        return condition()

    await eventually(ask)


class Notes(RebalanceListener):
    def __init__(self) -> None:
        self.notes: list = []

    async def on_partitions_assigned(self, partitions):
        self.notes.append(("assigned", sorted(partition.partition for partition in partitions)))

    async def on_partitions_revoked(self, partitions):
        self.notes.append(("revoked", sorted(partition.partition for partition in partitions)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_members_share_partitions_and_a_close_hands_them_over_at_once(consumer, producer, topic, name, protocol):
    everything = {(topic, number) for number in range(3)}
    first = await consumer(group_id=name, **settings(protocol))
    first.subscribe([topic])
    async with polling(first) as one:
        await until(lambda: one.owned == everything)
        second = await consumer(group_id=name, **settings(protocol))
        second.subscribe([topic])
        async with polling(second) as two:
            await until(lambda: one.owned and two.owned and one.owned | two.owned == everything and not one.owned & two.owned)
            sender = await producer()
            for n in range(30):
                await sender.send(topic, b"%d" % n, partition=n % 3)
            await sender.flush()
            await until(lambda: len(one.records) + len(two.records) == 30)
            assert {(topic, record.partition) for record in two.records} == two.owned
        await second.close()
        await until(lambda: one.owned == everything)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_more_members_than_partitions_leave_one_idle(consumer, topic, name, protocol):
    readers = [await consumer(group_id=name, **settings(protocol)) for _ in range(4)]
    for reader in readers:
        reader.subscribe([topic])
    runs = [Polling(reader) for reader in readers]
    await until(lambda: sorted(len(run.owned) for run in runs) == [0, 1, 1, 1])
    for run in runs:
        await run.stop()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_every_strategy_settles(consumer, topic, name, strategy):
    readers = [await consumer(group_id=name, partition_assignment_strategy=[strategy], **settings("classic")) for _ in range(2)]
    for reader in readers:
        reader.subscribe([topic])
    runs = [Polling(reader) for reader in readers]
    await until(lambda: sorted(len(run.owned) for run in runs) == [1, 2])
    for run in runs:
        await run.stop()


async def test_cooperative_members_keep_what_they_keep(consumer, topic, name):
    mine, yours = Notes(), Notes()
    first = await consumer(group_id=name, partition_assignment_strategy=["cooperative-sticky"], **settings("classic"))
    first.subscribe([topic], listener=mine)
    async with polling(first) as one:
        await until(lambda: len(one.owned) == 3)
        second = await consumer(group_id=name, partition_assignment_strategy=["cooperative-sticky"], **settings("classic"))
        second.subscribe([topic], listener=yours)
        async with polling(second) as two:
            await until(lambda: len(one.owned) == 2 and len(two.owned) == 1)
    revoked = [partitions for kind, partitions in mine.notes if kind == "revoked"]
    assert len(revoked) == 1
    assert len(revoked[0]) == 1  # only the one that went to the other
    assert ("assigned", revoked[0]) in yours.notes


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_listener_hears_of_everything_and_can_seek(consumer, producer, topic, name, protocol):
    sender = await producer()
    for n in range(10):
        await sender.send_and_wait(topic, b"%d" % n, partition=0)

    class Seeking(Notes):
        async def on_partitions_assigned(self, partitions):
            await super().on_partitions_assigned(partitions)
            for partition in partitions:
                reader.seek(partition, 7 if partition.partition == 0 else 0)

    listener = Seeking()
    reader = await consumer(group_id=name, **settings(protocol))
    reader.subscribe([topic], listener=listener)
    async with polling(reader) as run:
        await until(lambda: len(run.records) == 3)
        assert [int(record.value) for record in run.records] == [7, 8, 9]
    await reader.close()
    assert [note for note in listener.notes if note[1]] == [("assigned", [0, 1, 2]), ("revoked", [0, 1, 2])]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_listener_that_raises_is_heard_in_poll(consumer, topic, name, protocol):
    class Broken(RebalanceListener):
        async def on_partitions_assigned(self, partitions):
            raise ValueError("mine")

    reader = await consumer(group_id=name, **settings(protocol))
    reader.subscribe([topic], listener=Broken())
    with pytest.raises(ValueError, match="mine"):
        await poll_forever(reader)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_automatic_commit_on_close_lets_the_next_member_go_on(consumer, producer, topic, name, protocol):
    sender = await producer()
    for n in range(20):
        await sender.send_and_wait(topic, b"%d" % n, partition=1)
    seen = []
    for stop in (5, 20):
        reader = await consumer(group_id=name, **settings(protocol))
        reader.subscribe([topic])
        async with asyncio.timeout(20):
            async for record in reader:
                seen.append(int(record.value))
                if len(seen) == stop:
                    break
        await reader.close()
    assert seen == list(range(20))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_automatic_commit_goes_on_while_polling(consumer, producer, admin, topic, name, protocol):
    sender = await producer()
    await sender.send_and_wait(topic, b"x", partition=0)
    reader = await consumer(group_id=name, auto_commit_interval_ms=50, **settings(protocol))
    reader.subscribe([topic])
    async with polling(reader):
        await eventually(
            lambda: admin.group_offsets(name, [(topic, 0)]), lambda found: (topic, 0) in found and found[topic, 0].offset == 1
        )


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_member_that_does_not_poll_leaves_and_comes_back(consumer, admin, topic, name, protocol):
    listener = Notes()
    reader = await consumer(group_id=name, max_poll_interval_ms=400, **settings(protocol))
    reader.subscribe([topic], listener=listener)
    async with polling(reader) as run:
        await until(lambda: len(run.owned) == 3)
    await eventually(lambda: admin.describe_group(name), lambda group: not group.members)
    async with polling(reader):
        await until(lambda: [note[0] for note in listener.notes if note[1]] == ["assigned", "revoked", "assigned"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_static_member_comes_back_to_its_partitions_without_a_rebalance(consumer, admin, topic, name, protocol):
    other = await consumer(group_id=name, group_instance_id="other", **settings(protocol))
    other.subscribe([topic])
    notes = Notes()
    async with polling(other) as stays:
        first = await consumer(group_id=name, group_instance_id="mine", **settings(protocol))
        first.subscribe([topic], listener=notes)
        async with polling(first) as run:
            await until(lambda: run.owned and len(run.owned) + len(stays.owned) == 3)
            mine, theirs = run.owned, stays.owned
        await first.close()
        again = await consumer(group_id=name, group_instance_id="mine", **settings(protocol))
        again.subscribe([topic])
        async with polling(again) as run:
            await until(lambda: run.owned == mine)
        assert stays.owned == theirs


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_grown_topic_is_picked_up_by_a_live_consumer(consumer, admin, topic, name, protocol):
    reader = await consumer(group_id=name, metadata_max_age_ms=100, **settings(protocol))
    reader.subscribe([topic])
    async with polling(reader) as run:
        await until(lambda: len(run.owned) == 3)
        await admin.create_partitions(topic, 4)
        await until(lambda: len(run.owned) == 4)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_admin_sees_the_members(consumer, admin, topic, name, protocol):
    reader = await consumer(group_id=name, client_id="me", **settings(protocol))
    reader.subscribe([topic])
    async with polling(reader) as run:
        await until(lambda: len(run.owned) == 3)
        described = await eventually(lambda: admin.describe_group(name), lambda group: group.state == "Stable")
        [member] = described.members
        assert set(member.assignment) == {(topic, number) for number in range(3)}
        assert (member.client_id, described.type) == ("me", protocol)
        with pytest.raises(ApiError) as caught:
            await admin.delete_groups([name])
        assert caught.value.code is ErrorCode.NON_EMPTY_GROUP


async def test_server_matches_a_pattern(consumer, admin, name):
    await admin.create_topic(f"{name}-yes", 1)
    await admin.create_topic(f"{name}-no", 1)
    reader = await consumer(group_id=name, **settings("consumer"))
    reader.subscribe(pattern=f"{name}-y.*")
    async with polling(reader) as run:
        await until(lambda: run.owned == {(f"{name}-yes", 0)})


async def test_two_members_without_a_strategy_in_common_are_told(consumer, topic, name):
    first = await consumer(group_id=name, partition_assignment_strategy=["range"], **settings("classic"))
    first.subscribe([topic])
    async with polling(first) as run:
        await until(lambda: len(run.owned) == 3)
        second = await consumer(group_id=name, partition_assignment_strategy=["sticky"], **settings("classic"))
        second.subscribe([topic])
        with pytest.raises(ApiError) as caught:
            await poll_forever(second)
        assert caught.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_commit_of_a_member_that_was_thrown_out_is_refused(consumer, admin, producer, topic, name):
    sender = await producer()
    await sender.send_and_wait(topic, b"x", partition=0)
    reader = await consumer(group_id=name, enable_auto_commit=False, **(settings("classic") | {"heartbeat_interval_ms": 5000}))
    reader.subscribe([topic])
    async with polling(reader) as run:
        await until(lambda: len(run.owned) == 3 and run.records)
    described = await admin.describe_group(name)
    await admin.remove_members(name, member_ids=[described.members[0].id])
    with pytest.raises(ApiError) as caught:
        await reader.commit()
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    async with polling(reader):
        await eventually(reader.commit, lambda _: True)  # once it is a member again


async def test_a_member_that_knows_it_was_thrown_out_commits_nothing_in_nobodys_name(consumer, admin, producer, topic, name):
    """An empty group takes the commits of those who are no members, so what such a one has read must not be sent as theirs."""
    sender = await producer(transactional_id=name)
    await sender.init_transactions()
    async with sender.transaction():
        await sender.send(topic, b"x", partition=0)
    reader = await consumer(group_id=name, enable_auto_commit=False, auto_offset_reset="earliest", **settings("classic"))
    reader.subscribe([topic])
    async with polling(reader) as run:
        await until(lambda: len(run.owned) == 3 and run.records)
    await admin.remove_members(name, member_ids=[reader.group_metadata().member_id])
    await until(lambda: reader._coordination.member.phase is Phase.OUT)
    with pytest.raises(ApiError) as caught:
        await reader.commit({(topic, 0): 7})
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    await sender.begin_transaction()
    with pytest.raises(ApiError):
        await sender.send_offsets_to_transaction({(topic, 0): 7}, reader.group_metadata())
    await sender.abort_transaction()
    assert not await admin.group_offsets(name)


async def test_position_that_cannot_be_known_is_not_waited_for_for_ever(consumer, topic):
    reader = await consumer(default_api_timeout_ms=200, auto_offset_reset="earliest")
    reader.assign([(f"absent-{topic}", 0)])
    with pytest.raises((WaitTimedOut, ApiError)):
        await reader.position((f"absent-{topic}", 0))
