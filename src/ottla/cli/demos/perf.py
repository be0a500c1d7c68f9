"""`perf`: a producer and a consumer as fast as they go, with a picture."""

from __future__ import annotations

from ottla.cli.demos.stage import Stage
from ottla.cli.histogram import Histogram, bar
from ottla.cli.perf import measure_consume, measure_produce, percentile_line
from ottla.cli.progress import Progress
from ottla.client.admin import Admin
from ottla.embedded.cluster import EmbeddedCluster

TOPIC, PARTITIONS, SIZE = "perf", 4, 100
COUNT = 150_000


async def play(stage: Stage) -> None:
    await stage.scene(
        "A cluster of one", why="Broker, producer and consumer share this one Python process, so each has a part of one core."
    )
    async with EmbeddedCluster(1) as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await stage.create_topic(admin, TOPIC, PARTITIONS)
        settings = {"bootstrap_servers": cluster.bootstrap}
        await stage.scene(f"Produce {COUNT:,} records of {SIZE} bytes", why="acks=all and idempotent: the defaults.")
        stage.command(f"ottla perf produce {TOPIC} --records {COUNT} --size {SIZE}")
        histogram, produced = Histogram(), Progress(COUNT, "producing")
        await measure_produce(TOPIC, COUNT, SIZE, None, None, settings, histogram, produced)
        stage.say(f"{produced.summary()['records_per_second']:,.0f} records/s. Until acknowledged: {percentile_line(histogram)}.")
        stage.lines(histogram.draw())
        stage.check("every record was acknowledged", histogram.count == COUNT, histogram.count)
        ends = await admin.latest_offsets([(TOPIC, number) for number in range(PARTITIONS)])
        stage.check("the logs end where they should", sum(ends.values()) == COUNT, ends)
        await stage.scene(
            "Consume them", why="Once by record, and once by columns: the bytes become Arrow arrays without a Python object each."
        )
        rates = {"produced": produced.count / produced.seconds}
        for arrow, name in ((False, "by record"), (True, "by columns")):
            progress = Progress(COUNT, "consuming")
            stage.command(f"ottla perf consume {TOPIC}" + (" --arrow" if arrow else ""))
            await measure_consume(TOPIC, None, arrow, dict(settings), cluster.bootstrap, progress)
            stage.check(f"all were read {name}", progress.count == COUNT, progress.count)
            rates[name] = progress.count / progress.seconds
        most = max(rates.values())
        stage.lines([f"{name:>10} {bar(rate / most, 48)} {rate:>11,.0f} records/s" for name, rate in rates.items()])
