"""Three brokers in three racks: consumers are sent to the closest replica (KIP-392), and whoever asks the wrong broker to the right one
(KIP-951). Both systems are asked the same over the wire and must say the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.messages.topics import CreateTopicsRequest
from ottla.records.builder import build_batch
from ottla.records.record import Record
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.wire import Wire, address_of, wait_until

pytestmark = pytest.mark.slow
IDS = (1, 2, 3)
SETTINGS = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
FOLLOWERS_MAY_SERVE = range(11, 19)  # versions of Fetch
RECORDS = 5


class Racks:
    """Node n is in rack-n. What differs between the systems: how they are started and killed."""

    def __init__(self, system: EmbeddedCluster | KafkaPeer) -> None:
        self.system = system

    def wire(self, node_id: int) -> Wire:
        return Wire(address_of(self.system.bootstrap.split(",")[node_id - 1]))

    def kill(self, node_id: int) -> None:
        if isinstance(self.system, KafkaPeer):
            self.system.kill_node(node_id)
        else:
            self.system.node(node_id).kill()

    def create(self, name: str, replicas: list[int]) -> bytes:
        """Returns when all replicas have its records."""
        made = CreateTopicsRequest.CreatableTopic
        placed = [made.CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)]
        topic = made(name=name, num_partitions=-1, replication_factor=-1, assignments=placed)
        with self.wire(replicas[0]) as wire:
            [answer] = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7).topics
            assert answer.error_code == ErrorCode.NONE, answer
            wait_until("its leader", lambda: self.told(name)[0] == replicas[0])
            records = build_batch([Record(number, 1, None, b"value") for number in range(RECORDS)])
            wait_until("its records", lambda: self.produce(wire, name, answer.topic_id, records, 9).error_code == ErrorCode.NONE)
        topic_id: bytes = answer.topic_id
        return topic_id

    def told(self, name: str) -> tuple[int, list[int]]:
        """Leader and in-sync set, as node 1 knows them."""
        with self.wire(1) as wire:
            asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
            [topic] = wire.ask(asked, 9).topics
        return (topic.partitions[0].leader_id, topic.partitions[0].isr_nodes) if topic.partitions else (-1, [])

    def produce_answer(self, wire: Wire, name: str, topic_id: bytes, records: bytes, version: int) -> ProduceResponse:
        data = ProduceRequest.TopicProduceData
        row = data.PartitionProduceData(index=0, records=records)
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[data(name=name, topic_id=topic_id, partition_data=[row])]
        )
        answer: ProduceResponse = wire.ask(request, version)
        return answer

    def produce(self, wire: Wire, name: str, topic_id: bytes, records: bytes, version: int) -> Any:
        return self.produce_answer(wire, name, topic_id, records, version).responses[0].partition_responses[0]

    def fetch(self, wire: Wire, name: str, topic_id: bytes, version: int, *, rack: str = "", offset: int = 0) -> FetchResponse:
        row = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topics = [FetchRequest.FetchTopic(topic=name, topic_id=topic_id, partitions=[row])]
        answer: FetchResponse = wire.ask(
            FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, topics=topics, rack_id=rack), version
        )
        assert answer.error_code == ErrorCode.NONE
        return answer


@pytest.fixture(scope="module", params=["ottla", pytest.param("kafka", marks=pytest.mark.kafka)])
def racks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Racks]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "ottla":
        ours = EmbeddedCluster(3, settings=SETTINGS)
        for node in ours.nodes:
            node.properties["broker.rack"] = f"rack-{node.node_id}"
        with ours:
            yield Racks(ours)
        return
    kafka = KafkaPeer(folder, nodes=3, first_id=1, settings=SETTINGS)
    for node_id in IDS:
        with (folder / f"node-{node_id}" / "server.properties").open("a") as file:
            file.write(f"broker.rack=rack-{node_id}\n")
    with kafka:
        yield Racks(kafka)


@pytest.fixture(scope="module")
def everywhere(racks: Racks) -> tuple[str, bytes]:
    """Node 1 leads it, all have it."""
    return "everywhere", racks.create("everywhere", [1, 2, 3])


def only(answer: FetchResponse) -> Any:
    [topic] = answer.responses
    [partition] = topic.partitions
    return partition


@pytest.mark.parametrize("version", FOLLOWERS_MAY_SERVE)
def test_a_consumer_of_a_followers_rack_is_sent_there_and_served(
    racks: Racks, everywhere: tuple[str, bytes], version: int
) -> None:
    with racks.wire(1) as leader, racks.wire(2) as follower:
        led = only(racks.fetch(leader, *everywhere, version))
        assert (led.preferred_read_replica, led.high_watermark, bool(led.records)) == (-1, RECORDS, True)
        # A follower learns of a new high watermark with its next fetch; until then the leader serves.
        wait_until(
            "the follower knowing what is committed",
            lambda: only(racks.fetch(follower, *everywhere, version, rack="rack-2")).high_watermark == RECORDS,
        )
        sent = only(racks.fetch(leader, *everywhere, version, rack="rack-2"))
        assert (sent.error_code, sent.preferred_read_replica, bytes(sent.records or b"")) == (ErrorCode.NONE, 2, b"")
        assert (sent.high_watermark, sent.last_stable_offset, sent.log_start_offset) == (RECORDS, RECORDS, 0)
        assert sent.aborted_transactions is None
        served = only(racks.fetch(follower, *everywhere, version, rack="rack-2"))
        assert (served.error_code, served.preferred_read_replica) == (ErrorCode.NONE, -1)
        assert bytes(served.records) == bytes(led.records)


@pytest.mark.parametrize("rack", ["", "rack-1", "nowhere"])
def test_a_consumer_of_another_rack_is_served_by_the_leader(racks: Racks, everywhere: tuple[str, bytes], rack: str) -> None:
    with racks.wire(1) as leader:
        led = only(racks.fetch(leader, *everywhere, FOLLOWERS_MAY_SERVE[-1], rack=rack))
    assert (led.preferred_read_replica, bool(led.records)) == (-1, True)


def test_a_consumer_that_has_read_everything_is_sent_to_its_rack_too(racks: Racks, everywhere: tuple[str, bytes]) -> None:
    with racks.wire(1) as leader:
        sent = only(racks.fetch(leader, *everywhere, FOLLOWERS_MAY_SERVE[-1], rack="rack-3", offset=RECORDS))
    assert (sent.error_code, sent.preferred_read_replica) == (ErrorCode.NONE, 3)


@pytest.mark.parametrize("version", [9, 10])
def test_before_kip_392_no_follower_serves(racks: Racks, everywhere: tuple[str, bytes], version: int) -> None:
    with racks.wire(2) as follower:
        refused = only(racks.fetch(follower, *everywhere, version))
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.fixture(scope="module")
def elsewhere(racks: Racks) -> tuple[str, bytes]:
    """Node 2 leads it, node 3 has it, node 1 has nothing of it."""
    topic_id = racks.create("elsewhere", [2, 3])
    wait_until("node 1 knowing of it", lambda: racks.told("elsewhere")[0] == 2)
    return "elsewhere", topic_id


def hint(answer: FetchResponse | ProduceResponse, partition: Any) -> tuple[Any, ...]:
    """What an answer says of the leader."""
    leader = partition.current_leader
    return (leader.leader_id, leader.leader_epoch), [(row.node_id, row.host, row.port, row.rack) for row in answer.node_endpoints]


def is_there(racks: Racks, node_id: int, leader_epoch: int) -> tuple[Any, ...]:
    host, port = address_of(racks.system.bootstrap.split(",")[node_id - 1])
    return (node_id, leader_epoch), [(node_id, host, port, f"rack-{node_id}")]


NO_HINT = ((-1, -1), [])


@pytest.mark.parametrize("version", FOLLOWERS_MAY_SERVE)
def test_a_consumer_that_asks_a_broker_without_a_replica_is_told_who_leads(
    racks: Racks, elsewhere: tuple[str, bytes], version: int
) -> None:
    with racks.wire(1) as wire:
        answer = racks.fetch(wire, *elsewhere, version)
    partition = only(answer)
    assert (partition.error_code, partition.preferred_read_replica) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert not partition.records
    assert hint(answer, partition) == (is_there(racks, 2, 0) if version >= 16 else NO_HINT)


@pytest.mark.parametrize("asked", [1, 3], ids=["no replica", "a follower"])
@pytest.mark.parametrize("version", range(7, 14))
def test_a_producer_that_asks_another_broker_is_told_who_leads(
    racks: Racks, elsewhere: tuple[str, bytes], version: int, asked: int
) -> None:
    with racks.wire(asked) as wire:
        answer = racks.produce_answer(wire, *elsewhere, build_batch([Record(0, 1, None, b"value")]), version)
    [partition] = answer.responses[0].partition_responses
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert hint(answer, partition) == (is_there(racks, 2, 0) if version >= 10 else NO_HINT)


def test_nobody_is_sent_to_a_dead_replica(racks: Racks, everywhere: tuple[str, bytes]) -> None:
    """The last test of its cluster."""
    racks.kill(3)
    wait_until("node 3 being missed", lambda: 3 not in racks.told("everywhere")[1])
    with racks.wire(1) as leader:

        def served() -> bool:
            led = only(racks.fetch(leader, *everywhere, FOLLOWERS_MAY_SERVE[-1], rack="rack-3"))
            return led.preferred_read_replica == -1 and bool(led.records)

        wait_until("the leader serving rack 3 itself", served)
