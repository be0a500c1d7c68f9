"""Kafka's own cluster tools against three nodes, ottla's and Kafka's: the same command lines, the same output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compatibility.cluster import OttlaCluster
from tests.compatibility.kafka import KafkaPeer, run_tool
from tests.compatibility.wire import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
System = KafkaPeer | OttlaCluster
TOPIC = "tools"


@pytest.fixture(params=["ottla", "kafka"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[System]:
    made = OttlaCluster(tmp_path / "nodes") if request.param == "ottla" else KafkaPeer(tmp_path / "nodes", nodes=3, first_id=1)
    with made as running:
        yield running


def tool(cluster: System, name: str, *arguments: str) -> str:
    """Sub-commands come before the option, options after it."""
    words = [word for word in arguments[:1] if not word.startswith("-") and name == "ClusterTool"]
    done = run_tool(name, *words, "--bootstrap-server", cluster.bootstrap, *arguments[len(words) :])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_cluster_tools(cluster: System, tmp_path: Path) -> None:
    assert (
        tool(cluster, "TopicCommand", "--create", "--topic", TOPIC, "--replica-assignment", "1:2:3,2:3:1,3:1:2")
        == f"Created topic {TOPIC}.\n"
    )
    described = tool(cluster, "TopicCommand", "--describe", "--topic", TOPIC)
    assert [re.sub(r"\tElr.*", "", line) for line in described.splitlines()[1:]] == [
        f"\tTopic: {TOPIC}\tPartition: 0\tLeader: 1\tReplicas: 1,2,3\tIsr: 1,2,3",
        f"\tTopic: {TOPIC}\tPartition: 1\tLeader: 2\tReplicas: 2,3,1\tIsr: 2,3,1",
        f"\tTopic: {TOPIC}\tPartition: 2\tLeader: 3\tReplicas: 3,1,2\tIsr: 3,1,2",
    ]
    reassign_and_elect(cluster, tmp_path)
    look(cluster)
    after_a_kill(cluster)


def reassign_and_elect(cluster: System, folder: Path) -> None:
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "replicas": [2, 1]}]}))
    named = ("--reassignment-json-file", str(plan))
    executed = tool(cluster, "ReassignPartitionsCommand", *named, "--execute")
    assert f"Successfully started partition reassignment for {TOPIC}-0" in executed
    wait_until(
        "the end of the reassignment",
        lambda: (
            f"Reassignment of partition {TOPIC}-0 is completed." in tool(cluster, "ReassignPartitionsCommand", *named, "--verify")
        ),
    )
    assert tool(cluster, "ReassignPartitionsCommand", "--list").strip() == "No partition reassignments found."
    elected = tool(cluster, "LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    assert elected.strip() == f"Successfully completed leader election (PREFERRED) for partitions {TOPIC}-0"
    again = tool(cluster, "LeaderElectionCommand", "--election-type", "preferred", "--topic", TOPIC, "--partition", "0")
    assert again.strip() == f"Valid replica already elected for partitions {TOPIC}-0"


def look(cluster: System) -> None:
    assert re.fullmatch(r"Cluster ID: \S{22}\n", tool(cluster, "ClusterTool", "cluster-id"))
    endpoints = tool(cluster, "ClusterTool", "list-endpoints").splitlines()[1:]
    assert [(row.split()[0], *row.split()[3:]) for row in endpoints] == [
        (str(n), "null", "unfenced", "broker") for n in (1, 2, 3)
    ]
    features = {line.split()[1]: line.split() for line in tool(cluster, "FeatureCommand", "describe").splitlines()}
    finalized = {name: row[row.index("FinalizedVersionLevel:") + 1] for name, row in features.items()}
    assert {"metadata.version": "4.3-IV0", "group.version": "1", "transaction.version": "2"}.items() <= finalized.items()
    status = tool(cluster, "MetadataQuorumCommand", "describe", "--status")
    assert re.findall(r'"id": (\d), "endpoints": \["CONTROLLER://127', status) == ["1", "2", "3"]
    replication = [row.split() for row in tool(cluster, "MetadataQuorumCommand", "describe", "--replication").splitlines()[1:]]
    assert sorted(row[-1] for row in replication) == ["Follower", "Follower", "Leader"]
    versions = tool(cluster, "BrokerApiVersionsCommand")
    assert sorted(re.findall(r"\(id: (\d) rack: null isFenced: false\) -> \(", versions)) == ["1", "2", "3"]
    assert versions.count("\tProduce(0): 0 to 13 [usable: 13],\n") == 3


def after_a_kill(cluster: System) -> None:
    cluster.kill_node(3)

    def missed() -> bool:
        shown = tool(cluster, "TopicCommand", "--describe", "--under-replicated-partitions", "--topic", TOPIC)
        rows = [re.sub(r"\tElr.*", "", line) for line in shown.splitlines()]
        return rows == [
            f"\tTopic: {TOPIC}\tPartition: 1\tLeader: 2\tReplicas: 2,3,1\tIsr: 2,1",
            f"\tTopic: {TOPIC}\tPartition: 2\tLeader: 1\tReplicas: 3,1,2\tIsr: 1,2",
        ]

    wait_until("the killed node being missed", missed)
    assert tool(cluster, "ClusterTool", "unregister", "--id", "3") == "Broker 3 is no longer registered.\n"
