"""`ottla perf`: how fast this cluster is from here: produce, consume, latency."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.histogram import Histogram, ms_text, sparkline
from ottla.cli.output import json_option, show_line
from ottla.cli.progress import Progress
from ottla.cli.running import TOPIC_WAIT_MS, admin, bootstrap_option, client_settings, parse_pairs, run

if TYPE_CHECKING:
    from ottla.client.delivery import RecordMetadata

MAX_SPARKS = 60
BURST_S = 0.005  # a throttled producer sends what is due in steps of this
IDLE_LIMIT_S = 10.0  # a consumer that gets nothing for so long has had it all

settings_option = click.option(
    "--set", "settings", multiple=True, callback=parse_pairs, metavar="NAME=VALUE", help="A setting of the client."
)
records_option = click.option(
    "--records", "-n", type=click.IntRange(1), default=100_000, show_default=True, help="How many records."
)


@click.group()
def command() -> None:
    """Measure throughput and latency."""


@command.command()
@click.argument("topic")
@records_option
@click.option("--size", "-s", type=click.IntRange(1), default=100, show_default=True, help="Bytes of each value.")
@click.option("--throughput", type=click.IntRange(1), help="Records a second at most; as fast as it goes if not given.")
@click.option("--keys", type=click.IntRange(1), help="Give records keys, so many different ones.")
@settings_option
@json_option
@bootstrap_option
def produce(
    topic: str,
    records: int,
    size: int,
    throughput: int | None,
    keys: int | None,
    settings: dict[str, str],
    as_json: bool,
    bootstrap: str,
) -> None:
    """Send records to TOPIC as fast as it goes, and tell how long each took to be acknowledged."""
    histogram, progress = Histogram(), Progress(records, f"producing to {topic}", quiet=as_json)
    run(measure_produce(topic, records, size, throughput, keys, client_settings(settings, bootstrap), histogram, progress))
    report("produce", topic, progress, histogram, as_json)


async def measure_produce(
    topic: str,
    records: int,
    size: int,
    throughput: int | None,
    keys: int | None,
    settings: dict[str, Any],
    histogram: Histogram,
    progress: Progress,
) -> None:
    from ottla.client.producer import Producer

    value = os.urandom(size)
    failures: list[Exception] = []

    async with Producer(**settings) as producer:
        await producer.partitions_for(topic, timeout_ms=TOPIC_WAIT_MS)
        with progress:
            for number in range(records):
                if throughput is not None:
                    await _wait_for_turn(progress.started_s + number / throughput)
                sent_s = time.perf_counter()

                def done(_: RecordMetadata | None, error: Exception | None, sent_s: float = sent_s) -> None:
                    if error is not None:
                        failures.append(error)
                        return
                    histogram.add((time.perf_counter() - sent_s) * 1000)
                    progress.add(1, size)

                key = None if keys is None else b"key-%d" % (number % keys)
                await producer.send(topic, value, key=key, on_delivery=done)
                if failures:
                    break
            await producer.flush()
    if failures:
        raise failures[0]


async def _wait_for_turn(due_s: float) -> None:
    early_s = due_s - time.perf_counter()
    if early_s > BURST_S:
        await asyncio.sleep(early_s)


@command.command()
@click.argument("topic")
@click.option("--records", "-n", type=click.IntRange(1), help="Stop after so many; all that are there now if not given.")
@click.option("--arrow", is_flag=True, help="Read columns instead of records.")
@settings_option
@json_option
@bootstrap_option
def consume(topic: str, records: int | None, arrow: bool, settings: dict[str, str], as_json: bool, bootstrap: str) -> None:
    """Read TOPIC from its beginning as fast as it goes."""
    progress = Progress(records, f"consuming {topic}", quiet=as_json)
    run(measure_consume(topic, records, arrow, client_settings(settings, bootstrap), bootstrap, progress))
    report("consume", topic, progress, None, as_json)


async def measure_consume(
    topic: str, records: int | None, arrow: bool, settings: dict[str, Any], bootstrap: str, progress: Progress
) -> None:
    from ottla.client.consumer import Consumer

    async with admin(bootstrap) as client:
        description = await client.describe_topic(topic)
        partitions = [(topic, part.partition) for part in description.partitions]
        latest, earliest = await client.latest_offsets(partitions), await client.earliest_offsets(partitions)
    there = sum(latest.values()) - sum(earliest.values())
    progress.total = wanted = there if records is None else min(records, there)
    own: dict[str, Any] = {"auto_offset_reset": "earliest", "max_poll_records": 10_000} | settings
    if arrow:
        importlib.import_module("ottla.records.columns")  # with Arrow and numpy: seconds that are not the cluster's
    async with Consumer(**own) as consumer:
        consumer.assign(partitions)
        with progress:
            if arrow:
                await _drain_arrow(consumer, wanted, progress)
            else:
                await _drain(consumer, wanted, progress)


async def _drain(consumer: Any, wanted: int, progress: Progress) -> None:
    while progress.count < wanted:
        records = await consumer.poll(IDLE_LIMIT_S * 1000)
        if not records:
            return  # offsets that hold no record: markers of transactions, what compaction removed
        progress.add(len(records), sum(len(record.value or b"") + len(record.key or b"") for record in records))


async def _drain_arrow(consumer: Any, wanted: int, progress: Progress) -> None:
    batches = consumer.arrow()
    while progress.count < wanted:
        try:
            batch = await asyncio.wait_for(anext(batches), IDLE_LIMIT_S)
        except (TimeoutError, StopAsyncIteration):
            return
        progress.add(batch.num_rows, batch.nbytes)


@command.command()
@click.argument("topic")
@click.option(
    "--records", "-n", type=click.IntRange(1), default=1_000, show_default=True, help="How many records, one at a time."
)
@click.option("--size", "-s", type=click.IntRange(1), default=100, show_default=True, help="Bytes of each value.")
@settings_option
@json_option
@bootstrap_option
def latency(topic: str, records: int, size: int, settings: dict[str, str], as_json: bool, bootstrap: str) -> None:
    """Send one record at a time and read it back: until it is acknowledged, and until a consumer has it."""
    acknowledged, received = Histogram(), Histogram()
    progress = Progress(records, f"there and back by {topic}", quiet=as_json)
    run(_latency(topic, records, size, client_settings(settings, bootstrap), bootstrap, acknowledged, received, progress))
    if as_json:
        show_line(
            {
                "kind": "latency",
                "topic": topic,
                "records": records,
                "acknowledged": acknowledged.summary(),
                "received": received.summary(),
            }
        )
        return
    for name, histogram in (("acknowledged", acknowledged), ("received", received)):
        click.echo(f"{name}: {percentile_line(histogram)}")
        for line in histogram.draw():
            click.echo(f"  {line}")


async def _latency(
    topic: str,
    records: int,
    size: int,
    settings: dict[str, Any],
    bootstrap: str,
    acknowledged: Histogram,
    received: Histogram,
    progress: Progress,
) -> None:
    from ottla.client.consumer import Consumer
    from ottla.client.producer import Producer

    value = os.urandom(size)
    consumer = Consumer(bootstrap_servers=bootstrap, auto_offset_reset="latest", fetch_max_wait_ms=500)
    own: dict[str, Any] = {"linger_ms": 0} | settings
    async with Producer(**own) as producer, consumer:
        first = await producer.send_and_wait(topic, value, partition=0)
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), first.offset + 1)
        with progress:
            for _ in range(records):
                sent_s = time.perf_counter()
                metadata = await producer.send_and_wait(topic, value, partition=0)
                acknowledged.add((time.perf_counter() - sent_s) * 1000)
                while not any(record.offset >= metadata.offset for record in await consumer.poll(IDLE_LIMIT_S * 1000)):
                    pass
                received.add((time.perf_counter() - sent_s) * 1000)
                progress.add(1, size)


def percentile_line(histogram: Histogram) -> str:
    found = histogram.summary()
    return ", ".join(f"{name.removesuffix('_ms')} {ms_text(value)}" for name, value in found.items())


def report(kind: str, topic: str, progress: Progress, histogram: Histogram | None, as_json: bool) -> None:
    summary = progress.summary()
    if as_json:
        show_line({"kind": kind, "topic": topic, **summary, **(histogram.summary() if histogram else {})})
        return
    click.echo(
        f"{progress.count:,} records in {progress.seconds:.2f} s: {summary['records_per_second']:,.0f} records/s, {summary['mib_per_second']:,.1f} MiB/s"
    )
    if len(progress.rates) > 1:
        step = max(1, len(progress.rates) // MAX_SPARKS)
        click.echo(f"rate over time: {sparkline(progress.rates[::step])}")
    if histogram is not None and histogram.count:
        click.echo(f"latency: {percentile_line(histogram)}")
        for line in histogram.draw():
            click.echo(f"  {line}")
