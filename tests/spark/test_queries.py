"""Whole queries on Spark: what a stream does when records are lost or come late, what its progress shows, how mistakes are told."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from ottla import sync
from ottla.embedded.cluster import EmbeddedCluster
from tests.compatibility import process

pytestmark = [pytest.mark.slow, pytest.mark.spark]
LIMIT_S = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Who writes to a topic that is not there is told so, and does not make it."""
    with EmbeddedCluster(1, settings={"auto.create.topics.enable": "false"}) as running:
        yield running


def fill(cluster: EmbeddedCluster, topic: str, start: int, stop: int, partitions: int = 1) -> None:
    if start == 0:
        with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topic(topic, partitions, 1)
    with sync.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(start, stop):
            producer.send(topic, b"%d" % number, partition=number % partitions)
        producer.flush()


def delete_before(cluster: EmbeddedCluster, topic: str, offset: int) -> None:
    with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_records({(topic, 0): offset})


def read(spark: Any, cluster: EmbeddedCluster, topic: str, **options: str) -> Any:
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, "startingOffsets": "earliest"} | options
    return spark.readStream.format("ottla").options(**given).load()


def copy(frame: Any, folder: Path, into: Any) -> Any:
    """All there is, in batches that are handed to `into` as lists of the values' numbers; the query is returned when it has ended."""

    def one(batch: Any, number: int) -> None:
        into(number, sorted(int(row.value) for row in batch.select("value").collect()))

    writer = frame.writeStream.foreachBatch(one).option("checkpointLocation", str(folder))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(LIMIT_S)
    return query


def test_what_comes_after_an_available_now_query_has_begun_is_left_for_the_next(
    spark: Any, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    fill(cluster, "growing", 0, 20, partitions=2)
    seen: list[list[int]] = []

    def and_more(number: int, values: list[int]) -> None:
        seen.append(values)
        fill(cluster, "growing", 20 + 10 * number, 30 + 10 * number, partitions=2)

    frame = read(spark, cluster, "growing", maxOffsetsPerTrigger="6")
    copy(frame, tmp_path, and_more)
    assert sorted(chain.from_iterable(seen)) == list(range(20))
    assert len(seen) > 2
    added = 20 + 10 * len(seen)
    copy(frame, tmp_path, lambda _, values: seen.append(values))
    assert sorted(chain.from_iterable(seen)) == list(range(added))


def test_progress_shows_how_far_a_query_is_behind(spark: Any, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    fill(cluster, "behind", 0, 20, partitions=2)
    query = copy(read(spark, cluster, "behind", maxOffsetsPerTrigger="8"), tmp_path, lambda *_: None)
    lags = []
    for progress in query.recentProgress:
        [source] = progress["sources"]
        latest, end = (
            offsets if isinstance(offsets := source[name], dict) else json.loads(offsets)
            for name in ("latestOffset", "endOffset")
        )
        assert latest == {"behind": {"0": 10, "1": 10}}
        lags.append(sum(latest["behind"][number] - end["behind"][number] for number in "01"))
    assert lags == [12, 4, 0]


def test_records_that_a_stream_has_not_read_and_that_are_gone_are_a_loss_unless_told_otherwise(
    spark: Any, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    fill(cluster, "losing", 0, 10)
    seen: list[int] = []

    def run(**options: str) -> None:
        copy(read(spark, cluster, "losing", **options), tmp_path, lambda _, values: seen.extend(values))

    run()
    fill(cluster, "losing", 10, 30)
    delete_before(cluster, "losing", 25)
    with pytest.raises(Exception, match=r"losing-0: offset 10 is gone, the log now starts at 25") as raised:
        run()
    assert "Set failOnDataLoss=false" in str(raised.value)
    assert seen == list(range(10))
    run(failOnDataLoss="false")
    assert seen == [*range(10), *range(25, 30)]


def test_a_topic_made_anew_is_a_loss_unless_told_otherwise(spark: Any, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    fill(cluster, "reborn", 0, 10)
    seen: list[int] = []

    def run(**options: str) -> None:
        copy(read(spark, cluster, "reborn", **options), tmp_path, lambda _, values: seen.extend(values))

    run()
    with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_topic("reborn")
    fill(cluster, "reborn", 0, 4)
    with pytest.raises(Exception, match="the checkpoint is ahead of reborn-0: the topic was made anew"):
        run()
    run(failOnDataLoss="false", maxOffsetsPerTrigger="1")
    assert seen == list(range(10))
    fill(cluster, "reborn", 4, 7)
    run(failOnDataLoss="false")
    assert seen[10:] == [4, 5, 6]


def test_text_is_written_as_it_is(spark: Any, cluster: EmbeddedCluster) -> None:
    fill(cluster, "lines", 0, 0)
    sink = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": "lines", "value.format": "string"}
    frame = spark.createDataFrame([("é;\n", "a"), ("", "b"), (None, "c")], "line string, _key string")
    frame.coalesce(1).write.format("ottla").mode("append").options(**sink).save()
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "lines"}
    raw = spark.read.format("ottla").options(**given).load().collect()
    assert sorted((bytes(row.key), None if row.value is None else bytes(row.value)) for row in raw) == [
        (b"a", "é;\n".encode()), (b"b", b""), (b"c", None),
    ]  # fmt: skip
    typed = spark.read.format("ottla").options(**given, **{"value.format": "string", "value.schema": "line string"}).load()
    assert {row.line for row in typed.collect()} == {"é;\n", "", None}
    with pytest.raises(Exception, match=r"value\.format string has one column of type string, not"):
        spark.range(1).write.format("ottla").mode("append").options(**sink).save()


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (("'v' AS value",), {}, "where to? Give the option topic, or a column named topic"),
        (("'v' AS value",), {"topic": "nowhere", "kafka.max.block.ms": "1000"}, "nowhere"),
        (("'v' AS value", "'nowhere' AS topic"), {"kafka.max.block.ms": "1000"}, "nowhere"),
        (("'v' AS value", "cast(null AS string) AS topic"), {}, "a row has no topic: the column topic is null and there is no option topic"),
        (("id AS value",), {"topic": "out"}, "column value has type bigint, which cannot be written"),
        (("'v' AS value", "'1' AS partition"), {"topic": "out"}, "column partition has type string, which cannot be written"),
        (("'v' AS value", "map('a', 'b') AS headers"), {"topic": "out"}, "column headers has type map<string,string>, which cannot be written"),
        (("'v' AS value", "array(id) AS headers"), {"topic": "out"},
         "column headers has type array<bigint>, which cannot be written; it must be array<struct<key: string, value: binary>>"),
        (("'v' AS value", "array(1L) AS _headers"), {"topic": "out", "value.format": "string"}, "column _headers has type array<bigint>, which"),
        (("'k' AS key",), {"topic": "out"}, "a column named value is needed: it is what a record holds"),
        (("'v' AS value", "7 AS partition"), {"topic": "out"}, "the partition column holds numbers outside 0 to 0"),
        (("'v' AS value",), {"topic": "out", "topik": "x"}, "unknown option topik; did you mean topic?"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_mistake_of_a_sink_is_one_sentence(
    spark: Any,
    cluster: EmbeddedCluster,
    tmp_path: Path,
    columns: tuple[str, ...],
    options: dict[str, str],
    sentence: str,
    is_stream: bool,
) -> None:
    with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        if "out" not in admin.list_topics():
            fill(cluster, "ids", 0, 3)
            fill(cluster, "out", 0, 0)
    given = {"kafka.bootstrap.servers": cluster.bootstrap} | options
    frame = read(spark, cluster, "ids").selectExpr("offset AS id") if is_stream else spark.range(3)
    with pytest.raises(Exception, match="ottla") as raised:
        write(frame.selectExpr(*columns), given, tmp_path)
    assert sentence in str(raised.value)
    assert "Traceback" not in str(raised.value)
    with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.latest_offsets([("out", 0)]) == {("out", 0): 0}


def write(frame: Any, sink: dict[str, str], folder: Path) -> None:
    if not frame.isStreaming:
        frame.write.format("ottla").mode("append").options(**sink).save()
        return
    writer = frame.writeStream.format("ottla").options(**sink).option("checkpointLocation", str(folder))
    writer.trigger(availableNow=True).start().awaitTermination(LIMIT_S)


SESSIONS = {
    "ours": "from ottla.spark.session import session\nspark = session('mistakes')",
    "untouched": "from pyspark.sql import SparkSession\nspark = SparkSession.builder.master('local[1]').getOrCreate()",
}
MISTAKES = {
    "planned": ({"subscribe": "nowhere"}, "there is no topic nowhere at"),
    "read": ({"subscribe": "unread", "value.format": "json", "value.schema": "a int", "value.mode": "failfast"}, "unread-0 at offset 0: the value is not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("made", SESSIONS)
def test_the_sentence_comes_before_any_line_of_java(cluster: EmbeddedCluster, tmp_path: Path, made: str, mistake: str) -> None:
    """In all that a program prints, its own session or ours."""
    options, sentence = MISTAKES[mistake]
    with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        is_there = "unread" in admin.list_topics()
    if not is_there:
        fill(cluster, "unread", 0, 0)
        with sync.Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send_and_wait("unread", b"?")
    given = {"kafka.bootstrap.servers": cluster.bootstrap} | options
    program = tmp_path / "program.py"
    program.write_text(f"{SESSIONS[made]}\nspark.read.format('ottla').options(**{given!r}).load().collect()\n")
    environment = process.environment() | {"PYSPARK_PYTHON": sys.executable}
    output = tmp_path / "output"
    with output.open("wb") as file:
        done = subprocess.run(
            [sys.executable, program], stdout=file, stderr=file, env=environment, cwd=tmp_path, timeout=LIMIT_S, check=False
        )
    said = output.read_text(errors="replace")
    assert done.returncode != 0
    assert sentence in said
    java = re.search(r"^\s+at [\w.$]+\(", said, re.MULTILINE)
    assert java is None or said.index(sentence) < java.start(), said[:3000]
    shutil.rmtree(tmp_path)
