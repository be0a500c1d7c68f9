"""Topics through Spark: the same records come out that went in, whatever they hold; exactly once means exactly once."""

from __future__ import annotations

import pathlib
from collections import Counter
from typing import Any

import pytest

from ottla import sync
from ottla.embedded.cluster import EmbeddedCluster

pytestmark = pytest.mark.spark


def _read(spark: Any, cluster: EmbeddedCluster, topic: str, **options: str) -> Any:
    return (
        spark.read.format("ottla")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", topic)
        .options(**options)
        .load()
    )


def _fill(cluster: EmbeddedCluster, topic: str, count: int, partitions: int = 3, codec: str = "none") -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(topic, partitions, 1)
    with sync.Producer(bootstrap_servers=cluster.bootstrap, compression_type=codec) as producer:
        for number in range(count):
            key = None if number % 5 == 0 else f"k{number % 17}".encode()
            value = None if number % 11 == 0 else f"value {number}".encode()
            headers = [("h", str(number).encode()), ("n", None)] if number % 3 == 0 else []
            producer.send(topic, value, key=key, headers=headers, timestamp_ms=1_700_000_000_000 + number)
            rows.append((key, value, tuple(headers)))
        producer.flush()
    return rows


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_was_produced_is_read_with_nulls_headers_and_times(spark: Any, cluster: EmbeddedCluster, codec: str) -> None:
    sent = _fill(cluster, f"read-{codec}", 500, codec=codec)
    frame = _read(spark, cluster, f"read-{codec}", includeHeaders="true", minPartitions="7")
    rows = frame.collect()
    got = [
        (
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            tuple((each.key, None if each.value is None else bytes(each.value)) for each in row.headers or ()),
        )
        for row in rows
    ]
    assert Counter(got) == Counter(sent)
    assert {row.partition for row in rows} == {0, 1, 2}
    assert len({(row.partition, row.offset) for row in rows}) == 500
    assert {int(row.timestamp.timestamp() * 1000) for row in rows} == {1_700_000_000_000 + number for number in range(500)}


def test_ranges_of_offsets_are_kept(spark: Any, cluster: EmbeddedCluster) -> None:
    _fill(cluster, "ranges", 300, partitions=1)
    frame = _read(spark, cluster, "ranges", startingOffsets='{"ranges":{"0":50}}', endingOffsets='{"ranges":{"0":120}}')
    assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(50, 120))
    frame = _read(spark, cluster, "ranges", startingTimestamp=str(1_700_000_000_000 + 200))
    assert frame.count() == 100


def test_an_unknown_topic_is_named(spark: Any, cluster: EmbeddedCluster) -> None:
    with pytest.raises(Exception, match="there is no topic nowhere"):
        _read(spark, cluster, "nowhere").count()


def test_what_is_written_is_there(spark: Any, cluster: EmbeddedCluster) -> None:
    frame = spark.range(1000).selectExpr(
        "cast(id as string) as key", "concat('v', id) as value", "case when id % 2 = 0 then 'even' else 'odd' end as topic"
    )
    with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("even", 2, 1)
        admin.create_topic("odd", 2, 1)
    frame.write.format("ottla").mode("append").option("kafka.bootstrap.servers", cluster.bootstrap).save()
    for topic, rest in (("even", 0), ("odd", 1)):
        rows = _read(spark, cluster, topic).collect()
        assert sorted(int(bytes(row.key)) for row in rows) == list(range(rest, 1000, 2))
        assert all(bytes(row.value) == b"v" + bytes(row.key) for row in rows)


def test_exactly_once_over_restarts_and_progress_without_lag(
    spark: Any, cluster: EmbeddedCluster, tmp_path: pathlib.Path
) -> None:
    _fill(cluster, "in", 1000)
    with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("out", 3, 1)

    def run() -> None:
        query = (
            spark.readStream.format("ottla")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("subscribe", "in")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "400")
            .option("kafka.group.id", "copying")
            .load()
            .selectExpr("key", "value")
            .writeStream.format("ottla")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("topic", "out")
            .option("exactlyOnce", "true")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert query.exception() is None

    run()
    run()  # nothing new: nothing written twice
    committed = _read(spark, cluster, "out", **{"kafka.isolation.level": "read_committed"}).selectExpr("key", "value").collect()
    original = _read(spark, cluster, "in").selectExpr("key", "value").collect()
    assert Counter((row.key, row.value) for row in committed) == Counter((row.key, row.value) for row in original)
    with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        offsets = admin.group_offsets("copying")
        ends = admin.latest_offsets([("in", number) for number in range(3)])
    assert {key: each.offset for key, each in offsets.items()} == ends
