"""`ottla configs`: the settings of topics, brokers and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.cli.output import json_option, show
from ottla.cli.running import admin, bootstrap_option, parse_pairs, run

if TYPE_CHECKING:
    from ottla.client.admin import ConfigEntry, ConfigResource

KINDS = ("topic", "broker", "group")
ALL_BROKERS = "default"


@click.group()
def command() -> None:
    """Show and change the settings of topics, brokers and groups."""


def _resource(kind: str, name: str) -> ConfigResource:
    from ottla.client.admin import ConfigResource

    if kind == "topic":
        return ConfigResource.topic(name)
    if kind == "group":
        return ConfigResource.group(name)
    if name == ALL_BROKERS:
        return ConfigResource.broker(None)
    if not name.isdigit():
        raise click.UsageError(f"a broker is named by its id, or {ALL_BROKERS!r} for the default of all, not {name!r}")
    return ConfigResource.broker(int(name))


@command.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("names", nargs=-1, required=True)
@click.option("--all", "everything", is_flag=True, help="Also settings that have their default.")
@click.option("--name", "wanted", multiple=True, help="Only this setting; may be given several times.")
@json_option
@bootstrap_option
def describe(kind: str, names: tuple[str, ...], everything: bool, wanted: tuple[str, ...], as_json: bool, bootstrap: str) -> None:
    """Show settings: those that were set, or --all. A broker's NAME is its id, or `default` for all brokers."""
    resources = [_resource(kind, name) for name in names]

    async def work() -> dict[ConfigResource, dict[str, ConfigEntry]]:
        async with admin(bootstrap) as client:
            return await client.describe_configs(resources, names=wanted or None)

    rows = [
        {
            kind: resource.name or ALL_BROKERS,
            "name": entry.name,
            "value": entry.value,
            "source": entry.source.name.lower().replace("_", "-"),
            "read_only": entry.is_read_only,
            "sensitive": entry.is_sensitive,
        }
        for resource, entries in run(work()).items()
        for entry in sorted(entries.values(), key=lambda entry: entry.name)
        if everything or wanted or not entry.is_default
    ]
    show([kind, "name", "value", "source"], rows, as_json)


@command.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.option("--set", "settings", multiple=True, callback=parse_pairs, metavar="NAME=VALUE", help="Give a setting a value.")
@click.option("--unset", multiple=True, metavar="NAME", help="Give a setting its default back.")
@click.option("--append", multiple=True, callback=parse_pairs, metavar="NAME=VALUE", help="Add to a setting that is a list.")
@click.option("--subtract", multiple=True, callback=parse_pairs, metavar="NAME=VALUE", help="Take from a setting that is a list.")
@bootstrap_option
def alter(
    kind: str,
    name: str,
    settings: dict[str, str],
    unset: tuple[str, ...],
    append: dict[str, str],
    subtract: dict[str, str],
    bootstrap: str,
) -> None:
    """Change single settings; the others stay. It acts at once."""
    from ottla.client.admin import AlterOperation, ConfigChange

    changes = [ConfigChange(key, value) for key, value in settings.items()]
    changes += [ConfigChange(key, None, AlterOperation.DELETE) for key in unset]
    changes += [ConfigChange(key, value, AlterOperation.APPEND) for key, value in append.items()]
    changes += [ConfigChange(key, value, AlterOperation.SUBTRACT) for key, value in subtract.items()]
    if not changes:
        raise click.UsageError("nothing to change: give --set, --unset, --append or --subtract")
    resource = _resource(kind, name)

    async def work() -> None:
        async with admin(bootstrap) as client:
            await client.alter_configs({resource: changes})

    run(work())
    click.echo(f"changed {kind} {name}")
