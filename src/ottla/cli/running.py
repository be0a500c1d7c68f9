"""What commands that talk to a cluster share: the `--bootstrap` option, and a loop to run on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ottla.client.admin import Admin

Result = TypeVar("Result")
DEFAULT_BOOTSTRAP = "localhost:9092"
TOPIC_WAIT_MS = 3_000.0  # a mistyped topic is told sooner than by a client, which may be there before its topic

bootstrap_option = click.option(
    "--bootstrap",
    envvar="OTTLA_BOOTSTRAP",
    default=DEFAULT_BOOTSTRAP,
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT,…",
    help="Any brokers of the cluster.",
)


def admin(bootstrap: str) -> Admin:
    from ottla.client.admin import Admin

    return Admin(bootstrap_servers=bootstrap)


def client_settings(settings: Mapping[str, str], bootstrap: str) -> dict[str, object]:
    """Kafka's names with their text values → the client's own names, with numbers and truths as such."""
    return {"bootstrap_servers": bootstrap} | {name.replace(".", "_"): _value(text) for name, text in settings.items()}


def _value(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        return text


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end on a fresh loop, the fast one where it is installed. Ctrl-C cancels the work and lets it close what it opened."""
    from ottla.embedded.loops import new_loop

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


def parse_pairs(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """For options given as NAME=VALUE, several times."""
    pairs = {}
    for value in values:
        name, equals, content = value.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        pairs[name.strip()] = content.strip()
    return pairs


logging_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="warning",
    show_default=True,
    envvar="OTTLA_LOG_LEVEL",
    help="How much to tell on standard error; `info` has one line for each change of state.",
)


def start_logging(level: str) -> None:
    import logging

    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
