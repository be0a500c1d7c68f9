"""What is measured, in turns: a turn starts one system fresh, warms it up, and gives named figures.

A figure is compared by the ratio ottla / Kafka; `WANTED` says what the project asks of it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from bench import client_turn, clients
from bench import groups as group_clients
from bench import transactions as transactional_clients
from bench.clients import PARTITIONS, percentile
from bench.cluster import FIGURES as CLUSTER_FIGURES
from bench.cluster import cluster, many_topics
from bench.systems import System, running, touch_memory

Figures = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    small_messages: int = 2_000_000
    large_messages: int = 400_000
    warm_up_messages: int = 1_000_000
    latencies: int = 10_000
    tool_messages: int = 1_000_000
    many_partitions: int = 10_000
    compacted_bytes: int = 1_000_000_000
    idle_s: float = 5.0
    members: int = 50
    idle_groups: int = 1_000
    transactions: int = 1_000
    client_records: int = 500_000
    many_topics: int = 100
    touched_mb: int = 3_000  # more than a turn writes
    warm_up_latencies: int = 20_000  # after 5,000 a Java virtual machine still gets faster


SMOKE = Sizes(
    50_000,
    20_000,
    20_000,
    500,
    20_000,
    200,
    20_000_000,
    1.0,
    members=5,
    idle_groups=50,
    transactions=50,
    client_records=20_000,
    many_topics=10,
    touched_mb=0,
    warm_up_latencies=500,
)

# Name of a figure → unit, and the ratio to Kafka that is wanted: at least (positive) or at most (negative).
FIGURES: dict[str, tuple[str, float | None]] = {
    "produce 100 B": ("messages/s", 1.3),
    "produce 1 kB": ("messages/s", 2.0),
    "consume 100 B": ("messages/s", 1.0),
    "consume 1 kB": ("messages/s", None),
    "consume 100 B, with librdkafka's rests": ("messages/s", None),
    "consume 1 kB, with librdkafka's rests": ("messages/s", None),
    "synchronous produce p50": ("µs", -0.4),
    "synchronous produce p99": ("µs", -0.5),
    "synchronous produce by librdkafka p50": ("µs", None),
    "synchronous produce by librdkafka p99": ("µs", None),
    "Java: produce 100 B": ("messages/s", None),
    "Java: produce 1 kB": ("messages/s", None),
    "Java: consume 100 B": ("messages/s", None),
    "start to first answer": ("s", -0.25),
    "resident memory, idle": ("MB", -0.15),
    "resident memory, after the load": ("MB", -0.25),
    "10,000 partitions: start": ("s", None),
    "10,000 partitions: resident memory": ("MB", None),
    "while compacting: produce p99 over quiet p99": ("×", None),
    "offset commits, one after the other": ("commits/s", 1.5),
    "50 members: until the group is stable": ("s", -1.0),
    "1,000 idle groups: processor": ("% of a core", None),
    "transactions of one record, by librdkafka": ("a second", 1.5),
    "transactions of one record, bare requests": ("a second", 1.5),
    **client_turn.FIGURES,
    **CLUSTER_FIGURES,
}
# At most, asked of ottla itself, not beside another.
LIMITS = {"while compacting: produce p99 over quiet p99": 2.0, client_turn.IMPORT: 0.1}


def load(name: str, folder: Path, sizes: Sizes) -> Figures:
    """Throughput, latency, start and memory of one fresh node."""
    with running(name, folder) as system:
        figures = {"start to first answer": system.start_s}
        time.sleep(sizes.idle_s)
        figures["resident memory, idle"] = system.resident_mb()
        _warm_up(system, sizes)
        for size, title, count in ((100, "100 B", sizes.small_messages), (1000, "1 kB", sizes.large_messages)):
            topic = f"load-{size}"
            clients.create(system.bootstrap, topic, PARTITIONS)
            os.sync()
            figures[f"produce {title}"] = clients.produce(system.bootstrap, topic, count, size, PARTITIONS)
            figures[f"consume {title}"] = clients.consume(system.bootstrap, topic, count, PARTITIONS)
            rested = clients.consume(system.bootstrap, topic, count, PARTITIONS, rests=True)
            figures[f"consume {title}, with librdkafka's rests"] = rested
        clients.create(system.bootstrap, "latency", 1)
        clients.synchronous_latencies(system.address, "latency", sizes.warm_up_latencies)
        _latencies(figures, "synchronous produce", clients.synchronous_latencies(system.address, "latency", sizes.latencies))
        by_librdkafka = clients.librdkafka_latencies(system.bootstrap, "latency", sizes.latencies)
        _latencies(figures, "synchronous produce by librdkafka", by_librdkafka)
        figures["resident memory, after the load"] = system.resident_mb()
        return figures


def _latencies(figures: Figures, title: str, values: list[float]) -> None:
    figures[f"{title} p50"] = percentile(values, 0.5)
    figures[f"{title} p99"] = percentile(values, 0.99)


def _warm_up(system: System, sizes: Sizes) -> None:
    """A Java virtual machine is fast only once it has seen the work."""
    clients.create(system.bootstrap, "warm-up", PARTITIONS)
    for size in (100, 1000):
        clients.produce(system.bootstrap, "warm-up", sizes.warm_up_messages // (size // 100), size, PARTITIONS)
    clients.consume(system.bootstrap, "warm-up", sizes.warm_up_messages, PARTITIONS)


def tools(name: str, folder: Path, sizes: Sizes) -> Figures:
    """Kafka's own perf tools."""
    with running(name, folder) as system:
        _warm_up(system, sizes)
        figures = {}
        for size, title in ((100, "100 B"), (1000, "1 kB")):
            clients.create(system.bootstrap, f"tools-{size}", PARTITIONS)
            count = sizes.tool_messages // (size // 100)
            figures[f"Java: produce {title}"] = clients.java_produce(system.bootstrap, f"tools-{size}", count, size)
        figures["Java: consume 100 B"] = clients.java_consume(system.bootstrap, "tools-100", sizes.tool_messages)
        return figures


def many_partitions(name: str, folder: Path, sizes: Sizes) -> Figures:
    """A start with ten thousand partitions on disk."""
    with running(name, folder) as system:
        for index in range(10):
            clients.create(system.bootstrap, f"many-{index}", sizes.many_partitions // 10)
        start_s = system.restart()
        time.sleep(sizes.idle_s)
        return {"10,000 partitions: start": start_s, "10,000 partitions: resident memory": system.resident_mb()}


def compaction(name: str, folder: Path, sizes: Sizes) -> Figures:
    """How long produce requests take while a large topic is compacted, in terms of how long they take when it is not."""
    settings = {"log.cleaner.backoff.ms": "500"}
    with running(name, folder, settings) as system:
        _warm_up(system, sizes)
        clients.create(system.bootstrap, "latency", 1)
        config = {"segment.bytes": str(max(1 << 20, sizes.compacted_bytes // 16)), "min.cleanable.dirty.ratio": "0.01"}
        clients.create(system.bootstrap, "compacted", 1, config)
        messages = sizes.compacted_bytes // 1000
        clients.produce(system.bootstrap, "compacted", messages, 1000, 1, keys=max(1, messages // 10))
        quiet = clients.synchronous_latencies(system.address, "latency", sizes.latencies)
        busy = _while_compacting(system, sizes)
        return {"while compacting: produce p99 over quiet p99": percentile(busy, 0.99) / percentile(quiet, 0.99)}


def _while_compacting(system: System, sizes: Sizes, limit_s: float = 180.0) -> list[float]:
    """Turns compaction on and measures until the topic's folder has shrunk, or the time is up."""
    folder = system.log_directory / "compacted-0"
    whole = _size(folder)
    admin = AdminClient({"bootstrap.servers": system.bootstrap})
    change = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    [future] = admin.incremental_alter_configs([ConfigResource("topic", "compacted", incremental_configs=[change])]).values()
    future.result(30)
    busy: list[float] = []
    deadline = time.monotonic() + limit_s
    while _size(folder) > whole * 0.6 and time.monotonic() < deadline:
        busy += clients.synchronous_latencies(system.address, "latency", max(100, sizes.latencies // 20))
    assert _size(folder) <= whole * 0.6, f"{system.name} did not compact {whole} bytes within {limit_s} s"
    return busy


def _size(folder: Path) -> int:
    """Of the segments that are live: `.deleted` ones only wait for their removal."""
    total = 0
    for path in folder.glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def groups(name: str, folder: Path, sizes: Sizes) -> Figures:
    """Offsets and groups on one fresh node."""
    with running(name, folder) as system:
        return {
            "offset commits, one after the other": group_clients.commits_per_second(system, sizes.latencies),
            "50 members: until the group is stable": group_clients.seconds_until_stable(system, sizes.members),
            "1,000 idle groups: processor": group_clients.idle_groups_cpu(system, sizes.idle_groups, 2 * sizes.idle_s),
        }


def transactions(name: str, folder: Path, sizes: Sizes) -> Figures:
    """Transactions of one record on one fresh node."""
    with running(name, folder) as system:
        return {
            "transactions of one record, by librdkafka": transactional_clients.by_librdkafka(system, sizes.transactions),
            "transactions of one record, bare requests": transactional_clients.by_bare_requests(system, sizes.transactions),
        }


TURNS: dict[str, Callable[[str, Path, Sizes], Figures]] = {
    "load": load,
    "tools": tools,
    "partitions": many_partitions,
    "compaction": compaction,
    "groups": groups,
    "transactions": transactions,
    "cluster": cluster,
    "topics": many_topics,
}
TURN_NAMES = (*TURNS, "clients")


def take_turns(
    turn: str, rounds: int, sizes: Sizes, folder: Path, say: Callable[[str], None]
) -> dict[str, dict[str, list[float]]]:
    """Both systems by turns, first one first and then the other: figure → system → one value a round."""
    if turn == "clients":
        return client_turn.take_turns(rounds, sizes.client_records, folder, say)
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        for name in ("kafka", "ottla") if number % 2 == 0 else ("ottla", "kafka"):
            touch_memory(folder, sizes.touched_mb)
            say(f"{turn}, round {number + 1} of {rounds}: {name}")
            place = folder / f"{turn}-{number}-{name}"
            for figure, value in TURNS[turn](name, place, sizes).items():
                found.setdefault(figure, {}).setdefault(name, []).append(value)
            shutil.rmtree(place, ignore_errors=True)  # gigabytes
    return found


def medians(values: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(rows) for name, rows in values.items()}
