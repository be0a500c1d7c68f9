"""The machine in one quorum with Apache Kafka 4.3's controllers: as observer, as voter, and as leader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.messages.metadata_records import NoOpRecord
from ottla.protocol.messages.quorum import DescribeQuorumRequest
from ottla.protocol.messages.topics import CreateTopicsRequest
from ottla.raft.core import Timing
from ottla.raft.voters import Address, VoterSet
from ottla.records.batch import headers
from tests.compatibility.kafka import KafkaPeer, run_tool
from tests.compatibility.wire import Wire, ask, free_port
from tests.raft.live import LiveReplica

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
NEVER_MS = 10**12
PATIENT = Timing(  # votes and follows, never stands
    election_timeout_ms=600_000, fetch_timeout_ms=600_000, early_election_spread_ms=NEVER_MS
)
EAGER = Timing(election_timeout_ms=150, fetch_timeout_ms=20_000)  # stands early, and leads on while a JVM starts
LIMIT_S = 60.0


async def until(what: str, condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        await asyncio.sleep(0.02)


def create_topic(kafka: KafkaPeer, name: str, node: int = 0) -> None:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=3, replication_factor=1)
    answer = ask(("127.0.0.1", kafka.ports[node]), CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
    assert answer.topics[0].error_code == 0


def kafka_log_end(kafka: KafkaPeer, node: int) -> int:
    end = 0
    for path in sorted((kafka.log_directory(node) / "__cluster_metadata-0").glob("*.log")):
        for _, header in headers(path.read_bytes()):
            end = header.next_offset
    return end


async def test_an_observer_reads_kafkas_log_from_its_bootstrap_address_and_from_snapshots(tmp_path: Path) -> None:
    settings = {"metadata.log.max.record.bytes.between.snapshots": "2000", "metadata.max.idle.interval.ms": "100"}
    with KafkaPeer(tmp_path, settings=settings) as kafka:
        create_topic(kafka, "before")
        checkpoints = kafka.log_directory() / "__cluster_metadata-0"
        await until(
            "a snapshot", lambda: len([p for p in checkpoints.glob("*.checkpoint") if not p.name.startswith("0" * 20)]) > 0
        )
        bootstrap = [Address("127.0.0.1", kafka.controller_ports[0])]
        observer = LiveReplica(9, kafka.cluster_id, VoterSet({}, {}), free_port(), Timing(), bootstrap=bootstrap)
        async with observer:
            await until("the topic", lambda: "before" in observer.loader.image.topic_ids)
            assert observer.machine.log.snapshot is not None, "it should have begun with a snapshot"
            await asyncio.to_thread(create_topic, kafka, "after")
            await until("the next topic", lambda: "after" in observer.loader.image.topic_ids)
            topic = DescribeQuorumRequest.TopicData
            request = DescribeQuorumRequest(
                topics=[topic(topic_name="__cluster_metadata", partitions=[topic.PartitionData(partition_index=0)])]
            )
            answer = await asyncio.to_thread(ask, kafka.address, request, 2)
            assert 9 in [row.replica_id for row in answer.topics[0].partitions[0].observers]


def three_voters(kafka_folder: Path) -> tuple[KafkaPeer, VoterSet, int]:
    """Two nodes of Kafka and one of ours, as voters 0, 1 and 2."""
    port = free_port()
    kafka = KafkaPeer(kafka_folder, nodes=2)
    voters = [(node, "127.0.0.1", kafka_port) for node, kafka_port in enumerate(kafka.controller_ports)]
    voters.append((2, "127.0.0.1", port))
    kafka.settings = {
        "controller.quorum.voters": ",".join(f"{node}@{host}:{number}" for node, host, number in voters),
        "broker.session.timeout.ms": "3000",
    }
    for node in range(2):
        kafka._write_properties(node)
    return kafka, VoterSet.static(voters), port


async def test_a_voter_beside_kafkas_keeps_the_quorum_when_kafkas_leader_is_killed(tmp_path: Path) -> None:
    kafka, voters, port = three_voters(tmp_path)
    try:
        async with LiveReplica(2, kafka.cluster_id, voters, port, PATIENT) as ours:
            await asyncio.to_thread(kafka.start)
            await until("a leader", lambda: ours.machine.leader_id in (0, 1))
            await asyncio.to_thread(create_topic, kafka, "first")
            await until("the topic here", lambda: "first" in ours.loader.image.topic_ids)
            shown = await asyncio.to_thread(
                run_tool, "MetadataQuorumCommand", "--bootstrap-server", kafka.bootstrap, "describe", "--replication"
            )
            assert [line.split()[0] for line in shown.stdout.splitlines() if "Follower" in line].count("2") == 1, shown.stdout
            former = ours.machine.leader_id
            kafka.kill_node(former)
            await until("the other Kafka leading, with our vote", lambda: ours.machine.leader_id == 1 - former)
            await asyncio.to_thread(create_topic, kafka, "second", 1 - former)
            await until("the second topic here", lambda: "second" in ours.loader.image.topic_ids)
            assert [state.voted.node_id for state in ours.persisted if state.voted is not None][-1] == 1 - former
    finally:
        kafka.stop()


async def test_kafka_follows_our_leader_byte_for_byte(tmp_path: Path) -> None:
    kafka, voters, port = three_voters(tmp_path)
    try:
        async with LiveReplica(2, kafka.cluster_id, voters, port, EAGER) as ours:
            for node in range(2):
                kafka.start_node(node)
            await until("our election", lambda: ours.machine.is_leader)
            ours.propose(NoOpRecord(), NoOpRecord())
            await until("a commit by Kafka's disks", lambda: ours.machine.high_watermark >= ours.machine.log.end_offset > 2)
            end = ours.machine.log.end_offset
            for node in range(2):
                await until("Kafka's copy", lambda node=node: kafka_log_end(kafka, node) >= end)
                path = next((kafka.log_directory(node) / "__cluster_metadata-0").glob("*.log"))
                copied = path.read_bytes()[: len(ours.log)]
                assert copied == bytes(ours.log)
            with Wire(("127.0.0.1", port)) as wire:
                topic = DescribeQuorumRequest.TopicData
                request = DescribeQuorumRequest(
                    topics=[topic(topic_name="__cluster_metadata", partitions=[topic.PartitionData(partition_index=0)])]
                )
                answer = await asyncio.to_thread(wire.ask, request, 2)
                voters_told = answer.topics[0].partitions[0].current_voters
                assert [row.replica_id for row in voters_told] == [0, 1, 2]
    finally:
        kafka.stop()
