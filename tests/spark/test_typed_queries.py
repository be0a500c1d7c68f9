"""Typed columns, tables and dead letters in real queries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ottla import sync
from ottla.embedded.cluster import EmbeddedCluster

pytestmark = [pytest.mark.slow, pytest.mark.spark]
ORDER = "order_id long NOT NULL, product string, price double"


def _fill(cluster: EmbeddedCluster, topic: str, rows: list[tuple[bytes | None, bytes | None]], *others: str) -> None:
    with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        for name in (topic, *others):
            admin.create_topic(name, 2, 1)
    with sync.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number, (key, value) in enumerate(rows):
            producer.send(topic, value, key=key, headers=[("trace", b"%d" % number)])
        producer.flush()


def _consume(cluster: EmbeddedCluster, topic: str) -> list[Any]:
    with sync.Consumer(
        bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        partitions = [(topic, 0), (topic, 1)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        ends = consumer.end_offsets(partitions)
        found: list[Any] = []
        while any(consumer.position(key) < end for key, end in ends.items()):
            found += consumer.poll(1000)
        return found


def _order(number: int) -> bytes:
    return json.dumps({"order_id": number, "product": f"p{number % 3}", "price": number / 2}).encode()


def test_bad_records_go_to_the_dead_letter_topic_and_the_rest_on_exactly_once(
    spark: Any, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    rows: list[tuple[bytes | None, bytes | None]] = [(b"k%d" % number, _order(number)) for number in range(100)]
    rows[10] = (b"broken", b"no json")
    rows[20] = (None, b'{"order_id": null}')
    _fill(cluster, "typed-in", rows, "typed-out", "typed-dead")
    source = {
        "kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "typed-in", "startingOffsets": "earliest", "value.format": "json",
        "value.schema": ORDER, "key.format": "string", "deadLetterTopic": "typed-dead",
    }  # fmt: skip
    sink = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": "typed-out", "value.format": "csv", "exactlyOnce": "true"}
    frame = spark.readStream.format("ottla").options(**source).load()
    cheap = frame.where("price < 20").selectExpr("order_id", "upper(product) AS product", "_key")
    query = (
        cheap.writeStream.format("ottla")
        .options(**sink)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    written = {bytes(record.value).decode() for record in _consume(cluster, "typed-out")}
    assert written == {f"{number},P{number % 3}" for number in range(40) if number not in (10, 20)}
    dead = {bytes(record.value): record for record in _consume(cluster, "typed-dead")}
    assert set(dead) == {b"no json", b'{"order_id": null}'}
    letter = dead[b"no json"]
    headers = {name: value.decode() for name, value in letter.headers}
    assert letter.key == b"broken"
    assert headers["trace"] == "10"
    assert headers["ottla.reason"] == "the value is not JSON: Expecting value at position 0"
    origin = (headers["ottla.topic"], int(headers["ottla.partition"]), int(headers["ottla.offset"]))
    with sync.Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        consumer.assign([origin[:2]])
        consumer.seek(origin[:2], origin[2])
        assert next(iter(consumer.poll(5000))).value == b"no json"


def test_a_table_keeps_its_options_for_queries_inserts_and_streams(spark: Any, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    _fill(cluster, "sales", [(b"k%d" % (number % 5), _order(number)) for number in range(20)] + [(b"x", b"?"), (b"k4", None)])
    where = f"`kafka.bootstrap.servers` '{cluster.bootstrap}', topic 'sales', `value.format` 'json', `value.schema` '{ORDER}'"
    spark.sql(f"CREATE TABLE sales USING ottla OPTIONS ({where}, `key.format` 'string') COMMENT 'what was sold'")
    spark.sql(f"CREATE TABLE last_sales USING ottla OPTIONS ({where}, latestPerKey 'true')")
    spark.sql(f"CREATE TABLE raw_sales USING ottla OPTIONS (`kafka.bootstrap.servers` '{cluster.bootstrap}', topic 'sales')")
    try:
        assert spark.sql("SELECT sum(price) AS p FROM sales").first().p == sum(number / 2 for number in range(20))
        assert (
            spark.sql("SELECT _corrupt.reason AS r FROM sales WHERE _corrupt IS NOT NULL")
            .first()
            .r.startswith("the value is not JSON")
        )
        assert spark.sql("SELECT count(*) AS n FROM sales WHERE _deleted").first().n == 1
        rows = spark.sql("SELECT order_id FROM last_sales WHERE _corrupt IS NULL").collect()
        assert sorted(row.order_id for row in rows) == [15, 16, 17, 18]
        spark.sql("INSERT INTO sales (order_id, product, _key) VALUES (99, 'late', 'k9')")
        spark.sql("INSERT INTO raw_sales (key, value) VALUES (cast('k8' AS binary), cast('{\"order_id\": 98}' AS binary))")
        found = spark.sql("SELECT order_id, product, price, _key FROM sales WHERE order_id > 90 ORDER BY order_id").collect()
        assert [tuple(row) for row in found] == [(98, None, None, "k8"), (99, "late", None, "k9")]
        frame = spark.readStream.option("startingOffsets", "earliest").table("sales").select("order_id")
        query = frame.writeStream.format("memory").queryName("streamed").option("checkpointLocation", str(tmp_path))
        query.trigger(availableNow=True).start().awaitTermination()
        assert spark.sql("SELECT count(order_id) AS n FROM streamed").first().n == 22
        spark.sql(f"CREATE TABLE listed (order_id long) USING ottla OPTIONS ({where})")
        with pytest.raises(Exception, match="Leave the list away"):
            spark.sql("SELECT * FROM listed").collect()
        with pytest.raises(Exception, match="a topic cannot be overwritten"):
            spark.sql("INSERT OVERWRITE sales (order_id) VALUES (1)")
    finally:
        for name in ("sales", "last_sales", "raw_sales", "listed"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_avro_is_what_apaches_own_library_writes_and_reads(spark: Any) -> None:
    """The judge is the Avro library inside Spark."""
    from ottla.spark.formats import Avro
    from tests.spark.test_typed import AVRO, AVRO_ROW

    jvm = spark.sparkContext._jvm
    schema = jvm.org.apache.avro.Schema.Parser().parse(AVRO)
    ours = Avro(AVRO)
    data = ours.render(AVRO_ROW)
    decoder = jvm.org.apache.avro.io.DecoderFactory.get().binaryDecoder(data, None)
    datum = jvm.org.apache.avro.generic.GenericDatumReader(schema).read(None, decoder)
    assert decoder.isEnd()
    assert datum.get("id") == -(2**63)
    assert datum.get("name") is None
    assert (datum.get("kind").toString(), datum.get("day"), datum.get("ok"), datum.get("s")) == ("B", -1, True, 1.5)
    assert datum.get("at") == 1767225600000001
    assert [each.get("n") for each in datum.get("parts")] == [1, -64]
    assert datum.get("more").toString() == "{k=0.5}"
    stream = jvm.java.io.ByteArrayOutputStream()
    encoder = jvm.org.apache.avro.io.EncoderFactory.get().binaryEncoder(stream, None)
    jvm.org.apache.avro.generic.GenericDatumWriter(schema).write(datum, encoder)
    encoder.flush()
    assert ours.parse(bytes(stream.toByteArray())) == AVRO_ROW


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"value.schema": ORDER, "value.mode": "failfast"}, "mistakes-0 at offset 0: the value is not JSON: Expecting value"),
        ({"value.schema": ORDER, "deadLetterTopic": "nowhere"}, "option deadLetterTopic: there is no topic nowhere at"),
        ({"value.schema": "a strng"}, "option value.schema: column a has an unknown type strng; did you mean string?"),
        ({"value.shema": "a string"}, "unknown option value.shema; did you mean value.schema?"),
    ],
)
def test_a_mistake_is_one_sentence(spark: Any, cluster: EmbeddedCluster, options: dict[str, str], sentence: str) -> None:
    with sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        if "mistakes" not in admin.list_topics():
            admin.create_topic("mistakes", 1, 1)
            with sync.Producer(bootstrap_servers=cluster.bootstrap) as producer:
                producer.send("mistakes", b"?")
                producer.flush()
    with pytest.raises(Exception, match="ottla") as raised:  # noqa: PT012
        frame = spark.read.format("ottla").option("kafka.bootstrap.servers", cluster.bootstrap).option("subscribe", "mistakes")
        frame.option("value.format", "json").options(**options).load().collect()
    assert sentence in str(raised.value)
    assert "Traceback" not in str(raised.value)
