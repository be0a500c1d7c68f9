"""`orders`: live orders → a PySpark pipeline → a result topic, exactly once, and a table on disk, printed as it changes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from ottla.cli.demos.stage import Stage
from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.errors import OttlaError
from ottla.model.ids import TopicPartition

LIMIT_S = 240.0
ORDERS = 2_000
PER_SECOND = 200
KEPT_PER_SECOND = 20  # with --keep, after the proof
UNREADABLE = 10  # lines that are no orders, spread among them
PRODUCTS = {"tea": 4.5, "coffee": 6.25, "honey": 9.0, "bread": 3.2, "apples": 2.75}
BROKERS = 3
WAIT_S = 90.0
LOOK_AGAIN_S = 0.2


async def play(stage: Stage) -> None:
    from ottla.spark import orders as pipeline
    from ottla.spark.session import check, said_to, session

    check()
    await stage.scene(
        "A cluster and a Spark session", why="Three brokers in this process; Spark as it comes, without a connector JAR."
    )
    with tempfile.TemporaryDirectory(prefix="ottla-orders-") as folder:
        async with EmbeddedCluster(BROKERS) as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await stage.create_topic(admin, pipeline.RAW, 3, BROKERS)
            await stage.create_topic(admin, pipeline.PRICED, 3, BROKERS)
            with said_to(Path(folder) / "spark.log"):
                spark = await asyncio.to_thread(session, "ottla orders")
            try:
                await _pipeline(stage, cluster.bootstrap, admin, spark, folder)
            finally:
                await asyncio.to_thread(_stop, spark)


def _stop(spark: Any) -> None:
    """The queries first: they would complain of a cluster that is gone."""
    for query in spark.streams.active:
        query.stop()
    spark.stop()


async def _pipeline(stage: Stage, bootstrap: str, admin: Admin, spark: Any, folder: str) -> None:
    from ottla.spark import orders as pipeline

    await stage.scene(
        "Live orders",
        why=f"""{ORDERS} orders arrive, {PER_SECOND} a second. One query prices each order and writes it to {pipeline.PRICED}, exactly
        once; a second one reads only what is committed there and keeps the revenue per product in a Parquet table.""",
    )
    loop, changes = asyncio.get_running_loop(), asyncio.Queue[list[Any]]()
    table = f"{folder}/revenue"
    pricing = await asyncio.to_thread(pipeline.priced, spark, bootstrap, f"{folder}/pricing")
    revenue = await asyncio.to_thread(
        pipeline.revenue,
        spark,
        bootstrap,
        f"{folder}/revenue-checkpoint",
        table,
        lambda rows: _tell(loop, changes, rows),
    )
    is_shown, may_end = asyncio.Event(), asyncio.Event()
    showing = asyncio.ensure_future(_show(stage, changes, is_shown))
    sending = asyncio.ensure_future(_send(bootstrap, pipeline.RAW, may_end))
    while await _end(admin, pipeline.PRICED) < ORDERS // 2:
        await _rest(pricing)
    stage.say("Half of them are through. The pricing query is stopped in the middle of its work and started again.")
    await asyncio.to_thread(pricing.stop)
    pricing = await asyncio.to_thread(pipeline.priced, spark, bootstrap, f"{folder}/pricing")
    while not is_shown.is_set():
        await _rest(revenue)
    may_end.set()
    sent = await sending
    await _drained(stage, admin, pipeline.PRICING_GROUP, pipeline.RAW, pricing)
    await _drained(stage, admin, pipeline.REVENUE_GROUP, pipeline.PRICED, revenue)
    for query in (pricing, revenue):
        await asyncio.to_thread(query.stop)
    showing.cancel()
    if not changes.empty():
        _show_newest(stage, changes, changes.get_nowait())
    await _prove(stage, bootstrap, spark, table, sent)
    if stage.keep:
        await _stay(stage, bootstrap, spark, folder)


async def _stay(stage: Stage, bootstrap: str, spark: Any, folder: str) -> None:
    """Both queries go on from their checkpoints, and so do the orders, until somebody presses Ctrl-C."""
    from ottla.spark import orders as pipeline

    stage.end()
    loop, changes = asyncio.get_running_loop(), asyncio.Queue[list[Any]]()
    pricing = await asyncio.to_thread(pipeline.priced, spark, bootstrap, f"{folder}/pricing")
    revenue = await asyncio.to_thread(
        pipeline.revenue,
        spark,
        bootstrap,
        f"{folder}/revenue-checkpoint",
        f"{folder}/revenue",
        lambda rows: _tell(loop, changes, rows),
    )
    await stage.scene("It goes on", why=f"{KEPT_PER_SECOND} orders a second, until Ctrl-C. In another terminal:")
    address = bootstrap.split(",")[0]
    for line in (
        f"ottla consume {pipeline.PRICED} --follow --committed --bootstrap {address}",
        f"ottla groups describe {pipeline.PRICING_GROUP} --bootstrap {address}",
        f"ottla topics describe {pipeline.RAW} --bootstrap {address}",
        f'ottla sql "SELECT count(*) FROM {pipeline.RAW}" --bootstrap {address}',
    ):
        stage.command(line)
    async with asyncio.TaskGroup() as together:
        together.create_task(_show(stage, changes, asyncio.Event()))
        together.create_task(_send_on(bootstrap, pipeline.RAW))
        together.create_task(_watch(pricing, revenue))


async def _send_on(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in itertools.count(ORDERS + 1):
            key, value, _ = _order(number)
            await producer.send(topic, value, key=key)
            await asyncio.sleep(1 / KEPT_PER_SECOND)


async def _watch(*queries: Any) -> None:
    while True:
        for query in queries:
            await _check_alive(query)
        await asyncio.sleep(1)


def _tell(loop: asyncio.AbstractEventLoop, changes: asyncio.Queue[list[Any]], rows: list[Any]) -> None:
    """Spark calls from a thread of its own, with an empty table first."""
    if rows:
        loop.call_soon_threadsafe(changes.put_nowait, rows)


async def _send(bootstrap: str, topic: str, may_end: asyncio.Event) -> dict[int, float]:
    """Orders in; what each should come to. The last quarter waits: however slow Spark is, it is stopped in the middle of its work, and
    the table changes."""
    sent: dict[int, float] = {}
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(1, ORDERS + 1):
            if number > ORDERS * 3 // 4:
                await may_end.wait()
            key, value, sent[number] = _order(number)
            await producer.send(topic, value, key=key)
            if number % (ORDERS // UNREADABLE) == 0:
                await producer.send(topic, b"not an order", key=b"nobody")
            if number % (PER_SECOND // 10) == 0:
                await asyncio.sleep(0.1)
    return sent


def _order(number: int) -> tuple[bytes, bytes, float]:
    """Key and value of an order, and what it comes to."""
    product, quantity = list(PRODUCTS)[number * 7 % len(PRODUCTS)], number % 4 + 1
    order = {"order_id": number, "product": product, "quantity": quantity, "price": PRODUCTS[product]}
    return f"customer-{number % 50}".encode(), json.dumps(order).encode(), round(quantity * PRODUCTS[product], 2)


async def _rest(query: Any) -> None:
    await _check_alive(query)
    await asyncio.sleep(LOOK_AGAIN_S)


async def _check_alive(query: Any) -> None:
    """A query that failed says why; waiting for it would be in vain."""
    failure = await asyncio.to_thread(query.exception)
    if failure is not None:
        raise OttlaError(f"the query {query.name} failed: {str(failure).strip().splitlines()[0]}")


async def _end(admin: Admin, topic: str) -> int:
    partitions = [TopicPartition(topic, number) for number in range(3)]
    return sum((await admin.latest_offsets(partitions, isolation_level="read_committed")).values())


async def _show(stage: Stage, changes: asyncio.Queue[list[Any]], is_shown: asyncio.Event) -> None:
    """The table as it changes, not oftener than it can be read."""
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            _show_newest(stage, changes, await changes.get())
            is_shown.set()
            await asyncio.sleep(3)


def _show_newest(stage: Stage, changes: asyncio.Queue[list[Any]], rows: list[Any]) -> None:
    while not changes.empty():
        rows = changes.get_nowait()
    stage.table(["product", "orders", "revenue"], [row.asDict() for row in rows])


async def _drained(stage: Stage, admin: Admin, group: str, topic: str, query: Any) -> None:
    partitions = [TopicPartition(topic, number) for number in range(3)]

    async def is_so() -> bool:
        await _check_alive(query)
        ends = await admin.latest_offsets(partitions, isolation_level="read_committed")
        done = await admin.group_offsets(group)
        return all(key in done and done[key].offset >= end for key, end in ends.items())

    await stage.wait_for(f"the query {group} has no lag, as `ottla groups describe {group}` would show", is_so, WAIT_S)


async def _prove(stage: Stage, bootstrap: str, spark: Any, table: str, sent: dict[int, float]) -> None:
    from ottla.spark.orders import PRICED

    await stage.scene(
        "The proof", why="Everything in the result topic, read as any Kafka client reads it, against what was sent."
    )
    read: list[dict[str, Any]] = []
    async with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(PRICED, number) for number in range(3)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(key) < end for key, end in ends.items()]):
            read += [json.loads(record.value) for record in await consumer.poll(1000)]
    times = Counter(row["order_id"] for row in read)
    stage.check(f"{len(sent)} orders in, {len(read)} orders out", len(read) == len(sent))
    stage.check("no order is missing", set(times) == set(sent), sorted(set(sent) - set(times))[:5])
    stage.check("no order is there twice", max(times.values(), default=0) == 1)
    stage.check("each has the right total", all(sent.get(row["order_id"]) == row["total"] for row in read))
    rows = await asyncio.to_thread(lambda: [row.asDict() for row in spark.read.parquet(table).collect()])
    found, due = round(sum(row["revenue"] for row in rows), 2), round(sum(sent.values()), 2)
    stage.table(["product", "orders", "revenue"], sorted(rows, key=lambda row: -row["revenue"]))
    stage.check(f"the table on disk adds up to the same money: {due:,.2f}", abs(found - due) < 0.01, found)
