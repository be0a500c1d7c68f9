"""`ottla offsets`: where the logs of a topic begin and end, and which offset a moment has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ottla.cli.moments import MOMENT, Moment
from ottla.cli.output import json_option, show, time_text
from ottla.cli.running import admin, bootstrap_option, run

if TYPE_CHECKING:
    from ottla.client.admin import Admin


@click.command()
@click.argument("topics", nargs=-1)
@click.option("--partition", "-p", "numbers", type=click.IntRange(0), multiple=True, help="Only this partition.")
@click.option("--at", type=MOMENT, help="The first offset at or after a time; or `earliest`, `latest`, `max-timestamp`.")
@click.option("--committed", is_flag=True, help="The end as readers of committed transactions see it.")
@json_option
@bootstrap_option
def command(
    topics: tuple[str, ...], numbers: tuple[int, ...], at: Moment | None, committed: bool, as_json: bool, bootstrap: str
) -> None:
    """Show where partitions begin and end. All topics if none is named."""

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            names = topics or tuple(await client.list_topics())
            found = await client.describe_topics(names) if names else {}
            partitions = [
                (topic.name, part.partition)
                for topic in found.values()
                for part in topic.partitions
                if not numbers or part.partition in numbers
            ]
            return await (_range(client, partitions, committed) if at is None else _at(client, partitions, at))

    columns = ["topic", "partition", "earliest", "latest", "count"] if at is None else ["topic", "partition", "offset", "time"]
    show(columns, run(work()), as_json)


async def _range(client: Admin, partitions: list[tuple[str, int]], committed: bool) -> list[dict[str, Any]]:
    earliest = await client.earliest_offsets(partitions)
    latest = await client.latest_offsets(partitions, isolation_level="read_committed" if committed else "read_uncommitted")
    return [
        {
            "topic": key[0],
            "partition": key[1],
            "earliest": earliest[key],
            "latest": latest[key],
            "count": latest[key] - earliest[key],
        }
        for key in sorted(latest)
    ]


async def _at(client: Admin, partitions: list[tuple[str, int]], moment: Moment) -> list[dict[str, Any]]:
    found = await client.list_offsets(dict.fromkeys(partitions, moment.timestamp))
    return [
        {
            "topic": key[0],
            "partition": key[1],
            "offset": listed.offset if listed.offset >= 0 else None,
            "timestamp": listed.timestamp if listed.timestamp >= 0 else None,
            "time": time_text(listed.timestamp),
        }
        for key, listed in sorted(found.items())
    ]
