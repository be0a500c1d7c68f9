"""One folder, two systems: a node of ottla serves what Apache Kafka kept, Apache Kafka serves what ottla kept, and its dump tool reads
every file of a node that is running."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import ottla
from tests.compatibility import process
from tests.compatibility.kafka import KafkaPeer, run_tool
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import serves, wait_until
from tests.storage.kafka_folder import SETTINGS, TOPICS, consume, fill, wait_until_compacted
from tests.storage.test_kafka_files import complaints

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LEVELS = ("read_uncommitted", "read_committed")
GROUP = "readers"
# As the others, but for a segment size that only Kafka lets a topic have.
OURS = {topic: {name: value for name, value in own.items() if "internal" not in name} for topic, own in TOPICS.items()}
Held = dict[str, Any]


class FormattedByOttla(KafkaPeer):
    def _format(self, node: int) -> None:
        properties = str(self.folder / f"node-{node}" / "server.properties")
        done = ottla("storage", "format", properties, "--cluster-id", self.cluster_id)
        assert done.returncode == 0, done.stderr


@contextmanager
def served_by_ottla(peer: KafkaPeer) -> Iterator[None]:
    """A node of ottla with the properties and the folder of a Kafka that is not running."""
    output = peer.folder / "ottla.log"
    properties = str(peer.folder / f"node-{peer.first_id}" / "server.properties")
    command = [sys.executable, "-P", "-m", "ottla", "server", properties]
    node = process.start(command, output, env=process.environment(), cwd=peer.folder)
    try:
        wait_until("ottla serving", lambda: serves(peer.address), alive=lambda: node.poll() is None)
        yield
    finally:
        code = process.stop(node)
    assert code == 0, output.read_text()
    assert output.read_text().count("\n") == output.read_text().count("ready bootstrap="), output.read_text()


def held(bootstrap: str) -> Held:
    """All that a client can see: records, what a group has read, and what the topics were told to be."""
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka.admin import AdminClient, ConfigResource

    found: Held = {f"{topic} {level}": seen(bootstrap, topic, level) for topic in TOPICS for level in LEVELS}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    found["committed"] = [(row.topic, row.offset) for row in consumer.committed([TopicPartition(name, 0) for name in TOPICS], 30)]
    consumer.close()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    answers = admin.describe_configs([ConfigResource("topic", name) for name in TOPICS])
    for resource, answer in answers.items():
        own = {name: row.value for name, row in answer.result().items() if row.source == 1}
        found[f"{resource.name} settings"] = {name: value for name, value in own.items() if "internal" not in name}
    return found


def seen(bootstrap: str, topic: str, level: str) -> list[list[Any]]:
    """Every record; of a topic that either system may compact at any moment the last of each key, unless that is a tombstone."""
    rows = consume(bootstrap, topic, level)
    if topic != "compacted":
        return rows
    latest = {row[2]: row for row in rows}
    return sorted(row for row in latest.values() if row[3] is not None)


def commit(bootstrap: str, offset: int) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(name, 0, offset) for name in TOPICS], asynchronous=False)
    consumer.close()


def go_on(bootstrap: str, word: bytes) -> None:
    """Who left a transaction open comes back, which ends it, and one more of each kind of record is written."""
    from confluent_kafka import Producer

    sender = Producer({"bootstrap.servers": bootstrap, "transactional.id": "open", "log_level": 0})
    sender.init_transactions(60)
    for abort in (True, False):
        sender.begin_transaction()
        for topic in TOPICS:
            sender.produce(topic, word + (b" aborted" if abort else b""), key=word)
        sender.flush()
        sender.abort_transaction() if abort else sender.commit_transaction()


def check_went_on(before: Held, after: Held, word: bytes) -> None:
    for topic in TOPICS:
        everything = before[f"{topic} read_uncommitted"]
        assert after[f"{topic} read_uncommitted"][: len(everything)] == everything
        [*_, last] = after[f"{topic} read_committed"]
        assert last[2:] == [word.decode(), word.decode()]
    said = [row[3] for row in after["plain read_uncommitted"][-2:]]
    assert said == [f"{word.decode()} aborted", word.decode()]


def test_a_node_takes_over_a_folder_of_kafka_and_kafka_takes_it_back(tmp_path: Path) -> None:
    """Formatted as Kafka does it by default: share groups and streams groups are on, and nobody uses them."""
    peer = KafkaPeer(tmp_path, settings=SETTINGS)
    with peer:
        fill(peer.bootstrap)
        commit(peer.bootstrap, 17)
        wait_until_compacted(peer.log_directory())
        kafkas = held(peer.bootstrap)
    with served_by_ottla(peer):
        assert held(peer.bootstrap) == kafkas
        go_on(peer.bootstrap, b"ottla")
        commit(peer.bootstrap, 23)
        ours = held(peer.bootstrap)
    check_went_on(kafkas, ours, b"ottla")
    with served_by_ottla(peer):
        assert held(peer.bootstrap) == ours
    with peer:
        assert held(peer.bootstrap) == ours
        go_on(peer.bootstrap, b"kafka")
        check_went_on(ours, held(peer.bootstrap), b"kafka")


def test_kafka_takes_over_a_folder_of_ottla(tmp_path: Path) -> None:
    peer = FormattedByOttla(tmp_path, settings=SETTINGS)
    with served_by_ottla(peer):
        fill(peer.bootstrap, OURS)
        commit(peer.bootstrap, 17)
        ours = held(peer.bootstrap)
    with peer:
        assert held(peer.bootstrap) == ours
        go_on(peer.bootstrap, b"kafka")
        commit(peer.bootstrap, 23)
        kafkas = held(peer.bootstrap)
        check_went_on(ours, kafkas, b"kafka")
        output = (peer.folder / f"node-{peer.first_id}" / "output.log").read_text()
    assert "orrupt" not in output
    assert "ERROR" not in output
    with served_by_ottla(peer):
        assert held(peer.bootstrap) == kafkas


def dump(files: list[Path], *decoder: str) -> subprocess.CompletedProcess[str]:
    return run_tool("DumpLogSegments", "--files", ",".join(map(str, files)), *decoder)


def test_kafkas_dump_tool_reads_every_file_of_a_running_node(tmp_path: Path) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name.endswith("num.partitions")}
    snapshots = {"metadata.log.max.record.bytes.between.snapshots": "1000"}
    with OttlaNode(tmp_path, settings=settings | snapshots) as node:
        fill(node.bootstrap, OURS)
        commit(node.bootstrap, 17)
        folder = node.log_directory()
        metadata = folder / "__cluster_metadata-0"
        wait_until("a snapshot of the metadata", lambda: list(metadata.glob("*.checkpoint")))
        logs = [path for path in folder.iterdir() if path.is_dir() and path != metadata]
        assert {path.name for path in logs} >= {"plain-0", "__consumer_offsets-0", "__transaction_state-0"}
        assert complaints(*logs, values=False) == []
        check_decoded(list((folder / "__consumer_offsets-0").glob("*.log")), "--offsets-decoder", f'"group":"{GROUP}"')
        check_decoded(list((folder / "__transaction_state-0").glob("*.log")), "--transaction-log-decoder", "transactionalId")
        metadata_files = [*metadata.glob("*.log"), *metadata.glob("*.checkpoint"), folder / "bootstrap.checkpoint"]
        done = check_decoded(metadata_files, "--cluster-metadata-decoder", '"type":"TOPIC_RECORD"')
        records = [json.loads(line.partition("payload: ")[2]) for line in done.splitlines() if "payload: {" in line]
        assert {each["type"] for each in records} >= {"FEATURE_LEVEL_RECORD", "REGISTER_BROKER_RECORD", "PARTITION_RECORD"}
        snapshot = done.split(f"Dumping {next(metadata.glob('*.checkpoint'))}")[1]
        assert snapshot.index("SnapshotHeader") < snapshot.index("SnapshotFooter")


def check_decoded(files: list[Path], decoder: str, expected: str) -> str:
    """What the tool printed; nothing in it may be an error, and every file must be there."""
    assert files
    done = dump(files, decoder)
    assert done.returncode == 0, done.stderr
    # It says this of every segment that does not begin at offset 0, Kafka's own included.
    wrong = [
        line for line in done.stderr.splitlines() if "Non-consecutive offsets in" not in line and "-1 is followed by" not in line
    ]
    assert wrong == []
    assert expected in done.stdout, done.stdout
    for path in files:
        assert f"Dumping {path}" in done.stdout
    for word in ("Error", "error", "Skip", "skipping", "Failed", "invalid", "isValid: false"):
        assert word not in done.stdout, done.stdout
    return done.stdout
