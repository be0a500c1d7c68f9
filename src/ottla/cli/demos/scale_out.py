"""`scale-out`: four partitions and a group of 1, 2, 4 and 5 consumers; the fifth idles; one dies."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from ottla.cli.demos.stage import Stage
from ottla.client.admin import Admin, GroupDescription
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.errors import OttlaError

TOPIC, GROUP, PARTITIONS = "work", "workers", 4
SESSION_MS = 2_000  # how long the one that dies goes unnoticed
LIMIT_S = 20.0


class Worker:
    """A consumer that reads until it is told to stop."""

    def __init__(self, bootstrap: str, name: str, read: list[tuple[str, int]]) -> None:
        self.name = name
        self._consumer = Consumer(
            bootstrap_servers=bootstrap,
            group_id=GROUP,
            client_id=name,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
            auto_commit_interval_ms=500,
        )
        self._read = read

    async def __aenter__(self) -> Worker:
        await self._consumer.start()
        self._consumer.subscribe([TOPIC])
        self._task = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        while True:
            self._read += [(self.name, int(record.value)) for record in await self._consumer.poll(500)]

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._consumer.close()


async def play(stage: Stage) -> None:
    settings = {"group.min.session.timeout.ms": "500", "offsets.topic.num.partitions": "4"}
    await stage.scene(
        "Four partitions, one consumer",
        why="Consumers with the same group id share the partitions: each partition has one of them at a time.",
    )
    async with (
        EmbeddedCluster(1, settings=settings) as cluster,
        AsyncExitStack() as workers,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        await stage.create_topic(admin, TOPIC, PARTITIONS)
        read: list[tuple[str, int]] = []
        sender = asyncio.create_task(_send(cluster.bootstrap))
        workers.push_async_callback(_cancel, sender)
        stage.say("The first is a process of its own, because it is the one that will die.")
        first = await workers.enter_async_context(_process(stage, cluster.bootstrap, "worker-1"))
        await _settles(stage, admin, 1, [4])
        for count in (2, 4, 5):
            await stage.scene(f"{count} consumers", why=WHY[count])
            for number in range(3 if count == 4 else count, count + 1):
                await workers.enter_async_context(Worker(cluster.bootstrap, f"worker-{number}", read))
            await _settles(stage, admin, count, SHARES[count])
        stage.check("no two of them read the same record", _duplicates(read) == 0, _duplicates(read))
        await stage.scene(
            "One dies",
            why="kill -9: it cannot say good-bye. When its heartbeats stay away for the session time-out, the group shares anew.",
        )
        first.kill()
        await _settles(stage, admin, 4, [1, 1, 1, 1])
        await _catches_up(stage, admin, sender)


WHY = {
    2: "Who joins makes the group share anew: a rebalance.",
    4: "Now each has a partition of its own, which is as far as the work can be spread.",
    5: "There are only four partitions, so one consumer has nothing to do but wait until another fails.",
}
SHARES = {2: [2, 2], 4: [1, 1, 1, 1], 5: [0, 1, 1, 1, 1]}


@asynccontextmanager
async def _process(stage: Stage, bootstrap: str, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    options = ["--group", GROUP, "--follow", "--set", f"session.timeout.ms={SESSION_MS}", "--set", "heartbeat.interval.ms=300"]
    stage.command(f"ottla consume {TOPIC} {' '.join(options)} &")
    command = [sys.executable, "-m", "ottla", "consume", TOPIC, *options, "--set", f"client.id={name}", "--bootstrap", bootstrap]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.wait()


async def _catches_up(stage: Stage, admin: Admin, sender: asyncio.Task[None]) -> None:
    """What the dead one had not committed is read by its heir."""
    await _cancel(sender)
    partitions = [(TOPIC, number) for number in range(PARTITIONS)]
    ends = await admin.latest_offsets(partitions)

    async def has_no_lag() -> bool:
        committed = await admin.group_offsets(GROUP)
        return all(committed[key].offset >= end if key in committed else end == 0 for key, end in ends.items())

    await stage.wait_for("the survivors read and commit everything that was sent: the group has no lag", has_no_lag, LIMIT_S)
    committed = await admin.group_offsets(GROUP)
    rows = [
        {"partition": key.partition, "committed": committed[key].offset, "end": end, "lag": end - committed[key].offset}
        for key, end in sorted(ends.items())
        if key in committed
    ]
    stage.table(["partition", "committed", "end", "lag"], rows)


async def _settles(stage: Stage, admin: Admin, members: int, shares: list[int]) -> None:
    async def is_settled() -> bool:
        group = await _group(admin)
        return group is not None and group.state.lower() == "stable" and sorted(_shares(group)) == sorted(shares)

    await stage.wait_for(
        f"{members} consumers share {PARTITIONS} partitions as {', '.join(map(str, shares))}", is_settled, LIMIT_S
    )
    group = await _group(admin)
    if group is None:
        return
    rows = [
        {"consumer": member.client_id, "partitions": [partition.partition for partition in sorted(member.assignment)]}
        for member in sorted(group.members, key=lambda member: member.client_id)
    ]
    stage.table(["consumer", "partitions"], rows)
    every = sorted(partition.partition for member in group.members for partition in member.assignment)
    stage.check("every partition has exactly one consumer", every == list(range(PARTITIONS)), every)


def _shares(group: GroupDescription) -> list[int]:
    return [len(member.assignment) for member in group.members]


async def _group(admin: Admin) -> GroupDescription | None:
    try:
        return await admin.describe_group(GROUP)
    except OttlaError:
        return None  # not there yet


async def _send(bootstrap: str) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        number = 0
        while True:
            await producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
            number += 1
            await asyncio.sleep(0.01)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _duplicates(read: list[tuple[str, int]]) -> int:
    return len(read) - len({number for _, number in read})
