"""What can be wrong in a cluster of three: a clear error for whoever is wrong, and the cluster serves on."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla.broker.config import parse_properties
from ottla.embedded.formatting import format_node, new_id
from ottla.embedded.properties import properties_text
from ottla.metadata.image import NO_LEADER, ClusterImage
from ottla.metadata.loader import Loader
from ottla.metadata.records import decode
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.controller import AlterPartitionRequest, BrokerHeartbeatRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.topics import CreateTopicsRequest
from ottla.protocol.schema import Message
from ottla.records.record import decode_batches
from tests.cli.processes import environment, ottla, running
from tests.compatibility.cluster import OttlaCluster
from tests.compatibility.wire import ask, free_port, wait_until

pytestmark = pytest.mark.slow
TOPIC = "served"
LIMIT_S = 60.0
LARGEST_FILE = (
    500_000  # of what a node with a full disk may write: more than its metadata and its output, less than the topic's logs
)
IMPATIENT = {"initial.broker.registration.timeout.ms": "2000"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaCluster]:
    with OttlaCluster(tmp_path_factory.mktemp("three")) as running:
        row = CreateTopicsRequest.CreatableTopic
        configs = [row.CreatableTopicConfig(name="min.insync.replicas", value="2")]
        made = row(name=TOPIC, num_partitions=3, replication_factor=3, configs=configs)
        assert ask(running.address, CreateTopicsRequest(topics=[made]), 5).topics[0].error_code == ErrorCode.NONE
        yield running
    assert running.tracebacks() == []


@pytest.fixture(autouse=True)
def serves_on(cluster: OttlaCluster) -> Iterator[None]:
    """Before and after each wrong thing, every partition takes records that a majority has."""
    yield
    assert set(produced(cluster).values()) == {"NONE"}
    assert all(process.poll() is None for process in cluster.processes.values())


def produced(cluster: OttlaCluster, size: int = 1) -> dict[int, str]:
    """What each partition answered to one record, once it was tried for as long as we wait."""
    answers: dict[int, str] = {}
    limit_ms = int(LIMIT_S * 1000 / 2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0, "message.timeout.ms": limit_ms})
    for partition in range(3):
        producer.produce(
            TOPIC,
            b"x" * size,
            partition=partition,
            on_delivery=lambda error, message: answers.update({message.partition(): error.name() if error else "NONE"}),
        )
    assert producer.flush(LIMIT_S) == 0
    return answers


def properties_of(cluster: OttlaCluster, node: int) -> dict[str, str]:
    return parse_properties(cluster._file(node).read_text())


def broker_only(cluster: OttlaCluster, node: int) -> dict[str, str]:
    own = {"process.roles": "broker", "node.id": str(node), "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"}
    return properties_of(cluster, 1) | own


def brokers(cluster: OttlaCluster) -> set[int]:
    return {row.node_id for row in ask(cluster.address, MetadataRequest(topics=[]), 8).brokers}


def write_node(folder: Path, properties: dict[str, str], cluster_id: str) -> Path:
    if not (folder / "data").exists():
        format_node(str(folder / "data"), cluster_id, int(properties["node.id"]))
    file = folder / "server.properties"
    file.write_text(properties_text(properties | {"log.dirs": str(folder / "data")}))
    return file


def start_wrong(folder: Path, properties: dict[str, str], cluster_id: str) -> subprocess.CompletedProcess[str]:
    """A node that should not start: it must end by itself."""
    file = write_node(folder, properties, cluster_id)
    command = [sys.executable, "-m", "ottla", "server", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment())


def explained(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ottla: "), done.stderr
    assert all(word in last for word in words), last
    assert "Traceback" not in done.stderr


def cluster_id(cluster: OttlaCluster) -> str:
    return parse_properties((Path(cluster.plans[1].directory) / "meta.properties").read_text())["cluster.id"]


def test_a_second_broker_with_an_id_that_is_taken_does_not_start(cluster: OttlaCluster, tmp_path: Path) -> None:
    fourth = broker_only(cluster, 4)
    (tmp_path / "first").mkdir()
    file = write_node(tmp_path / "first", fourth, cluster_id(cluster))
    with running("server", str(file)):
        wrong = fourth | IMPATIENT | {"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"}
        explained(start_wrong(tmp_path, wrong, cluster_id(cluster)), "DUPLICATE_BROKER_REGISTRATION", "node.id")
        assert brokers(cluster) == {1, 2, 3, 4}
    wait_until("the fourth broker being gone", lambda: brokers(cluster) == {1, 2, 3})


def test_a_broker_with_the_id_of_a_voter_does_not_start(cluster: OttlaCluster, tmp_path: Path) -> None:
    explained(start_wrong(tmp_path, broker_only(cluster, 2), cluster_id(cluster)), "node 2", "controller.quorum.voters")


def test_a_second_controller_with_an_id_that_is_taken_does_not_start(cluster: OttlaCluster, tmp_path: Path) -> None:
    wrong = properties_of(cluster, 2)
    wrong["listeners"] = f"PLAINTEXT://127.0.0.1:{free_port()},CONTROLLER://127.0.0.1:{free_port()}"
    explained(start_wrong(tmp_path, wrong, cluster_id(cluster)), "controller.quorum.voters has node 2 at")


def test_a_node_of_another_cluster_does_not_start(cluster: OttlaCluster, tmp_path: Path) -> None:
    explained(start_wrong(tmp_path, broker_only(cluster, 4), new_id()), "formatted for cluster", "belong to another")


def test_a_voter_of_another_cluster_does_not_start(cluster: OttlaCluster, tmp_path: Path) -> None:
    cluster.kill_node(3)
    try:
        explained(start_wrong(tmp_path, properties_of(cluster, 3), new_id()), "formatted for cluster", "belong to another")
    finally:
        cluster.start_node(3)
        cluster.wait_ready()


def test_a_node_with_another_list_of_voters_does_not_start(cluster: OttlaCluster, tmp_path: Path) -> None:
    voters = properties_of(cluster, 1)["controller.quorum.voters"].split(",")[:2]
    wrong = broker_only(cluster, 4) | {"controller.quorum.voters": ",".join(voters)}
    explained(start_wrong(tmp_path, wrong, cluster_id(cluster)), "controller.quorum.voters", "[1, 2]", "[1, 2, 3]")


def test_a_voter_whose_list_was_changed_does_not_start(cluster: OttlaCluster, tmp_path: Path) -> None:
    cluster.kill_node(3)
    try:
        shutil.copytree(cluster.plans[3].directory, tmp_path / "data")
        wrong = properties_of(cluster, 3)
        own = next(voter for voter in wrong["controller.quorum.voters"].split(",") if voter.startswith("3@"))
        explained(
            start_wrong(tmp_path, wrong | {"controller.quorum.voters": own}, cluster_id(cluster)), "[3]", "voted among [1, 2, 3]"
        )
    finally:
        cluster.start_node(3)
        cluster.wait_ready()


def test_more_replicas_than_brokers_are_refused(cluster: OttlaCluster) -> None:
    done = ottla("topics", "create", "too-many", "--replication-factor", "5", bootstrap=cluster.bootstrap)
    assert done.returncode == 1
    assert "INVALID_REPLICATION_FACTOR" in done.stderr or "replica" in done.stderr.lower()
    assert "too-many" not in ottla("topics", "list", bootstrap=cluster.bootstrap).stdout


def test_a_reassignment_to_unknown_brokers_is_refused(cluster: OttlaCluster) -> None:
    done = ottla("partitions", "reassign", TOPIC, "0", "1", "7", bootstrap=cluster.bootstrap)
    assert done.returncode == 1
    assert "7" in done.stderr
    assert "Traceback" not in done.stderr


def image_of(cluster: OttlaCluster) -> ClusterImage:
    """The cluster's metadata as its log has it on disk: what tools cannot ask for is there."""
    loader = Loader()
    for path in sorted((Path(cluster.plans[1].directory) / "__cluster_metadata-0").glob("*.log")):
        for header, records in decode_batches(path.read_bytes()):
            values = [] if header.is_control else [decode(record.value or b"") for record in records]
            loader.apply_batch(values, header.last_offset, header.leader_epoch)
    return loader.image


def alter(cluster: OttlaCluster, isr: list[int], *, broker_epoch: int | None = None) -> ErrorCode:
    """What the active controller says to the leader of the first partition that wants this in-sync set."""
    image = image_of(cluster)
    topic_id = image.topic_ids[TOPIC]
    partition = image.topics[topic_id].partitions[0]
    data = AlterPartitionRequest.TopicData
    row = data.PartitionData(
        partition_index=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr_with_epochs=[data.PartitionData.BrokerState(broker_id=broker) for broker in isr],
    )
    request = AlterPartitionRequest(
        broker_id=partition.leader,
        broker_epoch=image.brokers[partition.leader].epoch if broker_epoch is None else broker_epoch,
        topics=[data(topic_id=topic_id, partitions=[row])],
    )
    answer = ask_controller(cluster, request, 3)
    return ErrorCode(answer.error_code or answer.topics[0].partitions[0].error_code)


def ask_controller(cluster: OttlaCluster, request: Message, version: int) -> Any:
    for plan in cluster.plans.values():
        answer = ask(("127.0.0.1", plan.controller_port), request, version)
        if answer.error_code != ErrorCode.NOT_CONTROLLER:
            return answer
    raise AssertionError("nobody is the controller")


def test_the_last_in_sync_replica_cannot_be_removed(cluster: OttlaCluster) -> None:
    wait_until("everybody being in sync", lambda: len(image_of(cluster).topics[topic_id(cluster)].partitions[0].isr) == 3)
    assert alter(cluster, []) == ErrorCode.INVALID_REQUEST
    assert len(image_of(cluster).topics[topic_id(cluster)].partitions[0].isr) == 3


def topic_id(cluster: OttlaCluster) -> bytes:
    return image_of(cluster).topic_ids[TOPIC]


def test_a_stale_broker_epoch_changes_nothing(cluster: OttlaCluster) -> None:
    assert alter(cluster, [1, 2, 3], broker_epoch=0) == ErrorCode.STALE_BROKER_EPOCH
    beat = BrokerHeartbeatRequest(broker_id=2, broker_epoch=0, current_metadata_offset=0, want_fence=True, want_shut_down=True)
    assert ask_controller(cluster, beat, 1).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert not image_of(cluster).brokers[2].fenced


def test_a_full_disk_on_one_node_leaves_the_others_serving(cluster: OttlaCluster) -> None:
    """Full by the kernel's limit on the size of a file, which can be set on a running process; lifted, the node comes back."""
    for _ in range(4):
        assert set(produced(cluster, size=LARGEST_FILE // 2).values()) == {"NONE"}
    victim = image_of(cluster).topics[topic_id(cluster)].partitions[0].leader
    process = cluster.processes[victim].pid
    resource.prlimit(process, resource.RLIMIT_FSIZE, (LARGEST_FILE, resource.RLIM_INFINITY))
    try:
        assert set(produced(cluster).values()) == {"NONE"}
        assert image_of(cluster).topics[topic_id(cluster)].partitions[0].leader not in (victim, NO_LEADER)
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    wait_until(
        "everybody being in sync",
        lambda: all(len(row.isr) == 3 for row in image_of(cluster).topics[topic_id(cluster)].partitions.values()),
        limit_s=90,
    )


def test_a_broker_whose_disk_was_replaced_leads_again(cluster: OttlaCluster) -> None:
    """Its new folder has an id that the controller has never heard of, and nothing in it."""
    folder, own = cluster.plans[1].directory, cluster_id(cluster)
    cluster.kill_node(1)
    shutil.rmtree(folder)
    format_node(folder, own, 1)
    cluster.start_node(1)
    cluster.wait_ready()
    elect = ["partitions", "elect", TOPIC]
    wait_until("node 1 leading again", lambda: ottla(*elect, bootstrap=cluster.bootstrap) and leads_its_own(cluster, 1))


def leads_its_own(cluster: OttlaCluster, node: int) -> bool:
    preferred = [row for row in image_of(cluster).topics[topic_id(cluster)].partitions.values() if row.preferred_leader == node]
    assert preferred
    return all(row.leader == node for row in preferred)


def test_a_node_that_stops_with_a_full_disk_says_so_without_a_traceback(cluster: OttlaCluster) -> None:
    cluster.kill_node(2)
    try:
        with running("server", str(cluster._file(2))) as (node, _):
            produced(cluster)
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
            node.terminate()
            _, errors = node.communicate(timeout=LIMIT_S)
            assert "not stopped cleanly" in errors
            assert "Traceback" not in errors
    finally:
        cluster.start_node(2)
        cluster.wait_ready()
