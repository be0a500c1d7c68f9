"""`ottla records delete`: forget the beginning of a log."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ottla.cli.output import json_option, show
from ottla.cli.running import admin, bootstrap_option, run

HIGH_WATERMARK = -1


@click.group()
def command() -> None:
    """Delete records from the beginning of a log."""


@command.command()
@click.argument("topic", required=False)
@click.option(
    "--partition", "-p", "numbers", type=click.IntRange(0), multiple=True, help="Only this partition; all if not given."
)
@click.option("--before", metavar="OFFSET", help="Delete below this offset; `latest` deletes everything there is.")
@click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A JSON file as kafka-delete-records takes it.",
)
@click.confirmation_option("--yes", "-y", prompt="Deleted records cannot be brought back. Go on?", help="Do not ask.")
@json_option
@bootstrap_option
def delete(
    topic: str | None, numbers: tuple[int, ...], before: str | None, file: Path | None, as_json: bool, bootstrap: str
) -> None:
    """Delete the records of TOPIC below an offset."""
    if (file is None) == (topic is None or before is None):
        raise click.UsageError("give a TOPIC and --before, or --file")

    async def work() -> list[dict[str, object]]:
        async with admin(bootstrap) as client:
            if file is not None:
                wanted = _read(file)
            else:
                assert topic is not None
                assert before is not None
                description = await client.describe_topic(topic)
                found = numbers or tuple(part.partition for part in description.partitions)
                wanted = {(topic, number): _offset(before) for number in found}
            starts = await client.delete_records(wanted)
            return [{"topic": key[0], "partition": key[1], "earliest": start} for key, start in sorted(starts.items())]

    show(["topic", "partition", "earliest"], run(work()), as_json)


def _offset(text: str) -> int:
    if text == "latest":
        return HIGH_WATERMARK
    if not text.isdigit():
        raise click.UsageError(f"--before takes an offset or `latest`, not {text!r}")
    return int(text)


def _read(file: Path) -> dict[tuple[str, int], int]:
    """`{"partitions": [{"topic": …, "partition": …, "offset": …}], "version": 1}`."""
    try:
        return {(row["topic"], int(row["partition"])): int(row["offset"]) for row in json.loads(file.read_text())["partitions"]}
    except (ValueError, KeyError, TypeError) as error:
        raise click.ClickException(
            f'{file} is not {{"partitions": [{{"topic", "partition", "offset"}}, …]}}: {error!r}'
        ) from None
