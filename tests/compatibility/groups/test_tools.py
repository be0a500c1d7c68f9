"""Kafka's own tools for groups, unchanged: ConsumerGroupCommand and the console consumer. They must print the same of both systems."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from tests.compatibility.groups.test_clients import System, make_topic, produce
from tests.compatibility.kafka import run_tool
from tests.compatibility.wire import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
ARGUMENTS = {"classic": {"session.timeout.ms": 6000}, "consumer": {"group.protocol": "consumer"}}


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def group(quick_system: System, topic: str, protocol: str) -> Iterator[str]:
    """A group that has read ten records of each of two partitions, and is still there."""
    make_topic(quick_system, topic, 2)
    produce(quick_system, topic, range(2), 10)
    name = f"tools-{topic}"
    settings = {
        "bootstrap.servers": quick_system.bootstrap,
        "group.id": name,
        "client.id": "tool-test",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings | ARGUMENTS[protocol])
    consumer.subscribe([topic])
    read: list[object] = []

    def has_read_all() -> bool:
        read.extend(message for message in consumer.consume(100, 0.1) if not message.error())
        return len(read) == 20

    wait_until("all records read", has_read_all)
    consumer.commit(asynchronous=False)
    yield name
    consumer.close()


def groups(system: System, *arguments: str) -> str:
    done = run_tool("ConsumerGroupCommand", "--bootstrap-server", system.bootstrap, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def table(text: str, *hide: str) -> list[dict[str, str]]:
    """The rows of what the tool printed, without the columns that differ from run to run."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    start = next(index for index, line in enumerate(lines) if line[0] == "GROUP")
    return [{head: cell for head, cell in zip(lines[start], line) if head not in hide} for line in lines[start + 1 :]]


def test_consumer_group_command_describes_and_lists(quick_system: System, topic: str, group: str, protocol: str) -> None:
    rows = table(groups(quick_system, "--describe", "--group", group), "CONSUMER-ID")
    expected = {
        "GROUP": group,
        "TOPIC": topic,
        "CURRENT-OFFSET": "10",
        "LOG-END-OFFSET": "10",
        "LAG": "0",
        "HOST": "/127.0.0.1",
        "CLIENT-ID": "tool-test",
    }
    assert sorted(rows, key=lambda row: row["PARTITION"]) == [expected | {"PARTITION": "0"}, expected | {"PARTITION": "1"}]
    members = table(groups(quick_system, "--describe", "--group", group, "--members"), "CONSUMER-ID")
    assert members == [{"GROUP": group, "HOST": "/127.0.0.1", "CLIENT-ID": "tool-test", "#PARTITIONS": "2"}]
    state = groups(quick_system, "--describe", "--group", group, "--state")
    assignor = "range" if protocol == "classic" else "uniform"
    assert re.search(rf"{group}\s+127.0.0.1:\d+\s+\(\d+\)\s+{assignor}\s+Stable\s+1", state), state
    assert group in groups(quick_system, "--list").split()
    listed = groups(quick_system, "--list", "--state", "Stable", "--type", protocol)
    assert group in listed
    assert group not in groups(quick_system, "--list", "--state", "Empty")


def test_consumer_group_command_resets_and_deletes(quick_system: System, topic: str, protocol: str) -> None:
    make_topic(quick_system, topic, 2)
    produce(quick_system, topic, range(2), 10)
    group = f"reset-{topic}"
    reset = ["--reset-offsets", "--group", group, "--topic", topic]
    planned = table(groups(quick_system, *reset, "--to-offset", "4", "--dry-run"))
    assert [row["NEW-OFFSET"] for row in planned] == ["4", "4"]
    groups(quick_system, *reset, "--to-offset", "4", "--execute")
    rows = table(groups(quick_system, *reset, "--shift-by", "3", "--execute"))
    assert [row["NEW-OFFSET"] for row in rows] == ["7", "7"]
    assert {row["LAG"] for row in table(groups(quick_system, "--describe", "--group", group))} == {"3"}
    groups(quick_system, "--delete-offsets", "--group", group, "--topic", topic)
    assert "Deletion of requested consumer groups" in groups(quick_system, "--delete", "--group", group)
    assert group not in groups(quick_system, "--list").split()


def test_the_console_consumer_works_with_a_group(quick_system: System, topic: str, protocol: str) -> None:
    make_topic(quick_system, topic, 2)
    produce(quick_system, topic, range(2), 10)
    arguments = [
        "--bootstrap-server",
        quick_system.bootstrap,
        "--topic",
        topic,
        "--group",
        f"console-{topic}",
        "--from-beginning",
    ]
    arguments += ["--max-messages", "20", "--timeout-ms", "30000"]
    if protocol == "consumer":
        arguments += ["--command-property", "group.protocol=consumer"]
    done = run_tool("ConsoleConsumer", *arguments)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split(), key=int) == sorted([str(n) for n in range(10)] * 2, key=int)
    rows = table(groups(quick_system, "--describe", "--group", f"console-{topic}"))
    assert {(row["CURRENT-OFFSET"], row["LAG"]) for row in rows} == {("10", "0")}
