"""A topic as Parquet, a folder for each day: what arrives, and beside it what there was before the topic (the backfill)."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
CLUSTER = {"kafka.bootstrap.servers": spark.conf.get("spark.ottla.bootstrap", "localhost:9092") or ""}
BACKFILL = Path("backfill").resolve()  # a run's folder is the project's


def from_topic() -> DataFrame:
    """Keys and values as they are: an archive keeps what it does not understand."""
    events = spark.readStream.format("ottla").options(**CLUSTER, subscribe="events", startingOffsets="earliest").load()
    return events.selectExpr(
        "key", "value", "timestamp", "concat(topic, '-', partition, '@', offset) AS origin", "to_date(timestamp) AS day"
    )


def from_files() -> DataFrame:
    """Lines of JSON that an older system left. A file that is put there later is taken by the next run, each file once."""
    lines = spark.readStream.schema("key string, value string, timestamp timestamp").json(BACKFILL.as_uri())
    return lines.selectExpr(
        "cast(key AS binary) AS key",
        "cast(value AS binary) AS value",
        "timestamp",
        "'backfill' AS origin",
        "to_date(timestamp) AS day",
    )


@dp.table(partition_cols=["day"], comment="Every event, by the day it happened.")
def archive() -> DataFrame:
    """One flow of two streams. Two flows would be two queries on one folder of Parquet, and Spark would drop the batches of one that
    have the numbers of the other's."""
    return from_topic().unionByName(from_files())
