"""`replay`: a second group, and a seek, read history again."""

from __future__ import annotations

from ottla.cli.demos.stage import Stage
from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.ids import TopicPartition

TOPIC = "orders"
ORDERS = [f"order {number}" for number in range(1, 11)]
FIRST_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


async def play(stage: Stage) -> None:
    await stage.scene(
        "Ten orders, one an hour", why="Each record carries its time. The log keeps them whether somebody has read them or not."
    )
    async with EmbeddedCluster(1) as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await stage.create_topic(admin, TOPIC, 1, retention_ms="-1")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for number, order in enumerate(ORDERS):
                await producer.send(TOPIC, order.encode(), timestamp_ms=FIRST_MS + number * HOUR_MS)
            await producer.flush()
        await _two_groups(stage, admin, cluster.bootstrap)
        await _seek(stage, cluster.bootstrap)


async def _two_groups(stage: Stage, admin: Admin, bootstrap: str) -> None:
    await stage.scene(
        "Two groups",
        why="A group's progress is a number for each partition, kept by the cluster. Groups know nothing of each other.",
    )
    read = await _read_as(bootstrap, "billing", len(ORDERS))
    stage.check("billing read every order", read == ORDERS, read)
    await _show_lag(stage, admin)
    read = await _read_as(bootstrap, "audit", 4)
    stage.check("audit, which came later, reads history from its beginning", read == ORDERS[:4], read)
    await _show_lag(stage, admin)
    committed = {group: (await admin.group_offsets(group))[_partition()].offset for group in ("billing", "audit")}
    stage.check("billing stands at 10 and audit at 4", committed == {"billing": 10, "audit": 4}, committed)
    read = await _read_as(bootstrap, "audit", 6)
    stage.check("audit goes on where it left off", read == ORDERS[4:], read)


async def _seek(stage: Stage, bootstrap: str) -> None:
    await stage.scene(
        "Going back", why="A consumer may set its position wherever it likes: to an offset, to the beginning, to a moment."
    )
    async with Consumer(
        bootstrap_servers=bootstrap, group_id="billing", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.assign([(TOPIC, 0)])
        stage.check("billing has nothing left to read", await consumer.poll(300) == [])
        stage.command("consumer.seek_to_beginning()")
        consumer.seek_to_beginning()
        read = await _poll(consumer, len(ORDERS))
        stage.lines(read)
        stage.check("after a seek to the beginning it reads everything again", read == ORDERS, read)
        stage.command("consumer.seek((TOPIC, 0), 7)")
        consumer.seek((TOPIC, 0), 7)
        read = await _poll(consumer, 3)
        stage.check("after a seek to offset 7, the last three", read == ORDERS[7:], read)
        stage.command("consumer.seek_to_time(…)    # between the fifth and the sixth order")
        consumer.seek_to_time(FIRST_MS + 4 * HOUR_MS + 1)
        read = await _poll(consumer, 5)
        stage.check("after a seek to a moment, what came since", read == ORDERS[5:], read)


async def _read_as(bootstrap: str, group: str, count: int) -> list[str]:
    """So many, and a clean close, which commits."""
    async with Consumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([TOPIC])
        return await _poll(consumer, count)


async def _poll(consumer: Consumer, count: int) -> list[str]:
    read: list[str] = []
    while len(read) < count:
        records = await consumer.poll(10_000, max_records=count - len(read))
        if not records:
            break
        read += [record.value.decode() for record in records]
    return read


async def _show_lag(stage: Stage, admin: Admin) -> None:
    end = (await admin.latest_offsets([_partition()]))[_partition()]
    rows = []
    for group in ("billing", "audit"):
        offsets = await admin.group_offsets(group)
        if _partition() in offsets:
            committed = offsets[_partition()].offset
            rows.append({"group": group, "committed": committed, "end": end, "lag": end - committed})
    stage.table(["group", "committed", "end", "lag"], rows)


def _partition() -> TopicPartition:

    return TopicPartition(TOPIC, 0)
