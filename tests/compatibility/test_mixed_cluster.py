"""ottla brokers beside Java brokers, replicas of one partition on both kinds, either kind leading, under load.

What must hold: every acknowledged record is read back once, in order, by a Java and by a librdkafka consumer, and the replicas on
all brokers hold identical batches; while leadership moves, replicas move, and every broker is killed -9 in turn.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import threading
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from ottla.protocol.messages.configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
)
from ottla.records.batch import headers
from tests.compatibility.kafka import run_tool
from tests.compatibility.mixed import CONTROLLER_ID, MixedCluster
from tests.compatibility.wire import Closed, Wire, address_of, ask, wait_until

confluent_kafka = pytest.importorskip("confluent_kafka")
pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PARTITIONS = 3
TOPIC = "mixed"
COPY = "copy"
COPY_LIMIT_S = 20.0  # of one call of its producer
SEGMENT_BYTES = 1 << 20  # the least that Kafka allows
DIGITS = 1000
Line = tuple[int, int]  # partition and number


class Load:
    """An idempotent producer that writes numbers, of so many digits at least, to each partition, and remembers which were acknowledged."""

    def __init__(self, bootstrap: str, topic: str = TOPIC, digits: int = 1) -> None:
        self.topic = topic
        self.digits = digits
        settings = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self.producer = confluent_kafka.Producer(settings)
        self.acknowledged: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self.producer.flush(60)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                try:
                    self.producer.produce(
                        self.topic, f"{number:0{self.digits}}", partition=partition, on_delivery=self._delivered
                    )
                except BufferError:
                    self.producer.poll(0.1)
            number += 1
            self.producer.poll(0)
            time.sleep(0.002)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acknowledged[message.partition()].append(int(message.value()))

    def wait_for_more(self, count: int = 50) -> None:
        """Every partition makes progress: it has a leader that its followers follow."""
        before = {partition: len(numbers) for partition, numbers in self.acknowledged.items()}
        wait_until(
            "every partition being written to",
            lambda: all(len(numbers) >= before[partition] + count for partition, numbers in self.acknowledged.items()),
        )


class Copy:
    """Copies the topic record by record into another, exactly once: offsets and records in one transaction.

    In a process of its own: librdkafka 2.16 may never come back from `send_offsets_to_transaction` once the group's coordinator
    was gone for a moment (its issue 5511), and only a process can be ended from outside. Whatever fails, the next life goes on
    with the same transactional id and the group's offsets.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.restarts: list[str] = []
        self._context = multiprocessing.get_context("spawn")
        self._stop = self._context.Event()
        self._transactions = self._context.Value("i", 0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def transactions(self) -> int:
        return self._transactions.value

    def __enter__(self) -> Copy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            life = self._context.Process(target=copy_life, args=(self.bootstrap, self._stop, self._transactions), daemon=True)
            life.start()
            life.join()
            self.restarts.append(f"exit code {life.exitcode}")


def copy_life(bootstrap: str, stop: Any, transactions: Any) -> None:
    """Until it is told to stop, something fails, or a call takes longer than it may."""
    common = {"bootstrap.servers": bootstrap, "log_level": 0}
    consumer = confluent_kafka.Consumer(
        common | {"group.id": "copy", "auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 10_000}
    )
    producer = confluent_kafka.Producer(common | {"transactional.id": "copy", "transaction.timeout.ms": 30_000})
    faulthandler.dump_traceback_later(2 * COPY_LIMIT_S, exit=True)
    producer.init_transactions(COPY_LIMIT_S)
    consumer.subscribe([TOPIC])
    while not stop.is_set():
        faulthandler.dump_traceback_later(3 * COPY_LIMIT_S, exit=True)  # the calls below may take two of them in all
        if copy_some(consumer, producer):
            transactions.value += 1
    consumer.close()


def copy_some(consumer: Any, producer: Any) -> bool:
    messages = [message for message in consumer.consume(500, 0.2) if not message.error()]
    if not messages:
        return False
    producer.begin_transaction()
    for message in messages:
        producer.produce(COPY, message.value(), partition=message.partition())
    ends = {message.partition(): message.offset() + 1 for message in messages}
    offsets = [confluent_kafka.TopicPartition(TOPIC, partition, offset) for partition, offset in ends.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), COPY_LIMIT_S)
    producer.commit_transaction(COPY_LIMIT_S)
    return True


def leaders(cluster: MixedCluster, topic: str = TOPIC) -> dict[int, tuple[int, list[int], list[int]]]:
    """By partition: leader, replicas, in-sync set, as the first broker that answers tells them."""
    for node_id in cluster.broker_ids:
        try:
            with Wire(("127.0.0.1", cluster.ports[node_id]), timeout_s=5) as wire:
                asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
                answer = wire.ask(asked, 8)
        except (OSError, Closed):
            continue
        return {
            row.partition_index: (row.leader_id, row.replica_nodes, sorted(row.isr_nodes)) for row in answer.topics[0].partitions
        }
    return {}


def wait_in_sync(cluster: MixedCluster, topic: str = TOPIC) -> None:
    wait_until(
        "all replicas in sync",
        lambda: (rows := leaders(cluster, topic)) and all(isr == sorted(replicas) for _, replicas, isr in rows.values()),
        limit_s=90,
    )


def create(cluster: MixedCluster, topic: str, replicas: list[int]) -> None:
    assignment = ",".join(":".join(map(str, replicas[shift:] + replicas[:shift])) for shift in range(PARTITIONS))
    done = run_tool(
        "TopicCommand", "--bootstrap-server", cluster.bootstrap, "--create", "--topic", topic,
        "--replica-assignment", assignment, "--config", "min.insync.replicas=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    wait_in_sync(cluster, topic)


def reassign(cluster: MixedCluster, replicas: list[list[int]], topic: str = TOPIC) -> None:
    """Also moves leadership: the first of the new replicas is then preferred."""
    plan = {
        "version": 1,
        "partitions": [{"topic": topic, "partition": index, "replicas": row} for index, row in enumerate(replicas)],
    }
    path = cluster.folder / "plan.json"
    path.write_text(json.dumps(plan))
    arguments = ["--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(path)]
    done = run_tool("ReassignPartitionsCommand", *arguments, "--execute")
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(
        "the reassignment",
        lambda: (rows := leaders(cluster, topic)) and all(rows[index][1] == row for index, row in enumerate(replicas)),
    )
    wait_in_sync(cluster, topic)


def elect_preferred(cluster: MixedCluster) -> None:
    arguments = ["--bootstrap-server", cluster.bootstrap, "--election-type", "preferred", "--all-topic-partitions"]
    done = run_tool("LeaderElectionCommand", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until("preferred leaders", lambda: all(leader == rows[0] for leader, rows, _ in leaders(cluster).values()))


def read_with_librdkafka(cluster: MixedCluster, count: int, topic: str = TOPIC) -> list[Line]:
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "judge", "auto.offset.reset": "earliest", "log_level": 0}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    lines: list[Line] = []
    quiet_since = time.monotonic()
    while len(lines) < count and time.monotonic() < quiet_since + 5:
        before = len(lines)
        lines += [(message.partition(), int(message.value())) for message in consumer.consume(10_000, 1.0) if not message.error()]
        if len(lines) > before:
            quiet_since = time.monotonic()
    consumer.close()
    return lines


def read_with_java(cluster: MixedCluster, count: int, topic: str = TOPIC) -> list[Line]:
    done = run_tool(
        "ConsoleConsumer", "--bootstrap-server", cluster.bootstrap, "--topic", topic, "--from-beginning",
        "--max-messages", str(count), "--timeout-ms", "30000", "--formatter-property", "print.partition=true",
    )  # fmt: skip
    rows = [line.split("\t") for line in done.stdout.splitlines() if line.startswith("Partition:")]
    return [(int(partition.removeprefix("Partition:")), int(value)) for partition, value in rows]


def judge(cluster: MixedCluster, load: Load) -> None:
    """Every acknowledged record once and in order, for both kinds of consumer; the same batches on every replica."""
    wait_in_sync(cluster, load.topic)
    total = sum(len(numbers) for numbers in load.acknowledged.values())
    assert total > 1000
    for read in (read_with_librdkafka, read_with_java):
        lines = read(cluster, total, load.topic)
        for partition in range(PARTITIONS):
            numbers = [number for owner, number in lines if owner == partition]
            assert len(numbers) == len(set(numbers)), f"{read.__name__}: a record of partition {partition} came twice"
            assert numbers == sorted(numbers), f"{read.__name__}: partition {partition} is out of order"
            missing = set(load.acknowledged[partition]) - set(numbers)
            assert not missing, f"{read.__name__}: {len(missing)} acknowledged records of partition {partition} are lost"
    for partition, (_, replicas, _) in leaders(cluster, load.topic).items():
        copies = {node_id: batches(cluster.partition_folder(node_id, load.topic, partition)) for node_id in replicas}
        first = next(iter(copies.values()))
        assert all(copy == first for copy in copies.values()), f"replicas of {partition} differ: {copies.keys()}"


def judge_copy(cluster: MixedCluster, copy: Copy) -> None:
    """Each record of the topic once in the copy, in order, although whoever coordinated it was killed, of either kind."""
    original = read_with_librdkafka(cluster, 1_000_000)
    copied: list[Line] = []

    def is_whole() -> bool:
        copied[:] = read_with_librdkafka(cluster, len(original), COPY)
        return len(copied) >= len(original)

    wait_until("the copy to be whole", is_whole, limit_s=240)
    assert copy.transactions > 20
    for partition in range(PARTITIONS):
        numbers = [number for owner, number in original if owner == partition]
        assert [number for owner, number in copied if owner == partition] == numbers, f"restarts: {copy.restarts}"


def batches(folder: Path) -> list[bytes]:
    found = []
    for path in sorted(folder.glob("*.log")):
        content = path.read_bytes()
        found += [content[position : position + header.size] for position, header in headers(content)]
    return found


def dump(cluster: MixedCluster, node_id: int, topic: str) -> dict[str, list[str]]:
    """What Kafka's own tool shows of a broker's copy: by folder, the batches, and the records of each."""
    files = [
        path for partition in range(PARTITIONS) for path in cluster.partition_folder(node_id, topic, partition).glob("*.log")
    ]
    done = run_tool("DumpLogSegments", "--deep-iteration", "--print-data-log", "--files", ",".join(map(str, sorted(files))))
    assert done.returncode == 0, done.stderr
    shown: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("Dumping "):
            lines = shown.setdefault(Path(line.removeprefix("Dumping ")).parent.name, [])
        elif line.startswith(("baseOffset", "|")):
            lines.append(line)
    return shown


def judge_dumps(cluster: MixedCluster, topic: str) -> None:
    """Every partition of every broker, batch by batch."""
    first, *others = cluster.broker_ids
    expected = dump(cluster, first, topic)
    assert set(expected) == {f"{topic}-{partition}" for partition in range(PARTITIONS)}
    for name, lines in expected.items():
        shown = [line for line in lines if line.startswith("baseOffset")]
        assert shown, f"broker {first} has nothing of {name}"
        assert all("isvalid: true" in line for line in shown), name
    for node_id in others:
        found = dump(cluster, node_id, topic)
        assert set(found) == set(expected)
        for name, lines in found.items():
            differing = next((pair for pair in zip_longest(expected[name], lines) if pair[0] != pair[1]), None)
            assert differing is None, f"{name} on brokers {first} and {node_id}: {differing}"


@pytest.mark.parametrize(("java_brokers", "ottla_brokers"), [(2, 1), (1, 2)], ids=["two Java, one ottla", "one Java, two ottla"])
def test_brokers_of_both_kinds_keep_every_acknowledged_record(tmp_path: Path, java_brokers: int, ottla_brokers: int) -> None:
    with MixedCluster(tmp_path, java_brokers=java_brokers, ottla_brokers=ottla_brokers) as cluster:
        ids = cluster.broker_ids
        for topic in (TOPIC, COPY):
            create(cluster, topic, ids)
        with Copy(cluster.bootstrap) as copy, Load(cluster.bootstrap) as load:
            load.wait_for_more()
            # Leadership of every partition to ottla, then to Java, then spread again.
            ottla_first, java_first = cluster.ottla_ids + cluster.java_ids, cluster.java_ids + cluster.ottla_ids
            for order in (ottla_first, java_first):
                reassign(cluster, [order] * PARTITIONS)
                elect_preferred(cluster)
                load.wait_for_more()
            reassign(cluster, [ids[shift:] + ids[:shift] for shift in range(PARTITIONS)])
            elect_preferred(cluster)
            for node_id in ids:
                cluster.kill(node_id)
                load.wait_for_more()
                cluster.start_node(node_id)
                cluster.wait_serving(node_id)
                wait_in_sync(cluster)
            load.stop()
            assert not load.errors, load.errors[:3]
            judge(cluster, load)
            judge_copy(cluster, copy)
        for topic in (TOPIC, COPY):
            judge_dumps(cluster, topic)
        assert_no_tracebacks(cluster)


def test_an_ottla_broker_with_a_new_disk_leads_again_under_kafkas_controller(tmp_path: Path) -> None:
    with MixedCluster(tmp_path, java_brokers=1, ottla_brokers=1) as cluster:
        [ottla] = cluster.ottla_ids
        create(cluster, TOPIC, [ottla, *cluster.java_ids])
        with Load(cluster.bootstrap) as load:
            load.wait_for_more()
            cluster.kill(ottla)
            cluster.replace_disk(ottla)
            cluster.start_node(ottla)
            cluster.wait_serving(ottla)
            wait_in_sync(cluster)
            address = address_of(cluster.bootstrap_of(cluster.java_ids[0]))
            wait_until(
                "the ottla broker leading again",
                lambda: (
                    ask(address, ElectLeadersRequest(topic_partitions=None, timeout_ms=30_000), 2)
                    and all(leader == replicas[0] for leader, replicas, _ in leaders(cluster).values())
                ),
            )
            load.wait_for_more()
        assert not load.errors, load.errors[:3]
        judge(cluster, load)
        assert_no_tracebacks(cluster)


def assert_no_tracebacks(cluster: MixedCluster) -> None:
    for node_id in [*cluster.ottla_ids, *([CONTROLLER_ID] if cluster.ottla_controls else [])]:
        assert "Traceback" not in cluster.output(node_id), cluster.output(node_id)[-3000:]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """One Java and two ottla brokers under a Java controller."""
    with MixedCluster(tmp_path_factory.mktemp("mixed"), java_brokers=1, ottla_brokers=2) as running:
        yield running
        assert_no_tracebacks(running)


def make(wire: Wire, name: str, placed: list[list[int]], version: int = 7) -> Any:
    """The controller's answer about one new topic, by way of whichever broker the wire goes to."""
    row = CreateTopicsRequest.CreatableTopic
    assignments = [row.CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in enumerate(placed)]
    configs = [row.CreatableTopicConfig(name="segment.bytes", value=str(SEGMENT_BYTES))]
    topic = row(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=configs)
    [answer] = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), version).topics
    return answer


def test_what_java_controllers_decide_may_be_asked_of_an_ottla_broker(cluster: MixedCluster) -> None:
    asked_of, [java_id] = cluster.ottla_ids[0], cluster.java_ids
    with Wire(("127.0.0.1", cluster.ports[asked_of])) as wire:
        for version in CreateTopicsRequest.VERSIONS:
            assert make(wire, f"asked-{version}", [cluster.broker_ids], version).error_code == ErrorCode.NONE
        refused = make(wire, "asked-7", [cluster.broker_ids])
        assert (refused.error_code, refused.error_message) == (
            ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'asked-7' already exists.",
        )  # fmt: skip
        wider = CreatePartitionsRequest.CreatePartitionsTopic(name="asked-7", count=2, assignments=None)
        [answer] = wire.ask(CreatePartitionsRequest(topics=[wider], timeout_ms=30_000), 3).results
        assert answer.error_code == ErrorCode.NONE
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        change = resource.AlterableConfig(name="retention.ms", config_operation=0, value="86400000")
        altered = resource(resource_type=2, resource_name="asked-7", configs=[change])
        [answer] = wire.ask(IncrementalAlterConfigsRequest(resources=[altered]), 1).responses
        assert answer.error_code == ErrorCode.NONE
        gone = DeleteTopicsRequest.DeleteTopicState(name="asked-6")
        [answer] = wire.ask(DeleteTopicsRequest(topics=[gone], timeout_ms=30_000), 6).responses
        assert answer.error_code == ErrorCode.NONE
    java_only = cluster.bootstrap_of(java_id)

    def told() -> bool:
        """The Java broker knows of all of it."""
        shown = run_tool("TopicCommand", "--bootstrap-server", java_only, "--describe").stdout
        rows = [line for line in shown.splitlines() if line.startswith("Topic: asked-")]
        kept = [f"Topic: asked-{version}" for version in CreateTopicsRequest.VERSIONS if version != 6]
        return (
            [row.split("\t")[0] for row in rows] == kept
            and "PartitionCount: 2" in rows[-1]
            and "retention.ms=86400000" in rows[-1]
        )

    wait_until("the Java broker knowing what was asked of ottla", told)


def test_the_only_replica_of_each_partition_moves_between_kinds_under_load(cluster: MixedCluster) -> None:
    """The data itself goes over, several segments of it, and the broker it left keeps none."""
    topic, [java_id], ottla_id = "moving", cluster.java_ids, cluster.ottla_ids[0]
    with Wire(("127.0.0.1", cluster.ports[ottla_id])) as wire:
        assert make(wire, topic, [[java_id]] * PARTITIONS).error_code == ErrorCode.NONE
    wait_in_sync(cluster, topic)
    with Load(cluster.bootstrap, topic, digits=DIGITS) as load:
        for source, target in ((java_id, ottla_id), (ottla_id, java_id)):
            load.wait_for_more(2 * SEGMENT_BYTES // DIGITS)
            left, taken = (
                [cluster.partition_folder(node_id, topic, index) for index in range(PARTITIONS)] for node_id in (source, target)
            )
            before = [batches(folder) for folder in left]
            reassign(cluster, [[target]] * PARTITIONS, topic)
            for index, folder in enumerate(taken):
                assert len(list(folder.glob("*.log"))) > 1
                assert batches(folder)[: len(before[index])] == before[index]
            wait_until(f"nothing being left on broker {source}", lambda left=left: not any(folder.exists() for folder in left))
            assert {leader for leader, _, _ in leaders(cluster, topic).values()} == {target}
            load.wait_for_more()
    assert not load.errors, load.errors[:3]
    judge(cluster, load)


def test_the_java_controller_is_killed_under_load_and_decides_again_when_it_is_back(cluster: MixedCluster) -> None:
    topic, ids = "uncontrolled", cluster.broker_ids
    create(cluster, topic, ids)
    with Load(cluster.bootstrap, topic) as load:
        load.wait_for_more()
        cluster.kill(CONTROLLER_ID)
        load.wait_for_more(500)  # the brokers serve on
        cluster.start_node(CONTROLLER_ID)
        reassign(cluster, [ids[shift:] + ids[:shift] for shift in (1, 2, 0)], topic)
        for node_id in (cluster.ottla_ids[0], cluster.java_ids[0]):  # it sees who is gone, of either kind
            cluster.kill(node_id)
            wait_until(
                f"broker {node_id} being out",
                lambda node_id=node_id: (
                    (rows := leaders(cluster, topic)) and all(node_id not in isr for _, _, isr in rows.values())
                ),
            )
            load.wait_for_more()
            cluster.start_node(node_id)
            cluster.wait_serving(node_id)
            wait_in_sync(cluster, topic)
    assert not load.errors, load.errors[:3]
    judge(cluster, load)
    judge_dumps(cluster, topic)


def test_java_brokers_serve_under_a_controller_of_ottlas(tmp_path: Path) -> None:
    with MixedCluster(tmp_path, java_brokers=2, ottla_brokers=1, ottla_controls=True) as cluster:
        shown = run_tool("MetadataQuorumCommand", "--bootstrap-controller", cluster.controller, "describe", "--replication")
        assert [line.split()[-1] for line in shown.stdout.splitlines()[1:]].count("Observer") == 3, shown.stdout + shown.stderr
        java_only = cluster.bootstrap_of(cluster.java_ids[0])  # what is asked of it, it forwards in an envelope
        create(cluster, TOPIC, cluster.broker_ids)
        changed = run_tool(
            "ConfigCommand", "--bootstrap-server", java_only, "--alter", "--topic", TOPIC, "--add-config", "retention.ms=86400000"
        )
        assert changed.returncode == 0, changed.stdout + changed.stderr
        told = run_tool("ConfigCommand", "--bootstrap-server", java_only, "--describe", "--topic", TOPIC)
        assert "retention.ms=86400000" in told.stdout, told.stdout + told.stderr
        again = run_tool("TopicCommand", "--bootstrap-server", java_only, "--create", "--topic", TOPIC)
        assert f"Topic '{TOPIC}' already exists" in again.stdout + again.stderr
        with Load(cluster.bootstrap) as load:
            for node_id in cluster.broker_ids:
                load.wait_for_more()
                cluster.kill(node_id)
                load.wait_for_more()
                cluster.start_node(node_id)
                cluster.wait_serving(node_id)
                wait_in_sync(cluster)
            # The controller itself is killed and comes back: brokers serve on meanwhile.
            cluster.kill(CONTROLLER_ID)
            load.wait_for_more()
            cluster.start_node(CONTROLLER_ID)
            ids = cluster.broker_ids
            reassign(cluster, [ids[shift:] + ids[:shift] for shift in (1, 2, 0)])
            load.wait_for_more()
        assert not load.errors, load.errors[:3]
        judge(cluster, load)
        assert_no_tracebacks(cluster)
