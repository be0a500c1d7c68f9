"""The archive back to a topic, exactly once: `ottla pipeline run PROJECT/replay.yml`.

All days, or those of `--conf spark.ottla.replay.from=2026-01-02` and `--conf spark.ottla.replay.to=2026-01-31`.
"""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
CLUSTER = {"kafka.bootstrap.servers": spark.conf.get("spark.ottla.bootstrap", "localhost:9092") or ""}
ARCHIVE = Path("tables/archive").resolve()
FIRST = spark.conf.get("spark.ottla.replay.from", "0001-01-01")
LAST = spark.conf.get("spark.ottla.replay.to", "9999-12-31")

dp.create_sink("replayed", "ottla", {**CLUSTER, "topic": "events-replayed", "exactlyOnce": "true"})


@dp.append_flow(target="replayed")
def replay() -> DataFrame:
    rows = spark.readStream.schema("key binary, value binary, timestamp timestamp, origin string, day date").parquet(
        ARCHIVE.as_uri()
    )
    return rows.where(f"day BETWEEN '{FIRST}' AND '{LAST}'").select("key", "value")
