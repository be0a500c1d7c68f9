"""`python -m tests.spark.kills`: a query copies a topic exactly once while its worker, its driver or the broker is killed −9.

    python -m tests.spark.kills --runs 30 --seed 1        # the long form; one line a run
    python -m tests.spark.kills --runs 5 --at-least-once  # the control: without exactlyOnce there are duplicates

Each run has topics and a checkpoint of its own; kills come at random moments of its progress, so that they strike however fast the
machine is. The query is held in its last batch until all of them have happened, and what died is started again until it ends by
itself. Then the output, read with read_committed, must be the input, each record once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import psutil

from ottla import sync
from ottla.model.ids import TopicPartition
from tests.compatibility import process
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import wait_until
from tests.spark.copying import LET_GO

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("worker", "driver", "broker")
PARTITIONS = 3
RECORDS = 5_000
BATCH = 500
MOST_LIVES = 12
LATEST = 0.8  # of what is left to copy, until which the next kill comes
MOST_DELAY_S = 0.25  # about a batch: a kill may strike between any two steps of one
RUN_LIMIT_S = 400
POLL_S = 0.05
BROKER_DOWN_S = (0.0, 2.0)
DIED_LIMIT_S = 20
# A task's rows are on their way to the sink before the task has them all.
SMALL_PORTIONS = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10", "spark.buffer.size": "512"}
QUICK_TIMEOUTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}


class Cluster(Protocol):
    @property
    def bootstrap(self) -> str: ...


Isolation = Literal["read_uncommitted", "read_committed"]


class Mortal(Cluster, Protocol):
    """A broker, or the one of several that is the next to die."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def start(self) -> object: ...


@dataclass
class Run:
    """One query over a topic of its own. With `held_from` it waits in that batch, or a later one, until `let_go`."""

    node: Cluster
    folder: Path
    number: int
    exactly_once: bool = True
    records: int = RECORDS
    sink: dict[str, str] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    copies: int = 1
    held_from: int | None = None
    lives: int = 1

    @property
    def topic(self) -> str:
        return f"in-{self.number}"

    @property
    def target(self) -> str:
        return f"out-{self.number}"

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"checkpoint-{self.number}"

    def prepare(self) -> None:
        with sync.Admin(bootstrap_servers=self.node.bootstrap) as admin:
            configs = {"min.insync.replicas": str(min(2, self.copies))}
            admin.create_topic(self.topic, PARTITIONS, self.copies, configs=configs)
            admin.create_topic(self.target, PARTITIONS, self.copies, configs=configs)
        self._held.mkdir()
        self.produce(0, self.records)

    def produce(self, start: int, stop: int) -> None:
        with sync.Producer(bootstrap_servers=self.node.bootstrap) as producer:
            for number in range(start, stop):
                producer.send(self.topic, b"%d" % number, key=b"%d" % (number % 97))
            producer.flush()

    def query(self) -> dict[str, Any]:
        where = {"kafka.bootstrap.servers": self.node.bootstrap}
        source = (
            where | {"subscribe": self.topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH)} | self.source
        )
        sink = where | {"topic": self.target, "checkpointLocation": str(self.checkpoint)}
        sink |= {"exactlyOnce": "true"} if self.exactly_once else {}
        held = {} if self.held_from is None else {"held": {"folder": str(self._held), "batch": self.held_from}}
        return {"name": self.target, "source": source, "sink": sink | self.sink} | held

    @property
    def _held(self) -> Path:
        return self.folder / f"held-{self.number}"

    def holds(self) -> dict[int, list[bytes]]:
        """The processes that wait now, and the values that each has handed on."""
        return {
            int(told.name): [value.encode() for value in json.loads(told.read_text())]
            for told in self._held.iterdir()
            if told.name.isdecimal() and psutil.pid_exists(int(told.name))
        }

    def caught(self) -> tuple[int, list[bytes]]:
        """A process that waits in the middle of a batch, and those of its rows that are in the topic already."""

        def written_by_it() -> tuple[int, list[bytes]] | None:
            for task, values in self.holds().items():
                seen = self.written()
                if written := [value for value in values if value in seen]:
                    return task, written
            return None

        found: tuple[int, list[bytes]] = wait_until("rows of an open batch", written_by_it, limit_s=RUN_LIMIT_S)
        return found

    def let_go(self) -> None:
        (self._held / LET_GO).touch()

    @property
    def _keys(self) -> list[TopicPartition]:
        return [TopicPartition(self.target, number) for number in range(PARTITIONS)]

    def _ends(self, isolation: Isolation) -> dict[TopicPartition, int]:
        with sync.Admin(bootstrap_servers=self.node.bootstrap) as admin:
            return admin.latest_offsets(self._keys, isolation_level=isolation)

    def copied(self) -> int:
        return sum(self._ends("read_uncommitted").values())

    def written(self) -> Counter[bytes]:
        """All that is in the topic now, committed or not."""
        return self._read(self._ends("read_uncommitted"), "read_uncommitted")

    def committed(self) -> Counter[bytes]:
        def stable() -> dict[TopicPartition, int] | None:
            found = self._ends("read_committed")
            return found if found == self._ends("read_uncommitted") else None

        return self._read(wait_until("the end of all transactions", stable), "read_committed")

    def _read(self, ends: dict[TopicPartition, int], isolation: Isolation) -> Counter[bytes]:
        seen: Counter[bytes] = Counter()
        settings: Any = {"isolation_level": isolation, "auto_offset_reset": "earliest", "max_poll_records": 10_000}
        with sync.Consumer(bootstrap_servers=self.node.bootstrap, **settings) as consumer:
            consumer.assign(list(ends))
            while any(consumer.position(key) < end for key, end in ends.items()):
                seen.update(record.value for record in consumer.poll(1000))
        return seen

    def verdict(self) -> str:
        """Empty: the output is the input."""
        seen = self.committed()
        lost = sum(b"%d" % number not in seen for number in range(self.records))
        twice = sum(count - 1 for count in seen.values())
        return "" if not lost and not twice and len(seen) == self.records else f"{lost} lost, {twice} twice"

    def judge(self, values: list[bytes]) -> None:
        """After a kill when these had been written by a batch that had not ended."""
        case, verdict = f"run {self.number}, exactlyOnce={self.exactly_once}", self.verdict()
        if self.exactly_once:
            assert verdict == "", case
        else:
            assert verdict.startswith("0 lost, "), case  # at least once it is
            seen = self.committed()
            assert any(seen[value] > 1 for value in values), (
                f"{case}: no duplicate, so nothing is shown by there being none with it"
            )


class Driver:
    """The process that runs the queries; when it is dead, the next one goes on with those that are left."""

    def __init__(self, folder: Path, runs: list[Run], master: str = "local[2,8]", **more: Any) -> None:
        self.output = folder / "driver.log"
        self._runs, self._more = runs, {"master": master} | more
        self._process: subprocess.Popen[bytes] | None = None

    def said(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def has_copied(self, run: Run) -> bool:
        return f"copied {run.target}\n" in self.said()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        queries = [run.query() for run in self._runs if not self.has_copied(run)]
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "tests.spark.copying", json.dumps({"queries": queries} | self._more)]
        self._process = process.start(command, self.output, env=environment, cwd=ROOT, start_new_session=True)

    def kill(self) -> None:
        """The Python driver and its JVM at the same moment. Workers see their end of file and go."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(RUN_LIMIT_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def a_worker(driver: Driver, chance: random.Random) -> psutil.Process | None:
    """Spark's Python processes are forked by daemons of Python, and those by a JVM."""
    found: dict[int, tuple[psutil.Process, int]] = {}
    for child in psutil.Process(driver.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has ended: what is left of it may stay for as long as its parent likes
            if "pyspark.daemon" in child.cmdline():
                found[child.pid] = child, child.ppid()
    workers = [child for child, parent in found.values() if parent in found]
    return chance.choice(workers) if workers else None


def kill(victim: psutil.Process) -> None:
    """It is no more. Raises psutil.NoSuchProcess if it was not there."""
    victim.kill()
    gone, _ = psutil.wait_procs([victim], DIED_LIMIT_S)
    assert gone, f"{victim} lives on"


def kill_driver(driver: Driver) -> None:
    """With its JVM."""
    family = [psutil.Process(driver.pid)]
    family += [child for child in family[0].children() if child.name() == "java"]
    assert len(family) > 1, f"the driver has no JVM: {family}"
    driver.kill()
    _, alive = psutil.wait_procs(family, DIED_LIMIT_S)
    assert not alive, alive


def kill_broker(node: Mortal, chance: random.Random) -> None:
    victim = psutil.Process(node.pid)
    assert victim.is_running()
    node.kill()
    assert not victim.is_running()
    time.sleep(chance.uniform(*BROKER_DOWN_S))
    node.start()


def strike(target: str, driver: Driver, run: Run, chance: random.Random) -> bool:
    """Kills one of them in the middle of the query. False: there is none at this moment."""
    if target == "worker":
        try:
            worker = a_worker(driver, chance)
            if worker is None:
                return False
            kill(worker)
        except psutil.NoSuchProcess:  # it, or the driver, has just ended by itself
            return False
    elif target == "driver":
        kill_driver(driver)
    else:
        kill_broker(run.node, chance)  # type: ignore[arg-type]
    assert not driver.has_copied(run), f"the {target} was killed after the end of query {run.target}"
    return True


def play(driver: Driver, run: Run, chance: random.Random, targets: Sequence[str], down_s: float = 0.0) -> list[str]:
    """Kills these in turn at random moments, and then waits for the query's end. Returns what happened: one event for each."""
    assert run.held_from is not None, "the query could end before its kills"
    events: list[str] = []
    waiting, deadline = list(targets), time.monotonic() + RUN_LIMIT_S
    copied_at_start = 0
    kill_at: float | None = None  # so many copied
    while waiting:
        _check_late(driver, run, events, deadline)
        if revived(driver, run):
            copied_at_start, kill_at = run.copied(), None
        copied = run.copied()
        if copied > copied_at_start and kill_at is None:  # until then there is nothing to disturb
            kill_at = copied + chance.uniform(0, LATEST) * max(0, run.records - copied)
        if run.holds() or (kill_at is not None and copied >= kill_at):
            time.sleep(chance.uniform(0, MOST_DELAY_S))
            if driver.is_alive and strike(waiting[0], driver, run, chance):
                events.append(f"{waiting.pop(0)} killed at {copied}")
                if not driver.is_alive:
                    time.sleep(down_s)
                copied_at_start, kill_at = run.copied(), None
        time.sleep(POLL_S)
    finish(driver, run)
    return events


def finish(driver: Driver, run: Run) -> None:
    """Lets the query go, and waits for its end."""
    run.let_go()
    deadline = time.monotonic() + RUN_LIMIT_S
    while not driver.has_copied(run):
        _check_late(driver, run, ["let go"], deadline)
        revived(driver, run)
        time.sleep(POLL_S)


def _check_late(driver: Driver, run: Run, events: list[str], deadline: float) -> None:
    assert time.monotonic() < deadline, f"run {run.number} did not end after {events}:\n{driver.said()[-3000:]}"


def revived(driver: Driver, run: Run) -> bool:
    if driver.is_alive or driver.has_copied(run):
        return False
    assert run.lives < MOST_LIVES, f"run {run.number} died {run.lives} times:\n{driver.said()[-3000:]}"
    run.lives += 1
    driver.start()
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills", description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-least-once", action="store_true", help="the control: shows duplicates")
    parser.add_argument("--keep", type=Path, help="leave everything here")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="ottla-spark-kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    with OttlaNode(folder / "node", settings=QUICK_TIMEOUTS) as node:
        more: Any = {"exactly_once": not given.at_least_once, "held_from": RECORDS // BATCH - 1}
        runs = [Run(node, folder, number, **more) for number in range(given.runs)]
        for run in runs:
            run.prepare()
        with Driver(folder, runs) as driver:
            for run in runs:
                chance, began = random.Random(f"{given.seed} {run.number}"), time.monotonic()
                targets = [TARGETS[run.number % 3], *chance.choices(TARGETS, k=chance.randint(0, 2))]
                events = play(driver, run, chance, targets)
                verdict = run.verdict()
                bad += bool(verdict)
                took = time.monotonic() - began
                print(f"run {run.number}: {verdict or 'exactly once'}; {', '.join(events)}; {took:.0f} s", flush=True)
    print(f"{given.runs - bad} of {given.runs} runs exactly once", flush=True)
    if not given.keep and not bad:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if bool(bad) == given.at_least_once else 1


if __name__ == "__main__":
    sys.exit(main())
