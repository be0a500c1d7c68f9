"""Clients under faults: what was acknowledged is in the log, once, in order; memory stays within its limit; nothing hangs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from ottla import Admin, ApiError, Consumer, Producer
from ottla.client.errors import UnknownPartition, WaitTimedOut
from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from ottla.protocol.messages.versions import ApiVersionsRequest
from ottla.records.batch import NO_SEQUENCE
from ottla.records.record import decode_batches
from tests.client.chaos import Chaos
from tests.client.conftest import SETTINGS
from tests.client.peers import kafka_peer, versions_answer
from tests.client.waiting import eventually

QUICK = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 50, "reconnect_backoff_ms": 5, "reconnect_backoff_max_ms": 50}


async def read_log(bootstrap: str, topic: str, partitions: int = 3) -> dict[int, list[int]]:
    """Everything in the log, by partition, over a good network."""
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as reader:
        parts = [(topic, number) for number in range(partitions)]
        reader.assign(parts)
        ends = await reader.end_offsets(parts)
        found = defaultdict(list)
        async with asyncio.timeout(30):
            while any([await reader.position(part) < end for part, end in ends.items()]):
                for record in await reader.poll(500):
                    found[record.partition].append(int(record.value))
        return found


class Sending:
    """A stream of numbered records, and what became of each."""

    def __init__(self, sender: Producer, topic: str, limit: int) -> None:
        self.sender, self.topic, self.limit = sender, topic, limit
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.failed: dict[int, Exception] = {}
        self.most_memory = 0

    async def run(self, is_enough: Callable[[], bool] = lambda: True) -> None:
        """At least `limit` records, and until there was enough trouble; at most a hundred times as many."""
        for number in range(100 * self.limit):
            if number >= self.limit and is_enough():
                break
            await self.sender.send(
                self.topic,
                b"%d" % number,
                partition=number % 3,
                on_delivery=lambda metadata, error, number=number: self._heard(number, error),
            )
            self.sent += 1
            self.most_memory = max(self.most_memory, self.sender._accumulator.used)
            await asyncio.sleep(0)
        await self.sender.flush()

    def _heard(self, number: int, error: Exception | None) -> None:
        if error is None:
            self.acknowledged.add(number)
        else:
            self.failed[number] = error

    def judge(self, log: dict[int, list[int]]) -> None:
        written = {number for numbers in log.values() for number in numbers}
        lost = sorted(self.acknowledged - written)
        assert not lost, f"acknowledged and lost: {lost}; ends { ({key: numbers[-3:] for key, numbers in log.items()}) }"
        for numbers in log.values():
            assert numbers == sorted(set(numbers)), "twice, or out of order"
        assert len(self.acknowledged) + len(self.failed) == self.sent


@pytest.mark.parametrize("seed", range(3))
async def test_idempotent_producer_survives_cuts_in_the_middle_of_frames(bootstrap, topic, seed):
    chaos = Chaos(seed, cut_read=0.15, cut_write=0.1)
    settings = QUICK | {
        "batch_size": 300,
        "linger_ms": 0,
        "buffer_memory": 20_000,
        "delivery_timeout_ms": 60_000,
        "request_timeout_ms": 5000,
    }
    async with Producer(bootstrap_servers=bootstrap, **settings) as calm:  # the first connection must come about
        await calm.partitions_for(topic)
    sender = Producer(bootstrap_servers=bootstrap, world=chaos.world(), **settings)
    await eventually(lambda: _started(sender))
    sending = Sending(sender, topic, 600)
    async with asyncio.timeout(60):
        await sending.run(lambda: chaos.cuts > 10)
    chaos.calm()
    await sender.close()
    assert chaos.cuts > 10
    assert not sending.failed
    sending.judge(await read_log(bootstrap, topic))
    assert sending.most_memory <= 20_000


async def _started(client) -> bool:
    await client.start()
    return True


@pytest.mark.parametrize("sessions", [True, False])
async def test_consumer_survives_cuts_and_returns_each_record_once(bootstrap, producer, topic, sessions):
    sender = await producer(batch_size=300)
    for number in range(900):
        await sender.send(topic, b"%d" % number, partition=number % 3)
    await sender.flush()
    chaos = Chaos(7, cut_read=0.3)
    reader = Consumer(
        bootstrap_servers=bootstrap,
        world=chaos.world(),
        auto_offset_reset="earliest",
        enable_fetch_sessions=sessions,
        max_partition_fetch_bytes=1000,
        **QUICK,
    )
    await eventually(lambda: _started(reader))
    reader.assign([(topic, number) for number in range(3)])
    found = defaultdict(list)
    async with asyncio.timeout(60):
        for _ in range(3):
            found.clear()
            reader.seek_to_beginning()
            while sum(map(len, found.values())) < 900:
                for record in await reader.poll(500):
                    found[record.partition].append(int(record.value))
    chaos.calm()
    await reader.close()
    assert chaos.cuts > 3
    assert all(numbers == list(range(partition, 900, 3)) for partition, numbers in found.items())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_group_member_survives_cuts_and_commits_what_it_read(bootstrap, producer, topic, name, protocol):
    sender = await producer()
    for number in range(300):
        await sender.send(topic, b"%d" % number, partition=number % 3)
    await sender.flush()
    chaos = Chaos(11, cut_read=0.1, cut_write=0.05)
    settings = QUICK | {
        "group_id": name,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": 20,
        "group_protocol": protocol,
    }
    if protocol == "classic":
        settings |= {"heartbeat_interval_ms": 50}
    seen = set()
    reader = Consumer(bootstrap_servers=bootstrap, world=chaos.world(), **settings)
    await eventually(lambda: _started(reader))
    reader.subscribe([topic])
    async with asyncio.timeout(60):
        while len(seen) < 300:
            seen |= {int(record.value) for record in await reader.poll(200, max_records=20)}
    chaos.calm()
    await reader.close()
    async with Admin(bootstrap_servers=bootstrap) as admin:
        committed = await admin.group_offsets(name)
    assert {offset.offset for offset in committed.values()} == {100}


async def test_slow_broker_delays_and_loses_nothing(bootstrap, topic):
    chaos = Chaos(1)
    async with Producer(bootstrap_servers=bootstrap, world=chaos.world(), batch_size=200, linger_ms=0, **QUICK) as sender:
        await sender.partitions_for(topic)
        chaos.delay_ms = 30
        sending = Sending(sender, topic, 200)
        async with asyncio.timeout(60):
            await sending.run()
        chaos.calm()
    assert not sending.failed
    sending.judge(await read_log(bootstrap, topic))


async def test_broker_that_never_answers_ends_in_the_documented_timeout(bootstrap, topic):
    chaos = Chaos(1)
    settings = {"delivery_timeout_ms": 600, "request_timeout_ms": 200, "linger_ms": 0, "max_block_ms": 300, "buffer_memory": 3000}
    sender = Producer(bootstrap_servers=bootstrap, world=chaos.world(), **QUICK, **settings)
    await sender.start()
    await sender.send_and_wait(topic, b"0", partition=0)
    chaos.delay_ms = 1e9
    delivery = await sender.send(topic, b"1", partition=0)
    with pytest.raises(WaitTimedOut, match="delivered within 600"):
        await delivery

    async def fill() -> None:
        for _ in range(100):
            await sender.send(topic, bytes(500), partition=0)

    with pytest.raises(WaitTimedOut, match="buffer_memory"):
        await fill()
    chaos.calm()
    chaos.cut_all()
    await sender.close(5000)


async def test_admin_survives_cuts(bootstrap, name):
    chaos = Chaos(5, cut_read=0.2)
    admin = Admin(bootstrap_servers=bootstrap, world=chaos.world(), **QUICK)
    await eventually(lambda: _started(admin))
    for number in range(10):
        with suppress(ApiError):  # TOPIC_ALREADY_EXISTS: the first attempt worked and its answer was lost
            await admin.create_topic(f"{name}-{number}", 1)
    wanted = {f"{name}-{number}" for number in range(10)}
    await eventually(admin.list_topics, lambda listed: wanted <= set(listed))  # Kafka's brokers hear of a topic a little later
    chaos.calm()
    await admin.close()
    assert chaos.cuts > 0


@pytest.mark.parametrize("version", [1, 2])
async def test_transactions_survive_cuts_all_or_nothing(bootstrap, topic, name, version):
    chaos = Chaos(version, cut_read=0.06, cut_write=0.04)
    settings = QUICK | {"linger_ms": 0, "request_timeout_ms": 2000, "max_block_ms": 30_000, "delivery_timeout_ms": 30_000}
    sender = Producer(bootstrap_servers=bootstrap, world=chaos.world(), transactional_id=name, **settings)
    await eventually(lambda: _started(sender))
    if version == 1:
        sender._cluster.features = sender._cluster.features | {"transaction.version": 1}
        sender._cluster._features_epoch = 2**62  # no connection knows better
    committed: list[int] = []
    async with asyncio.timeout(90):
        await sender.init_transactions()
        for number in range(200):
            if number >= 40 and chaos.cuts > 10:
                break
            await sender.begin_transaction()
            for partition in range(3):
                await sender.send(topic, b"%d" % number, partition=partition)
            if number % 4 == 3:
                await sender.abort_transaction()
            else:
                await sender.commit_transaction()
                committed.append(number)
    chaos.calm()
    await sender.close()
    assert chaos.cuts > 10

    async def read():
        async with Consumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as reader:
            parts = [(topic, number) for number in range(3)]
            reader.assign(parts)
            ends = await reader.end_offsets(parts)
            found = defaultdict(list)
            while any([await reader.position(part) < end for part, end in ends.items()]):
                for record in await reader.poll(200):
                    found[record.partition].append(int(record.value))
            return found

    await eventually(read, lambda found: all(found[partition] == committed for partition in range(3)))


# A cluster that loses brokers ---------------------------------------------------------------------------------------------


async def test_broker_killed_and_restarted_while_sending():
    async with EmbeddedCluster(1, settings=SETTINGS) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topic("t", 3)
        sender = Producer(bootstrap_servers=cluster.bootstrap, batch_size=300, linger_ms=0, buffer_memory=20_000, **QUICK)
        await sender.start()
        sending = Sending(sender, "t", 1500)
        running = asyncio.create_task(sending.run())
        for reached in (200, 700):
            await eventually(lambda reached=reached: _at(sending, reached))
            await cluster.wait(cluster.nodes[0].kill)
            await cluster.wait(cluster.nodes[0].start)
        async with asyncio.timeout(60):
            await running
        await sender.close()
        assert not sending.failed
        sending.judge(await read_log(cluster.bootstrap, "t"))


async def _at(sending: Sending, reached: int) -> bool:
    return len(sending.acknowledged) >= reached


async def test_leader_killed_while_sending_and_reading():
    settings = SETTINGS | {"min.insync.replicas": "2"}
    async with EmbeddedCluster(3, settings=settings) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topic("t", 3, 3)
            leader = (await eventually(lambda: admin.describe_topic("t"))).partitions[0].leader
        sender = Producer(bootstrap_servers=cluster.bootstrap, batch_size=300, linger_ms=0, buffer_memory=20_000, **QUICK)
        reader = Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", **QUICK)
        await sender.start()
        await reader.start()
        reader.assign([("t", number) for number in range(3)])
        sending = Sending(sender, "t", 1200)
        running = asyncio.create_task(sending.run())
        found = defaultdict(list)

        async def read() -> None:
            while sum(map(len, found.values())) < 1200:
                for record in await reader.poll(500):
                    found[record.partition].append(int(record.value))

        reading = asyncio.create_task(read())
        await eventually(lambda: _at(sending, 200))
        victim = next(node for node in cluster.nodes if node.node_id == leader)
        await cluster.wait(victim.kill)
        async with asyncio.timeout(60):
            await running
            await reading
        await sender.close()
        await reader.close()
        assert not sending.failed
        assert all(numbers == list(range(partition, 1200, 3)) for partition, numbers in found.items())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_coordinator_killed_and_the_group_goes_on(protocol):
    async with EmbeddedCluster(3, settings=SETTINGS) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topic("t", 3, 3)
        settings = QUICK | {
            "group_id": "g",
            "auto_offset_reset": "earliest",
            "group_protocol": protocol,
            "auto_commit_interval_ms": 20,
        }
        if protocol == "classic":
            settings |= {"heartbeat_interval_ms": 50}
        async with (
            Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as sender,
            Consumer(bootstrap_servers=cluster.bootstrap, **settings) as reader,
            Admin(bootstrap_servers=cluster.bootstrap, **QUICK) as admin,
        ):
            reader.subscribe(["t"])
            seen: set[int] = set()

            async def until(count: int) -> None:
                async with asyncio.timeout(60):
                    while len(seen) < count:
                        seen.update(int(record.value) for record in await reader.poll(200))

            for number in range(30):
                await sender.send_and_wait("t", b"%d" % number, partition=number % 3)
            await until(30)
            coordinator = (await admin.describe_group("g")).coordinator.id
            await cluster.wait(next(node for node in cluster.nodes if node.node_id == coordinator).kill)
            for number in range(30, 60):
                await sender.send_and_wait("t", b"%d" % number, partition=number % 3)
            await until(60)
            await reader.commit()
            assert {offset.offset for offset in (await admin.group_offsets("g")).values()} == {20}


# Leaders that moved, or do not know that they are none any more ------------------------------------------------------------

QUICKLY_GONE = {"min.insync.replicas": "2", "broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}


async def _leader(bootstrap: str, topic: str = "t") -> int:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        found = await eventually(
            lambda: admin.describe_topic(topic), lambda info: all(part.leader > 0 for part in info.partitions)
        )
        return found.partitions[0].leader


async def _agreed(cluster: EmbeddedCluster, topic: str = "t", partitions: int = 3) -> None:
    """Everybody knows who leads: one who led and has not heard yet would show a reader its own, older end, as in Kafka."""

    async def is_each_led_by_one() -> bool:
        leaders = [[node for node in cluster.nodes if node.leads(topic, number)] for number in range(partitions)]
        return all(len(each) == 1 for each in leaders)

    await eventually(is_each_led_by_one)


async def _move_leaders(admin: Admin, topic: str) -> None:
    """Every partition of a topic to the next of its replicas, with everybody alive."""
    parts = (await admin.describe_topic(topic)).partitions
    old = {part.partition: part.leader for part in parts}
    places = {(topic, part.partition): (*part.replicas[1:], part.replicas[0]) for part in parts}
    await admin.alter_partition_reassignments(places)

    async def have_moved() -> bool:
        with suppress(ApiError):
            await admin.elect_leaders(list(places))
        found = (await admin.describe_topic(topic)).partitions
        return all(part.leader == part.replicas[0] != old[part.partition] for part in found)

    await eventually(have_moved)


async def test_leader_moved_while_sending_is_followed_without_loss_or_repetition():
    async with EmbeddedCluster(3, settings=SETTINGS) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topic("t", 3, 3)
        sender = Producer(bootstrap_servers=cluster.bootstrap, batch_size=300, linger_ms=0, buffer_memory=20_000, **QUICK)
        await sender.start()
        sending = Sending(sender, "t", 1500)
        running = asyncio.create_task(sending.run())
        leaders = set()
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            for round in range(1, 5):
                await eventually(lambda reached=200 * round: _at(sending, reached))
                leaders.add((await admin.describe_topic("t")).partitions[0].leader)
                await _move_leaders(admin, "t")
        async with asyncio.timeout(60):
            await running
        await sender.close()
        assert len(leaders) > 1, "the leadership did not move"
        assert not sending.failed
        assert sending.most_memory <= 20_000
        sending.judge(await read_log(cluster.bootstrap, "t"))


async def test_producer_leaves_a_leader_that_was_cut_off_from_its_cluster():
    """Such a leader answers its clients, and says of itself that it leads: only the other brokers know better."""
    settings = SETTINGS | QUICKLY_GONE
    async with EmbeddedCluster(3, settings=settings) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topic("t", 3, 3)
        old = await _leader(cluster.bootstrap)
        bound = cluster.node(old)
        limits = {"batch_size": 300, "linger_ms": 0, "buffer_memory": 20_000, "delivery_timeout_ms": 90_000}
        sender = Producer(bootstrap_servers=bound.bootstrap, **limits, **QUICK)  # it knows nobody else to begin with
        await sender.start()
        sending = Sending(sender, "t", 600)
        running = asyncio.create_task(sending.run())
        await eventually(lambda: _at(sending, 100))
        cluster.isolate(old)
        async with asyncio.timeout(60):
            await running
        cluster.heal()
        await sender.close()
        assert not sending.failed
        await _agreed(cluster)
        sending.judge(await read_log(cluster.bootstrap, "t"))


async def test_paused_leader_is_left_for_its_successor_before_its_request_times_out():
    settings = SETTINGS | QUICKLY_GONE
    async with EmbeddedCluster(3, settings=settings) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topic("t", 3, 3)
        old = cluster.node(await _leader(cluster.bootstrap))
        # Only if the silent leader is left can everything be delivered within the time that a single request has.
        settings = {"batch_size": 300, "linger_ms": 0, "request_timeout_ms": 300_000, "delivery_timeout_ms": 300_001}
        sender = Producer(bootstrap_servers=cluster.bootstrap, **settings, **QUICK)
        await sender.start()
        sending = Sending(sender, "t", 600)
        running = asyncio.create_task(sending.run())
        await eventually(lambda: _at(sending, 100))
        await cluster.wait(old.pause)
        try:
            async with asyncio.timeout(60):
                await running
        finally:
            await cluster.wait(old.resume)
        await sender.close()
        assert not sending.failed
        await _agreed(cluster)
        sending.judge(await read_log(cluster.bootstrap, "t"))


async def test_silent_broker_does_not_hold_up_what_another_can_answer():
    """A broker that takes connections and says nothing, beside a good one: everyone gets along with the good one."""
    async with EmbeddedCluster(3, settings=SETTINGS) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topic("t", 3, 3)
            await eventually(lambda: admin.latest_offsets(("t", number) for number in range(3)))
        silent = cluster.nodes[0]
        others = cluster.nodes[1:]
        patient = {"request_timeout_ms": 300_000, "socket_connection_setup_timeout_ms": 300_000}
        await cluster.wait(silent.pause)
        try:
            async with asyncio.timeout(60):
                for first in ([silent, *others], [*others, silent]):
                    servers = ",".join(node.bootstrap for node in first)
                    async with Admin(bootstrap_servers=servers, **patient) as admin:
                        await admin._cluster.refresh({"t"})
                        await admin._cluster.refresh({"t"})
                        assert set(admin._cluster.view.brokers) >= {node.node_id for node in others}
                        await admin._cluster.coordinator(0, "g")
        finally:
            await cluster.wait(silent.resume)


@pytest.mark.parametrize("lagging_answers", [3, None])
async def test_partition_that_one_broker_does_not_know_yet_is_asked_for_again(lagging_answers):
    """Seed 60: a topic had grown, the broker that was asked lagged behind, and its word that there is no such partition was final."""
    asked, topic = 0, MetadataResponse.MetadataResponseTopic

    def answer(key, version, request):
        nonlocal asked
        if key == ApiVersionsRequest.TYPE_KEY:
            return versions_answer()
        asked += bool(request.topics)
        partitions = 1 if lagging_answers is None or asked <= lagging_answers else 2
        rows = [topic.MetadataResponsePartition(partition_index=number, leader_id=1) for number in range(partitions)]
        broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)
        return MetadataResponse(brokers=[broker], topics=[topic(name="t", topic_id=b"t" * 16, partitions=rows)])

    async with kafka_peer(answer) as port, Producer(bootstrap_servers=f"127.0.0.1:{port}", **QUICK) as sender:
        if lagging_answers is None:
            with pytest.raises(UnknownPartition, match="1 partitions"):
                await sender._cluster.partition("t", 1)
        else:
            assert (await sender._cluster.partition("t", 1)).leader == 1


class Leader:
    """Of one partition, for one producer; as Kafka's, it takes any sequence from a producer of which it knows nothing, and as one that was
    restarted it does not recognise a repetition. `refusals` are its answers to the first produce requests, of which it writes nothing.
    """

    def __init__(self, *refusals: ErrorCode) -> None:
        self.refusals = list(refusals)
        self.doubts: list[ErrorCode] = []  # what it answers to what it has written: its followers have not got it
        self.uncertain = 0  # so many times it is asked for the end of its log and does not know yet what is committed
        self.loses_it = False  # then another leads, which had the first record only
        self.port = 0
        self.produced = 0
        self.last_sequence = NO_SEQUENCE
        self.log: list[bytes] = []
        self.was_refused = asyncio.Event()  # a client that was refused asks who leads now

    def answer(self, key, version, request):
        if key == ApiVersionsRequest.TYPE_KEY:
            return versions_answer()
        if key == InitProducerIdRequest.TYPE_KEY:
            return InitProducerIdResponse(producer_id=7, producer_epoch=0)
        if key == DescribeProducersRequest.TYPE_KEY:
            return self._producers()
        if key == ProduceRequest.TYPE_KEY:
            return self._produced(request)
        if key == ListOffsetsRequest.TYPE_KEY:
            return self._end()
        if self.produced:
            self.was_refused.set()
        topic = MetadataResponse.MetadataResponseTopic
        rows = [topic.MetadataResponsePartition(partition_index=0, leader_id=1)]
        broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)
        return MetadataResponse(brokers=[broker], topics=[topic(name="t", topic_id=b"t" * 16, partitions=rows)])

    def _produced(self, request):
        self.produced += 1
        error = self.refusals.pop(0) if self.refusals else self._append(request.topic_data[0].partition_data[0].records)
        topic = ProduceResponse.TopicProduceResponse
        rows = [topic.PartitionProduceResponse(index=0, error_code=error, base_offset=-1 if error else len(self.log) - 1)]
        return ProduceResponse(responses=[topic(name="t", topic_id=b"t" * 16, partition_responses=rows)])

    def _append(self, records) -> ErrorCode:
        [(header, batch)] = decode_batches(bytes(records))
        if self.last_sequence not in (NO_SEQUENCE, header.base_sequence - 1):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.last_sequence = header.last_sequence
        self.log += [record.value for record in batch]
        return self.doubts.pop(0) if self.doubts else ErrorCode.NONE

    def _end(self):
        self.uncertain -= 1
        error = ErrorCode.OFFSET_NOT_AVAILABLE if self.uncertain >= 0 else ErrorCode.NONE
        if self.uncertain == 0 and self.loses_it:
            del self.log[1:]
            self.last_sequence = 0
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        rows = [topic.ListOffsetsPartitionResponse(partition_index=0, error_code=error, offset=len(self.log))]
        return ListOffsetsResponse(topics=[topic(name="t", partitions=rows)])

    def _producers(self):
        part = DescribeProducersResponse.TopicResponse.PartitionResponse
        state = part.ProducerState(producer_id=7, producer_epoch=0, last_sequence=self.last_sequence)
        rows = [part(partition_index=0, active_producers=[state])]
        return DescribeProducersResponse(topics=[DescribeProducersResponse.TopicResponse(name="t", partitions=rows)])


async def test_what_was_never_written_is_not_taken_for_written_because_something_later_was():
    """Seed 244 of the focus replication: what became of the first batch was in doubt, its repetition was refused by a leader that had not
    begun, and what went out behind it arrived when it had. The leader knew nothing of the producer and took it; the first batch, out of
    order from then on, was looked up and acknowledged."""
    leader = Leader(ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    async with kafka_peer(leader.answer) as leader.port:
        settings = QUICK | {"linger_ms": 0, "batch_size": 1, "retry_backoff_ms": 100, "retry_backoff_max_ms": 100}
        async with asyncio.timeout(30), Producer(bootstrap_servers=f"127.0.0.1:{leader.port}", **settings) as sender:
            first = await sender.send("t", b"first", partition=0)
            await leader.was_refused.wait()
            second = await sender.send("t", b"second", partition=0)  # it is there when the first is sent again
            assert (await first).offset == 0
            assert (await second).offset == 1
    assert leader.log == [b"first", b"second"]


@pytest.mark.parametrize("loses_it", [False, True])
@pytest.mark.parametrize("doubt", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER])
async def test_what_a_leader_has_written_is_not_acknowledged_before_it_is_committed(doubt, loses_it):
    """It was written, and did not get to the followers before time was up, or before its leader led no longer (seed 351). The leader that
    is asked where the producer is has it, and does not know yet what is committed: what it has may still go with it, and another lead
    that never had it."""
    leader = Leader()
    async with kafka_peer(leader.answer) as leader.port:
        settings = QUICK | {"linger_ms": 0, "batch_size": 1}
        async with asyncio.timeout(30), Producer(bootstrap_servers=f"127.0.0.1:{leader.port}", **settings) as sender:
            await sender.send_and_wait("t", b"first", partition=0)
            leader.doubts, leader.uncertain, leader.loses_it = [doubt, doubt], 2, loses_it
            for delivery in [await sender.send("t", value, partition=0) for value in (b"second", b"third")]:
                await delivery
                assert leader.uncertain <= 0, "it was acknowledged when nobody knew that it was committed"
    assert leader.log == [b"first", b"second", b"third"]


async def test_stale_metadata_is_made_good_by_the_first_refusal():
    """A view that is wrong in every way: leaders that are not, an epoch of long ago, a partition count that has grown."""
    async with EmbeddedCluster(3, settings=SETTINGS) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topic("t", 2, 1)
            async with (
                Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0, **QUICK) as sender,
                Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", **QUICK) as reader,
            ):
                for client in (sender, reader):
                    info = await client.partitions_for("t")
                    wrong = {part.partition: 1 + part.leader % 3 for part in info.partitions}
                    moved = tuple(replace(part, leader=wrong[part.partition], leader_epoch=0) for part in info.partitions)
                    client._cluster.view.topics["t"] = replace(info, partitions=moved)
                await admin.create_partitions("t", 3)
                for node in cluster.nodes:  # whoever is asked must have heard of it
                    question = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
                    await eventually(
                        lambda node=node, question=question: admin._cluster.ask(node.node_id, question),
                        lambda reply: len(reply.topics[0].partitions) == 3,
                    )
                for number in range(90):
                    await sender.send("t", b"%d" % number, partition=number % 3)
                await sender.flush()
                reader.assign([("t", number) for number in range(3)])
                found = defaultdict(list)
                async with asyncio.timeout(30):
                    while sum(map(len, found.values())) < 90:
                        for record in await reader.poll(500):
                            found[record.partition].append(int(record.value))
        assert all(numbers == list(range(partition, 90, 3)) for partition, numbers in found.items())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_coordinator_moved_and_the_group_goes_on(protocol):
    async with EmbeddedCluster(3, settings=SETTINGS) as cluster:
        settings = QUICK | {"group_id": "g", "auto_offset_reset": "earliest", "group_protocol": protocol}
        if protocol == "classic":
            settings |= {"heartbeat_interval_ms": 50}
        async with (
            Admin(bootstrap_servers=cluster.bootstrap, **QUICK) as admin,
            Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as sender,
            Consumer(bootstrap_servers=cluster.bootstrap, **settings) as reader,
        ):
            await admin.create_topic("t", 3, 3)
            reader.subscribe(["t"])
            seen: set[int] = set()
            for first in (0, 30, 60):
                for number in range(first, first + 30):
                    await sender.send_and_wait("t", b"%d" % number, partition=number % 3)
                async with asyncio.timeout(60):
                    while len(seen) < first + 30:
                        seen.update(int(record.value) for record in await reader.poll(200))
                if first < 60:
                    await _move_leaders(admin, "__consumer_offsets")
            await reader.commit()
            committed = await eventually(lambda: admin.group_offsets("g"))
            assert {offset.offset for offset in committed.values()} == {30}


async def test_transaction_coordinator_moved_within_a_transaction():
    async with EmbeddedCluster(3, settings=SETTINGS) as cluster:
        settings = QUICK | {"transactional_id": "mover", "linger_ms": 0, "max_block_ms": 60_000}
        async with (
            Admin(bootstrap_servers=cluster.bootstrap, **QUICK) as admin,
            Producer(bootstrap_servers=cluster.bootstrap, **settings) as sender,
        ):
            await admin.create_topic("t", 3, 3)
            async with asyncio.timeout(60):
                for number in range(4):
                    async with sender.transaction():
                        for partition in range(3):
                            await sender.send("t", b"%d" % number, partition=partition)
                        if number < 3:
                            await sender.flush()
                            await _move_leaders(admin, "__transaction_state" if number % 2 == 0 else "t")
        settings = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        async with Consumer(bootstrap_servers=cluster.bootstrap, **settings) as reader:
            reader.assign([("t", number) for number in range(3)])
            found = defaultdict(list)
            async with asyncio.timeout(30):
                while sum(map(len, found.values())) < 12:
                    for record in await reader.poll(500):
                        found[record.partition].append(int(record.value))
        assert all(numbers == [0, 1, 2, 3] for numbers in found.values())
