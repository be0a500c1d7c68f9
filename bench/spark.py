"""`python -m bench.spark`: the same Spark session reads and writes the same topic through `ottla` and through Spark's Kafka connector.

python -m bench.spark                  # 2.5 million records of about 300 bytes, 4 partitions, local[2]; the median of three warm runs
python -m bench.spark --records 200000 --rounds 1
python -m bench.spark --smoke          # 20,000 records, one round: to see that it runs

The broker is ottla's. The connector's jars are fetched once with Maven into `.cache`. Both go by turns after one run of each that is
not counted; a figure is records by the second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.compatibility.node import OttlaNode

ROOT = Path(__file__).resolve().parents[1]
JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
FETCH_LIMIT_S = 300
PARTITIONS = 4
FORMATS = ("kafka", "ottla")
TOPIC = "bench-spark"


def _record_of(column: str) -> tuple[str, str]:
    """A key and a value of 100 bytes to 1 kB, made of a number."""
    return f"cast({column} AS string) AS key", f"concat({column}, repeat('x', 90 + cast({column} % 900 AS int))) AS value"


class NoConnector(Exception):
    """The connector could not be fetched; the message says why."""


def connector_jars() -> list[Path]:
    folder = ROOT / ".cache" / "spark-kafka-connector"
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for group, artifact, version in JARS:
        path = folder / f"{artifact}-{version}.jar"
        if not path.exists():
            _fetch(f"{group}:{artifact}:{version}", folder)
        found.append(path)
    return found


def _fetch(coordinates: str, folder: Path) -> None:
    """Maven puts it into its own repository first, and a second goal copies it from there."""
    maven = shutil.which("mvn")
    if maven is None:
        raise NoConnector("Maven (mvn) is needed to fetch Spark's Kafka connector")
    for goal in (
        ["dependency:get", f"-Dartifact={coordinates}", "-Dtransitive=false"],
        ["dependency:copy", f"-Dartifact={coordinates}", f"-DoutputDirectory={folder}"],
    ):
        done = subprocess.run([maven, "-q", "-B", *goal], capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False)
        if done.returncode:
            raise NoConnector(f"Maven could not fetch {coordinates}: {(done.stdout + done.stderr).strip()[-300:]}")


class Bench:
    def __init__(self, spark: Any, bootstrap: str, records: int, folder: Path) -> None:
        self._spark, self._records, self._folder = spark, records, folder
        self._cluster = {"kafka.bootstrap.servers": bootstrap}
        self._bootstrap = bootstrap
        self._made = 0

    def _topic(self) -> str:
        from ottla import sync

        self._made += 1
        name = f"{TOPIC}-{self._made}"
        with sync.Admin(bootstrap_servers=self._bootstrap) as admin:
            admin.create_topic(name, PARTITIONS, 1)
        return name

    def rows(self) -> Any:
        """Records of 100 bytes to 1 kB, the same ones each time."""
        return self._spark.range(self._records, numPartitions=PARTITIONS).selectExpr(*_record_of("id"))

    def fill(self) -> str:
        topic = self._topic()
        self.rows().write.format("ottla").mode("append").options(**self._cluster, topic=topic).save()
        return topic

    def read(self, name: str, topic: str) -> None:
        """Every column that costs something is looked at."""
        frame = self._spark.read.format(name).options(**self._cluster, subscribe=topic).load()
        row = frame.selectExpr("count(*) AS n", "sum(length(value)) AS size", "sum(length(key)) AS keys").collect()[0]
        assert row.n == self._records, f"{name} read {row.n} of {self._records} records"

    def stream(self, name: str, topic: str) -> None:
        from pyspark.sql import functions as f

        source = self._spark.readStream.format(name).options(**self._cluster, subscribe=topic, startingOffsets="earliest").load()
        self._made += 1
        query = (
            source.select(f.length("value").alias("size"))
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._folder / f"checkpoint-{self._made}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        read = sum(progress["numInputRows"] for progress in query.recentProgress)
        assert read == self._records, f"{name} streamed {read} of {self._records} records"

    def write(self, name: str, topic: str) -> None:
        target = self._topic()
        self.rows().write.format(name).mode("append").options(**self._cluster, topic=target).save()


def measure(work: Callable[[str, str], None], topic: str, records: int, rounds: int) -> dict[str, float]:
    """By turns, so that a disturbance of the machine falls on both."""
    taken: dict[str, list[float]] = {name: [] for name in FORMATS}
    for number in range(rounds + 1):
        for name in FORMATS:
            began = time.perf_counter()
            work(name, topic)
            if number:  # the first is for warming up
                taken[name].append(time.perf_counter() - began)
    return {name: records / statistics.median(times) for name, times in taken.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description="format('ottla') beside Spark's Kafka connector.")
    parser.add_argument("--records", type=int, default=2_500_000)
    parser.add_argument("--rounds", type=int, default=3)
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
    found = {}
    with tempfile.TemporaryDirectory(prefix="ottla-bench-spark-") as folder:
        node = OttlaNode(Path(folder) / "node")
        node.start()
        spark = session("ottla bench", settings={"spark.jars": jars, "spark.driver.memory": "2g"})
        try:
            bench = Bench(spark, node.bootstrap, records, Path(folder))
            topic = bench.fill()
            for figure, work in (("batch read", bench.read), ("streaming read", bench.stream), ("write", bench.write)):
                found[figure] = measure(work, topic, records, rounds)
        finally:
            spark.stop()
            node.stop()
    table = Table(
        "records/s", *FORMATS, "ratio", title=f"{records:,} records, {PARTITIONS} partitions, local[2], {rounds} rounds"
    )
    for figure, row in found.items():
        table.add_row(figure, *(f"{row[name]:,.0f}" for name in FORMATS), f"{row['ottla'] / row['kafka']:.2f}")
    Console().print(table)
    if given.json:
        given.json.write_text(json.dumps({"records": records, "rounds": rounds, "figures": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
