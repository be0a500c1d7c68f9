"""The archive back to a topic, exactly once, each key in the order of its times: `ottla pipeline run PROJECT/replay.yml`.

All days, or those of `--conf spark.ottla.replay.from=2026-01-02` and `--conf spark.ottla.replay.to=2026-01-31`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, StructType

spark = SparkSession.active()
CLUSTER = {"kafka.bootstrap.servers": spark.conf.get("spark.ottla.bootstrap", "localhost:9092") or ""}
ARCHIVE = Path("archive").resolve()
FIRST = spark.conf.get("spark.ottla.replay.from", "0001-01-01")
LAST = spark.conf.get("spark.ottla.replay.to", "9999-12-31")
HEADER = StructType().add("key", "string").add("value", "binary")
RECORD = StructType().add("key", "binary").add("value", "binary").add("headers", ArrayType(HEADER)).add("timestamp", "timestamp")
ROW = StructType([*RECORD.fields]).add("topic", "string").add("partition", "integer").add("offset", "long").add("day", "date")

dp.create_sink("replayed", "ottla", {**CLUSTER, "topic": "events-replayed", "exactlyOnce": "true"})


def in_time(batches: Iterator[Any]) -> Iterator[Any]:
    """A topic keeps the order of a key, files do not. The rows of a task are held in memory for this."""
    import pyarrow

    rows = list(batches)
    if rows:
        ordered = pyarrow.Table.from_batches(rows).sort_by([("timestamp", "ascending"), ("offset", "ascending")])
        yield from ordered.drop_columns(["offset"]).to_batches()


# Outside of the function, because Spark asks for the columns that `mapInArrow` gets, and inside no question is allowed.
rows = spark.readStream.schema(ROW).parquet(ARCHIVE.as_uri())
wanted = rows.where(f"day BETWEEN '{FIRST}' AND '{LAST}'").select("key", "value", "headers", "timestamp", "offset")
ordered = wanted.repartition("key").mapInArrow(in_time, RECORD)


@dp.append_flow(target="replayed")
def replay() -> DataFrame:
    return ordered
