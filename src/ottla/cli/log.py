"""`ottla log dump`: what is in the files of a log, without a broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ottla.cli.decoding import KINDS
from ottla.cli.dump import dump_file, files_of
from ottla.cli.output import json_option, plain, show_line, text, time_text


@click.group()
def command() -> None:
    """Look into the files of a log."""


@command.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--records/--no-records", default=True, help="Show the records inside the batches.", show_default=True)
@click.option(
    "--decoder", type=click.Choice(KINDS), help="How to read the records of internal topics; by the folder's name if not given."
)
@json_option
def dump(files: tuple[Path, ...], records: bool, decoder: str | None, as_json: bool) -> None:
    """Print batches, records, control records, indexes, snapshots and checkpoints.

    FILES are files of a log, or a partition's folder. The exit code is 1 when something in them is damaged.
    """
    damaged = False
    every = [file for path in files for file in files_of(path)]
    for file in every:
        if not as_json:
            click.secho(str(file), bold=True)
        for row in dump_file(file, records=records, decoder=decoder):
            damaged |= row["kind"] == "error"
            if as_json:
                show_line({"file": str(file)} | row)
            else:
                _print(row)
    if damaged:
        raise click.exceptions.Exit(1)


def _print(row: dict[str, Any]) -> None:
    match row["kind"]:
        case "batch":
            click.echo(_batch_line(row))
        case "record" | "control":
            click.echo(_record_line(row))
        case "error":
            place = f" at position {row['position']}" if "position" in row else ""
            click.secho(f"  damaged{place}: {row['reason']}", fg="red")
        case _:
            shown = {name: value for name, value in row.items() if name != "kind"}
            click.echo(f"  {row['kind']}: " + " ".join(f"{name}={text(value)}" for name, value in shown.items()))


def _batch_line(row: dict[str, Any]) -> str:
    parts = [
        f"batch {row['base_offset']}..{row['last_offset']}",
        f"count={row['count']} position={row['position']} size={row['size']} leader_epoch={row['leader_epoch']}",
        f"compression={row['compression']} {row['timestamp_type']}={text(time_text(row['max_timestamp']))}",
    ]
    if row["producer_id"] >= 0:
        parts.append(
            f"producer={row['producer_id']}/{row['producer_epoch']} sequence={row['base_sequence']}..{row['last_sequence']}"
        )
    parts += [name for name in ("transactional", "control") if row[name]]
    if row["delete_horizon"] is not None:
        parts.append(f"delete_horizon={time_text(row['delete_horizon'])}")
    return "  " + click.style(" ".join(parts), fg="cyan")


def _record_line(row: dict[str, Any]) -> str:
    start = f"    {row['offset']} {text(time_text(row['timestamp']))}"
    if "decoded" in row:
        return f"{start} {json.dumps(plain(row['decoded']))}"
    pairs = ",".join(f"{header['key']}={_content(header['value'])}" for header in row["headers"])
    headers = f" headers[{pairs}]" if pairs else ""
    return f"{start} key={_content(row['key'])} value={_content(row['value'])}{headers}"


def _content(value: bytes | None) -> str:
    return "null" if value is None else text(value)
