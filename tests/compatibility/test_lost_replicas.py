"""What a partition of two replicas does when they are lost: too few for acks=all, and a leader that lacks what the other had.

Both systems play the same with real processes. Three nodes, each broker and controller, so that one may be away at any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.topics import CreateTopicsRequest
from ottla.records.batch import headers
from ottla.records.builder import build_batch
from ottla.records.record import Record, decode_batches
from tests.cli.processes import ottla
from tests.compatibility.cluster import OttlaCluster
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.wire import Closed, Wire, address_of, serves, wait_until

pytestmark = pytest.mark.slow
System = KafkaPeer | OttlaCluster
IDS = (1, 2, 3)
FIRST, SECOND, BESIDES = IDS  # the replicas, preferred leader first, and a node that has none
SETTINGS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
ALL, LEADER = -1, 1  # acks
EARLY = b"written if the leader did not know yet that it is alone"
_serial = count()


@pytest.fixture(scope="module", params=["ottla", pytest.param("kafka", marks=pytest.mark.kafka)])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "ottla":
        with OttlaCluster(folder, settings=SETTINGS) as ours:
            yield ours
        assert ours.tracebacks() == []
    else:
        with KafkaPeer(folder, nodes=3, first_id=1, settings=SETTINGS) as kafka:
            yield kafka


class Pair:
    """One partition on two of the nodes."""

    def __init__(self, system: System, **configs: str) -> None:
        self.system = system
        self.topic = f"pair-{next(_serial)}"
        self.came_back(*IDS)
        row = CreateTopicsRequest.CreatableTopic
        rows = [row.CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()]
        placed = [row.CreatableReplicaAssignment(partition_index=0, broker_ids=[FIRST, SECOND])]
        made = row(name=self.topic, num_partitions=-1, replication_factor=-1, assignments=placed, configs=rows)
        with self._wire(BESIDES) as wire:
            [answer] = wire.ask(CreateTopicsRequest(topics=[made], timeout_ms=30_000), 7).topics
        assert answer.error_code == ErrorCode.NONE, answer
        self.topic_id = answer.topic_id
        self.wait(FIRST, [FIRST, SECOND])

    def _wire(self, node_id: int) -> Wire:
        return Wire(self._address(node_id))

    def _address(self, node_id: int) -> tuple[str, int]:
        return address_of(self.system.bootstrap.split(",")[node_id - 1])

    def kill(self, node_id: int) -> None:
        self.system.kill_node(node_id)

    def came_back(self, *node_ids: int) -> None:
        for node_id in node_ids:
            if self.system.processes[node_id].poll() is not None:
                self.system.start_node(node_id)
            wait_until(f"node {node_id} serving", lambda node_id=node_id: serves(self._address(node_id)))

    def told(self) -> tuple[int, list[int]]:
        """Leader and in-sync set, as a node without a replica knows them."""
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=self.topic)], allow_auto_topic_creation=False)
        try:
            with self._wire(BESIDES) as wire:
                [topic] = wire.ask(request, 9).topics
        except (OSError, Closed):
            return -2, []
        return (topic.partitions[0].leader_id, sorted(topic.partitions[0].isr_nodes)) if topic.partitions else (-2, [])

    def wait(self, leader: int, in_sync: list[int]) -> None:
        wait_until(f"{leader} leading with {in_sync} in sync", lambda: self.told() == (leader, in_sync))

    def answer(self, node_id: int, value: bytes, acks: int, version: int = 9) -> Any:
        data = ProduceRequest.TopicProduceData
        row = data.PartitionProduceData(index=0, records=build_batch([Record(0, 1, None, value)]))
        topics = [data(name=self.topic, topic_id=self.topic_id, partition_data=[row])]
        with self._wire(node_id) as wire:
            response = wire.ask(ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=topics), version)
        return response.responses[0].partition_responses[0]

    def produce(self, node_id: int, value: bytes) -> None:
        """Acknowledged by all in sync, as soon as who was elected knows it."""
        wait_until(f"{value!r} being taken", lambda: self.answer(node_id, value, ALL).error_code == ErrorCode.NONE)

    def values(self, node_id: int) -> list[bytes | None]:
        row = FetchRequest.FetchTopic.FetchPartition(partition=0, partition_max_bytes=1 << 20)
        topics = [FetchRequest.FetchTopic(topic=self.topic, partitions=[row])]
        with self._wire(node_id) as wire:
            answer = wire.ask(FetchRequest(max_bytes=1 << 20, topics=topics), 11)
        [partition] = answer.responses[0].partitions
        assert partition.error_code == ErrorCode.NONE
        return [record.value for _, records in decode_batches(bytes(partition.records or b"")) for record in records]

    def batches(self, node_id: int) -> list[bytes]:
        folder = (
            Path(self.system.plans[node_id].directory)
            if isinstance(self.system, OttlaCluster)
            else self.system.log_directory(node_id)
        )
        content = b"".join(path.read_bytes() for path in sorted((folder / f"{self.topic}-0").glob("*.log")))
        return [content[position : position + header.size] for position, header in headers(content)]

    def lose_the_first_with_what_it_alone_has(self) -> None:
        """The first acknowledges a record alone and dies; the second comes back and lacks it."""
        self.produce(FIRST, b"both have it")
        self.kill(SECOND)
        self.wait(FIRST, [FIRST])
        self.produce(FIRST, b"the first has it")
        self.kill(FIRST)
        self.came_back(SECOND)

    def is_whole_again(self) -> None:
        """The first comes back, and follows although it must forget."""
        self.produce(SECOND, b"the second has it")
        self.came_back(FIRST)
        self.wait(SECOND, [FIRST, SECOND])
        assert self.values(SECOND) == [b"both have it", b"the second has it"]
        assert self.batches(FIRST) == self.batches(SECOND)
        assert len(self.batches(FIRST)) == 2

    def elect(self, *options: str) -> tuple[int, list[str]]:
        done = ottla("partitions", "elect", self.topic, "0", *options, "--json", bootstrap=self.system.bootstrap)
        return done.returncode, [row["outcome"] for row in json.loads(done.stdout)]


def test_too_few_in_sync_replicas_refuse_acks_all_and_take_the_rest(system: System) -> None:
    pair = Pair(system, min_insync_replicas="2")
    pair.produce(FIRST, b"two have it")
    pair.kill(SECOND)
    pair.wait(FIRST, [FIRST])
    wait_until("the leader knowing it", lambda: pair.answer(FIRST, EARLY, ALL).error_code == ErrorCode.NOT_ENOUGH_REPLICAS)
    before = pair.answer(FIRST, b"one has it", LEADER)
    for version in ProduceRequest.VERSIONS:
        refused = pair.answer(FIRST, b"refused", ALL, version)
        assert (refused.error_code, refused.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    after = pair.answer(FIRST, b"one has this, too", LEADER)
    assert (before.error_code, after.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert after.base_offset == before.base_offset + 1, "what was refused was not written"
    assert pair.values(FIRST) == [b"two have it"], "nothing is committed that one replica has alone"
    pair.came_back(SECOND)
    pair.wait(FIRST, [FIRST, SECOND])
    pair.produce(FIRST, b"two have it again")
    found = [value for value in pair.values(FIRST) if value != EARLY]
    assert found == [b"two have it", b"one has it", b"one has this, too", b"two have it again"]


def test_a_replica_that_is_behind_leads_only_when_it_is_told_to(system: System) -> None:
    pair = Pair(system)
    pair.lose_the_first_with_what_it_alone_has()
    wait_until("nobody leading", lambda: pair.told()[0] == -1)
    assert pair.elect() == (1, ["PREFERRED_LEADER_NOT_AVAILABLE"])
    assert pair.told()[0] == -1
    assert pair.elect("--unclean") == (0, ["elected"])
    pair.wait(SECOND, [SECOND])
    assert pair.elect("--unclean") == (0, ["led already"])
    pair.is_whole_again()


def test_a_replica_that_is_behind_leads_by_itself_where_the_topic_allows_it(system: System) -> None:
    pair = Pair(system, unclean_leader_election_enable="true")
    pair.lose_the_first_with_what_it_alone_has()
    pair.wait(SECOND, [SECOND])
    pair.is_whole_again()
