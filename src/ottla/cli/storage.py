"""`ottla storage`: prepare the folders a node writes to."""

from __future__ import annotations

from collections.abc import Iterable

import click


@click.group()
def command() -> None:
    """Prepare a node's folders: make a cluster id, format."""


@command.command("random-uuid")
def random_uuid() -> None:
    """Print a new id, as Kafka writes them: 16 random bytes in URL-safe base64."""
    from ottla.embedded.formatting import new_id

    click.echo(new_id())


@command.command("format")
@click.argument("file", type=click.Path())
@click.option("--cluster-id", "-t", required=True, help="The same for all nodes of a cluster; make one with `random-uuid`.")
@click.option("--ignore-formatted", "-g", is_flag=True, help="A folder that is formatted already is no failure.")
@click.option(
    "--feature", "-f", "features", multiple=True, metavar="NAME=LEVEL", help="The level that a new cluster starts with."
)
def format_folders(file: str, cluster_id: str, ignore_formatted: bool, features: tuple[str, ...]) -> None:
    """Format the folders named by log.dirs in FILE."""
    from ottla.broker.config import NodeConfig, read_properties
    from ottla.embedded.formatting import format_node, is_formatted
    from ottla.host.disk import RealDisk

    config = NodeConfig.from_properties(read_properties(RealDisk(), file))
    if is_formatted(config.directory):
        if not ignore_formatted:
            raise click.ClickException(f"{config.directory} is formatted already; --ignore-formatted leaves it as it is")
        click.echo(f"{config.directory} is formatted already")
        return
    format_node(config.directory, cluster_id, config.node_id, feature_levels(features))
    click.echo(f"formatted {config.directory} for node {config.node_id} of cluster {cluster_id}")


def feature_levels(chosen: Iterable[str]) -> dict[str, int]:
    """What a new cluster starts with: this build's own levels, and instead of them what was chosen as NAME=LEVEL."""
    from ottla.metadata.features import BOOTSTRAP_LEVELS, SERVED_LEVELS

    levels = dict(BOOTSTRAP_LEVELS)
    for each in chosen:
        name, _, level = each.partition("=")
        if name not in SERVED_LEVELS:
            raise click.ClickException(f"there is no feature {name!r}; there are {', '.join(sorted(SERVED_LEVELS))}")
        served = SERVED_LEVELS[name]
        if not level.isdecimal() or not served.lowest <= int(level) <= served.highest:
            raise click.ClickException(f"--feature {each}: levels {served.lowest} to {served.highest} of {name} are served")
        levels[name] = int(level)
    return levels
