"""`ottla groups`: who is in a group, how far it is behind, and setting it somewhere else.

`reset-offsets` commits for a group that has no members: those that are running would go on from where they are and commit over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.moments import LATEST, MOMENT, Moment
from ottla.cli.output import json_option, show
from ottla.cli.running import admin, bootstrap_option, run
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.types import CommittedOffset, GroupDescription

EMPTY_STATES = ("Empty", "Dead")


@click.group()
def command() -> None:
    """Show groups and their lag, reset their offsets, delete them."""


# list ----------------------------------------------------------------------------------------------------------------------


@command.command("list")
@click.option("--state", "states", multiple=True, help="Only this state: Stable, Empty, PreparingRebalance, Assigning, …")
@click.option("--type", "types", multiple=True, help="Only this type: classic or consumer.")
@json_option
@bootstrap_option
def list_groups(states: tuple[str, ...], types: tuple[str, ...], as_json: bool, bootstrap: str) -> None:
    """List the groups of the cluster."""

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            found = await client.list_groups(states=states, types=types)
            return [
                {"group": row.id, "type": row.type.lower(), "state": row.state, "protocol_type": row.protocol_type}
                for row in found
            ]

    show(["group", "type", "state", "protocol_type"], run(work()), as_json)


# describe ------------------------------------------------------------------------------------------------------------------


@command.command()
@click.argument("groups", nargs=-1)
@click.option("--members", is_flag=True, help="The members and what they have, instead of partitions.")
@click.option("--summary", is_flag=True, help="One line for each group.")
@json_option
@bootstrap_option
def describe(groups: tuple[str, ...], members: bool, summary: bool, as_json: bool, bootstrap: str) -> None:
    """Show offsets, lag and members of GROUPS, partition by partition; of all groups if none is named."""

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            names = groups or tuple(listing.id for listing in await client.list_groups())
            found = await client.describe_groups(names) if names else {}
            rows: list[dict[str, Any]] = []
            for group in found.values():
                if members:
                    rows += _member_rows(group)
                elif summary:
                    rows.append(await _summary(client, group))
                else:
                    rows += await _partition_rows(client, group)
            return rows

    columns = ["group", "topic", "partition", "committed", "log_end", "lag", "member", "host", "client_id"]
    if members:
        columns = ["group", "member", "instance", "host", "client_id", "epoch", "partitions"]
    elif summary:
        columns = ["group", "type", "state", "assignor", "coordinator", "members", "partitions", "lag"]
    show(columns, run(work()), as_json)


async def _partition_rows(client: Admin, group: GroupDescription) -> list[dict[str, Any]]:
    """Every partition that is committed for or assigned, with its owner."""
    committed = await client.group_offsets(group.id)
    owners = {place: member for member in group.members for place in member.assignment}
    places = sorted({*committed, *owners})
    ends = await _ends(client, places)
    rows = []
    for place in places:
        offset, end, owner = committed.get(place), ends.get(place), owners.get(place)
        rows.append(
            {
                "group": group.id,
                "topic": place.topic,
                "partition": place.partition,
                "committed": None if offset is None else offset.offset,
                "log_end": end,
                "lag": None if offset is None or end is None else max(end - offset.offset, 0),
                "member": None if owner is None else owner.id,
                "host": None if owner is None else owner.host,
                "client_id": None if owner is None else owner.client_id,
                "metadata": offset.metadata if offset is not None else "",
            }
        )
    return rows


async def _ends(client: Admin, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Where the logs end; a topic that was deleted meanwhile has no end."""
    known = await client.list_topics(internal=True)
    there = [place for place in places if place.topic in known]
    return await client.latest_offsets(there) if there else {}


def _member_rows(group: GroupDescription) -> list[dict[str, Any]]:
    return [
        {
            "group": group.id,
            "member": member.id,
            "instance": member.instance_id,
            "host": member.host,
            "client_id": member.client_id,
            "epoch": member.epoch,
            "partitions": [str(place) for place in sorted(member.assignment)],
        }
        for member in group.members
    ]


async def _summary(client: Admin, group: GroupDescription) -> dict[str, Any]:
    rows = await _partition_rows(client, group)
    return {
        "group": group.id,
        "type": group.type.lower(),
        "state": group.state,
        "assignor": group.assignor or None,
        "coordinator": group.coordinator.id,
        "members": len(group.members),
        "partitions": len(rows),
        "lag": sum(row["lag"] or 0 for row in rows),
    }


# reset-offsets -------------------------------------------------------------------------------------------------------------


@command.command("reset-offsets")
@click.argument("group")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:P,P…]", help="Which topics, or some of their partitions.")
@click.option("--all-topics", is_flag=True, help="All topics the group has committed for.")
@click.option("--to", type=MOMENT, help="`earliest`, `latest`, a time, or an age like 15m.")
@click.option("--to-offset", type=click.IntRange(0), help="This offset.")
@click.option("--shift-by", type=int, help="So many records forward, or with a minus back.")
@click.option("--to-current", is_flag=True, help="Where it is; partitions it has not committed for go to their end.")
@click.option("--dry-run", is_flag=True, help="Only show what would be.")
@json_option
@bootstrap_option
def reset_offsets(
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    to: Moment | None,
    to_offset: int | None,
    shift_by: int | None,
    to_current: bool,
    dry_run: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Set a GROUP without members to other offsets. Offsets outside a log are moved to its nearest end."""
    if bool(topics) == all_topics:
        raise click.UsageError("say which topics: --topic, or --all-topics")
    if sum((to is not None, to_offset is not None, shift_by is not None, to_current)) != 1:
        raise click.UsageError("say where to: one of --to, --to-offset, --shift-by, --to-current")

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            committed = await client.group_offsets(group)
            await _check_nobody_is_there(client, group)
            places = sorted(committed) if all_topics else await _places(client, topics)
            if not places:
                raise ApiError(
                    ErrorCode.GROUP_ID_NOT_FOUND, f"the group {group} has committed for no topic yet; name one with --topic"
                )
            wanted = await _targets(client, places, committed, to, to_offset, shift_by)
            if not dry_run:
                await client.alter_group_offsets(
                    group, {(place.topic, place.partition): offset for place, offset in wanted.items()}
                )
            return [
                {
                    "group": group,
                    "topic": place.topic,
                    "partition": place.partition,
                    "old": committed[place].offset if place in committed else None,
                    "new": wanted[place],
                }
                for place in places
            ]

    show(["group", "topic", "partition", "old", "new"], run(work()), as_json)


async def _check_nobody_is_there(client: Admin, group: str) -> None:
    try:
        found = await client.describe_group(group)
    except ApiError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return  # a group begins with its first commit
        raise
    if found.state not in EMPTY_STATES:
        count = len(found.members)
        members = f"{count} member{'' if count == 1 else 's'}"
        message = f"the group {group} is {found.state} with {members}; stop its consumers first, they would commit over it"
        raise ApiError(ErrorCode.NON_EMPTY_GROUP, message)


async def _places(client: Admin, topics: Iterable[str]) -> list[TopicPartition]:
    chosen: dict[str, list[int] | None] = {}
    for text in topics:
        name, colon, listed = text.partition(":")
        if colon and not all(number.isdigit() for number in listed.split(",")):
            raise click.UsageError(f"{text!r} is not TOPIC or TOPIC:P,P…")
        chosen[name] = [int(number) for number in listed.split(",")] if colon else None
    described = await client.describe_topics(list(chosen))
    places = []
    for name, numbers in chosen.items():
        there = [part.partition for part in described[name].partitions]
        missing = sorted(set(numbers or ()) - set(there))
        if missing:
            message = f"the topic {name} has no partition {missing[0]}: it has {len(there)}"
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        places += [TopicPartition(name, number) for number in (there if numbers is None else numbers)]
    return sorted(set(places))


async def _targets(
    client: Admin,
    places: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
    to: Moment | None,
    to_offset: int | None,
    shift_by: int | None,
) -> dict[TopicPartition, int]:
    begins, ends = await client.earliest_offsets(places), await client.latest_offsets(places)
    if to is not None:
        timestamp = to.timestamp
        found = {} if timestamp == LATEST else await client.list_offsets(dict.fromkeys(places, timestamp))
        wanted = {place: found[place].offset if place in found and found[place].offset >= 0 else ends[place] for place in places}
    elif to_offset is not None:
        wanted = dict.fromkeys(places, to_offset)
    else:
        unset = [place for place in places if place not in committed]
        if shift_by is not None and unset:
            message = f"there is nothing to shift from: the group has not committed for {unset[0]}"
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        wanted = {place: committed[place].offset + (shift_by or 0) if place in committed else ends[place] for place in places}
    return {place: min(max(offset, begins[place]), ends[place]) for place, offset in wanted.items()}


# delete ----------------------------------------------------------------------------------------------------------------------


@command.command()
@click.argument("groups", nargs=-1, required=True)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:P,P…]", help="Forget only the offsets of these topics.")
@bootstrap_option
def delete(groups: tuple[str, ...], topics: tuple[str, ...], bootstrap: str) -> None:
    """Delete GROUPS that have no members, with their offsets."""

    async def work() -> None:
        async with admin(bootstrap) as client:
            if not topics:
                await client.delete_groups(groups)
                return
            places = await _places(client, topics)
            for group in groups:
                await client.delete_group_offsets(group, places)

    run(work())
    for group in groups:
        click.echo(f"deleted {'offsets of ' if topics else ''}{group}")
