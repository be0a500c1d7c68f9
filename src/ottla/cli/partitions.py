"""`ottla partitions`: moving replicas from broker to broker, and electing leaders."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from ottla.cli.output import json_option, show
from ottla.cli.running import admin, bootstrap_option, run
from ottla.client.admin.types import ElectionType
from ottla.model.errors import ErrorCode, OttlaError
from ottla.model.ids import TopicPartition

LOOK_AGAIN_S = 0.2


@click.group()
def command() -> None:
    """Move replicas from broker to broker, and elect leaders."""


@command.command()
@click.argument("topic")
@click.argument("partition", type=int)
@click.argument("brokers", nargs=-1, type=int)
@click.option("--cancel", is_flag=True, help="Call a move under way off.")
@click.option("--wait/--no-wait", default=True, help="Wait until the move is done.")
@bootstrap_option
def reassign(topic: str, partition: int, brokers: tuple[int, ...], cancel: bool, wait: bool, bootstrap: str) -> None:
    """Put the replicas of a partition onto BROKERS, the preferred leader first. Records stay readable all the while."""
    if bool(brokers) == cancel:
        raise click.UsageError("name the brokers that shall have the partition, or --cancel")
    key = TopicPartition(topic, partition)

    async def work() -> None:
        async with admin(bootstrap) as client:
            await client.alter_partition_reassignments({key: None if cancel else brokers})
            while wait and await client.list_partition_reassignments([key]):  # noqa: ASYNC110 - the answer comes from the cluster
                await asyncio.sleep(LOOK_AGAIN_S)

    run(work())
    click.echo(f"{key}: the move is {'called off' if cancel else 'done' if wait else 'under way'}")


@command.command("list")
@json_option
@bootstrap_option
def list_moves(as_json: bool, bootstrap: str) -> None:
    """List the moves under way."""

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            return [
                {
                    "topic": key.topic,
                    "partition": key.partition,
                    "replicas": list(move.replicas),
                    "adding": list(move.adding),
                    "removing": list(move.removing),
                }
                for key, move in sorted((await client.list_partition_reassignments()).items())
            ]

    show(["topic", "partition", "replicas", "adding", "removing"], run(work()), as_json)


@command.command()
@click.argument("topic", required=False)
@click.argument("partition", type=int, required=False)
@click.option("--unclean", is_flag=True, help="Let a replica that is behind lead, losing records, where no other is left.")
@json_option
@bootstrap_option
def elect(topic: str | None, partition: int | None, unclean: bool, as_json: bool, bootstrap: str) -> None:
    """Give leadership back to the preferred replicas: of one partition, of a topic, or of all."""
    election = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            chosen = None
            if topic is not None:
                found = await client.describe_topic(topic)
                chosen = [(topic, row.partition) for row in found.partitions if partition in (None, row.partition)]
            outcomes = await client.elect_leaders(chosen, election)
            return [
                {"topic": key.topic, "partition": key.partition, "outcome": _outcome(error)}
                for key, error in sorted(outcomes.items())
            ]

    rows = run(work())
    show(["topic", "partition", "outcome"], rows, as_json)
    failed = [row for row in rows if row["outcome"] not in ("elected", "led already")]
    if failed:
        raise OttlaError(f"{len(failed)} of {len(rows)} elections failed")


def _outcome(error: Any) -> str:
    if error is None:
        return "elected"
    return "led already" if error.code == ErrorCode.ELECTION_NOT_NEEDED else error.code.name
