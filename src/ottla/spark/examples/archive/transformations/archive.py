"""A topic as Parquet, a folder for each day: what arrives, and beside it what there was before the topic (the backfill).

The archive is a sink and not a table: in Spark 4.3 a streaming table of a pipeline has its files in one folder, whatever it says of
partitions.
"""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
CLUSTER = {"kafka.bootstrap.servers": spark.conf.get("spark.ottla.bootstrap", "localhost:9092") or ""}
ARCHIVE, BACKFILL = Path("archive").resolve(), Path("backfill").resolve()  # a run's folder is the project's

dp.create_sink("archive", "ottla", {"archive": ARCHIVE.as_uri(), "archiveBy": "day"})


@dp.append_flow(target="archive")
def events() -> DataFrame:
    """Keys, values and headers as they are: an archive keeps what it does not understand."""
    options = {"subscribe": "events", "startingOffsets": "earliest", "includeHeaders": "true"}
    rows = spark.readStream.format("ottla").options(**CLUSTER, **options).load()
    return rows.selectExpr("key", "value", "headers", "timestamp", "topic", "partition", "offset", "to_date(timestamp) AS day")


@dp.append_flow(target="archive")
def backfill() -> DataFrame:
    """Lines of JSON that an older system left. A file that is put there later is taken by the next run, each file once."""
    lines = spark.readStream.schema("key string, value string, timestamp timestamp").json(BACKFILL.as_uri())
    return lines.selectExpr(
        "cast(key AS binary) AS key",
        "cast(value AS binary) AS value",
        "cast(null AS array<struct<key: string, value: binary>>) AS headers",
        "timestamp",
        "'backfill' AS topic",
        "cast(null AS int) AS partition",
        "cast(null AS bigint) AS offset",
        "to_date(timestamp) AS day",
    )
