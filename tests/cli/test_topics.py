"""`ottla topics describe` while a broker of three is dead: which copies are away, which partitions lag, which nobody leads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.embedded.cluster import EmbeddedCluster
from ottla.embedded.node import EmbeddedNode
from ottla.protocol.messages.metadata import MetadataRequest
from tests.cli.processes import here
from tests.compatibility.wire import Wire, address_of, wait_until

DEAD, NOBODY = 3, -1
HEAD = "TOPIC PARTITION LEADER REPLICAS IN-SYNC OFFLINE"
PLACED = {"pairs": "1:2,2:3", "singles": "3,1"}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Of the two brokers that live."""
    with EmbeddedCluster(3) as cluster:
        for topic, replicas in PLACED.items():
            made = here("topics", "create", topic, "--replicas", replicas, bootstrap=cluster.bootstrap)
            assert made.returncode == 0, made.stderr
        wait_until("all in sync", lambda: all(told(node) == ([2, 3], 3) for node in cluster.nodes))
        assert described(cluster.bootstrap, "--under-replicated") == described(cluster.bootstrap, "--unavailable") == {}
        cluster.node(DEAD).kill()
        living = [node for node in cluster.nodes if node.node_id != DEAD]
        wait_until("broker 3 being missed", lambda: all(told(node) == ([2], NOBODY) for node in living))
        yield ",".join(node.bootstrap for node in living)


def told(node: EmbeddedNode) -> tuple[list[int], int]:
    """By one node, which may lag behind another: who is in sync in pairs-1, and who leads singles-0."""
    named = MetadataRequest.MetadataRequestTopic
    with Wire(address_of(node.bootstrap)) as wire:
        answer = wire.ask(MetadataRequest(topics=[named(name=topic) for topic in PLACED], allow_auto_topic_creation=False), 9)
    rows = {(topic.name, row.partition_index): row for topic in answer.topics for row in topic.partitions}
    return (rows["pairs", 1].isr_nodes, rows["singles", 0].leader_id) if len(rows) == 4 else ([], NOBODY)


def described(bootstrap: str, *options: str) -> dict[tuple[str, int], dict[str, Any]]:
    done = here("topics", "describe", *options, "--json", bootstrap=bootstrap)
    assert done.returncode == 0, done.stderr
    return {(topic["topic"], row["partition"]): row for topic in json.loads(done.stdout) for row in topic["partitions"]}


def table(bootstrap: str, *options: str) -> list[str]:
    """What people see, the epochs of leaders left out."""
    rows = [line.split() for line in here("topics", "describe", *options, bootstrap=bootstrap).stdout.splitlines()]
    return [" ".join(row[:3] + row[4:]) for row in rows]


def test_copies_on_a_dead_broker_are_shown_as_offline(bootstrap: str) -> None:
    assert {key: row["offline"] for key, row in described(bootstrap).items()} == {
        ("pairs", 0): [],
        ("pairs", 1): [DEAD],
        ("singles", 0): [DEAD],
        ("singles", 1): [],
    }
    assert table(bootstrap) == [
        HEAD,
        "pairs 0 1 1,2 1,2 -",
        "pairs 1 2 2,3 2 3",
        "singles 0 - 3 - 3",
        "singles 1 1 1 1 -",
    ]


def test_only_partitions_that_lack_a_copy_are_under_replicated(bootstrap: str) -> None:
    found = described(bootstrap, "--under-replicated")
    assert list(found) == [("pairs", 1), ("singles", 0)]
    assert found["singles", 0]["eligible_leaders"] == [DEAD]  # the last one left the in-sync set, too (KIP-966)
    assert table(bootstrap, "--under-replicated") == [HEAD, "pairs 1 2 2,3 2 3", "singles 0 - 3 - 3"]


def test_only_partitions_that_nobody_leads_are_unavailable(bootstrap: str) -> None:
    assert list(described(bootstrap, "--unavailable")) == [("singles", 0)]
    assert table(bootstrap, "--unavailable") == [HEAD, "singles 0 - 3 - 3"]


def test_a_copy_that_is_still_to_come_is_missed_by_nobody(bootstrap: str) -> None:
    """As to Kafka's TopicCommand. Broker 3 is dead, so the move there stays under way."""
    moved = here("partitions", "reassign", "pairs", "0", "1", "2", str(DEAD), "--no-wait", bootstrap=bootstrap)
    assert moved.returncode == 0, moved.stderr
    assert described(bootstrap)["pairs", 0]["replicas"] == [1, 2, DEAD]
    assert ("pairs", 0) not in described(bootstrap, "--under-replicated")
