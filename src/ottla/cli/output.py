"""What commands print: tables on a terminal, plain aligned columns in a pipe, JSON when asked.

In: rows as plain mappings, whose keys are the JSON names and, with underscores as spaces, the column heads. Out: one listing on
standard output. A listing as JSON is one array; a stream (`consume`, `log dump`) is one object a line, so that it can be followed.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
Row = Mapping[str, Any]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def on_terminal() -> bool:
    return sys.stdout.isatty()


def show(columns: Sequence[str], rows: Sequence[Row], as_json: bool, *, title: str | None = None) -> None:
    """One listing. `columns` are the keys shown in a table, in order; JSON has all keys of the rows."""
    if as_json:
        click.echo(json.dumps([plain(row) for row in rows], indent=2 if on_terminal() else None))
    elif on_terminal():
        _rich_table(columns, rows, title)
    else:
        _plain_table(columns, rows)


def show_line(row: Row) -> None:
    """One object of a stream."""
    click.echo(json.dumps(plain(row)))


def plain(value: Any) -> Any:
    """What `json` can write: bytes become text where they are text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return json_bytes(bytes(value))
    return value


def json_bytes(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def text(value: Any) -> str:
    """A cell for people."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case bytes() | bytearray() | memoryview():
            return bytes(value).decode("utf-8", "backslashreplace")
        case Mapping():
            return ", ".join(f"{key}={text(item)}" for key, item in value.items()) or "-"
        case list() | tuple():
            return ",".join(text(item) for item in value) or "-"
        case _:
            return str(value)


def time_text(timestamp_ms: int) -> str | None:
    if timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    except (OverflowError, OSError, ValueError):
        return str(timestamp_ms)


def size_text(size: float) -> str:
    """Bytes for people, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def head(column: str) -> str:
    return column.replace("_", " ")


def _is_number(rows: Sequence[Row], column: str) -> bool:
    return all(isinstance(row.get(column), int | float | None) and not isinstance(row.get(column), bool) for row in rows)


def _plain_table(columns: Sequence[str], rows: Sequence[Row]) -> None:
    table = [[head(column).upper().replace(" ", "-") for column in columns]]
    table += [[text(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in table) for index in range(len(columns))]
    right = [bool(rows) and _is_number(rows, column) for column in columns]
    for line in table:
        cells = [
            cell.rjust(width) if number else cell.ljust(width) for cell, width, number in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def _rich_table(columns: Sequence[str], rows: Sequence[Row], title: str | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, header_style="bold cyan", title_style="bold", title_justify="left")
    for column in columns:
        table.add_column(head(column), justify="right" if rows and _is_number(rows, column) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(text(row.get(column))) for column in columns))
    Console().print(table)
