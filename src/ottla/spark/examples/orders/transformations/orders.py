"""Orders as they come → cleaned orders and a quarantine → revenue per product and minute in a topic, exactly once → a view."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
CLUSTER = {"kafka.bootstrap.servers": spark.conf.get("spark.ottla.bootstrap", "localhost:9092") or ""}
ORDER = "order_id long NOT NULL, product string NOT NULL, quantity int, price double, ordered_at timestamp NOT NULL"
IS_SOUND = "_corrupt IS NULL AND quantity > 0 AND price > 0"


@dp.table(comment="Every record of the topic orders, readable or not.")
def incoming() -> DataFrame:
    return (
        spark.readStream.format("ottla")
        .options(**CLUSTER, subscribe="orders", startingOffsets="earliest")
        .option("kafka.group.id", "orders-pipeline")  # its lag is this pipeline's: ottla groups describe orders-pipeline
        .option("value.format", "json")
        .option("value.schema", ORDER)
        .option("key.format", "string")
        .load()
    )


@dp.table(comment="Orders that can be worked with.")
def cleaned() -> DataFrame:
    sound = spark.readStream.table("incoming").where(IS_SOUND)
    total = f.round(f.col("quantity") * f.col("price"), 2)
    return sound.select("order_id", f.col("_key").alias("customer"), "product", "quantity", total.alias("total"), "ordered_at")


@dp.table(comment="The others, with the reason, and where in the topic they are.")
def quarantine() -> DataFrame:
    reason = f.coalesce(f.col("_corrupt.reason"), f.lit("quantity and price must be above 0"))
    others = spark.readStream.table("incoming").where(f"NOT coalesce({IS_SOUND}, false) AND NOT _deleted")
    value = f.coalesce(f.col("_corrupt.value").cast("string"), f.to_json(f.struct("order_id", "product", "quantity", "price")))
    return others.select(reason.alias("reason"), value.alias("value"), "_topic", "_partition", "_offset")


dp.create_sink("revenue", "ottla", {**CLUSTER, "topic": "revenue", "value.format": "json", "exactlyOnce": "true"})


@dp.append_flow(target="revenue")
def revenue_per_minute() -> DataFrame:
    return spark.readStream.table("minutes").selectExpr("*", "product AS _key")  # the view is in minutes.sql


@dp.materialized_view(comment="What each product has brought so far.")
def products() -> DataFrame:
    orders = spark.read.table("cleaned")
    return orders.groupBy("product").agg(f.count("*").alias("orders"), f.round(f.sum("total"), 2).alias("revenue"))
