"""`ottla demo NAME`: watch the thing itself, on a cluster inside this process."""

from __future__ import annotations

import asyncio
import importlib

import click

from ottla.cli.output import json_option, show
from ottla.cli.running import run

LIMIT_S = 60.0
SLOW_LIMIT_S = 300.0

# name → (module of `ottla.cli.demos`, summary)
DEMOS: dict[str, tuple[str, str]] = {
    "orders": ("orders", "live orders through a PySpark pipeline to a result topic, exactly once, and a table on disk"),
    "first-log": ("first_log", "one broker, four messages, and the file they are in"),
    "failover": ("failover", "three brokers: the leader dies, another serves, nothing acknowledged is lost"),
    "ordering": ("ordering", "keys over three partitions: order within each and not across"),
    "grow": ("grow", "a topic goes from 3 to 4 partitions under a live consumer"),
    "scale-out": ("scale_out", "a group of 1, 2, 4 and 5 consumers; the fifth idles; one dies"),
    "replay": ("replay", "a second group, and a seek, read history again"),
    "perf": ("perf", "a producer and a consumer as fast as they go, with a picture"),
}
KEPT = ("orders",)


@click.command()
@click.argument("name", required=False, default="orders", type=click.Choice(list(DEMOS)), metavar="[NAME]")
@click.option("--list", "as_list", is_flag=True, help="List the demos.")
@click.option("--slow", is_flag=True, help="Pause between the steps, to read.")
@click.option(
    "--keep", is_flag=True, help="Leave cluster and pipeline running, with orders coming in, until Ctrl-C (orders only)."
)
@json_option
def command(name: str, as_list: bool, slow: bool, keep: bool, as_json: bool) -> int:
    """Play a demo: orders, or the one that is named.

    Each really does what it tells, on a cluster of its own, checks its own claims, and ends with 1 if one does not hold.
    """
    if as_list:
        show(["demo", "summary"], [{"demo": each, "summary": summary} for each, (_, summary) in DEMOS.items()], as_json)
        return 0
    if keep and name not in KEPT:
        raise click.UsageError(f"--keep is for {', '.join(KEPT)}: the other demos end with what they show")
    from ottla.cli.demos.stage import Stage

    stage = Stage(slow=slow, keep=keep)
    module = importlib.import_module(f"ottla.cli.demos.{DEMOS[name][0]}")
    click.secho(f"{name}: {DEMOS[name][1]}", bold=True)

    limit_s = max(SLOW_LIMIT_S if slow else LIMIT_S, getattr(module, "LIMIT_S", 0.0))

    async def play() -> None:
        async with asyncio.timeout(None if keep else limit_s):
            await module.play(stage)

    try:
        run(play())
    except TimeoutError:
        stage.check(f"the demo ends within {limit_s:.0f} s", False)
    except KeyboardInterrupt:
        if not stage.has_ended:  # it was not yet at the point where Ctrl-C is the way out
            raise
    return stage.end()
