"""`ottla pipeline`: declared pipelines of Spark over topics: write an example out, check a project, run it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.main import INTERRUPTED
from ottla.cli.output import json_option, show, show_line
from ottla.cli.running import bootstrap_option, parse_pairs

if TYPE_CHECKING:
    from ottla.spark.pipelines import Flow, Outcome
    from ottla.spark.session import Result

project_argument = click.argument("project", type=click.Path(path_type=Path), default=Path("."))
master_option = click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")
conf_option = click.option(
    "--conf", "settings", multiple=True, metavar="NAME=VALUE", callback=parse_pairs, help="A setting of Spark."
)


@click.group()
def command() -> None:
    """Spark Declarative Pipelines over topics: a folder with a spark-pipeline.yml and the tables, views and sinks it names."""


@command.command("init")
@click.argument("example", required=False)
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@json_option
def init(example: str | None, folder: Path | None, as_json: bool) -> None:
    """Write out an example as a project of your own, in FOLDER or a folder of the same name. Without arguments: list the examples."""
    from ottla.spark.examples import EXAMPLES, write_out

    if example is None:
        show(["example", "summary"], [{"example": name, "summary": summary} for name, summary in EXAMPLES.items()], as_json)
        return
    if example not in EXAMPLES:
        raise click.UsageError(f"there is no example {example!r}; there are {', '.join(EXAMPLES)}")
    target = folder or Path(example)
    written = write_out(example, target)
    show(["file"], [{"file": str(path)} for path in written], as_json)
    if not as_json:
        click.echo(f"\n{target / 'README.md'} tells what it does. To see it work, with a broker at hand:")
        click.echo(f"  python {target / 'feed.py'}\n  ottla pipeline run {target}")


@command.command("run")
@project_argument
@master_option
@conf_option
@click.option("--refresh", multiple=True, metavar="TABLE", help="Only this one, and again if several.")
@click.option("--full-refresh", multiple=True, metavar="TABLE", help="Make this table anew from the beginning.")
@click.option("--full-refresh-all", is_flag=True, help="Make everything anew from the beginning.")
@json_option
@bootstrap_option
def run(
    project: Path,
    master: str,
    settings: dict[str, str],
    refresh: tuple[str, ...],
    full_refresh: tuple[str, ...],
    full_refresh_all: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Run a pipeline once: every flow takes what is there now and ends. PROJECT is a folder, or a specification in it.

    The next run goes on where this one ended.
    """
    if full_refresh_all and (refresh or full_refresh):
        raise click.UsageError("--full-refresh-all goes with neither --refresh nor --full-refresh")
    from ottla.spark.pipelines import execute, open_project, opened

    found = open_project(project)
    _tell_start(found.name, as_json)

    def work() -> Outcome:
        with opened(found, bootstrap, master, settings) as spark:
            return execute(
                spark,
                found,
                _Teller(as_json),
                refresh=refresh,
                full_refresh=full_refresh,
                full_refresh_all=full_refresh_all,
            )

    outcome = _until_interrupted(work)
    if as_json:
        show_line({"run": found.name, "tables": outcome.tables})
        return
    if outcome.tables:
        click.echo()
        show(["table", "rows"], [{"table": name, "rows": rows} for name, rows in outcome.tables.items()], False)


@command.command("dry-run")
@project_argument
@master_option
@conf_option
@json_option
@bootstrap_option
def dry_run(project: Path, master: str, settings: dict[str, str], as_json: bool, bootstrap: str) -> None:
    """Check a pipeline without running it: its files are loaded, every flow is resolved, nothing is read or written."""
    from ottla.spark.pipelines import execute, open_project, opened

    found = open_project(project)
    _tell_start(found.name, as_json)

    def work() -> None:
        with opened(found, bootstrap, master, settings) as spark:
            execute(spark, found, lambda flow: None, dry=True)

    _until_interrupted(work)
    if as_json:
        show_line({"dry-run": found.name})  # Spark tells of no flow in a dry run
    else:
        click.echo(f"{found.name} can be run")


def _until_interrupted(work: Callable[[], Result]) -> Result:
    """Ctrl-C ends the run as a crash of the driver does, and the next one goes on from there: Spark Connect, if it is asked to stop in the
    middle of an answer, now and then gives no other, and its threads complain of whoever ends before them."""
    from ottla.spark.session import aside, end_jvm, said_to

    try:
        return aside(work)
    except KeyboardInterrupt:
        sys.stdout.flush()
        with said_to(Path(os.devnull)):
            end_jvm()
            os._exit(INTERRUPTED)


def _tell_start(name: str, as_json: bool) -> None:
    if not as_json:
        click.echo(f"{name}: Spark starts …", err=True)


class _Teller:
    """One line for each change that a reader cares about."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._told: dict[str, str] = {}

    def __call__(self, flow: Flow) -> None:
        text = {"RUNNING": "runs", "COMPLETED": "done", "FAILED": "FAILED", "SKIPPED": "skipped"}.get(flow.state)
        if text is None:
            return
        rows = "" if flow.rows is None else f", {flow.rows:,} rows"
        took = "" if flow.seconds is None else f", {flow.seconds:.1f} s"
        line = f"{flow.name}: {text}{rows}{took}"
        if self._told.get(flow.name) == line:
            return
        self._told[flow.name] = line
        if self._as_json:
            show_line({"flow": flow.name, "state": flow.state, "rows": flow.rows, "seconds": flow.seconds})
        else:
            click.echo(line)
