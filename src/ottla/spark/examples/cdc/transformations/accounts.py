"""Changes of accounts as a topic tells them: the history as a table, and the accounts as they are now."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
SOURCE = {
    "kafka.bootstrap.servers": spark.conf.get("spark.ottla.bootstrap", "localhost:9092") or "",
    "subscribe": "account-changes",
    "value.format": "json",
    "value.schema": "owner string, city string, balance decimal(12, 2)",
    "value.mode": "failfast",
    "key.format": "string",
}


@dp.table(comment="Every change there ever was, in the order of each account.")
def changes() -> DataFrame:
    history = spark.readStream.format("ottla").options(**SOURCE, startingOffsets="earliest").load()
    return history.selectExpr(
        "_key AS account", "owner", "city", "balance", "_deleted AS closed", "_partition", "_offset", "_timestamp"
    )


@dp.materialized_view(comment="The accounts as they are: the last change of each, without those that are closed.")
def accounts() -> DataFrame:
    latest = spark.read.format("ottla").options(**SOURCE, latestPerKey="true").load()
    return latest.selectExpr("_key AS account", "owner", "city", "balance")
