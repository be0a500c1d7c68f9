"""Kafka's own DumpLogSegments reads the metadata log and the snapshot that our machines make, record by record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ottla.metadata import records as frames
from ottla.metadata import snapshot
from ottla.metadata.records import MetadataRecord
from ottla.protocol import codec
from ottla.protocol.messages.configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.control_records import SnapshotFooterRecord, SnapshotHeaderRecord
from ottla.protocol.messages.controller import AllocateProducerIdsRequest
from ottla.protocol.messages.topics import AlterPartitionReassignmentsRequest, DeleteTopicsRequest
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, control_batch
from ottla.records.record import Record
from tests.compatibility.kafka import run_tool
from tests.metadata.driver import Driver

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
NOW_MS = 1_700_000_000_000


def busy_cluster() -> Driver:
    """A bit of everything that a controller writes."""
    cluster = Driver()
    cluster.start(1, 2, 3, rack="r1")
    cluster.create("orders", [[1, 2, 3], [2, 3, 1]], min_insync_replicas="2", retention_ms="1000")
    cluster.create("gone", [[1]])
    cluster.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="gone")]))
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    row = resource.AlterableConfig(name="cleanup.policy", config_operation=2, value="compact")
    cluster.ask(IncrementalAlterConfigsRequest(resources=[resource(resource_type=2, resource_name="orders", configs=[row])]))
    cluster.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=cluster.image.brokers[1].epoch))
    cluster.kill(3)
    cluster.kill(2)
    cluster.beat(2, want_shut_down=True)
    move = AlterPartitionReassignmentsRequest.ReassignableTopic
    cluster.ask(
        AlterPartitionReassignmentsRequest(
            topics=[move(name="orders", partitions=[move.ReassignablePartition(partition_index=0, replicas=[1, 3])])]
        )
    )
    return cluster


def batch_of(records: list[MetadataRecord], first: int) -> bytes:
    rows = [Record(first + index, NOW_MS, None, frames.encode(record, 30)) for index, record in enumerate(records)]
    return build_batch(rows, leader_epoch=1)


def dump(path: Path) -> list[str]:
    """The types of the records that Kafka reads, in order."""
    done = run_tool("DumpLogSegments", "--cluster-metadata-decoder", "--files", str(path))
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stdout, done.stdout
    payloads = [line.split("payload: ", 1)[1] for line in done.stdout.splitlines() if "payload: {" in line]
    return [json.loads(payload)["type"] for payload in payloads]


def type_name(record: MetadataRecord) -> str:
    """`PartitionChangeRecord` → `PARTITION_CHANGE_RECORD`."""
    name = type(record).__name__
    return "".join(f"_{letter}" if letter.isupper() and index else letter for index, letter in enumerate(name)).upper()


def test_kafka_reads_our_metadata_log(tmp_path: Path) -> None:
    cluster = busy_cluster()
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(batch_of(cluster.log, 0))
    assert dump(path) == [type_name(record) for record in cluster.log]
    assert len({type(record) for record in cluster.log}) >= 10


def test_kafka_reads_our_snapshot(tmp_path: Path) -> None:
    cluster = busy_cluster()
    header = codec.encode(SnapshotHeaderRecord(last_contained_log_timestamp=NOW_MS), 0)
    footer = codec.encode(SnapshotFooterRecord(), 0)
    parts = [control_batch(ControlType.SNAPSHOT_HEADER, header, base_offset=0, timestamp=NOW_MS, leader_epoch=1)]
    offset = 1
    for batch in snapshot.batches(cluster.image):
        parts.append(batch_of(batch, offset))
        offset += len(batch)
    parts.append(control_batch(ControlType.SNAPSHOT_FOOTER, footer, base_offset=offset, timestamp=NOW_MS, leader_epoch=1))
    path = tmp_path / f"{len(cluster.log):020}-{1:010}.checkpoint"
    path.write_bytes(b"".join(parts))
    assert dump(path) == [type_name(record) for record in snapshot.to_records(cluster.image)]
