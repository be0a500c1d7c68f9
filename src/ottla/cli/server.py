"""`ottla server FILE.properties`: one node, described as Apache Kafka's are."""

from __future__ import annotations

import os
import signal
import threading

import click

from ottla.cli.running import logging_option, parse_pairs, start_logging


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--override",
    "overrides",
    multiple=True,
    callback=parse_pairs,
    metavar="NAME=VALUE",
    help="A property that wins over the file.",
)
@click.option("--with-parent", is_flag=True, hidden=True, help="Stop when standard input ends.")
@logging_option
def command(file: str, overrides: dict[str, str], with_parent: bool, log_level: str) -> int:
    """Run one node from a properties file, until SIGTERM or Ctrl-C. Its folder must be formatted (`ottla storage format`)."""
    start_logging(log_level)
    from ottla.broker.config import NodeConfig, read_properties
    from ottla.broker.main import run_loop, say_ready, serve
    from ottla.embedded.formatting import is_formatted
    from ottla.host.disk import RealDisk

    properties = read_properties(RealDisk(), file) | overrides
    directory = NodeConfig.from_properties(properties).directory
    if not is_formatted(directory):
        raise click.ClickException(f"{directory} is not formatted; first run `ottla storage format {file} --cluster-id ID`")
    if with_parent:
        threading.Thread(target=_stop_with_standard_input, daemon=True).start()
    return run_loop(serve(properties, say_ready))


def _stop_with_standard_input() -> None:
    """Whoever started this node holds the other end, and lets it go by ending, even by kill -9."""
    while os.read(0, 4096):  # not through sys.stdin: its lock, held by this thread, would abort the interpreter as it ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)
