"""`ottla transactions`: which transactions there are, what they hold up, and an end to those that hang.

A transaction is ended in one of two ways. By its id, its coordinator aborts it and fences its producer. A transaction that no
coordinator knows any more (KIP-664) is found by its partition: a marker is written there by hand.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.output import json_option, show, time_text
from ottla.cli.running import admin, bootstrap_option, run
from ottla.model.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.types import ProducerState

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
UNKNOWN_COORDINATOR_EPOCH = 0  # what Kafka's own tool writes when the partition has not seen one


@click.group()
def command() -> None:
    """Show transactions, and end those that hang."""


@command.command("list")
@click.option("--state", "states", multiple=True, help="Only this state: Ongoing, PrepareCommit, CompleteAbort, Empty, …")
@click.option("--open", "only_open", is_flag=True, help="Only those under way.")
@click.option("--longer-than", "seconds", type=click.FloatRange(0), metavar="SECONDS", help="Only those that began longer ago.")
@click.option("--producer-id", "producer_ids", type=int, multiple=True, help="Only this producer.")
@click.option("--pattern", help="Only ids that match this expression (RE2) as a whole.")
@json_option
@bootstrap_option
def list_transactions(
    states: tuple[str, ...],
    only_open: bool,
    seconds: float | None,
    producer_ids: tuple[int, ...],
    pattern: str | None,
    as_json: bool,
    bootstrap: str,
) -> None:
    """List the transactional ids of the cluster."""

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            found = await client.list_transactions(
                states=states or (OPEN_STATES if only_open else ()),
                producer_ids=producer_ids,
                longer_than_ms=-1 if seconds is None else int(seconds * 1000),
                pattern=pattern,
            )
            return [{"id": row.id, "state": row.state, "producer_id": row.producer_id} for row in found]

    show(["id", "state", "producer_id"], run(work()), as_json)


@command.command()
@click.argument("ids", nargs=-1)
@click.option("--topic", help="The producers of a partition of this topic instead.")
@click.option("--partition", "-p", type=click.IntRange(0), help="Which one.")
@json_option
@bootstrap_option
def describe(ids: tuple[str, ...], topic: str | None, partition: int | None, as_json: bool, bootstrap: str) -> None:
    """Show all that is known of transactional IDS, or of the producers of a partition."""
    if (topic is None) != (partition is None) or bool(ids) == (topic is not None):
        raise click.UsageError("give transactional ids, or --topic and --partition")

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            if topic is not None and partition is not None:
                return await _producers(client, topic, partition)
            return [_row(each) for each in (await client.describe_transactions(ids)).values()]

    if topic is not None:
        columns = ["producer_id", "producer_epoch", "last_sequence", "last_time", "coordinator_epoch", "transaction_start_offset"]
    else:
        columns = [
            "id",
            "state",
            "coordinator",
            "producer_id",
            "producer_epoch",
            "timeout_ms",
            "started",
            "open_seconds",
            "partitions",
        ]
    show(columns, run(work()), as_json)


def _row(found: Any) -> dict[str, Any]:
    is_open = found.state in OPEN_STATES and found.start_time_ms is not None
    return {
        "id": found.id,
        "state": found.state,
        "coordinator": found.coordinator,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "started": time_text(found.start_time_ms) if found.start_time_ms is not None else None,
        "open_seconds": round(time.time() - found.start_time_ms / 1000, 1) if is_open else None,
        "partitions": [str(partition) for partition in sorted(found.partitions)],
    }


async def _producers(client: Admin, topic: str, partition: int) -> list[dict[str, Any]]:
    states = await _states(client, topic, partition)
    return [
        {
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "last_sequence": each.last_sequence,
            "last_time": time_text(each.last_timestamp),
            "coordinator_epoch": each.coordinator_epoch,
            "transaction_start_offset": each.current_transaction_start_offset,
        }
        for each in states
    ]


async def _states(client: Admin, topic: str, partition: int) -> tuple[ProducerState, ...]:
    [states] = (await client.describe_producers([(topic, partition)])).values()
    return states


@command.command()
@click.argument("transactional_id", required=False)
@click.option("--topic", help="A transaction that hangs in this topic …")
@click.option("--partition", "-p", type=click.IntRange(0), help="… in this partition …")
@click.option("--start-offset", type=click.IntRange(0), help="… from this offset on.")
@click.confirmation_option("--yes", "-y", prompt="What the transaction wrote will never be seen. Go on?", help="Do not ask.")
@json_option
@bootstrap_option
def abort(
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Abort the open transaction of TRANSACTIONAL_ID and fence its producer, or one that hangs in a partition."""
    by_place = (topic is not None, partition is not None, start_offset is not None)
    if (transactional_id is not None) == any(by_place) or (any(by_place) and not all(by_place)):
        raise click.UsageError("give a TRANSACTIONAL_ID, or --topic, --partition and --start-offset")

    async def work() -> dict[str, Any]:
        async with admin(bootstrap) as client:
            if transactional_id is not None:
                return await _abort_by_id(client, transactional_id)
            assert topic is not None and partition is not None and start_offset is not None  # noqa: PT018
            return await _abort_by_place(client, topic, partition, start_offset)

    show(["aborted", "producer_id", "producer_epoch"], [run(work())], as_json)


async def _abort_by_id(client: Admin, transactional_id: str) -> dict[str, Any]:
    """Asking for an id that nobody knows would create it: so it is looked up first."""
    [known] = (await client.describe_transactions([transactional_id])).values()
    if known.state not in OPEN_STATES:
        raise ApiError(ErrorCode.INVALID_TXN_STATE, f"{transactional_id} has no open transaction, it is {known.state}")
    fenced = (await client.fence_producers([transactional_id]))[transactional_id]
    return {"aborted": transactional_id, "producer_id": fenced.producer_id, "producer_epoch": fenced.producer_epoch}


async def _abort_by_place(client: Admin, topic: str, partition: int, start_offset: int) -> dict[str, Any]:
    states = await _states(client, topic, partition)
    found = next((each for each in states if each.current_transaction_start_offset == start_offset), None)
    if found is None:
        opened = sorted(o for each in states if (o := each.current_transaction_start_offset) is not None)
        where = f"; open ones begin at {', '.join(map(str, opened))}" if opened else ""
        raise ApiError(ErrorCode.INVALID_TXN_STATE, f"no transaction of {topic}-{partition} begins at {start_offset}{where}")
    epoch = found.coordinator_epoch if found.coordinator_epoch >= 0 else UNKNOWN_COORDINATOR_EPOCH
    await client.abort_transaction((topic, partition), found.producer_id, found.producer_epoch, epoch)
    place = f"{topic}-{partition}@{start_offset}"
    return {"aborted": place, "producer_id": found.producer_id, "producer_epoch": found.producer_epoch}
