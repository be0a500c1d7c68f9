"""`ottla sql`: one statement of Spark SQL over topics, printed as a table; with `--follow`, for as long as it is wanted."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.output import json_option, on_terminal, show, show_line
from ottla.cli.running import admin, bootstrap_option, parse_pairs, run

if TYPE_CHECKING:
    from rich.progress import TaskID

DEFAULT_ROWS = 100
LOOK_AGAIN_S = 0.3


@click.command()
@click.argument("statement")
@click.option("--follow", "-f", "is_following", is_flag=True, help="Go on with what arrives; Ctrl-C ends it.")
@click.option("--until-now", is_flag=True, help="With --follow: end when what is there now is read.")
@click.option(
    "--from", "start", type=click.Choice(["earliest", "latest"]), default="earliest", help="With --follow: where to start."
)
@click.option("--committed", is_flag=True, help="Leave out what is not committed.")
@click.option(
    "--latest-per-key", "tables", multiple=True, metavar="TOPIC", help="See this topic as a table: the last value of each key."
)
@click.option(
    "--columns",
    multiple=True,
    metavar="TOPIC=COLUMNS",
    callback=parse_pairs,
    help="The values of this topic are JSON with these columns, such as orders='id long, price double'.",
)
@click.option("--rows", type=click.IntRange(1), default=DEFAULT_ROWS, show_default=True, help="Print at most so many.")
@click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")
@json_option
@bootstrap_option
def command(
    statement: str,
    is_following: bool,
    until_now: bool,
    start: str,
    committed: bool,
    tables: tuple[str, ...],
    columns: dict[str, str],
    rows: int,
    master: str,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Run a statement of Spark SQL, or several with semicolons between them, of which the last is printed.

    Each topic is a table with the columns key, value (as text), topic, partition, offset, timestamp, timestampType and headers; a
    name with a dot or a dash stands in `backquotes`. With --columns its values are columns of their own, and the others stand beside
    them as _key, _topic, _partition, _offset, _timestamp, _deleted and _corrupt.
    """
    from ottla.spark.session import aside
    from ottla.spark.sql import Views
    from ottla.spark.sql import run as run_statement

    if until_now and not is_following:
        raise click.UsageError("--until-now goes with --follow")
    if tables and is_following:
        raise click.UsageError("--latest-per-key does not go with --follow: a table of the latest is a batch")
    topics = run(_topics(bootstrap))
    unknown = [each for each in (*tables, *columns) if each not in topics]
    if unknown:
        raise click.ClickException(f"there is no topic {', '.join(unknown)} at {bootstrap}")
    views = Views(bootstrap, is_following, start, committed, frozenset(tables), columns)
    with _session(master) as spark:
        frame = aside(lambda: run_statement(spark, views, topics, statement))
        if is_following:
            _follow(frame, until_now, as_json)
        else:
            _print(frame, rows, as_json)


async def _topics(bootstrap: str) -> list[str]:
    async with admin(bootstrap) as client:
        return list(await client.list_topics(internal=True))


@contextlib.contextmanager
def _session(master: str) -> Iterator[Any]:
    from ottla.spark.session import aside, said_to, session

    with tempfile.TemporaryDirectory(prefix="ottla-sql-") as folder:
        settings = {
            "spark.sql.warehouse.dir": folder,
            "spark.sql.session.timeZone": "UTC",
        }
        with said_to(Path(folder) / "spark.log"):  # a failed task's stack trace would come before our sentence
            spark = aside(lambda: session("ottla sql", master, settings))
        _hold_pysparks_tongue()
        try:
            with _progress(spark):
                yield spark
        finally:
            for query in spark.streams.active:
                query.stop()
            spark.stop()


def _hold_pysparks_tongue() -> None:
    """It logs every mistake in a statement as a line of JSON on standard error, before our sentence."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


@contextlib.contextmanager
def _progress(spark: Any) -> Iterator[None]:
    """A bar on a terminal for as long as Spark has tasks to do. It is drawn on standard error, and is gone when they are done."""
    if not (on_terminal() and sys.stderr.isatty()):
        yield
        return
    from rich.console import Console
    from rich.progress import Progress

    over = threading.Event()

    def watch() -> None:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bars: dict[int, TaskID] = {}
            while not over.wait(LOOK_AGAIN_S):
                tracker = spark.sparkContext.statusTracker()
                active = {number: tracker.getStageInfo(number) for number in tracker.getActiveStageIds()}
                for number in [each for each in bars if each not in active]:
                    progress.remove_task(bars.pop(number))
                for number, stage in active.items():
                    if stage is not None:
                        bar = bars.get(number) or bars.setdefault(number, progress.add_task(f"stage {number}"))
                        progress.update(bar, completed=stage.numCompletedTasks, total=stage.numTasks)

    watching = threading.Thread(target=watch, name="ottla-progress", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _print(frame: Any, most: int, as_json: bool) -> None:
    from ottla.spark.session import aside
    from ottla.spark.sql import plainly

    found = aside(lambda: plainly(lambda: frame.limit(most + 1).collect()))
    if frame.columns:
        show(frame.columns, [_cells(row.asDict()) for row in found[:most]], as_json)
    if len(found) > most:
        click.echo(f"the first {most} rows; --rows prints more", err=True)


def _follow(frame: Any, until_now: bool, as_json: bool) -> None:
    from ottla.spark.session import aside
    from ottla.spark.sql import follow, plainly

    def tell(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        if as_json:
            for row in rows:
                show_line(_cells(row))
        else:
            show(columns, [_cells(row) for row in rows], False)

    with tempfile.TemporaryDirectory(prefix="ottla-follow-") as checkpoint:
        query = aside(lambda: follow(frame, tell, checkpoint, until_now))
        try:
            aside(lambda: plainly(query.awaitTermination))
        finally:
            query.stop()


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Times, decimals and nested rows as what can be printed."""
    return {name: _cell(value) for name, value in row.items()}


def _cell(value: Any) -> Any:
    if hasattr(value, "asDict"):
        return _cells(value.asDict())
    if isinstance(value, dict):
        return _cells(value)
    if isinstance(value, list | tuple):
        return [_cell(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str | bytes | bytearray):
        return value
    return str(value)
