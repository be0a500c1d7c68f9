"""`ottla topics`: create, list, describe, alter, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ottla.cli.output import json_option, on_terminal, show
from ottla.cli.running import admin, bootstrap_option, parse_pairs, run
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition, uuid_text

if TYPE_CHECKING:
    from ottla.client.admin import Admin, PartitionDescription, Reassignment, TopicDescription


@click.group()
def command() -> None:
    """Create, list, describe, change and delete topics."""


def parse_assignment(_context: click.Context, _parameter: click.Parameter, text: str | None) -> dict[int, list[int]]:
    """`1:2,2:3` → partition 0 on brokers 1 and 2, partition 1 on 2 and 3; the first of each is the preferred leader."""
    if not text:
        return {}
    try:
        return {number: [int(broker) for broker in part.split(":")] for number, part in enumerate(text.split(","))}
    except ValueError:
        raise click.BadParameter(f"{text!r}: write the brokers of each partition, as in 1:2,2:3") from None


@command.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--partitions", "-p", type=click.IntRange(1), help="How many; the broker's num.partitions if not given.")
@click.option("--replication-factor", "-r", type=click.IntRange(1), help="Copies of each; the broker's default if not given.")
@click.option(
    "--config", "-c", "configs", multiple=True, callback=parse_pairs, metavar="NAME=VALUE", help="A setting of the topic."
)
@click.option("--replicas", "assignment", callback=parse_assignment, metavar="1:2,2:3", help="The brokers of each partition.")
@click.option("--if-not-exists", is_flag=True, help="A topic that is there already is no failure.")
@click.option("--validate-only", is_flag=True, help="Check, and create nothing.")
@bootstrap_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: dict[str, str],
    assignment: dict[int, list[int]],
    if_not_exists: bool,
    validate_only: bool,
    bootstrap: str,
) -> None:
    """Create topics."""
    if assignment and (partitions or replication_factor):
        raise click.UsageError(
            "--replicas says how many partitions and copies there are; leave --partitions and --replication-factor out"
        )

    async def work() -> None:
        async with admin(bootstrap) as client:
            for name in names:
                try:
                    made = await client.create_topic(
                        name,
                        partitions or -1,
                        replication_factor or -1,
                        configs=configs,
                        assignments=assignment,
                        validate_only=validate_only,
                    )
                except ApiError as error:
                    if not (if_not_exists and error.code == ErrorCode.TOPIC_ALREADY_EXISTS):
                        raise
                    click.echo(f"{name} exists already")
                    continue
                verb = "could be created" if validate_only else "created"
                click.echo(f"{verb} {name}: {made.partitions} partitions, replication factor {made.replication_factor}")

    run(work())


@command.command("list")
@click.option("--internal", is_flag=True, help="Also the cluster's own topics.")
@json_option
@bootstrap_option
def list_topics(internal: bool, as_json: bool, bootstrap: str) -> None:
    """List topics."""

    async def work() -> list[TopicDescription]:
        async with admin(bootstrap) as client:
            names = await client.list_topics(internal=internal)
            found = await client.describe_topics(list(names)) if names else {}
            return [found[name] for name in sorted(found)]

    topics = run(work())
    rows = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replication_factor": len(topic.partitions[0].replicas) if topic.partitions else 0,
            "topic_id": uuid_text(topic.id),
            "internal": topic.is_internal,
        }
        for topic in topics
    ]
    show(["topic", "partitions", "replication_factor", "topic_id"], rows, as_json)


@command.command()
@click.argument("names", nargs=-1)
@click.option("--internal", is_flag=True, help="Also the cluster's own topics, when no NAMES are given.")
@click.option("--under-replicated", is_flag=True, help="Only partitions some of whose copies lag behind.")
@click.option("--unavailable", is_flag=True, help="Only partitions without a leader.")
@json_option
@bootstrap_option
def describe(
    names: tuple[str, ...], internal: bool, under_replicated: bool, unavailable: bool, as_json: bool, bootstrap: str
) -> None:
    """Show the partitions of topics: leader, replicas, in-sync set, and which replicas are offline. All topics if no NAMES are given."""

    async def work() -> tuple[dict[str, TopicDescription], dict[str, dict[str, str]], dict[TopicPartition, Reassignment]]:
        async with admin(bootstrap) as client:
            found = await (client.describe_topics(names) if names else _all_described(client, internal))
            moves = await client.list_partition_reassignments() if under_replicated else {}
            return found, await _own_settings(client, list(found)), moves

    def wanted(partition: PartitionDescription) -> bool:
        move = moves.get(TopicPartition(partition.topic, partition.partition))
        copies = len(partition.replicas) - (
            0 if move is None else len(move.adding)
        )  # those on their way are missed by nobody yet
        if under_replicated and len(partition.in_sync_replicas) >= copies:
            return False
        return not (unavailable and partition.leader >= 0)

    topics, settings, moves = run(work())
    if as_json:
        show([], [_topic_row(topic, settings[name], wanted) for name, topic in sorted(topics.items())], True)
        return
    columns = ["topic", "partition", "leader", "leader_epoch", "replicas", "in_sync", "offline"]
    rows = [_partition_row(part) for _, topic in sorted(topics.items()) for part in topic.partitions if wanted(part)]
    if on_terminal():
        for name, own in sorted(settings.items()):
            if own:
                click.echo(f"{name}: " + ", ".join(f"{key}={value}" for key, value in own.items()))
    show(columns, rows, False)


def _topic_row(topic: TopicDescription, settings: dict[str, str], wanted: Any) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": uuid_text(topic.id),
        "internal": topic.is_internal,
        "configs": settings,
        "partitions": [_partition_row(partition) for partition in topic.partitions if wanted(partition)],
    }


def _partition_row(partition: PartitionDescription) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "leader": partition.leader if partition.leader >= 0 else None,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "in_sync": list(partition.in_sync_replicas),
        "offline": list(partition.offline_replicas),
        "eligible_leaders": list(partition.eligible_leader_replicas),
    }


async def _all_described(client: Admin, internal: bool) -> dict[str, TopicDescription]:
    """Without those that the broker asked second does not know: they are gone by now, or too new for it."""
    from ottla.client.errors import PartialFailure

    names = await client.list_topics(internal=internal)
    try:
        return await client.describe_topics(names) if names else {}
    except PartialFailure as partly:
        if any(error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for error in partly.errors.values()):
            raise
        return partly.results


async def _own_settings(client: Admin, names: list[str]) -> dict[str, dict[str, str]]:
    """The settings given to each topic itself."""
    from ottla.client.admin import ConfigResource, ConfigSource

    if not names:
        return {}
    found = await client.describe_configs([ConfigResource.topic(name) for name in names])
    return {
        resource.name: {
            entry.name: entry.value or "" for entry in entries.values() if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG
        }
        for resource, entries in found.items()
    }


@command.command()
@click.argument("name")
@click.option("--partitions", "-p", type=click.IntRange(1), help="The new number of partitions; it can only grow.")
@click.option("--set", "settings", multiple=True, callback=parse_pairs, metavar="NAME=VALUE", help="A setting of the topic.")
@click.option("--unset", multiple=True, metavar="NAME", help="A setting to give its default back.")
@bootstrap_option
def alter(name: str, partitions: int | None, settings: dict[str, str], unset: tuple[str, ...], bootstrap: str) -> None:
    """Add partitions to a topic, or change its settings.

    Records that are there stay where they are: a key may go to another partition afterwards.
    """
    if partitions is None and not settings and not unset:
        raise click.UsageError("nothing to change: give --partitions, --set or --unset")

    async def work() -> None:
        async with admin(bootstrap) as client:
            if settings or unset:
                await client.set_topic_configs(name, {**settings, **dict.fromkeys(unset)})
            if partitions is not None:
                await client.create_partitions(name, partitions)

    run(work())
    click.echo(f"changed {name}")


@command.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--if-exists", is_flag=True, help="A topic that is not there is no failure.")
@bootstrap_option
def delete(names: tuple[str, ...], if_exists: bool, bootstrap: str) -> None:
    """Delete topics with all their records."""

    async def work() -> None:
        async with admin(bootstrap) as client:
            for name in names:
                try:
                    await client.delete_topic(name)
                except ApiError as error:
                    if not (if_exists and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                        raise
                    click.echo(f"{name} is not there")
                    continue
                click.echo(f"deleted {name}")

    run(work())
