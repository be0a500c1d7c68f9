"""One run: nodes, clients, faults for a while, then peace, and the judgement.

What must hold in the end
- every acknowledged record is read back, once, in order (tests/histories);
- what any reader ever saw, a last reader sees too, at the same place: nothing that was visible vanishes;
- the replicas of each partition are the same bytes;
- after every fault each partition takes records again, and no node prints a traceback;
- what was done to the nodes was really done to them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.records.batch import headers
from tests.chaos.clients import CLIENT, PARTITIONS, TOPIC, LibrdkafkaWriter, OwnWriter, Reader, Writer
from tests.chaos.faults import LOOK_S, Fault, Faults
from tests.chaos.network import Network
from tests.chaos.nodes import Nodes
from tests.compatibility.wire import wait_until
from tests.histories import History, check

NODES = 3
RECOVERY_LIMIT_S = 90.0
READ_LIMIT_S = 60.0
CALM_S = 1.0  # between two faults at least: each must find a cluster that works


@dataclass
class Outcome:
    findings: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)  # of each kind, how many had the effect they should have
    sends: int = 0
    acknowledged: int = 0
    seen: int = 0
    longest_gap_s: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} × {kind}" for kind, count in sorted(self.faults.items()))
        seen = ", ".join(f"{kind} {count}" for kind, count in sorted(self.happened.items()))
        lines = [
            f"{sum(self.faults.values())} faults: {kinds}",
            f"seen to happen: {seen}",
            f"{self.sends} sends, {self.acknowledged} acknowledged, {self.seen} values read back; "
            f"longest silence of a partition {self.longest_gap_s:.1f} s",
        ]
        return "\n".join([*lines, *(self.findings or ["nothing lost, nothing twice, nothing out of order, nothing vanished"])])


class Run:
    def __init__(self, folder: Path, seed: int, cuttable: bool, say: Callable[[str], None]) -> None:
        self.nodes = Nodes(folder, Network(NODES, cuttable))
        self.faults = Faults(self.nodes, seed)
        self.say = say
        bootstrap = self.nodes.bootstrap
        self.writers: list[Writer] = [
            LibrdkafkaWriter("one", bootstrap),
            LibrdkafkaWriter("two", bootstrap),
            OwnWriter("own", bootstrap),
        ]
        self.readers = [Reader("leaders", bootstrap), Reader("closest", bootstrap, rack="rack-2")]
        self.outcome = Outcome()

    def run(self, seconds: float) -> Outcome:
        for node in self.nodes.ids:
            self.nodes.start(node)
        try:
            self._create()
            for client in [*self.writers, *self.readers]:
                client.start()
            self._shake(time.monotonic() + seconds)
            for writer in self.writers:
                writer.stop()
            last = self._read_everything()
            for reader in self.readers:
                reader.stop()
            self._judge(last)
        finally:
            self.nodes.stop()
        self._judge_files()
        if found := self.nodes.tracebacks():
            self.outcome.findings.append(f"a node printed a traceback:\n{found[0]}")
        return self.outcome

    def _admin(self) -> AdminClient:
        return AdminClient(CLIENT | {"bootstrap.servers": self.nodes.bootstrap})

    def _create(self) -> None:
        admin = self._admin()

        def created() -> bool:
            made = NewTopic(TOPIC, PARTITIONS, NODES, config={"min.insync.replicas": "2"})
            try:
                if len(admin.list_topics(timeout=5).brokers) < NODES:
                    return False
                admin.create_topics([made], request_timeout=5)[TOPIC].result(10)
            except KafkaException as error:
                return "ALREADY_EXISTS" in error.args[0].name()
            return True

        wait_until("the topic", created)

    # Faults ---------------------------------------------------------------------------------------------------------------

    def _shake(self, deadline: float) -> None:
        self._wait_for_progress()
        while time.monotonic() < deadline:
            fault = self.faults.draw()
            self.say(f"{fault.name}, for {fault.seconds:.1f} s")
            self.outcome.faults[_kind(fault.name)] += 1
            over = time.monotonic() + fault.seconds
            fault.begin()
            self._look_at(fault)
            time.sleep(max(0.0, over - time.monotonic()))
            fault.end()
            self._wait_for_progress()
            time.sleep(CALM_S)
        wait_until("all replicas in sync", self._in_sync, limit_s=RECOVERY_LIMIT_S)

    def _look_at(self, fault: Fault) -> None:
        if fault.seconds < LOOK_S:
            return
        if fault.happened():
            self.outcome.happened[fault.kind] += 1
        else:
            self.outcome.findings.append(f"{fault.name}: it had no effect")

    def _wait_for_progress(self) -> None:
        """Every writer is acknowledged by every partition again."""
        since = time.monotonic()

        def waiting() -> list[str]:
            return [f"{writer.name}-{p}" for writer in self.writers for p in range(PARTITIONS) if writer.last[p] <= since]

        for node in self.nodes.ids:
            if not self.nodes.alive(node):
                self.outcome.findings.append(f"node {node} ended by itself")
                self.nodes.start(node)
        try:
            wait_until("progress", lambda: not waiting(), limit_s=RECOVERY_LIMIT_S)
        except AssertionError:
            self.outcome.findings.append(f"no progress within {RECOVERY_LIMIT_S} s of peace: {waiting()}")
            self.say(self.outcome.findings[-1])

    def _in_sync(self) -> bool:
        try:
            rows = self._admin().list_topics(TOPIC, timeout=5).topics[TOPIC].partitions.values()
        except KafkaException:
            return False
        return len(rows) == PARTITIONS and all(len(row.isrs) == NODES for row in rows)

    # Judgement ------------------------------------------------------------------------------------------------------------

    def _read_everything(self) -> Reader:
        """A reader that begins when all is over, and reads until every partition's end."""
        last = Reader("last", self.nodes.bootstrap)
        consumer = Consumer(last._settings)
        partitions = [TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = [consumer.get_watermark_offsets(partition, timeout=30)[1] for partition in partitions]
        deadline = time.monotonic() + READ_LIMIT_S
        while any(position < end for position, end in zip(last.positions, ends, strict=True)) and time.monotonic() < deadline:
            last.read(consumer)
        consumer.close()
        if last.positions != ends:
            self.outcome.findings.append(f"the last reader came to {last.positions} of {ends}: {last.errors[:3]}")
        return last

    def _judge(self, last: Reader) -> None:
        recorders = [client.recorder for client in [*self.writers, *self.readers, last]]
        report = check(History.of(*recorders))
        outcome = self.outcome
        outcome.sends, outcome.acknowledged, outcome.seen = report.sends, report.acknowledged, report.seen
        outcome.longest_gap_s = max(gap for writer in self.writers for gap in writer.longest)
        if not report.clean:
            outcome.findings.append(str(report))
        kept = _places(last)
        for reader in self.readers:
            if vanished := _places(reader) - kept:
                outcome.findings.append(
                    f"{len(vanished)} records that {reader.recorder.process} saw vanished: {sorted(vanished)[:5]}"
                )
        for client in [*self.writers, *self.readers]:
            if client.errors:
                self.say(f"{client.recorder.process}: {len(client.errors)} errors: {Counter(client.errors).most_common(3)}")

    def _judge_files(self) -> None:
        for partition in range(PARTITIONS):
            copies = [_batches(self.nodes.data(node) / f"{TOPIC}-{partition}") for node in self.nodes.ids]
            if any(copy != copies[0] for copy in copies):
                self.outcome.findings.append(f"the replicas of partition {partition} differ")


def _kind(name: str) -> str:
    return " ".join(word for word in name.split() if not word.isdigit())


def _places(reader: Reader) -> set[tuple[int, int, str]]:
    return {
        (partition, offset, value) for event in reader.recorder.events for _, partition, offset, value in event.get("records", ())
    }


def _batches(folder: Path) -> list[bytes]:
    found = []
    for path in sorted(folder.glob("*.log")):
        content = path.read_bytes()
        found += [content[position : position + header.size] for position, header in headers(content)]
    return found
