"""Kafka's own tools against both systems: the same command lines, the same output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ottla.protocol.messages.fetch import FetchRequest
from ottla.records.batch import headers
from ottla.records.compression import NAMES
from tests.compatibility.kafka import KafkaPeer, run_tool
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import ask

pytestmark = pytest.mark.kafka
System = KafkaPeer | OttlaNode


def tool(system: System, name: str, *arguments: str, stdin: str = "", code: int = 0) -> str:
    done = run_tool(name, "--bootstrap-server", system.bootstrap, *arguments, stdin=stdin)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_topic_command(system: System, topic: str) -> None:
    create = ("--create", "--topic", topic, "--partitions", "2", "--config", "segment.bytes=2000000")
    assert tool(system, "TopicCommand", *create) == f"Created topic {topic}.\n"
    refused = tool(system, "TopicCommand", *create, code=1)
    assert "already exists" in refused
    described = tool(system, "TopicCommand", "--describe", "--topic", topic)
    shown = re.sub(r"TopicId: \S{22}", "TopicId: ID", described)
    assert shown.splitlines() == [
        f"Topic: {topic}\tTopicId: ID\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: min.insync.replicas=1,segment.bytes=2000000",
        f"\tTopic: {topic}\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: ",
        f"\tTopic: {topic}\tPartition: 1\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: ",
    ]
    tool(system, "TopicCommand", "--alter", "--topic", topic, "--partitions", "4")
    assert "PartitionCount: 4" in tool(system, "TopicCommand", "--describe", "--topic", topic)
    assert topic in tool(system, "TopicCommand", "--list").splitlines()
    tool(system, "TopicCommand", "--delete", "--topic", topic)
    assert topic not in tool(system, "TopicCommand", "--list").splitlines()


def test_console_producer_and_consumer_and_get_offset_shell(system: System, topic: str) -> None:
    tool(system, "TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:", "--compression-codec", "zstd")
    tool(system, "ConsoleProducer", "--topic", topic, *keyed, stdin="a:one\nb:two\n")
    headed = (
        "--reader-property",
        "parse.headers=true",
        "--reader-property",
        "headers.delimiter=|",
        "--reader-property",
        "headers.separator=,",
    )
    tool(system, "ConsoleProducer", "--topic", topic, *headed, stdin="h:1,g:2|three\n")
    read = ("--topic", topic, "--partition", "0", "--max-messages")
    shown = (
        "--formatter-property",
        "print.key=true",
        "--formatter-property",
        "print.headers=true",
        "--formatter-property",
        "print.offset=true",
    )
    everything = tool(system, "ConsoleConsumer", *read, "3", "--offset", "earliest", *shown)
    assert everything.splitlines() == [
        "Offset:0\tNO_HEADERS\ta\tone",
        "Offset:1\tNO_HEADERS\tb\ttwo",
        "Offset:2\th:1,g:2\tnull\tthree",
    ]
    assert tool(system, "ConsoleConsumer", *read, "1", "--offset", "1") == "two\n"
    for time, offset in (("-1", 3), ("-2", 0), ("-3", 2)):
        assert tool(system, "GetOffsetShell", "--topic", topic, "--time", time) == f"{topic}:0:{offset}\n"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_console_producer_packs_by_every_codec_and_the_consumer_unpacks(system: System, topic: str, codec: str) -> None:
    tool(system, "TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    lines = [f"{index} squeezed squeezed squeezed" for index in range(50)]
    said = "".join(f"{line}\n" for line in lines)
    tool(system, "ConsoleProducer", "--topic", topic, "--compression-codec", codec, stdin=said)
    read = ("--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "50")
    assert tool(system, "ConsoleConsumer", *read).splitlines() == lines
    assert kept_codecs(system, topic) == {codec}


def kept_codecs(system: System, topic: str) -> set[str]:
    """What the batches of partition 0 are packed with, as they are on disk and go out."""
    row = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[FetchRequest.FetchTopic(topic=topic, partitions=[row])]
    )
    [partition] = ask(system.address, request, 11).responses[0].partitions
    return {NAMES[header.codec] for _, header in headers(partition.records)}


def test_config_command(system: System, topic: str) -> None:
    tool(system, "TopicCommand", "--create", "--topic", topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    assert tool(system, "ConfigCommand", "--describe", *entity) == f"Dynamic configs for topic {topic} are:\n"
    added = tool(
        system, "ConfigCommand", "--alter", *entity, "--add-config", "retention.ms=1000000,cleanup.policy=[compact,delete]"
    )
    assert added == f"Completed updating config for topic {topic}.\n"
    described = tool(system, "ConfigCommand", "--describe", *entity)
    assert sorted(described.splitlines()[1:]) == [
        "  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, "
        "DEFAULT_CONFIG:log.cleanup.policy=delete}",
        "  retention.ms=1000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=1000000}",
    ]
    tool(system, "ConfigCommand", "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in tool(system, "ConfigCommand", "--describe", *entity)
    everything = tool(system, "ConfigCommand", "--describe", "--all", *entity).splitlines()
    assert len(everything) == 34
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    tool(system, "ConfigCommand", "--alter", *broker, "--add-config", "log.cleaner.backoff.ms=14000")
    assert "log.cleaner.backoff.ms=14000 sensitive=false" in tool(system, "ConfigCommand", "--describe", *broker)
    tool(system, "ConfigCommand", "--alter", *broker, "--delete-config", "log.cleaner.backoff.ms")


def test_performance_and_verifiable_tools(system: System, topic: str) -> None:
    tool(system, "TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    amount = ("--topic", topic, "--num-records", "1000", "--record-size", "100", "--throughput", "-1")
    produced = run_tool("ProducerPerformance", *amount, "--producer-props", f"bootstrap.servers={system.bootstrap}", "acks=all")
    assert re.search(r"^1000 records sent, ", produced.stdout, re.MULTILINE), produced.stdout + produced.stderr
    consumed = tool(system, "ConsumerPerformance", "--topic", topic, "--messages", "1000", "--timeout", "20000", "--hide-header")
    assert consumed.split(", ")[4] == "1000"
    lines = [
        json.loads(line) for line in tool(system, "VerifiableProducer", "--topic", topic, "--max-messages", "5").splitlines()
    ]
    names = [line["name"] for line in lines]
    assert names == ["startup_complete", *["producer_send_success"] * 5, "shutdown_complete", "tool_data"]
    assert lines[-1]["acked"] == 5


def test_delete_records_and_log_dirs_commands(system: System, topic: str, tmp_path: Path) -> None:
    tool(system, "TopicCommand", "--create", "--topic", topic)
    tool(system, "ConsoleProducer", "--topic", topic, stdin="".join(f"{index}\n" for index in range(10)))
    file = tmp_path / "delete.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4}]}))
    deleted = tool(system, "DeleteRecordsCommand", "--offset-json-file", str(file))
    assert deleted.splitlines() == [
        "Executing records delete operation",
        "Records delete operation completed:",
        f"partition: {topic}-0\tlow_watermark: 4",
    ]
    assert tool(system, "GetOffsetShell", "--topic", topic, "--time", "-2") == f"{topic}:0:4\n"
    described = tool(system, "LogDirsCommand", "--describe", "--topic-list", topic).splitlines()[-1]
    [broker] = json.loads(described)["brokers"]
    [log_dir] = broker["logDirs"]
    [partition] = log_dir["partitions"]
    assert (broker["broker"], log_dir["error"]) == (1, None)
    assert (partition["partition"], partition["offsetLag"], partition["isFuture"]) == (f"{topic}-0", 0, False)
    assert partition["size"] > 0
