"""Messages to topics: where by what they are about, and in which of a topic's three priorities by how urgent they are."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
CLUSTER = {"kafka.bootstrap.servers": spark.conf.get("spark.ottla.bootstrap", "localhost:9092") or ""}
MESSAGE = "id long NOT NULL, about string NOT NULL, text string, urgency int"
# Kafka has no priorities within a topic: a reader that serves the urgent first reads a topic for each, the urgent one first.
ABOUT = "CASE about WHEN 'invoice' THEN 'billing' WHEN 'refund' THEN 'billing' WHEN 'crash' THEN 'support' ELSE 'office' END"
PRIORITY = "CASE WHEN about = 'crash' OR urgency >= 8 THEN 'urgent' WHEN coalesce(urgency, 0) >= 3 THEN 'normal' ELSE 'bulk' END"


@dp.table(comment="Every message that can be read, and where it goes. The others go to the topic messages-unreadable.")
def decided() -> DataFrame:
    messages = (
        spark.readStream.format("ottla")
        .options(**CLUSTER, subscribe="messages", startingOffsets="earliest", deadLetterTopic="messages-unreadable")
        .option("value.format", "json")
        .option("value.schema", MESSAGE)
        .load()
    )
    return messages.selectExpr(f"concat({ABOUT}, '.', {PRIORITY}) AS route", "id", "about", "text", "urgency", "_key")


dp.create_sink("topics", "ottla", {**CLUSTER, "value.format": "json", "exactlyOnce": "true"})


@dp.append_flow(target="topics")
def routed() -> DataFrame:
    return spark.readStream.table("decided").selectExpr("route AS _topic", "_key", "id", "about", "text", "urgency")


@dp.materialized_view(comment="How many went where.")
def routes() -> DataFrame:
    return spark.read.table("decided").groupBy("route").count()
