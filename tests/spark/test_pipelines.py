"""The examples of `ottla pipeline init`, each run twice: the second run goes on where the first one ended, and nothing is told twice."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla import sync
from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.ids import TopicPartition
from ottla.spark.examples import EXAMPLES, ExampleExists, write_out
from tests.cli.processes import environment, here, ottla
from tests.compatibility.jars import NoKafka
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import wait_until
from tests.spark.projects import of_one_file

if TYPE_CHECKING:
    from tests.spark.kills import Cluster

NUMBERS = 6
LIMIT_S = 600.0  # of one run, on a machine with more to do


class Runs:
    """One session of Spark in a process of its own, and the examples written out."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
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

    def run(self, project: str, **how: Any) -> dict[str, int]:
        answer = self.ask(project=str(self.folder / project), **how)
        assert "error" not in answer, answer["error"]
        assert set(answer["flows"].values()) <= {"COMPLETED", "EXCLUDED"}
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
    check_orders(runs)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.spark
def test_orders_come_to_the_same_on_apache_kafka(tmp_path: Path) -> None:
    """Only the address is another one."""
    try:
        kafka = KafkaPeer(tmp_path / "kafka")
    except NoKafka as error:
        pytest.skip(str(error))
    with kafka, contextlib.closing(Runs(tmp_path, kafka)) as runs:
        check_orders(runs)


def check_orders(runs: Runs) -> None:
    """Two runs, and what each table and the topic `revenue` must have after them."""
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


@pytest.mark.slow
@pytest.mark.spark
def test_the_archive_has_every_event_by_day_with_the_backfill_and_is_replayed_once(runs: Runs) -> None:
    folder = runs.folder / "archive" / "archive"
    for first in (0, 144):
        runs.feed("archive", "--events", "144", "--first", str(first))
        runs.run("archive")
        days = runs.rows(f"SELECT cast(day AS string) AS day, count(*) AS n FROM parquet.`{folder}` GROUP BY day")
        fed = {"2026-01-01": 144} | ({"2026-01-02": 144} if first else {})
        assert {row["day"]: row["n"] for row in days} == {"2025-12-30": 1, "2025-12-31": 2} | fed
    names = {path.name for path in folder.iterdir() if not path.name.startswith("_")}
    assert names == {"day=2025-12-30", "day=2025-12-31", "day=2026-01-01", "day=2026-01-02"}
    lines = map(json.loads, (runs.folder / "archive" / "backfill" / "2025.json").read_text().splitlines())
    old = [(datetime.fromisoformat(line["timestamp"]).timestamp() * 1000, line["key"], line["value"]) for line in lines]
    sent = [(record.timestamp, record.key, record.value) for record in runs.records("events")]
    expected = sorted([(int(time), key.encode(), value.encode()) for time, key, value in old] + sent)
    for _ in range(2):
        runs.run("archive/replay.yml")
        replayed = [(record.timestamp, record.key, record.value) for record in runs.records("events-replayed")]
        assert sorted(replayed) == expected
        for key in {row[1] for row in replayed}:
            assert [row for row in replayed if row[1] == key] == [row for row in expected if row[1] == key]


CLUSTER = 'spark.conf.get("spark.ottla.bootstrap")'


@pytest.mark.slow
@pytest.mark.spark
def test_a_run_whose_broker_dies_fails_with_one_sentence_the_next_goes_on_and_a_full_refresh_begins_anew(
    runs: Runs, tmp_path: Path
) -> None:
    with OttlaNode(tmp_path / "node") as node, ThreadPoolExecutor() as threads:
        with sync.Admin(bootstrap_servers=node.bootstrap) as admin:
            admin.create_topic("numbers", 1, 1)
        with sync.Producer(bootstrap_servers=node.bootstrap) as producer:
            for number in range(NUMBERS):
                producer.send("numbers", b"%d" % number)
            producer.flush()
        options = {
            "kafka.bootstrap.servers": node.bootstrap, "subscribe": "numbers", "startingOffsets": "earliest", "group.id": "numbers",
            "maxOffsetsPerTrigger": "1", "kafka.default.api.timeout.ms": "1000", "kafka.request.timeout.ms": "1000",
        }  # fmt: skip
        code = f"@dp.table\ndef numbers():\n    return spark.readStream.format('ottla').options(**{options!r}).load()\n"
        project = of_one_file(tmp_path / "project", code)
        answer = threads.submit(runs.ask, project=project)
        place = TopicPartition("numbers", 0)
        with sync.Admin(bootstrap_servers=node.bootstrap) as admin:

            def has_begun() -> bool:
                offset = admin.group_offsets("numbers").get(place)
                return offset is not None and offset.offset > 0

            wait_until("a batch", has_begun, limit_s=LIMIT_S)
        node.kill()
        error = answer.result(LIMIT_S)["error"]
        assert node.bootstrap in error
        assert "\n" not in error
        node.start()
        assert "error" not in runs.ask(project=project)
        assert _numbers(runs) == list(range(NUMBERS))
        assert "error" not in runs.ask(project=project, full_refresh=["numbers"])
        assert _numbers(runs) == list(range(NUMBERS))
        nowhere = runs.ask(project=project, full_refresh=["nowhere"])["error"]
        assert nowhere == "nothing was run: there is no nowhere; there are numbers"


def _numbers(runs: Runs) -> list[int]:
    return sorted(int(row["value"]) for row in runs.rows("SELECT cast(value AS string) AS value FROM numbers"))


@pytest.mark.slow
@pytest.mark.spark
def test_two_pipelines_run_at_once(runs: Runs, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Each has a server of Spark Connect in its process, and both would want the same port."""
    assert runs.rows("SELECT 1 AS one") == [{"one": 1}]
    project = of_one_file(tmp_path / "second", "@dp.materialized_view\ndef two():\n    return spark.range(2)\n")
    done = ottla("pipeline", "run", project, bootstrap=cluster.bootstrap, limit_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert re.search(r"two +2", done.stdout)
    assert runs.rows("SELECT 1 AS one") == [{"one": 1}]


@pytest.mark.slow
@pytest.mark.spark
def test_ctrl_c_ends_a_run_at_once_without_a_complaint_and_the_next_one_goes_on(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with sync.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(NUMBERS):
            producer.send("interrupted", b"%d" % number)
        producer.flush()
    options = {"subscribe": "interrupted", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1"}
    source = f"spark.readStream.format('ottla').option('kafka.bootstrap.servers', {CLUSTER}).options(**{options!r})"
    project = of_one_file(tmp_path / "project", f"@dp.table\ndef interrupted():\n    return {source}.load()\n")
    run = subprocess.Popen(
        [sys.executable, "-m", "ottla", "pipeline", "run", project],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(cluster.bootstrap),
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        assert run.stdout is not None
        assert any("interrupted: runs" in line for line in run.stdout)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        _, complaints = run.communicate(timeout=LIMIT_S)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert (run.returncode, complaints.strip().splitlines()) == (130, ["cdc: Spark starts …"])
    done = ottla("pipeline", "run", project, bootstrap=cluster.bootstrap, limit_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"interrupted +{NUMBERS}\n", done.stdout)


@pytest.mark.slow
@pytest.mark.spark
def test_a_mistake_in_a_pipeline_is_one_sentence(runs: Runs, tmp_path: Path) -> None:
    def project(name: str, code: str) -> str:
        return of_one_file(tmp_path / name, code)

    source = f'spark.readStream.format("ottla").option("kafka.bootstrap.servers", {CLUSTER})'
    unknown = project(
        "a", f'@dp.table\ndef a():\n    return {source}.option("subscribe", "a").option("startingOffset", "x").load()\n'
    )
    assert "did you mean startingOffsets?" in runs.ask(project=unknown)["error"]
    missing = project("b", f'@dp.table\ndef missing():\n    return {source}.option("subscribe", "nowhere").load()\n')
    assert "error" not in runs.ask(project=missing, dry=True)  # the topic is looked for when it is read
    assert "there is no topic nowhere at" in runs.ask(project=missing)["error"]
    down = project(
        "d", f"@dp.table\ndef d():\n    return {source.replace(CLUSTER, repr('127.0.0.1:1'))}.option('subscribe', 'a').load()\n"
    )
    assert runs.ask(project=down)["error"].startswith("127.0.0.1:1: nothing listens there; is the broker running")
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
