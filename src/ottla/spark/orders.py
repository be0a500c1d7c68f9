"""The pipeline of the `orders` demo: raw orders → priced orders in a topic, exactly once → revenue per product, a table on disk.

Two queries. The first parses each order and writes it, with its total, to the result topic inside transactions; what cannot be
read goes nowhere but is counted. The second follows the result topic, reading only what is committed, and keeps the revenue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ORDER = "order_id long, product string, quantity int, price double"
RAW, PRICED = "orders", "orders-priced"
PRICING_GROUP, REVENUE_GROUP = "pricing", "revenue"


def priced(spark: Any, bootstrap: str, checkpoint: str) -> Any:
    """orders → orders-priced, exactly once. Returns the running query."""
    from pyspark.sql import functions as f

    raw = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", RAW)
        .option("startingOffsets", "earliest")
        .option("kafka.group.id", PRICING_GROUP)
        .load()
    )
    orders = raw.select("key", f.from_json(f.col("value").cast("string"), ORDER).alias("order")).where(
        "order.order_id is not null"
    )
    total = f.round(f.col("order.quantity") * f.col("order.price"), 2)
    out = orders.select("key", f.to_json(f.struct("order.order_id", "order.product", total.alias("total"))).alias("value"))
    return (
        out.writeStream.format("ottla")
        .queryName("pricing")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", PRICED)
        .option("exactlyOnce", "true")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )


def revenue(spark: Any, bootstrap: str, checkpoint: str, table: str, show: Callable[[list[Any]], None]) -> Any:
    """orders-priced → revenue per product: a Parquet table at `table`, written anew at each change, and told to `show`."""
    from pyspark.sql import functions as f

    committed = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", PRICED)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.group.id", REVENUE_GROUP)
        .load()
    )
    rows = committed.select(
        f.from_json(f.col("value").cast("string"), "order_id long, product string, total double").alias("order")
    )
    totals = rows.groupBy("order.product").agg(f.count("*").alias("orders"), f.round(f.sum("order.total"), 2).alias("revenue"))

    def keep(batch: Any, batch_id: int) -> None:
        batch = batch.orderBy(f.desc("revenue")).persist()
        batch.coalesce(1).write.mode("overwrite").parquet(table)
        show(batch.collect())
        batch.unpersist()

    return (
        totals.writeStream.queryName("revenue")
        .outputMode("complete")
        .foreachBatch(keep)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )
