"""A transactional copy that is killed at random, and its node too: every input is copied exactly once, in order.

What all clients saw is written down and judged by the history checker; Apache Kafka 4.3 is the control. `OTTLA_KILLS=50` makes it
the long form.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.transactions.records import partition_for
from tests.compatibility import process
from tests.compatibility.cluster import OttlaCluster
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.mixed import MixedCluster
from tests.compatibility.node import OttlaNode
from tests.histories import History, Recorder, check

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 2
RECORDS_PER_LIFE = 40
KILLS = int(os.environ.get("OTTLA_KILLS", "6"))
# Not "rebootstrap": librdkafka 2.16 may forget what it was reading when its only broker is gone for a moment.
CLIENT = {"log_level": 0, "metadata.recovery.strategy": "none"}
QUIET_LIMIT_S = 120.0

System = KafkaPeer | OttlaNode | OttlaCluster | MixedCluster


class Copy:
    """The source, the copier's lives, and the reader at the end."""

    def __init__(self, system: System, name: str, folder: Path, copies: int) -> None:
        self.system, self.folder = system, folder
        self.source, self.target, self.name = f"{name}-in", f"{name}-out", name
        admin = AdminClient({"bootstrap.servers": system.bootstrap, **CLIENT})
        for made in admin.create_topics([NewTopic(topic, PARTITIONS, copies) for topic in (self.source, self.target)]).values():
            made.result()
        self.feeder = Producer({"bootstrap.servers": system.bootstrap, "enable.idempotence": True, **CLIENT})
        self.feeding = Recorder("feeder")
        self.reading = Recorder("reader")
        self.process: subprocess.Popen[bytes] | None = None
        self.lives = 0

    def feed(self, numbers: range) -> None:
        for number in numbers:
            send = self.feeding.sending(self.source, number % PARTITIONS, str(number))

            def told(error: Any, report: Any, send: int = send) -> None:
                if error is None:
                    self.feeding.sent(send, report.offset())

            self.feeder.produce(self.source, str(number), partition=number % PARTITIONS, on_delivery=told)
            self.feeder.poll(0)

    def live(self) -> None:
        """Start the copier if it does not run."""
        if self.process is not None and self.process.poll() is None:
            return
        self.lives += 1
        options = {
            "bootstrap": self.system.bootstrap,
            "source": self.source,
            "target": self.target,
            "group": self.name,
            "transactional-id": self.name,
            "folder": str(self.folder),
            "partitions": str(PARTITIONS),
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "tests.histories.copier", *arguments]
        self.process = process.start(command, self.folder / "copier.log", env=environment)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def finish(self, count: int) -> list[str]:
        """Let the copier come to the end, then read what it left; in order of partitions and offsets."""
        assert self.feeder.flush(QUIET_LIMIT_S) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": self.system.bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                **CLIENT,
            }
        )
        consumer.assign([TopicPartition(topic, index, 0) for topic in (self.source, self.target) for index in range(PARTITIONS)])
        copies: list[str] = []
        deadline = time.monotonic() + QUIET_LIMIT_S
        while len(copies) < count and time.monotonic() < deadline:
            self.live()
            copies += self._read(consumer)
        if len(copies) < count and self.process is not None:
            self.process.send_signal(signal.SIGUSR1)  # its log shall tell where it stands
        # Nothing may come after the last one: what was copied twice would show up here.
        copies += self._read(consumer)
        consumer.close()
        self.kill()
        return copies

    def _read(self, consumer: Consumer) -> list[str]:
        seen = [(m.topic(), m.partition(), m.offset(), m.value().decode()) for m in consumer.consume(500, 0.5) if not m.error()]
        if seen:
            self.reading.polled(seen)
        return [value for topic, _, _, value in seen if topic == self.target]

    def judge(self, copies: list[str], count: int) -> None:
        originals = [int(value.split(":")[1]) for value in copies]
        said = (self.folder / "copier.log").read_text(errors="replace")[-3000:]
        assert sorted(originals) == list(range(count)), f"every input exactly once; the copier said: {said}"
        for partition in range(PARTITIONS):
            in_order = [number for number in originals if number % PARTITIONS == partition]
            assert in_order == sorted(in_order), "in the order of the input"
        files = list(self.folder.glob("*.jsonl"))
        events = History.read(files)
        mine = History.of(self.feeding, self.reading)
        events.sends += mine.sends
        events.polls = sorted(events.polls + mine.polls, key=lambda poll: poll.time)
        report = check(events)
        assert report.clean, str(report)
        # A copier that was killed before it heard of its commit cannot have written down that it was one.
        assert report.seen == 2 * count
        assert report.acknowledged > 1.8 * count


def run(
    system: System, name: str, folder: Path, kill_nodes: Callable[[random.Random], None] | None, seed: int, copies: int = 1
) -> Copy:
    """Feed, copy, kill somebody, and so on; then everything must be there."""
    dice = random.Random(seed)
    copy = Copy(system, name, folder, copies)
    for life in range(KILLS + 1):
        copy.feed(range(life * RECORDS_PER_LIFE, (life + 1) * RECORDS_PER_LIFE))
        copy.live()
        time.sleep(dice.uniform(0.3, 1.3))  # not to wait for anything: the moment of the kill is what is random
        if life == KILLS:
            break
        if kill_nodes is not None and dice.random() < 0.5:
            kill_nodes(dice)
        else:
            copy.kill()
    count = (KILLS + 1) * RECORDS_PER_LIFE
    copy.judge(copy.finish(count), count)
    return copy


@pytest.mark.slow
def test_a_copy_on_one_node_killed_at_random_copies_everything_once(tmp_path: Path) -> None:
    with OttlaNode(tmp_path / "node") as node:

        def kill(_: random.Random) -> None:
            node.kill()
            node.start()

        copy = run(node, "copy", tmp_path, kill, seed=1)
        assert copy.lives > 1
        assert not node.tracebacks()


@pytest.mark.slow
def test_a_copy_on_three_nodes_killed_at_random_copies_everything_once(tmp_path: Path) -> None:
    """Leaders, coordinators and controllers die under it, one at a time."""
    with OttlaCluster(tmp_path / "cluster") as cluster:

        def kill(dice: random.Random) -> None:
            victim = dice.choice(list(cluster.plans))
            cluster.kill_node(victim)
            time.sleep(dice.uniform(0, 1))
            cluster.start_node(victim)
            cluster.wait_ready()

        copy = run(cluster, "copy", tmp_path, kill, seed=2, copies=3)
        assert copy.lives > 1
        assert not cluster.tracebacks()


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize(("java_brokers", "ottla_brokers"), [(2, 1), (1, 2)], ids=["two Java, one ottla", "one Java, two ottla"])
def test_copies_in_a_cluster_of_both_kinds_copy_everything_once(tmp_path: Path, java_brokers: int, ottla_brokers: int) -> None:
    """Coordinators of either kind write markers into partitions of either kind, and every broker is killed in turn."""
    with MixedCluster(tmp_path / "cluster", java_brokers=java_brokers, ottla_brokers=ottla_brokers) as cluster:
        copies = []
        for number in range(3):  # one transactional id for each partition of __transaction_state
            name = next(f"copy-{each}" for each in range(100) if partition_for(f"copy-{each}", 3) == number)
            (tmp_path / name).mkdir()
            copies.append(Copy(cluster, name, tmp_path / name, copies=3))
        for life, victim in enumerate([*cluster.broker_ids, None]):
            for copy in copies:
                copy.feed(range(life * RECORDS_PER_LIFE, (life + 1) * RECORDS_PER_LIFE))
                copy.live()
            if victim is not None:
                time.sleep(3)  # time enough to be in the middle of something
                cluster.kill(victim)
                cluster.start_node(victim)
                cluster.wait_serving(victim, len(cluster.broker_ids))
        count = (len(cluster.broker_ids) + 1) * RECORDS_PER_LIFE
        for copy in copies:
            copy.judge(copy.finish(count), count)
        for node_id in cluster.ottla_ids:
            assert "Traceback" not in cluster.output(node_id), cluster.output(node_id)[-3000:]


@pytest.mark.kafka
@pytest.mark.slow
def test_the_control_copies_everything_once(kafka_peer: KafkaPeer, tmp_path: Path) -> None:
    run(kafka_peer, "control", tmp_path, None, seed=3)
