"""What a producer is answered: the same by the short way and by the codec's, to which bytes behind a request lead."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.errors import ErrorCode
from ottla.protocol.codec import encode
from ottla.protocol.framing import request_frame
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.topics import CreateTopicsRequest
from ottla.protocol.single_produce import read_request
from ottla.records.batch import CONTROL_BIT, CRC_START, crc_of, headers
from ottla.records.builder import build_batch
from ottla.records.compression import GZIP
from ottla.records.record import Record
from tests.compatibility.wire import Wire, address_of, wait_until

PRODUCE = 0
EVERY_VERSION = pytest.mark.parametrize("version", range(5, 14))
WAYS = (b"", b"\x00")  # what follows a request, by which it goes the short way or the codec's

Topic = tuple[str, bytes]  # its name and its id


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3) as running:
        yield running


class Play:
    """The same two topics, led by node 1; what one is told by the short way, the other is told by the codec's."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self.wire = Wire(address_of(cluster.node(1).bootstrap))

    def _has(self, topic: str, leader: int) -> bool:
        return self._cluster.node(1).leads(topic, 0) if leader == 1 else self._told_leader(topic) == leader

    def _told_leader(self, topic: str) -> int:
        [row] = self.wire.ask(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)]), 9).topics
        return row.partitions[0].leader_id if row.partitions else -1

    def create(self, name: str, *, replicas: tuple[int, ...] = (1,), **configs: str) -> list[Topic]:
        made = CreateTopicsRequest.CreatableTopic
        placed = [made.CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))]
        rows = [made.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        found = []
        for way in ("short", "codec"):
            topic = made(name=f"{name[:100]}-{way}", num_partitions=-1, replication_factor=-1, assignments=placed, configs=rows)
            [answer] = self.wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7).topics
            assert answer.error_code == 0, answer
            wait_until(f"{answer.name} is known", lambda name=answer.name: self._has(name, replicas[0]))
            found.append((answer.name, answer.topic_id))
        return found

    def ask(
        self,
        topic: Topic,
        behind: bytes,
        records: bytes | None,
        version: int,
        *,
        acks: int = -1,
        partition: int = 0,
        timeout_ms: int = 30_000,
    ) -> Any:
        data = ProduceRequest.TopicProduceData
        rows = [data.PartitionProduceData(index=partition, records=records)]
        request = ProduceRequest(
            acks=acks, timeout_ms=timeout_ms, topic_data=[data(name=topic[0], topic_id=topic[1], partition_data=rows)]
        )
        body = bytearray(encode(request, version)) + behind
        assert (read_request(body, 0, version) is None) == bool(behind or not records)
        frame = b"".join(map(bytes, request_frame(request, version, 7, "judge"))) + behind
        self.wire._correlation_id = 7
        self.wire.send_raw(struct.pack(">i", len(frame) - 4) + frame[4:])
        response = self.wire.read_response(PRODUCE, version)
        [told] = response.responses
        assert (told.name, told.topic_id) == ((topic[0], bytes(16)) if version < 13 else ("", topic[1]))
        told.name, told.topic_id = "", b""
        return response

    def both(self, topics: list[Topic], records: bytes | None, version: int, **asked: Any) -> Any:
        """The partition's reply, which both ways give."""
        short, codec = [self.ask(topic, behind, records, version, **asked) for topic, behind in zip(topics, WAYS, strict=True)]
        assert short == codec
        [reply] = short.responses[0].partition_responses
        return reply

    def read(self, topic: Topic) -> bytes:
        fetched = FetchRequest.FetchTopic
        row = fetched.FetchPartition(partition=0, partition_max_bytes=1 << 20)
        request = FetchRequest(max_bytes=1 << 20, topics=[fetched(topic=topic[0], partitions=[row])])
        [answered] = self.wire.ask(request, 11).responses
        return bytes(answered.partitions[0].records or b"")


@pytest.fixture
def play(cluster: EmbeddedCluster) -> Iterator[Play]:
    made = Play(cluster)
    yield made
    made.wire.close()


@pytest.fixture
def topics(play: Play, request: pytest.FixtureRequest) -> list[Topic]:
    version = request.node.callspec.params.get("version", "") if hasattr(request.node, "callspec") else ""
    return play.create(f"{request.node.originalname[:90]}-{version}")


def batch(count: int = 1, **producer: Any) -> bytes:
    return build_batch([Record(index, 1_000, None, b"value") for index in range(count)], **producer)


def changed(change: Callable[[bytearray], None]) -> bytes:
    """A batch of another content whose checksum is right."""
    made = bytearray(batch())
    change(made)
    struct.pack_into(">I", made, 17, crc_of(made, 0, len(made)))
    return bytes(made)


@EVERY_VERSION
def test_records_are_appended_alike(play: Play, topics: list[Topic], version: int) -> None:
    offsets = [play.both(topics, batch(count), version, acks=acks).base_offset for count, acks in ((1, -1), (3, 1), (1, -1))]
    assert offsets == [0, 1, 4]
    read = [play.read(topic) for topic in topics]
    assert read[0] == read[1]
    assert [header.base_offset for _, header in headers(read[0])] == offsets


@EVERY_VERSION
def test_a_producers_sequences_are_judged_alike(play: Play, topics: list[Topic], version: int) -> None:
    def send(sequence: int, epoch: int = 3) -> tuple[int, int]:
        records = batch(2, producer_id=77, producer_epoch=epoch, base_sequence=sequence)
        reply = play.both(topics, records, version)
        return reply.error_code, reply.base_offset

    assert send(0) == (0, 0)
    assert send(2) == (0, 2)
    assert send(2) == (0, 2)  # once more: it is a duplicate
    assert send(9) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert send(4, epoch=2) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert send(4) == (0, 4)


BROKEN = {
    "checksum": (batch()[:-1] + b"\xff", {}, ErrorCode.CORRUPT_MESSAGE),
    "cut": (batch()[:-1], {}, ErrorCode.INVALID_RECORD),
    "a byte too many": (batch() + b"\x00", {}, ErrorCode.CORRUPT_MESSAGE),
    "too short for a header": (batch()[:40], {}, ErrorCode.INVALID_RECORD),
    "two batches": (batch() * 2, {}, ErrorCode.INVALID_RECORD),
    "nothing": (b"", {}, ErrorCode.INVALID_RECORD),
    "old format": (changed(lambda made: struct.pack_into(">b", made, 16, 1)), {}, ErrorCode.INVALID_RECORD),
    "control": (changed(lambda made: struct.pack_into(">h", made, CRC_START, CONTROL_BIT)), {}, ErrorCode.INVALID_RECORD),
    "more offsets than records": (changed(lambda made: struct.pack_into(">i", made, 23, 5)), {}, ErrorCode.INVALID_RECORD),
    "an offset": (changed(lambda made: struct.pack_into(">q", made, 0, 5)), {}, ErrorCode.INVALID_RECORD),
    "a codec unknown": (changed(lambda made: struct.pack_into(">h", made, CRC_START, 7)), {}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "transactional": (
        batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True), {}, ErrorCode.INVALID_TXN_STATE
    ),
    "acks": (batch(), {"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
    "partition": (batch(), {"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "size": (build_batch([Record(0, 1, None, bytes(1 << 20))]), {}, ErrorCode.MESSAGE_TOO_LARGE),
}  # fmt: skip


@EVERY_VERSION
def test_what_is_wrong_is_told_alike(play: Play, topics: list[Topic], version: int) -> None:
    for records, asked, error in BROKEN.values():
        assert play.both(topics, records, version, **asked).error_code == error
    assert [play.read(topic) for topic in topics] == [b"", b""]
    assert play.both(topics, batch(), version).base_offset == 0


@EVERY_VERSION
def test_a_topic_that_is_not_there_is_told_alike(play: Play, version: int) -> None:
    reply = play.both([("nothing-here", b"n" * 16)] * 2, batch(), version)
    assert reply.error_code == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID)


@EVERY_VERSION
def test_another_leader_is_told_of_alike(play: Play, version: int) -> None:
    topics = play.create(f"led-by-another-{version}", replicas=(2,))
    short, codec = [play.ask(topic, behind, batch(), version) for topic, behind in zip(topics, WAYS, strict=True)]
    assert short == codec
    [reply] = short.responses[0].partition_responses
    assert reply.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (reply.current_leader.leader_id, len(short.node_endpoints)) == ((2, 1) if version >= 10 else (-1, 0))


@pytest.mark.parametrize(
    "configs",
    [
        {"message_timestamp_type": "LogAppendTime"},
        {"compression_type": "gzip"},
        {"cleanup_policy": "compact"},
        {"message_timestamp_before_max_ms": "1000"},
        {"flush_messages": "1"},
    ],
    ids=lambda configs: next(iter(configs)),
)
def test_a_topics_settings_hold_alike(play: Play, configs: dict[str, str]) -> None:
    topics = play.create(f"with-{next(iter(configs))}", **configs)
    for version in (8, 11, 13):
        short, codec = [play.ask(topic, behind, batch(), version) for topic, behind in zip(topics, WAYS, strict=True)]
        for response in (short, codec):
            [reply] = response.responses[0].partition_responses
            assert (reply.log_append_time_ms > 0) == ("message_timestamp_type" in configs)
            reply.log_append_time_ms = 0
            for row in reply.record_errors:
                row.batch_index_error_message = "at another time"
        assert short == codec
        refused = {"cleanup_policy": ErrorCode.INVALID_RECORD, "message_timestamp_before_max_ms": ErrorCode.INVALID_TIMESTAMP}
        assert reply.error_code == refused.get(next(iter(configs)), 0)
    if "compression_type" in configs:
        assert all(header.codec == GZIP for topic in topics for _, header in headers(play.read(topic)))


@EVERY_VERSION
def test_replicas_are_waited_for_alike(play: Play, cluster: EmbeddedCluster, version: int) -> None:
    topics = play.create(f"replicated-{version}", replicas=(1, 2, 3))
    for offset in range(3):
        reply = play.both(topics, batch(), version)
        assert (reply.error_code, reply.base_offset) == (0, offset)


def test_time_that_is_up_is_told_alike(play: Play, cluster: EmbeddedCluster) -> None:
    topics = play.create("time-is-up", replicas=(1, 3))
    assert play.both(topics, batch(), 8).error_code == 0
    cluster.node(3).pause()
    try:
        for version in (8, 11, 13):
            reply = play.both(topics, batch(), version, timeout_ms=1)
            assert (reply.error_code, reply.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    finally:
        cluster.node(3).resume()
    wait_until("all replicas have it", lambda: play.both(topics, batch(), 8, timeout_ms=100).error_code == 0)


def test_requests_without_an_answer_are_served_in_turn(play: Play, topics: list[Topic]) -> None:
    data = ProduceRequest.TopicProduceData
    rows = [data.PartitionProduceData(index=0, records=batch())]
    play.wire.tell(ProduceRequest(acks=0, timeout_ms=0, topic_data=[data(name=topics[0][0], partition_data=rows)]), 8)
    assert play.ask(topics[0], b"", batch(), 8).responses[0].partition_responses[0].base_offset == 1
