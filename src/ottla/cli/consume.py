"""`ottla consume`: records become lines."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ottla.cli.lines import Columns, Incoming, format_record, record_row
from ottla.cli.moments import EARLIEST, LATEST, MOMENT, Moment
from ottla.cli.output import show_line
from ottla.cli.running import TOPIC_WAIT_MS, bootstrap_option, client_settings, parse_pairs, run

if TYPE_CHECKING:
    from ottla.client.consumer import Consumer
    from ottla.client.positions import ConsumerRecord

POLL_MS = 250.0
DEFAULT_IDLE_S = 10.0  # without --follow, what has not come by then is not there


class Wish(NamedTuple):
    """What to read, and when to stop."""

    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    offset: int | None
    start: Moment | None
    max_records: int | None
    follow: bool
    idle_s: float | None


@click.command()
@click.argument("topics", nargs=-1, required=True)
@click.option("--group", "-g", help="Read as a member of this group: share the partitions, go on where it left off, commit.")
@click.option(
    "--from", "start", type=MOMENT, help="Where to begin: earliest, latest, a time, or an age like 15m.  [default: earliest]"
)
@click.option("--partition", "-p", "partitions", type=click.IntRange(0), multiple=True, help="Only this partition.")
@click.option("--offset", "-o", type=click.IntRange(0), help="Begin at this offset of each partition.")
@click.option("--max", "-n", "max_records", type=click.IntRange(1), help="Stop after so many records.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, instead of stopping at the present end.")
@click.option("--timeout", "idle_s", type=float, metavar="SECONDS", help="Stop when nothing comes for so long.")
@click.option("--keys/--no-keys", "-k", help="Print keys.")
@click.option("--partitions/--no-partitions", "show_partitions", help="Print topic and partition.")
@click.option("--offsets/--no-offsets", help="Print offsets.")
@click.option("--timestamps/--no-timestamps", "-t", help="Print times.")
@click.option("--headers/--no-headers", help="Print headers.")
@click.option("--separator", default="\t", help="What stands between the columns.  [default: a tab]")
@click.option("--json", "as_json", is_flag=True, help="Print each record as an object on a line of its own.")
@click.option("--committed", is_flag=True, help="Leave out records of transactions that were aborted or are still open.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    callback=parse_pairs,
    metavar="NAME=VALUE",
    help="A setting of the consumer, by Kafka's name.",
)
@bootstrap_option
def command(
    topics: tuple[str, ...],
    group: str | None,
    start: Moment | None,
    partitions: tuple[int, ...],
    offset: int | None,
    max_records: int | None,
    follow: bool,
    idle_s: float | None,
    keys: bool,
    show_partitions: bool,
    offsets: bool,
    timestamps: bool,
    headers: bool,
    separator: str,
    as_json: bool,
    committed: bool,
    settings: dict[str, str],
    bootstrap: str,
) -> None:
    """Print the records of TOPICS, up to the present end or --follow."""
    if group and (partitions or offset is not None):
        raise click.UsageError(
            "a group decides itself which partitions a member reads: leave --partition and --offset out, or --group"
        )
    if start is not None and offset is not None:
        raise click.UsageError("--from and --offset both say where to begin: give one")
    wish = Wish(topics, partitions, offset, start, max_records, follow, idle_s)
    columns = Columns(show_partitions, offsets, timestamps, headers, keys, separator)
    own: dict[str, Any] = client_settings(settings, bootstrap)
    own.setdefault("auto_offset_reset", "latest" if start == Moment(LATEST) else "earliest")
    own.setdefault("isolation_level", "read_committed" if committed else "read_uncommitted")
    if group:
        own["group_id"] = group
    run(_consume(wish, own, columns, as_json))


async def _consume(wish: Wish, settings: dict[str, Any], columns: Columns, as_json: bool) -> None:
    from ottla.client.consumer import Consumer

    async with Consumer(**settings) as consumer:
        if "group_id" in settings:
            consumer.subscribe(wish.topics)
            reader: _Reader = _Member(consumer, wish)
        else:
            reader = _Alone(consumer, wish)
        await reader.begin()
        left = wish.max_records
        while left != 0:
            records = await consumer.poll(POLL_MS, max_records=left)
            _print(records, columns, as_json)
            if left is not None:
                left -= len(records)
            if await reader.is_done(bool(records)):
                return


def _print(records: Sequence[ConsumerRecord], columns: Columns, as_json: bool) -> None:
    for record in records:
        incoming = Incoming(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            "LogAppendTime" if record.is_log_append_time else "CreateTime",
            record.key,
            record.value,
            record.headers,
        )
        if as_json:
            show_line(record_row(incoming))
        else:
            sys.stdout.write(format_record(incoming, columns) + "\n")
    if records:
        sys.stdout.flush()


class _Reader(ABC):
    """Where to begin, and whether all has been read."""

    def __init__(self, consumer: Consumer, wish: Wish) -> None:
        self.consumer, self.wish = consumer, wish
        self._idle_ms = 0.0
        limit_s = wish.idle_s if wish.idle_s is not None else None if wish.follow else DEFAULT_IDLE_S
        self._limit_ms = None if limit_s is None else limit_s * 1000

    async def begin(self) -> None:  # noqa: B027 - a member of a group is told by the group where to begin
        """Called once, before the first poll."""

    async def is_done(self, got_some: bool) -> bool:
        self._idle_ms = 0.0 if got_some else self._idle_ms + POLL_MS
        if self._limit_ms is not None and self._idle_ms >= self._limit_ms:
            return True
        return not self.wish.follow and await self.has_reached_the_end(got_some)

    @abstractmethod
    async def has_reached_the_end(self, got_some: bool) -> bool:
        """Whether all that was there has been read."""


class _Alone(_Reader):
    """Without a group: every partition, up to where it ended when we began."""

    async def begin(self) -> None:
        found = [await self.consumer.partitions_for(topic, timeout_ms=TOPIC_WAIT_MS) for topic in self.wish.topics]
        every = [(info.name, part.partition) for info in found for part in info.partitions]
        wanted = [key for key in every if not self.wish.partitions or key[1] in self.wish.partitions]
        missing = [number for number in self.wish.partitions if not any(key[1] == number for key in every)]
        if missing:
            raise click.ClickException(f"there is no partition {missing[0]} of {', '.join(self.wish.topics)}")
        self.consumer.assign(wanted)
        if self.wish.offset is not None:
            for key in wanted:
                self.consumer.seek(key, self.wish.offset)
        elif self.wish.start is not None and self.wish.start.timestamp not in (EARLIEST, LATEST):
            self.consumer.seek_to_time(self.wish.start.timestamp)
        self._ends = dict(await self.consumer.end_offsets(wanted))

    async def has_reached_the_end(self, got_some: bool) -> bool:
        for key, end in list(self._ends.items()):
            if await self.consumer.position(key) >= end:
                del self._ends[key]
        return not self._ends


class _Member(_Reader):
    """In a group: until nothing is left of the partitions that are ours."""

    async def has_reached_the_end(self, got_some: bool) -> bool:
        if got_some or not self.consumer.assignment():
            return False
        return not any((await self.consumer.lag()).values())
