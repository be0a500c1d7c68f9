"""The log of groups on disk: Kafka's own tool reads ours, and we read Kafka's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ottla.groups.records import GroupRecord, decode
from ottla.groups.shard import GroupShard
from ottla.protocol.messages import group_records as stored
from ottla.records.record import decode_batches
from tests.compatibility.groups import plays
from tests.compatibility.groups.stage import Stage
from tests.compatibility.kafka import KafkaPeer, run_tool
from tests.compatibility.node import OttlaNode

pytestmark = pytest.mark.kafka


def leave_traces(address: tuple[str, int]) -> str:
    """Have every kind of record written; returns a name that is part of all groups used."""
    stage = Stage(address)
    for play in (plays.offsets_are_committed_and_fetched, plays.become_stable):
        play(stage)
    other = Stage(address)
    plays.a_regular_expression_finds_its_topics(other)
    third = Stage(address)
    plays.static_consumers_come_back(third)
    for used in (stage, other, third):
        used.close()
    return "play-group"


def offset_logs(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("__consumer_offsets-*/*.log") if path.stat().st_size)


def test_kafkas_tool_decodes_what_ottla_wrote(ottla_node: OttlaNode) -> None:
    name = leave_traces(ottla_node.address)
    files = ",".join(str(path) for path in offset_logs(ottla_node.data))
    done = run_tool("DumpLogSegments", "--offsets-decoder", "--files", files)
    assert done.returncode == 0, done.stderr
    kinds = set(re.findall(r'key: \{"type":"(\d+)"', done.stdout))
    assert kinds >= {"1", "2", "3", "5", "6", "7", "8", "16"}, done.stdout[-2000:]
    assert name in done.stdout
    assert "Could not decode" not in done.stdout
    assert "isvalid: false" not in done.stdout.lower()


def test_ottla_understands_what_kafka_wrote(kafka_peer: KafkaPeer) -> None:
    leave_traces(kafka_peer.address)
    shard = GroupShard()
    seen: set[type] = set()
    for path in offset_logs(kafka_peer.log_directory()):
        for header, records in decode_batches(path.read_bytes()):
            for record in records if not header.is_control else ():
                decoded = decode(bytes(record.key or b""), None if record.value is None else bytes(record.value))
                assert isinstance(decoded, GroupRecord), record
                seen.add(type(decoded.key))
                shard.apply(decoded, record.offset)
    assert stored.ConsumerGroupRegularExpressionKey in seen
    assert stored.GroupMetadataKey in seen
    stable = [group for group in shard.groups.values() if group.group_id.startswith("play-group") and not group.is_empty]
    assert {group.group_type for group in stable} == {"classic", "consumer"}
    assert any(
        offset.offset == 10 for topics in shard.offsets.committed.values() for by in topics.values() for offset in by.values()
    )
