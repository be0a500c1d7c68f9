"""Three nodes of each system: how fast they replicate, what they weigh, and how long a producer stands still when one is lost.

Gaps are measured by one idempotent librdkafka producer with acks=all that sends a record to one partition every millisecond: the
longest time between two acknowledgements while the partition's leader is killed or stopped. Both systems run with their defaults;
the producer gives up on a silent broker after 5 s (librdkafka's own 60 s would be all that a stopped leader shows).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from confluent_kafka import ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.compatibility.cluster import OttlaCluster
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.wire import Wire, address_of, ask, wait_until

from bench import clients
from bench.systems import KAFKA_JAVA
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.quorum import DescribeQuorumRequest

if TYPE_CHECKING:
    from bench.measures import Sizes

NODES = 3
PARTITIONS = 6
PROBE = "probe"
SEND_EVERY_S = 0.001
QUIET_AFTER = 500  # acknowledgements in a row that show that the trouble is over
LIMIT_S = 60.0
FIGURES: dict[str, tuple[str, float | None]] = {
    "three nodes: ready": ("s", -0.3),
    "three nodes: produce 100 B": ("messages/s", 1.2),
    "three nodes: produce 1 kB": ("messages/s", 1.5),
    "three nodes: synchronous produce p50": ("µs", -0.5),
    "three nodes: synchronous produce p99": ("µs", None),
    "three nodes: resident memory": ("MB", -0.25),
    "gap: leader killed -9": ("s", -0.15),
    "gap: leader killed -9, which leads the metadata too": ("s", None),
    "gap: leader stopped (SIGSTOP)": ("s", None),
    "1,000 partitions × 3: created": ("s", None),
    "1,000 partitions × 3: described": ("s", None),
    "1,000 partitions × 3: synchronous produce p50": ("µs", None),
    "1,000 partitions × 3: led by others after a kill -9": ("s", None),
}


class Trio:
    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.peer: KafkaPeer | OttlaCluster
        if name == "kafka":
            self.peer = KafkaPeer(folder, nodes=NODES, first_id=1, options=KAFKA_JAVA)
        else:
            self.peer = OttlaCluster(folder, NODES, log_level="warning")
        began = time.perf_counter()
        self.peer.__enter__()
        self.ready_s = time.perf_counter() - began
        self.bootstrap = self.peer.bootstrap
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def stop(self) -> None:
        for node in range(1, NODES + 1):
            self.resume(node)
        self.peer.__exit__()

    def create(self, topics: list[str], partitions: int) -> None:
        made = [NewTopic(topic, partitions, NODES, config={"min.insync.replicas": "2"}) for topic in topics]
        for future in self.admin.create_topics(made, request_timeout=LIMIT_S).values():
            future.result(LIMIT_S)
        wait_until("all replicas in sync", lambda: self.in_sync(topics, partitions), limit_s=LIMIT_S)

    def in_sync(self, topics: list[str], partitions: int) -> bool:
        rows = self.describe(topics)
        return len(rows) == len(topics) * partitions and all(row.leader_id >= 0 and len(row.isr_nodes) == NODES for row in rows)

    def describe(self, topics: list[str], node: int = 1) -> list[Any]:
        """The partitions of topics as one node tells them."""
        asked = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
        answer = ask(self.address(node), MetadataRequest(topics=asked), 8)
        return [row for topic in answer.topics for row in topic.partitions]

    def address(self, node: int) -> tuple[str, int]:
        return address_of(self.bootstrap.split(",")[node - 1])

    def leader(self, topic: str, partition: int = 0) -> int:
        return next(int(row.leader_id) for row in self.describe([topic]) if row.partition_index == partition)

    def metadata_leader(self) -> int:
        data = DescribeQuorumRequest.TopicData
        request = DescribeQuorumRequest(topics=[data(topic_name="__cluster_metadata", partitions=[data.PartitionData()])])
        with Wire(self.address(1)) as wire:
            return int(wire.ask(request, 1).topics[0].partitions[0].leader_id)

    def resident_mb(self) -> float:
        total = 0
        for process in self.peer.processes.values():
            parent = psutil.Process(process.pid)
            total += sum(each.memory_info().rss for each in [parent, *parent.children(recursive=True)])
        return total / 1e6

    def kill(self, node: int) -> None:
        self.peer.kill_node(node)

    def pause(self, node: int) -> None:
        self.peer.processes[node].send_signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        running = self.peer.processes.get(node)
        if running is not None and running.poll() is None:
            running.send_signal(signal.SIGCONT)

    def whole_again(self, node: int) -> None:
        """Whatever was done to the node is undone, and everybody is in sync."""
        self.resume(node)
        if self.peer.processes[node].poll() is not None:
            self.peer.start_node(node)
        self.peer.wait_ready()
        wait_until("all replicas in sync", lambda: self.in_sync([PROBE], PARTITIONS), limit_s=2 * LIMIT_S)


@contextmanager
def trio(name: str, folder: Path) -> Iterator[Trio]:
    made = Trio(name, folder)
    try:
        yield made
    finally:
        made.stop()


def cluster(name: str, folder: Path, sizes: Sizes) -> dict[str, float]:
    with trio(name, folder) as three:
        figures = {"three nodes: ready": three.ready_s}
        three.create(["warm-up", "load-100", "load-1000", PROBE], PARTITIONS)
        clients.produce(three.bootstrap, "warm-up", sizes.warm_up_messages, 100, PARTITIONS)
        for size, title, count in ((100, "100 B", sizes.small_messages), (1000, "1 kB", sizes.large_messages)):
            figures[f"three nodes: produce {title}"] = clients.produce(
                three.bootstrap, f"load-{size}", count // 2, size, PARTITIONS
            )
        found = _latencies(three, PROBE, sizes)
        figures["three nodes: synchronous produce p50"] = clients.percentile(found, 0.5)
        figures["three nodes: synchronous produce p99"] = clients.percentile(found, 0.99)
        figures["three nodes: resident memory"] = three.resident_mb()
        _gaps(figures, three)
        return figures


def _latencies(three: Trio, topic: str, sizes: Sizes) -> list[float]:
    address = three.address(three.leader(topic))
    clients.synchronous_latencies(address, topic, sizes.warm_up_latencies)
    return clients.synchronous_latencies(address, topic, sizes.latencies)


def _gaps(figures: dict[str, float], three: Trio) -> None:
    leads = three.metadata_leader()
    spared = _partition_led(three, lambda leader: leader != leads)
    figures["gap: leader killed -9"] = _gap(three, spared, three.kill)
    leads = three.metadata_leader()
    both = _partition_led(three, lambda leader: leader == leads)
    figures["gap: leader killed -9, which leads the metadata too"] = _gap(three, both, three.kill)
    leads = three.metadata_leader()
    stopped = _partition_led(three, lambda leader: leader != leads)
    figures["gap: leader stopped (SIGSTOP)"] = _gap(three, stopped, three.pause)


def _partition_led(three: Trio, by: Callable[[int], bool]) -> int:
    """A partition of the probe's topic whose leader is such a one. Leaders go home first, so that there is one."""
    all_of_it = [TopicPartition(PROBE, partition) for partition in range(PARTITIONS)]

    def found() -> list[int]:
        three.admin.elect_leaders(ElectionType.PREFERRED, all_of_it).result(LIMIT_S)
        return [row.partition_index for row in three.describe([PROBE]) if by(row.leader_id)]

    return int(wait_until("a partition led so", found, limit_s=LIMIT_S)[0])


def _gap(three: Trio, partition: int, trouble: Callable[[int], None]) -> float:
    """Seconds of the longest silence of a partition whose leader gets into trouble."""
    leader = three.leader(PROBE, partition)
    with Probe(three.bootstrap, partition) as probe:
        probe.wait_for(QUIET_AFTER)
        probe.longest_s = 0.0
        trouble(leader)
        probe.wait_for_another_leader(three, leader)
        probe.wait_for(QUIET_AFTER)
    assert not probe.errors, probe.errors[:3]
    three.whole_again(leader)
    return probe.longest_s


class Probe:
    """Sends to one partition all the time, and remembers its longest silence."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        settings = {"acks": "all", "enable.idempotence": True, "linger.ms": 0, "socket.timeout.ms": 5_000, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": bootstrap, **settings})
        self._partition = partition
        self._told_to_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._last = time.perf_counter()
        self.acknowledged = 0
        self.longest_s = 0.0
        self.errors: list[str] = []

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._told_to_stop.set()
        self._thread.join()
        self._producer.flush(LIMIT_S)

    def _run(self) -> None:
        while not self._told_to_stop.is_set():
            self._producer.produce(PROBE, b"x" * 100, partition=self._partition, on_delivery=self._delivered)
            self._producer.poll(SEND_EVERY_S)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        now = time.perf_counter()
        self.longest_s = max(self.longest_s, now - self._last)
        self._last = now
        self.acknowledged += 1

    def wait_for(self, more: int) -> None:
        wanted = self.acknowledged + more
        wait_until("acknowledgements", lambda: self.acknowledged >= wanted or self.errors, limit_s=LIMIT_S)

    def wait_for_another_leader(self, three: Trio, leader: int) -> None:
        other = leader % NODES + 1
        rows = lambda: {row.partition_index: row.leader_id for row in three.describe([PROBE], other)}  # noqa: E731
        wait_until("another leader", lambda: rows()[self._partition] not in (-1, leader), limit_s=LIMIT_S)


def many_topics(name: str, folder: Path, sizes: Sizes) -> dict[str, float]:
    """100 topics of 10 partitions with 3 replicas: made, described, one of them written to, and a node lost."""
    topics = [f"many-{number}" for number in range(sizes.many_topics)]
    with trio(name, folder) as three:
        began = time.perf_counter()
        three.create(topics, 10)
        figures = {"1,000 partitions × 3: created": time.perf_counter() - began}
        began = time.perf_counter()
        three.describe(topics, 2)
        figures["1,000 partitions × 3: described"] = time.perf_counter() - began
        found = _latencies(three, topics[0], sizes)
        figures["1,000 partitions × 3: synchronous produce p50"] = clients.percentile(found, 0.5)
        leads = three.metadata_leader()
        victim = next(node for node in (2, 3) if node != leads)
        began = time.perf_counter()
        three.kill(victim)
        wait_until(
            "every partition being led by others",
            lambda: all(row.leader_id not in (-1, victim) for row in three.describe(topics)),
            limit_s=LIMIT_S,
        )
        figures["1,000 partitions × 3: led by others after a kill -9"] = time.perf_counter() - began
        return figures
