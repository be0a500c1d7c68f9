"""Topics as tables of Spark SQL, latest values by key, segments, and what a user sees of a mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla import sync
from ottla.embedded.cluster import EmbeddedCluster

pytestmark = pytest.mark.spark


def _fill(cluster: EmbeddedCluster, topic: str, rows: list[tuple[bytes | None, bytes | None]]) -> None:
    with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(topic, 2, 1)
    with sync.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for key, value in rows:
            producer.send(topic, value, key=key)
        producer.flush()


def test_a_topic_is_a_view_and_the_latest_value_of_each_key(spark: Any, cluster: EmbeddedCluster) -> None:
    _fill(cluster, "customers", [(b"k%d" % (n % 10), b"v%d" % n) for n in range(100)] + [(b"k3", None)])
    where = f"`kafka.bootstrap.servers` '{cluster.bootstrap}', topic 'customers'"
    spark.sql(f"CREATE TEMPORARY VIEW changes USING ottla OPTIONS ({where})")
    assert spark.sql("SELECT count(*) AS n FROM changes").collect()[0].n == 101
    spark.sql(f"CREATE TEMPORARY VIEW customers USING ottla OPTIONS ({where}, latestPerKey 'true')")
    rows = spark.sql("SELECT cast(key AS string) AS k, cast(value AS string) AS v FROM customers ORDER BY k").collect()
    assert [(row.k, row.v) for row in rows] == [(f"k{n}", f"v{90 + n}") for n in range(10) if n != 3]
    names = spark.createDataFrame([("k1", "Ann"), ("k3", "Bob")], "k string, name string")
    names.createOrReplaceTempView("names")
    joined = spark.sql("SELECT name FROM names JOIN customers ON k = cast(key AS string)").collect()
    assert [row.name for row in joined] == ["Ann"]


def _read(spark: Any, cluster: EmbeddedCluster, topic: str, **options: str) -> Any:
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", cluster.bootstrap).option("subscribe", topic)
    return reader.options(**options).load()


TYPED = {"value.format": "json", "value.schema": "offset int"}
SETTING = "spark.sql.python.filterPushdown.enabled"


@pytest.mark.parametrize("is_typed", [False, True])
def test_filters_are_pushed_when_asked_for(spark: Any, cluster: EmbeddedCluster, is_typed: bool) -> None:
    topic, ours = f"pushed-{is_typed}", "_" if is_typed else ""
    _fill(cluster, topic, [(b"k%d" % (n % 20), b'{"offset": %d}' % n) for n in range(200)])
    condition = f"{ours}partition = 1 and {ours}offset >= 10 and {ours}offset < 15"
    tasks = {}
    spark.conf.set(SETTING, "true")
    try:
        for asked in ("true", "false"):
            frame = _read(spark, cluster, topic, pushFilters=asked, **(TYPED if is_typed else {}))
            some = frame.where(f"{condition} and {ours}timestamp > timestamp'2020-01-01 00:00:00'")
            assert sorted(row[f"{ours}offset"] for row in some.collect()) == [10, 11, 12, 13, 14]
            tasks[asked] = some.rdd.getNumPartitions()
            assert frame.where(f"{ours}timestamp > timestamp'2100-01-01 00:00:00'").count() == 0
            assert not is_typed or frame.where("offset < 5").count() == 5  # the value's own
    finally:
        spark.conf.unset(SETTING)
    assert tasks == {"true": 1, "false": 2}


def test_a_frame_that_is_used_with_and_without_conditions_has_all_its_rows(spark: Any, cluster: EmbeddedCluster) -> None:
    """Spark 4.3 plans the second use as it planned the first; so nothing is pushed unless a user asks for it."""
    _fill(cluster, "twice", [(b"k%d" % n, b"v") for n in range(20)])
    for setting in ("true", "false"):
        spark.conf.set(SETTING, setting)
        try:
            frame = _read(spark, cluster, "twice")
            assert frame.where("partition = 7").count() == 0
            assert frame.count() == 20
        finally:
            spark.conf.unset(SETTING)


def test_segments_are_read_without_a_broker(spark: Any, tmp_path: Path) -> None:
    with EmbeddedCluster(1, directory=str(tmp_path)) as own:
        _fill(own, "filed", [(b"k", b"%d" % n) for n in range(500)])
    directory = next(path.parent for path in tmp_path.rglob("filed-0"))
    frame = spark.read.format("ottla").option("segments", str(directory)).option("minPartitions", "5").load()
    rows = frame.where("topic = 'filed'").collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(500))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "nowhere"}, "there is no topic nowhere at"),
        ({"subscribe": "a", "startingOffset": "latest"}, "unknown option startingoffset; did you mean startingOffsets?"),
        ({"subscribe": "a", "startingOffsets": "{"}, "option startingOffsets must be earliest, latest or JSON like"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence(
    spark: Any, cluster: EmbeddedCluster, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Exception, match="ottla") as raised:  # noqa: PT012
        frame = spark.read.format("ottla").option("kafka.bootstrap.servers", cluster.bootstrap).options(**options).load()
        frame.count()
    text = str(raised.value)
    assert sentence in text
    assert "Traceback" not in text
