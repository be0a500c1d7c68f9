"""`python -m tests.spark.kills`: a query copies a topic exactly once while its worker, its driver or the broker is killed −9.

    python -m tests.spark.kills --runs 30 --seed 1        # the long form; one line a run
    python -m tests.spark.kills --runs 5 --at-least-once  # the control: without exactlyOnce there are duplicates

Each run has topics and a checkpoint of its own; kills come at random moments of its progress, so that they strike however fast the
machine is, and what died is started again until the query ends by itself. Then the output, read with read_committed, must be the input, each record once.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from ottla import sync
from ottla.model.ids import TopicPartition
from tests.compatibility import process
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import wait_until

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
QUICK_TIMEOUTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}


@dataclass
class Run:
    """One query over a topic of its own."""

    node: OttlaNode
    folder: Path
    number: int
    exactly_once: bool = True
    records: int = RECORDS
    sink: dict[str, str] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
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
            admin.create_topic(self.topic, PARTITIONS, 1)
            admin.create_topic(self.target, PARTITIONS, 1)
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
        return {"name": self.target, "source": source, "sink": sink | self.sink}

    def copied(self) -> int:
        with sync.Admin(bootstrap_servers=self.node.bootstrap) as admin:
            return sum(admin.latest_offsets([(self.target, number) for number in range(PARTITIONS)]).values())

    def committed(self) -> Counter[bytes]:
        keys = [TopicPartition(self.target, number) for number in range(PARTITIONS)]

        def stable() -> dict[TopicPartition, int] | None:
            with sync.Admin(bootstrap_servers=self.node.bootstrap) as admin:
                found = admin.latest_offsets(keys, isolation_level="read_committed")
                return found if found == admin.latest_offsets(keys) else None

        ends = wait_until("the end of all transactions", stable)
        seen: Counter[bytes] = Counter()
        settings: Any = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "max_poll_records": 10_000}
        with sync.Consumer(bootstrap_servers=self.node.bootstrap, **settings) as consumer:
            consumer.assign(keys)
            while any(consumer.position(key) < end for key, end in ends.items()):
                seen.update(record.value for record in consumer.poll(1000))
        return seen

    def verdict(self) -> str:
        """Empty: the output is the input."""
        seen = self.committed()
        lost = sum(b"%d" % number not in seen for number in range(self.records))
        twice = sum(count - 1 for count in seen.values())
        return "" if not lost and not twice and len(seen) == self.records else f"{lost} lost, {twice} twice"


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


def kill_worker(driver: Driver, chance: random.Random) -> bool:
    try:
        children = psutil.Process(driver.pid).children(recursive=True)
    except psutil.Error:
        return False
    # Spark's Python processes are forked by a daemon: those that have no children are the workers.
    workers = []
    for child in children:
        try:
            if "pyspark.daemon" in child.cmdline() and not child.children():
                workers.append(child)
        except psutil.Error:
            continue
    if not workers:
        return False
    chosen = chance.choice(workers)
    try:
        chosen.kill()
    except psutil.Error:
        return False
    return True


def kill_broker(node: OttlaNode, chance: random.Random) -> None:
    node.kill()
    time.sleep(chance.uniform(*BROKER_DOWN_S))
    node.start()


def play(driver: Driver, run: Run, chance: random.Random, targets: list[str], down_s: float = 0.0) -> list[str]:
    """Waits for the end of this query, killing these in turn at random moments. Returns what happened."""
    events: list[str] = []
    waiting, deadline = list(targets), time.monotonic() + RUN_LIMIT_S
    copied_at_start = 0
    kill_at: float | None = None  # so many copied
    while not driver.has_copied(run):
        assert time.monotonic() < deadline, f"run {run.number} did not end after {events}:\n{driver.said()[-3000:]}"
        if not driver.is_alive:
            assert run.lives < MOST_LIVES, f"run {run.number} died {run.lives} times:\n{driver.said()[-3000:]}"
            run.lives += 1
            driver.start()
            copied_at_start, kill_at = run.copied(), None
        copied = run.copied() if waiting else 0
        if copied > copied_at_start and kill_at is None:  # until then there is nothing to disturb
            kill_at = copied + chance.uniform(0, LATEST) * max(0, run.records - copied)
        if kill_at is not None and copied >= kill_at:
            time.sleep(chance.uniform(0, MOST_DELAY_S))
            if _kill(waiting[0], driver, run, chance):
                events.append(f"{waiting.pop(0)} killed at {copied}")
                if not driver.is_alive:
                    time.sleep(down_s)
                copied_at_start, kill_at = run.copied(), None
        time.sleep(POLL_S)
    return events


def _kill(target: str, driver: Driver, run: Run, chance: random.Random) -> bool:
    """False: there is none at this moment."""
    if target == "worker":
        return kill_worker(driver, chance)
    if target == "driver":
        driver.kill()
    else:
        kill_broker(run.node, chance)
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
        runs = [Run(node, folder, number, exactly_once=not given.at_least_once) for number in range(given.runs)]
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
                print(
                    f"run {run.number}: {verdict or 'exactly once'}; {', '.join(events) or 'nobody killed'}; {took:.0f} s",
                    flush=True,
                )
    print(f"{given.runs - bad} of {given.runs} runs exactly once", flush=True)
    if not given.keep and not bad:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if bool(bad) == given.at_least_once else 1


if __name__ == "__main__":
    sys.exit(main())
