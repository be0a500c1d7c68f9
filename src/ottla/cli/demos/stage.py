"""What a demo speaks through: narration, tables of live state, and claims that are checked in front of the audience.

On a terminal there is colour; in a pipe it is the same text without. A claim that does not hold is shown as such and makes the demo
fail in the end, but it goes on: what follows may tell why.
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.output import show
from ottla.model.errors import ApiError

if TYPE_CHECKING:
    from ottla.client.admin import Admin

WIDTH = 96
SLOW_S = 2.5
LOOK_AGAIN_S = 0.05


class Stage:
    def __init__(self, *, slow: bool = False, keep: bool = False) -> None:
        self.slow = slow
        self.keep = keep
        self.has_ended = False
        self.claims = 0
        self.failures: list[str] = []

    async def scene(self, title: str, *, why: str = "") -> None:
        """The next step begins. With --slow there is time to read the one before."""
        if self.slow:
            await asyncio.sleep(SLOW_S)
        click.echo()
        click.secho(f"── {title} ".ljust(WIDTH, "─"), fg="cyan", bold=True)
        if why:
            self.say(why)

    def say(self, text: str) -> None:
        for line in textwrap.wrap(" ".join(text.split()), WIDTH):
            click.echo(line)

    def command(self, line: str) -> None:
        """What one would type to do the same by hand."""
        click.secho(f"$ {line}", fg="yellow")

    def lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            click.echo(f"  {line}")

    def table(self, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        show(columns, rows, False)

    def check(self, claim: str, holds: bool, found: object = None) -> None:
        """A claim, and whether it holds."""
        self.claims += 1
        if holds:
            click.echo(click.style("✔ ", fg="green", bold=True) + claim)
        else:
            self.failures.append(claim)
            click.echo(click.style(f"✘ {claim}", fg="red", bold=True) + (f" (found {found})" if found is not None else ""))

    async def wait_for(self, what: str, is_so: Callable[[], Awaitable[bool]], limit_s: float = 20.0) -> bool:
        """Wait until something has happened, at most so long; the claim is that it does."""
        try:
            async with asyncio.timeout(limit_s):
                while not await is_so():  # noqa: ASYNC110 - the answer comes from the cluster
                    await asyncio.sleep(LOOK_AGAIN_S)
        except TimeoutError:
            self.check(f"{what} within {limit_s:.0f} s", False)
            return False
        self.check(what, True)
        return True

    async def create_topic(self, admin: Admin, name: str, partitions: int, copies: int = 1, **configs: str) -> None:
        """Create a topic, and wait until every broker that may be asked has heard of it."""
        options = "".join(f" --config {key.replace('_', '.')}={value}" for key, value in configs.items())
        self.command(f"ottla topics create {name} --partitions {partitions} --replication-factor {copies}{options}")
        await admin.create_topic(
            name, partitions, copies, configs={key.replace("_", "."): value for key, value in configs.items()}
        )
        brokers = len((await admin.describe_cluster()).brokers)

        async def is_known() -> bool:
            try:
                found = [await admin.describe_topic(name) for _ in range(2 * brokers)]
            except ApiError:
                return False
            return all(part.leader >= 0 for each in found for part in each.partitions)

        await self.wait_for(f"{name} is there, and each of its partitions has a leader", is_known)

    async def show_topic(self, admin: Admin, topic: str) -> None:
        description = await admin.describe_topic(topic)
        partitions = [(topic, part.partition) for part in description.partitions]
        ends = await admin.latest_offsets(
            [key for key, part in zip(partitions, description.partitions, strict=True) if part.leader >= 0]
        )
        self.table(
            ["partition", "leader", "replicas", "in_sync", "end"],
            [
                {
                    "partition": part.partition,
                    "leader": part.leader if part.leader >= 0 else None,
                    "replicas": list(part.replicas),
                    "in_sync": list(part.in_sync_replicas),
                    "end": ends.get(key),
                }
                for key, part in ((key, part) for key, part in zip(map(_key, partitions), description.partitions, strict=True))
            ],
        )

    def end(self) -> int:
        """The sum of the claims, told once, and the exit code."""
        if not self.has_ended:
            self.has_ended = True
            click.echo()
            if self.failures:
                click.secho(f"{len(self.failures)} of {self.claims} claims did not hold.", fg="red", bold=True)
            else:
                click.secho(f"All {self.claims} claims hold.", fg="green", bold=True)
        return 1 if self.failures else 0


def _key(partition: tuple[str, int]) -> Any:
    from ottla.model.ids import TopicPartition

    return TopicPartition(*partition)
