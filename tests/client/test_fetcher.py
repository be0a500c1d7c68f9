"""The consumer against a broker played by the test: what only a cluster in trouble would answer."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager

import pytest

from ottla import ApiError, Consumer
from ottla.client.errors import UnreadableRecords
from ottla.client.fetcher import SHARED_WAIT_MS
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.records.builder import build_batch
from ottla.records.record import Record
from tests.client.peers import kafka_peer, versions_answer
from tests.client.waiting import poll_forever

TOPIC_ID = b"t" * 16
PART = FetchResponse.FetchableTopicResponse.PartitionData
MAX_FETCHES = 200


def batch(*offsets: int, epoch: int = 0) -> bytes:
    return build_batch([Record(offset, 0, None, b"%d" % offset) for offset in offsets], leader_epoch=epoch)


class Broker:
    """One node of a cluster; `fetches` says what it was asked, `reply` what it answers."""

    def __init__(self, node: int, reply) -> None:
        self.node = node
        self.reply = reply
        self.port = 0
        self.cluster: list[Broker] = [self]
        self.leader = node
        self.partitions = 1
        self.fetches: list[FetchRequest] = []

    def answer(self, key, version, request):
        if key == 18:
            return versions_answer()
        if isinstance(request, MetadataRequest):
            return self.metadata()
        assert isinstance(request, FetchRequest)
        self.fetches.append(request)
        assert len(self.fetches) < MAX_FETCHES
        return self.reply(self, request)

    def metadata(self):
        topic = MetadataResponse.MetadataResponseTopic
        parts = [
            topic.MetadataResponsePartition(partition_index=n, leader_id=self.leader, leader_epoch=1, replica_nodes=[self.leader])
            for n in range(self.partitions)
        ]
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=each.node, host="127.0.0.1", port=each.port)
                for each in self.cluster
            ],
            topics=[topic(name="t", topic_id=TOPIC_ID, partitions=parts)],
        )


def answer_with(session: int = 0, code: int = 0, **part) -> FetchResponse:
    fields = {"high_watermark": 10, "records": b""} | part
    topic = FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[PART(partition_index=0, **fields)])
    return FetchResponse(error_code=code, session_id=session, responses=[] if code else [topic])


@asynccontextmanager
async def cluster(*brokers: Broker):
    async with asyncio.timeout(20):
        if len(brokers) == 1:
            async with kafka_peer(brokers[0].answer) as port:
                brokers[0].port = port
                yield f"127.0.0.1:{port}"
        else:
            async with kafka_peer(brokers[0].answer) as one, kafka_peer(brokers[1].answer) as two:
                brokers[0].port, brokers[1].port = one, two
                brokers[0].cluster = brokers[1].cluster = list(brokers)
                brokers[1].leader = brokers[0].leader
                yield f"127.0.0.1:{one}"


@asynccontextmanager
async def reading(bootstrap: str, offset: int, **settings):
    async with Consumer(bootstrap_servers=bootstrap, retry_backoff_ms=5, **settings) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), offset)
        yield consumer


def asked(request: FetchRequest):
    return request.topics[0].partitions[0] if request.topics else None


async def take(consumer: Consumer, count: int) -> list[int]:
    found = []
    while len(found) < count:
        found += [record.offset for record in await consumer.poll(1000)]
    return found


async def test_log_that_was_cut_is_read_on_where_it_still_agrees():
    def reply(broker, request):
        offset = asked(request).fetch_offset
        if offset == 0:
            return answer_with(records=batch(0, 1, 2, 3, epoch=1))
        if offset == 4 and asked(request).last_fetched_epoch == 1:
            return answer_with(diverging_epoch=PART.EpochEndOffset(epoch=0, end_offset=2))
        return answer_with(records=batch(2, 3, 4, epoch=2)) if offset == 2 else answer_with()

    async with cluster(Broker(1, reply)) as bootstrap, reading(bootstrap, 0, enable_fetch_sessions=False) as consumer:
        assert await take(consumer, 7) == [0, 1, 2, 3, 2, 3, 4]


async def test_log_that_was_cut_is_an_error_without_a_policy():
    def reply(broker, request):
        if asked(request).fetch_offset == 0:
            return answer_with(records=batch(0, 1, epoch=1))
        return answer_with(diverging_epoch=PART.EpochEndOffset(epoch=0, end_offset=1))

    settings = {"enable_fetch_sessions": False, "auto_offset_reset": "none"}
    async with cluster(Broker(1, reply)) as bootstrap, reading(bootstrap, 0, **settings) as consumer:
        assert await take(consumer, 2) == [0, 1]
        with pytest.raises(ApiError, match="truncated to offset 1"):
            await poll_forever(consumer)


async def test_closest_replica_is_read_until_it_fails_and_then_the_leader():
    def leader(broker, request):
        assert request.rack_id == "here"
        offset = asked(request).fetch_offset
        if offset == 0:
            return answer_with(preferred_read_replica=2)
        return answer_with(records=batch(offset))

    def follower(broker, request):
        offset = asked(request).fetch_offset
        if offset < 2:
            return answer_with(records=batch(offset))
        return answer_with(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)

    one, two = Broker(1, leader), Broker(2, follower)
    async with cluster(one, two) as bootstrap, reading(bootstrap, 0, client_rack="here", enable_fetch_sessions=False) as consumer:
        assert await take(consumer, 3) == [0, 1, 2]
    assert [asked(request).fetch_offset for request in two.fetches][:3] == [0, 1, 2]
    assert 2 in [asked(request).fetch_offset for request in one.fetches]


async def test_session_says_only_what_changed_and_is_made_anew_when_forgotten():
    def reply(broker, request):
        number = len(broker.fetches)
        if number == 1:
            return answer_with(session=77, records=batch(0))
        if number == 2:
            return FetchResponse(session_id=77)
        if number == 3:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return (
            answer_with(session=78, records=batch(asked(request).fetch_offset)) if number == 4 else FetchResponse(session_id=78)
        )

    broker = Broker(1, reply)
    async with cluster(broker) as bootstrap, reading(bootstrap, 0) as consumer:
        assert await take(consumer, 2) == [0, 1]
    first, second, third, fourth = broker.fetches[:4]
    assert (first.session_id, first.session_epoch, asked(first).fetch_offset) == (0, 0, 0)
    assert (second.session_id, second.session_epoch, asked(second).fetch_offset) == (77, 1, 1)
    assert (third.session_id, third.session_epoch, third.topics) == (77, 2, [])
    assert (fourth.session_id, fourth.session_epoch, asked(fourth).fetch_offset) == (0, 0, 1)


async def test_hint_of_the_new_leader_is_followed_without_asking_for_metadata():
    def old(broker, request):
        return answer_with(
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=PART.LeaderIdAndEpoch(leader_id=2, leader_epoch=5)
        )

    def new(broker, request):
        assert asked(request).current_leader_epoch == 5
        return answer_with(records=batch(asked(request).fetch_offset))

    one, two = Broker(1, old), Broker(2, new)
    async with cluster(one, two) as bootstrap, reading(bootstrap, 3, enable_fetch_sessions=False) as consumer:
        assert await take(consumer, 1) == [3]
    assert len(one.fetches) == 1


async def test_damaged_batch_is_an_error_that_stays_until_someone_seeks_past_it():
    damaged = bytearray(batch(0, 1))
    damaged[-1] ^= 1

    def reply(broker, request):
        offset = asked(request).fetch_offset
        return (
            answer_with(records=bytes(damaged) + batch(2))
            if offset < 2
            else answer_with(records=batch(offset) if offset < 4 else b"")
        )

    async with cluster(Broker(1, reply)) as bootstrap, reading(bootstrap, 0, enable_fetch_sessions=False) as consumer:
        for _ in range(2):
            with pytest.raises(UnreadableRecords, match="t-0 at offset 0: a record batch with a wrong checksum") as caught:
                await poll_forever(consumer)
        consumer.seek(caught.value.partition, caught.value.next_offset)
        assert (await take(consumer, 1))[0] == 2


async def test_batch_that_was_damaged_on_its_way_is_fetched_again():
    def reply(broker, request):
        good = batch(asked(request).fetch_offset)
        return answer_with(records=good if len(broker.fetches) > 1 else good[:-1] + bytes([good[-1] ^ 1]))

    async with cluster(Broker(1, reply)) as bootstrap, reading(bootstrap, 0) as consumer:
        with pytest.raises(UnreadableRecords):
            await poll_forever(consumer)
        assert await take(consumer, 2) == [0, 1]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data[:8] + b"\xff" * 4 + data[12:]]
)
async def test_damaged_partition_does_not_hold_up_the_others(damage):
    def reply(broker, request):
        topic = FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID)
        for part in request.topics[0].partitions:
            good = batch(part.fetch_offset)
            topic.partitions.append(
                PART(partition_index=part.partition, high_watermark=10, records=damage(good) if part.partition == 1 else good)
            )
        return FetchResponse(responses=[topic])

    broker = Broker(1, reply)
    broker.partitions = 3
    settings = {"enable_fetch_sessions": False, "retry_backoff_ms": 5, "max_poll_records": 1}
    found, errors = defaultdict(list), []
    async with cluster(broker) as bootstrap, Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
        consumer.assign([("t", number) for number in range(3)])
        for number in range(3):
            consumer.seek(("t", number), 0)
        while len(errors) < 3 or min(len(found[0]), len(found[2])) < 5:
            try:
                for record in await consumer.poll(1000):
                    found[record.partition].append(record.offset)
            except ApiError as error:
                errors.append(error)
    assert all(error.code is ErrorCode.CORRUPT_MESSAGE and "t-1" in str(error) for error in errors)
    assert 1 not in found
    assert all(offsets == list(range(len(offsets))) for offsets in found.values())


async def test_columns_end_before_a_damaged_batch_and_go_on_behind_it():
    damaged = bytearray(batch(2, 3))
    damaged[-1] ^= 1

    def reply(broker, request):
        rest = {0: batch(0) + batch(1) + damaged + batch(4), 2: damaged + batch(4), 4: batch(4)}
        return answer_with(records=bytes(rest.get(asked(request).fetch_offset, b"")))

    async def read(consumer: Consumer) -> list[int]:
        return (await anext(consumer.arrow())).column("offset").to_pylist()

    async with cluster(Broker(1, reply)) as bootstrap, reading(bootstrap, 0, enable_fetch_sessions=False) as consumer:
        assert await read(consumer) == [0, 1]
        for _ in range(2):
            with pytest.raises(UnreadableRecords, match="t-0 at offset 2") as caught:
                await read(consumer)
        consumer.seek(caught.value.partition, caught.value.next_offset)
        assert await read(consumer) == [4]


async def test_partition_that_is_refused_for_good_is_not_asked_for_without_pause():
    broker = Broker(1, lambda broker, request: answer_with(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    settings = {"enable_fetch_sessions": False, "retry_backoff_ms": 30_000, "retry_backoff_max_ms": 30_000}
    async with cluster(broker) as bootstrap, Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0)
        with pytest.raises(ApiError, match="TOPIC_AUTHORIZATION_FAILED"):
            await poll_forever(consumer)
        assert await consumer.poll(100) == []
    assert len(broker.fetches) == 1


async def test_answer_for_a_place_that_was_left_meanwhile_is_dropped():
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def serve_slowly(consumer):
        await arrived.wait()
        consumer.seek(("t", 0), 7)
        go_on.set()

    def reply(broker, request):
        arrived.set()
        offset = asked(request).fetch_offset
        return answer_with(records=batch(offset, offset + 1))

    async with cluster(Broker(1, reply)) as bootstrap, reading(bootstrap, 0, enable_fetch_sessions=False) as consumer:
        consumer._fetcher.poke()
        await serve_slowly(consumer)
        assert (await take(consumer, 2))[:2] == [7, 8]


async def test_broker_that_asks_for_patience_gets_it():
    times = []

    def reply(broker, request):
        times.append(asyncio.get_running_loop().time())
        made = answer_with(records=batch(asked(request).fetch_offset))
        made.throttle_time_ms = 80 if len(times) == 1 else 0
        return made

    async with cluster(Broker(1, reply)) as bootstrap, reading(bootstrap, 0, enable_fetch_sessions=False) as consumer:
        assert await take(consumer, 2) == [0, 1]
    assert times[1] - times[0] >= 0.07


async def test_long_poll_for_idle_partitions_does_not_hold_up_one_that_has_more():
    """Brokers answer a connection's requests one after the other: while an idle partition is waited for, no other can be asked."""
    asked_last = asyncio.Event()

    def reply(broker, request):
        partitions = [part.partition for part in request.topics[0].partitions]
        if 0 not in partitions:
            asked_last.set()
            return None
        return answer_with(records=batch(request.topics[0].partitions[0].fetch_offset))

    broker = Broker(1, reply)
    broker.partitions = 2
    async with cluster(broker) as bootstrap, Consumer(bootstrap_servers=bootstrap, enable_fetch_sessions=False) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        for number in range(2):
            consumer.seek(("t", number), 0)
        await asked_last.wait()  # nobody polls, so what partition 0 may buffer is full
    waits = [request.max_wait_ms for request in broker.fetches]
    assert waits[:-1] == [500] * (len(waits) - 1)
    assert waits[-1] == SHARED_WAIT_MS
