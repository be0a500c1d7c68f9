"""What a follower is answered in a session: the same by the short way (version 18) and by the codec's (17).

A real follower is stopped and its part is played over the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.broker.sessions import MAX_EPOCH
from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.topics import CreateTopicsRequest
from ottla.protocol.messages.versions import ApiVersionsRequest
from ottla.records.batch import headers
from ottla.records.builder import build_batch
from ottla.records.record import Record
from tests.compatibility.wire import Wire, address_of, wait_until

FETCH, API_VERSIONS = 1, 18
LEADER, FOLLOWER = 1, 3
TOO_LONG_MS = 600_000  # far past the patience of `Wire`
VERSIONS = pytest.mark.parametrize("version", [17, 18], ids=["codec", "short"])
Row = FetchRequest.FetchTopic.FetchPartition


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3) as running:
        yield running


class Play:
    """A topic of two partitions that node 1 leads, and a session in which node 3, which is gone, fetches both."""

    def __init__(self, cluster: EmbeddedCluster, topic: str, version: int) -> None:
        self.topic, self.version = topic, version
        self.address = address_of(cluster.node(LEADER).bootstrap)
        self.other = Wire(self.address)
        self._create()
        cluster.node(FOLLOWER).stop()
        wait_until("node 3 is not in sync", lambda: all(FOLLOWER not in row.isr_nodes for row in self._rows()))
        self.leader_epoch = {row.partition_index: row.leader_epoch for row in self._rows()}
        self.wire = Wire(self.address)
        first = self.wire.ask(self._request([self.row(0, 0), self.row(1, 0)], epoch=0, max_wait_ms=1), version)
        assert first.error_code == 0
        assert first.session_id
        self.session_id, self.epoch = first.session_id, 0
        self.hear([])  # whoever asks for the second time has a poll

    def close(self) -> None:
        self.wire.close()
        self.other.close()

    def _create(self) -> None:
        made = CreateTopicsRequest.CreatableTopic
        placed = [made.CreatableReplicaAssignment(partition_index=index, broker_ids=[LEADER, FOLLOWER]) for index in (0, 1)]
        request = CreateTopicsRequest(
            topics=[made(name=self.topic, num_partitions=-1, replication_factor=-1, assignments=placed)]
        )
        [answer] = self.other.ask(request, 7).topics
        assert answer.error_code == 0, answer
        self.topic_id = answer.topic_id

    def _rows(self) -> list[Any]:
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=self.topic)])
        rows: list[Any] = self.other.ask(request, 9).topics[0].partitions
        assert len(rows) == 2
        return rows

    def row(self, partition: int, offset: int, leader_epoch: int | None = None) -> Row:
        epoch = self.leader_epoch[partition] if leader_epoch is None else leader_epoch
        return Row(
            partition=partition,
            fetch_offset=offset,
            current_leader_epoch=epoch,
            last_fetched_epoch=-1 if offset == 0 else self.leader_epoch[partition],
            log_start_offset=0,
            partition_max_bytes=1 << 20,
        )

    def _request(self, rows: list[Row], *, epoch: int, max_wait_ms: int, session_id: int = 0) -> FetchRequest:
        return FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=FOLLOWER, replica_epoch=-1),
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=10 << 20,
            session_id=session_id,
            session_epoch=epoch,
            topics=[FetchRequest.FetchTopic(topic_id=self.topic_id, partitions=rows)] if rows else [],
        )

    def ask(self, rows: list[Row], max_wait_ms: int = TOO_LONG_MS, *, skip: int = 0) -> None:
        self.epoch += 1
        request = self._request(rows, epoch=self.epoch + skip, max_wait_ms=max_wait_ms, session_id=self.session_id)
        self.wire.tell(request, self.version)

    def answer(self) -> FetchResponse:
        response: FetchResponse = self.wire.read_response(FETCH, self.version)
        return response

    def hear(self, rows: list[Row], max_wait_ms: int = 1) -> FetchResponse:
        self.ask(rows, max_wait_ms)
        return self.answer()

    def produce(self, partition: int) -> int:
        """The offset of a new record."""
        data = ProduceRequest.TopicProduceData
        batch = build_batch([Record(0, 1, None, b"value")])
        row = data.PartitionProduceData(index=partition, records=batch)
        answer = self.other.ask(
            ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data(name=self.topic, partition_data=[row])]), 8
        )
        reply = answer.responses[0].partition_responses[0]
        assert reply.error_code == 0
        return int(reply.base_offset)


@pytest.fixture
def play(cluster: EmbeddedCluster, request: pytest.FixtureRequest, version: int) -> Iterator[Play]:
    if not cluster.node(FOLLOWER).is_running:
        cluster.node(FOLLOWER).start()
    made = Play(cluster, f"{request.node.originalname[:100]}-{version}", version)
    yield made
    made.close()


def offsets(response: FetchResponse) -> dict[int, list[int]]:
    """Partition → the offsets of its batches."""
    assert response.error_code == 0
    rows = [row for topic in response.responses for row in topic.partitions]
    assert all(row.error_code == 0 for row in rows)
    return {row.partition_index: [header.base_offset for _, header in headers(bytes(row.records or b""))] for row in rows}


@VERSIONS
def test_a_poll_is_answered_with_what_is_appended(play: Play) -> None:
    play.ask([play.row(0, 0)])
    play.produce(0)
    assert offsets(play.answer()) == {0: [0]}
    play.ask([play.row(0, 1)])
    play.produce(0)
    assert offsets(play.answer()) == {0: [1]}


@VERSIONS
def test_a_poll_is_answered_for_a_partition_that_an_earlier_request_named(play: Play) -> None:
    play.produce(0)
    assert offsets(play.hear([play.row(0, 0)], TOO_LONG_MS)) == {0: [0]}
    play.ask([play.row(0, 1)])
    play.produce(1)
    assert offsets(play.answer()) == {1: [0]}


@VERSIONS
def test_what_two_partitions_have_comes_together(play: Play) -> None:
    play.produce(0)
    play.produce(1)
    assert offsets(play.hear([play.row(0, 0)])) == {0: [0], 1: [0]}


@VERSIONS
def test_what_was_not_taken_is_given_again_when_it_is_asked_for_again(play: Play) -> None:
    play.produce(0)
    for _ in range(3):
        assert offsets(play.hear([play.row(0, 0)], TOO_LONG_MS)) == {0: [0]}


@VERSIONS
def test_a_session_that_has_used_all_its_epochs_begins_again_with_the_first(play: Play, cluster: EmbeddedCluster) -> None:
    leader = cluster.node(LEADER)._node
    assert leader is not None
    session = leader.fetch_sessions.at(play.session_id, play.epoch + 1)
    assert session is not None
    session.epoch, play.epoch = MAX_EPOCH, MAX_EPOCH - 1  # a week later
    play.produce(0)
    assert offsets(play.hear([play.row(0, 0)], TOO_LONG_MS)) == {0: [0]}
    play.epoch = 0
    play.produce(0)
    assert offsets(play.hear([play.row(0, 1)], TOO_LONG_MS)) == {0: [1]}


@VERSIONS
def test_the_high_watermark_is_told_when_the_time_is_up(play: Play) -> None:
    play.produce(0)
    play.hear([play.row(0, 0)])
    [topic] = play.hear([play.row(0, 1)]).responses or [None]
    assert topic is None  # with nobody else in sync it was committed before it was sent: no news
    play.produce(1)
    [topic] = play.hear([]).responses
    assert [(row.partition_index, row.high_watermark) for row in topic.partitions] == [(1, 1)]


@VERSIONS
def test_a_poll_ends_when_the_next_request_comes_in_behind_it(play: Play) -> None:
    play.ask([play.row(0, 0)])
    first = play.wire._correlation_id
    play.wire.tell(ApiVersionsRequest(client_software_name="judge", client_software_version="1"), 3)
    play.wire._correlation_id = first
    assert offsets(play.answer()) == {}
    play.wire._correlation_id += 1
    assert play.wire.read_response(API_VERSIONS, 3).error_code == 0


@VERSIONS
@pytest.mark.parametrize(("ahead", "error"), [(1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.FENCED_LEADER_EPOCH)])
def test_a_follower_of_another_epoch_is_told_so_at_once(
    cluster: EmbeddedCluster, request: pytest.FixtureRequest, version: int, ahead: int, error: ErrorCode
) -> None:
    if not cluster.node(FOLLOWER).is_running:
        cluster.node(FOLLOWER).start()
    play = Play(cluster, f"other-epoch-{ahead}-{version}", version)
    wrong = play.leader_epoch[0] + ahead
    play.ask([play.row(0, 0, leader_epoch=wrong)])
    if wrong < 0:  # -1 says nothing of an epoch: this is no such case
        play.produce(0)
        assert offsets(play.answer()) == {0: [0]}
    else:
        [topic] = play.answer().responses
        assert [(row.partition_index, row.error_code) for row in topic.partitions] == [(0, error)]
    play.close()


@VERSIONS
def test_an_offset_past_the_end_is_out_of_range(play: Play) -> None:
    play.produce(0)
    play.ask([play.row(0, 5)])
    [topic] = play.answer().responses
    [row] = topic.partitions
    assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE or row.diverging_epoch.end_offset == 1


@VERSIONS
def test_a_request_of_another_session_epoch_is_refused(play: Play) -> None:
    play.ask([play.row(0, 0)], skip=3)
    assert play.answer().error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


@VERSIONS
def test_a_session_goes_on_over_another_connection(play: Play) -> None:
    play.ask([play.row(0, 0)])
    play.wire.close()
    play.wire = Wire(play.address)
    play.ask([play.row(0, 0)])
    play.produce(0)
    assert offsets(play.answer()) == {0: [0]}
    play.ask([play.row(0, 1)])
    play.produce(1)
    assert offsets(play.answer()) == {1: [0]}


@VERSIONS
def test_a_poll_that_waits_elsewhere_ends_when_its_session_goes_on(play: Play) -> None:
    play.ask([play.row(0, 0)])
    before, play.wire = play.wire, Wire(play.address)
    play.ask([play.row(0, 0)])
    left, play.wire = play.wire, before
    assert offsets(play.answer()) == {}
    play.wire = left
    play.produce(0)
    assert offsets(play.answer()) == {0: [0]}
    before.close()
