"""`ottla up`: a cluster on this machine, in the foreground."""

from __future__ import annotations

import shutil
import sys
import tempfile

import click

from ottla.cli.running import logging_option, parse_pairs, start_logging

DEFAULT_PORT = 9092
DEFAULT_DATA = "ottla-data"
MAX_BROKERS = 16


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port of the first broker; 0 is any free one.",
)
@click.option(
    "--brokers", type=click.IntRange(1, MAX_BROKERS), default=1, show_default=True, help="How many nodes, on ports that follow."
)
@click.option(
    "--data", default=DEFAULT_DATA, show_default=True, metavar="DIR", help="Where to keep the data: node K writes to DIR/node-K."
)
@click.option("--ephemeral", is_flag=True, help="Keep the data in a temporary folder, and remove it at the end.")
@click.option(
    "--set", "settings", multiple=True, callback=parse_pairs, metavar="NAME=VALUE", help="A broker setting, by Kafka's name."
)
@logging_option
def command(host: str, port: int, brokers: int, data: str, ephemeral: bool, settings: dict[str, str], log_level: str) -> int:
    """Start a cluster here and run it until Ctrl-C.

    Prints `ready bootstrap=HOST:PORT` once it serves.
    """
    start_logging(log_level)
    if not ephemeral:
        return _run(host, port, brokers, data, settings, log_level)
    folder = tempfile.mkdtemp(prefix="ottla-")
    try:
        return _run(host, port, brokers, folder, settings, log_level)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(host: str, port: int, brokers: int, data: str, settings: dict[str, str], log_level: str) -> int:
    from ottla.embedded.formatting import cluster_id_in, format_node, new_id, nodes_in
    from ottla.embedded.properties import plan, properties

    check_settings(settings)
    held = nodes_in(data)
    if held not in (0, brokers):
        raise click.ClickException(
            f"{data} holds a cluster of {held}, and who votes in it is fixed: --brokers {held}, or another --data"
        )
    plans = plan(brokers, data, host=host, port=port)
    cluster_id = cluster_id_in(data) or new_id()
    for node in plans:
        format_node(node.directory, cluster_id, node.node_id)
    every = [properties(node, plans, settings) for node in plans]
    if brokers > 1:
        from ottla.embedded.children import run_children

        return run_children(plans, every, log_level, announce)
    from ottla.broker.main import run_loop, say_ready, serve

    return run_loop(serve(every[0], say_ready))


def check_settings(settings: dict[str, str]) -> None:
    """Kafka lets unknown names pass; on a command line they are almost always mistyped."""
    import difflib

    from ottla.model.settings import BROKER_SETTINGS

    for name in settings:
        if name not in BROKER_SETTINGS:
            near = difflib.get_close_matches(name, BROKER_SETTINGS, 1)
            raise click.ClickException(f"there is no broker setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def announce(bootstrap: str) -> None:
    sys.stdout.write(f"ready bootstrap={bootstrap}\n")
    sys.stdout.flush()
