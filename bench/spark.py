"""`python -m bench.spark`: the same Spark session reads and writes the same topic through `ottla` and through Spark's Kafka connector.

python -m bench.spark                  # 2.5 million records of 100 B to 1 kB, 4 partitions, local[2]; medians of three warm rounds
python -m bench.spark --broker kafka   # the same with Apache Kafka as the broker
python -m bench.spark --only "batch read" latency --rounds 5
python -m bench.spark --only bounds    # what Spark itself leaves to any Python source or sink
python -m bench.spark --smoke          # 20,000 records, one round: to see that it runs

The connector's jars are fetched once with Maven into `.cache`. All go by turns after one turn of each that is not counted; a figure
is records by the second. `exactly-once write` stands beside the connector's streaming write, which is at least once: it has no
other. `memory` is the most that one Python process of Spark held while it read, and while it wrote: each with fresh ones. `latency` is measured from a record's production,
at 1,000 a second, to its arrival at a consumer of the topic that the query copies it to. `bounds` are the same queries with a source
that hands over one ready batch again and again, and with a sink that throws away what it gets: no Python source or sink is faster
than these.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table
from tests.compatibility.connector import NoConnector, connector_jars

from bench.systems import NAMES, running, touch_memory

PARTITIONS = 4
TOUCHED_MB_A_RECORD = 0.0012  # twice what a record takes
FORMATS = ("kafka", "ottla")
FIGURES = ("batch read", "streaming read", "batch write", "streaming write", "exactly-once write", "latency", "bounds")
DOING = {"reading": ("batch read", "streaming read"), "writing": ("batch write", "streaming write")}
BOUND = "nothing"  # the name of the source and sink
TOPIC = "bench-spark"
RATE = 1000  # records by the second, for latency
SAMPLE_S = 0.05
QUERY_LIMIT_S = 300


def _record_of(column: str) -> tuple[str, str]:
    """A key and a value of 100 bytes to 1 kB, made of a number."""
    return f"cast({column} AS string) AS key", f"concat({column}, repeat('x', 90 + cast({column} % 900 AS int))) AS value"


class Bench:
    def __init__(self, spark: Any, bootstrap: str, records: int, folder: Path) -> None:
        self._spark, self._records, self.folder = spark, records, folder
        self._cluster = {"kafka.bootstrap.servers": bootstrap}
        self._bootstrap = bootstrap
        self._made = 0

    def register(self, source: type) -> None:
        self._spark.dataSource.register(source)

    def topic(self) -> str:
        from ottla import sync

        self._made += 1
        name = f"{TOPIC}-{self._made}"
        with sync.Admin(bootstrap_servers=self._bootstrap) as admin:
            admin.create_topic(name, PARTITIONS, 1)
        return name

    def _drop(self, topic: str) -> None:
        """So that the disk, and what it still has to write, stay the same from turn to turn."""
        from ottla import sync

        with sync.Admin(bootstrap_servers=self._bootstrap) as admin:
            admin.delete_topics([topic])

    def _checkpoint(self) -> str:
        self._made += 1
        return str(self.folder / f"checkpoint-{self._made}")

    def fill(self) -> str:
        topic = self.topic()
        self._rows().write.format("ottla").mode("append").options(**self._cluster, topic=topic).save()
        return topic

    def _rows(self) -> Any:
        return self._spark.range(self._records, numPartitions=PARTITIONS).selectExpr(*_record_of("id"))

    def read(self, name: str, topic: str) -> float:
        """Every column that costs something is looked at."""
        began = time.perf_counter()
        frame = self._spark.read.format(name).options(**self._cluster, subscribe=topic).load()
        row = frame.selectExpr("count(*) AS n", "sum(length(value)) AS size", "sum(length(key)) AS keys").collect()[0]
        taken = time.perf_counter() - began
        assert row.n == self._records, f"{name} read {row.n} of {self._records} records"
        return taken

    def stream(self, name: str, topic: str) -> float:
        frame = self._spark.readStream.format(name).options(**self._cluster, subscribe=topic, startingOffsets="earliest").load()
        began = time.perf_counter()
        self._available_now(frame.selectExpr("length(value) AS size", "length(key) AS keys").writeStream.format("noop"))
        return time.perf_counter() - began

    def _available_now(self, writer: Any) -> None:
        query = writer.option("checkpointLocation", self._checkpoint()).trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_LIMIT_S)
        seen = sum(progress["numInputRows"] for progress in query.recentProgress)
        assert seen == self._records, f"{seen} of {self._records} records"

    def write(self, name: str, _: str) -> float:
        target = self.topic()
        began = time.perf_counter()
        self._rows().write.format(name).mode("append").options(**self._cluster, topic=target).save()
        taken = time.perf_counter() - began
        self._drop(target)
        return taken

    def stream_write(self, name: str, _: str, **more: str) -> float:
        """One micro-batch of all records, made by Spark's own rate source."""
        target = self.topic()
        options = {"rowsPerBatch": self._records, "numPartitions": PARTITIONS}
        frame = self._spark.readStream.format("rate-micro-batch").options(**options).load().selectExpr(*_record_of("value"))
        began = time.perf_counter()
        self._available_now(frame.writeStream.format(name).options(**self._cluster, topic=target, **more))
        taken = time.perf_counter() - began
        self._drop(target)
        return taken

    def latency(self, name: str, seconds: float, **more: str) -> dict[str, float]:
        """In milliseconds, of what was produced in the last two thirds of the time."""
        source, target = self.topic(), self.topic()
        frame = self._spark.readStream.format(name).options(**self._cluster, subscribe=source).load()
        writer = frame.select("key", "value").writeStream.format(name).options(**self._cluster, topic=target, **more)
        query = writer.option("checkpointLocation", self._checkpoint()).start()
        try:
            delays = _delays(self._bootstrap, source, target, seconds)
            batches = [row["durationMs"]["triggerExecution"] for row in query.recentProgress if row["numInputRows"]]
        finally:
            query.stop()
        delays.sort()
        return {
            "p50": delays[len(delays) // 2],
            "p99": delays[len(delays) * 99 // 100],
            "micro-batch": statistics.median(batches),
        }


def doing_nothing(records: int) -> type:
    """A data source whose batches have the size of those that bench records make. Made here, so that it is pickled whole."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        InputPartition,
        WriterCommitMessage,
    )

    from ottla.spark.source import COLUMNS

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(PARTITIONS)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            rows = 10_000
            columns = {
                "key": pa.array([b"%d" % number for number in range(rows)], pa.binary()),
                "value": pa.array([b"x" * (97 + number % 900) for number in range(rows)], pa.binary()),
                "topic": pa.array([TOPIC] * rows),
                "partition": pa.array([0] * rows, pa.int32()),
                "offset": pa.array(range(rows), pa.int64()),
                "timestamp": pa.array([0] * rows, pa.timestamp("us", tz="UTC")),
                "timestampType": pa.array([0] * rows, pa.int32()),
            }
            batch = pa.RecordBatch.from_pydict(columns)
            left = records // PARTITIONS
            while left > 0:
                yield batch.slice(0, left)
                left -= rows

    class Writer(DataSourceArrowWriter, DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

        def commit(self, messages: Any, batch: int | None = None) -> None:
            pass

        abort = commit

    class Nothing(DataSource):
        @classmethod
        def name(cls) -> str:
            return BOUND

        def schema(self) -> str:
            return COLUMNS

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

        def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
            return Writer()

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
            return Writer()

    return Nothing


def _delays(bootstrap: str, source: str, target: str, seconds: float) -> list[float]:
    from ottla import sync

    stop = threading.Event()
    delays: list[float] = []

    def consume() -> None:
        with sync.Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
            consumer.assign([(target, number) for number in range(PARTITIONS)])
            while not stop.is_set():
                delays.extend((time.time() - float(record.value[:20])) * 1000 for record in consumer.poll(200))

    reader = threading.Thread(target=consume)
    reader.start()
    with sync.Producer(bootstrap_servers=bootstrap, linger_ms=1) as producer:
        began, sent = time.monotonic(), 0
        while (elapsed := time.monotonic() - began) < seconds:
            while sent < elapsed * RATE:
                producer.send(source, f"{time.time():20.6f}".encode() + bytes(80), key=b"%d" % sent)
                sent += 1
            time.sleep(0.01)
        producer.flush()
    time.sleep(3)
    stop.set()
    reader.join()
    return delays[len(delays) // 3 :]


def python_processes() -> Iterator[psutil.Process]:
    """Spark's: daemons, and the workers that they fork."""
    for process in psutil.Process().children(recursive=True):
        try:
            if "pyspark.daemon" in process.cmdline():
                yield process
        except psutil.Error:
            continue


def end_idle_workers() -> None:
    """Spark uses a worker again, with all that it has ever held; when it finds it dead, it takes a fresh one."""
    family = {process.pid: process for process in python_processes()}
    workers = [process for process in family.values() if process.ppid() in family]
    for worker in workers:
        worker.kill()
    psutil.wait_procs(workers)


@contextmanager
def workers_weighed(weights: dict[str, float], name: str) -> Iterator[None]:
    """Notes what the heaviest Python process of Spark held meanwhile, in MB."""
    stop, most = threading.Event(), 0.0

    def sample() -> None:
        nonlocal most
        while not stop.wait(SAMPLE_S):
            for process in python_processes():
                with suppress(psutil.Error):
                    most = max(most, process.memory_info().rss / 1e6)

    end_idle_workers()
    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        weights[name] = most


def turns(
    kinds: dict[str, Callable[[], float]], records: int, rounds: int, folder: Path, show: Callable[[str], None]
) -> dict[str, list[float]]:
    """By turns, so that a disturbance of the machine falls on all; the first turn of each is for warming up."""
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds + 1):
        for name, work in kinds.items():
            touch_memory(folder, int(records * TOUCHED_MB_A_RECORD))
            seconds = work()
            show(f"  {name} {seconds:.2f} s{'' if number else ' (not counted)'}")
            if number:
                taken[name].append(records / seconds)
    return taken


def measure(bench: Bench, given: argparse.Namespace, records: int, rounds: int, show: Callable[[str], None]) -> dict[str, Any]:
    topic = bench.fill()
    once = {"exactlyOnce": "true"}
    found: dict[str, Any] = {}
    plans: dict[str, dict[str, Callable[[], float]]] = {
        "batch read": {name: lambda name=name: bench.read(name, topic) for name in FORMATS},
        "streaming read": {name: lambda name=name: bench.stream(name, topic) for name in FORMATS},
        "batch write": {name: lambda name=name: bench.write(name, topic) for name in FORMATS},
        "streaming write": {name: lambda name=name: bench.stream_write(name, topic) for name in FORMATS},
    }
    if "bounds" in given.only:
        bench.register(doing_nothing(records))
        plans["batch read"][BOUND] = lambda: bench.read(BOUND, topic)
        plans["batch write"][BOUND] = lambda: bench.write(BOUND, topic)
        plans["streaming write"][BOUND] = lambda: bench.stream_write(BOUND, topic)
    if "exactly-once write" in given.only:  # in the same turns as the other two, with which it is compared
        plans["streaming write"]["exactly once"] = lambda: bench.stream_write("ottla", topic, **once)
    wanted = {
        figure: kinds for figure, kinds in plans.items() if figure in given.only or "exactly once" in kinds or BOUND in kinds
    }
    found["memory"] = {}
    for doing, figures in DOING.items():
        chosen = [figure for figure in figures if figure in wanted]
        if not chosen:
            continue
        with workers_weighed(found["memory"], f"heaviest Python worker, {doing}, MB"):
            for figure in chosen:
                show(figure)
                rates = turns(wanted[figure], records, rounds, bench.folder, show)
                found[figure] = {name: statistics.median(each) for name, each in rates.items()}
    if "latency" in given.only:
        seconds = 5 if given.smoke else given.latency_s
        found["latency"] = {name: bench.latency(name, seconds) for name in FORMATS}
        found["latency"]["exactly once"] = bench.latency("ottla", seconds, **once)
    return found


def report(found: dict[str, Any], title: str) -> None:
    table = Table("records/s", "connector", "ottla", "ratio", title=title)
    for figure, row in found.items():
        if figure in ("memory", "latency"):
            continue
        table.add_row(figure, f"{row['kafka']:,.0f}", f"{row['ottla']:,.0f}", f"{row['ottla'] / row['kafka']:.2f}")
        if BOUND in row:
            table.add_row(f"{figure}, doing nothing", "", f"{row[BOUND]:,.0f}", f"{row[BOUND] / row['kafka']:.2f}")
        if "exactly once" in row:
            once = row["exactly once"]
            table.add_row("exactly-once write", f"{row['kafka']:,.0f}", f"{once:,.0f}", f"{once / row['kafka']:.2f}")
            table.add_row("  its time by our own at least once", "", "", f"{row['ottla'] / once:.2f}")
    console = Console()
    console.print(table)
    for name, value in found["memory"].items():
        console.print(f"{name}: {value:,.0f}")
    for name, row in found.get("latency", {}).items():
        console.print(
            f"latency at {RATE:,} records/s, {name}: " + ", ".join(f"{key} {value:,.0f} ms" for key, value in row.items())
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description="format('ottla') beside Spark's Kafka connector.")
    parser.add_argument("--records", type=int, default=2_500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--broker", choices=NAMES, default="ottla")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=FIGURES, metavar="FIGURE", help=", ".join(FIGURES))
    parser.add_argument("--latency-s", type=float, default=30)
    parser.add_argument("--smoke", action="store_true", help="20,000 records, one round")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    records, rounds = (20_000, 1) if given.smoke else (given.records, given.rounds)
    from ottla.spark.session import session

    try:
        jars = ",".join(map(str, connector_jars()))
    except NoConnector as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="ottla-bench-spark-") as folder:
        spark = session("ottla bench", settings={"spark.jars": jars, "spark.driver.memory": "2g"})
        try:
            with running(given.broker, Path(folder) / "node") as system:
                bench = Bench(spark, system.bootstrap, records, Path(folder))
                found = measure(bench, given, records, rounds, lambda line: print(line, file=sys.stderr, flush=True))
        finally:
            spark.stop()
    report(found, f"{records:,} records, {PARTITIONS} partitions, local[2], {rounds} rounds, broker: {given.broker}")
    if given.json:
        given.json.write_text(json.dumps({"broker": given.broker, "records": records, "figures": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
