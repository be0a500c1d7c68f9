"""The ledger: what the driver has decided about each batch of each query, in a compacted topic.

A batch is written by executors inside transactions that stay open. The driver first writes here that the batch is to be
committed, with the transactions that make it up, and only then ends them. Whatever dies in between, the next life of the query
reads the ledger and knows: decided means finish it, and write again only what a time-out has meanwhile aborted; not decided
means write it anew, which fences and aborts what an earlier life left.

Key: query id and batch id. Not the batch id alone, because a query over a deleted checkpoint counts from 0 again. All entries of
a query lie in one partition in the order of its batches, so who looks for one reads backwards until it finds it or an earlier one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ottla.client.admin import Admin
from ottla.client.admin.types import NewTopic
from ottla.client.cluster import Cluster
from ottla.client.open_transaction import OpenTransaction
from ottla.client.partitioner import partition_of
from ottla.client.producer import Producer
from ottla.model.errors import ApiError, ErrorCode
from ottla.records.record import decode_batches
from ottla.spark import connections
from ottla.spark.reading import fetch
from ottla.spark.topics import LEDGER

PARTITIONS = 8
REPLICAS = 3
IN_SYNC = 2  # of three: a decision that one broker alone has would be gone with it, and its batch written twice
KEPT_BATCHES = 2  # Spark replays at most the last one; older entries are tombstoned
FETCH_BYTES = 1 << 20
FIRST_LOOK = 256  # so many offsets back at first, then four times as many
LOOKS_GROW = 4


class Share(NamedTuple):
    """What one task wrote of a batch: the transaction, and how many rows."""

    slot: int
    transaction: OpenTransaction
    rows: int


@dataclass(frozen=True, slots=True)
class Entry:
    is_done: bool  # every transaction is ended
    slots: int  # tasks that the batch was cut into; those that wrote nothing have no share
    shares: tuple[Share, ...]

    def share_of(self, slot: int) -> Share | None:
        return next((share for share in self.shares if share.slot == slot), None)

    def to_bytes(self) -> bytes:
        rows = [
            [
                share.slot,
                share.rows,
                share.transaction.transactional_id,
                share.transaction.producer_id,
                share.transaction.producer_epoch,
            ]
            for share in self.shares
        ]
        return json.dumps({"state": "done" if self.is_done else "decided", "slots": self.slots, "shares": rows}).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Entry:
        row = json.loads(value)
        shares = (
            Share(slot, OpenTransaction(name, producer_id, epoch, False), count)
            for slot, count, name, producer_id, epoch in row["shares"]
        )
        return cls(row["state"] == "done", row["slots"], tuple(shares))


class Ledger:
    """`settings` are those of any client: bootstrap_servers and security."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)

    async def find(self, query_id: str, batch_id: int) -> Entry | None:
        """What was decided about a batch; None: nothing, or long ago. Makes the topic if it is not there."""
        home = partition_of(query_id.encode(), PARTITIONS)
        start, end = await self._bounds(home)
        step = FIRST_LOOK
        async with connections.using(connections.cluster, self._settings, connections.PATIENCE_S) as cluster:
            while end > start:
                low = max(start, end - step)
                newest = await _newest_of(cluster, home, low, end, query_id, batch_id)
                if newest is not None:
                    return Entry.from_bytes(newest[1]) if newest[0] == batch_id and newest[1] is not None else None
                end, step = low, step * LOOKS_GROW
        return None

    async def _bounds(self, home: int) -> tuple[int, int]:
        async with connections.using(connections.admin, self._settings, connections.PATIENCE_S) as admin:
            where = self._settings["bootstrap_servers"]
            if where not in _prepared:
                await _prepare(admin)
                _prepared.add(where)
            start = (await admin.earliest_offsets([(LEDGER, home)])).popitem()[1]
            return start, (await admin.latest_offsets([(LEDGER, home)])).popitem()[1]

    async def write(self, query_id: str, batch_id: int, entry: Entry) -> None:
        """On all in-sync replicas before it returns; entries that can no longer be asked for go."""
        home = partition_of(query_id.encode(), PARTITIONS)
        async with connections.using(_producer, self._settings, connections.PATIENCE_S) as producer:
            await producer.send_and_wait(LEDGER, entry.to_bytes(), key=_key(query_id, batch_id), partition=home)
            if entry.is_done and batch_id >= KEPT_BATCHES:
                await producer.send(LEDGER, None, key=_key(query_id, batch_id - KEPT_BATCHES), partition=home)


_prepared: set[str] = set()  # clusters whose ledger this process has seen


async def _prepare(admin: Admin) -> None:
    """Make the topic if it is not there."""
    try:
        await admin.describe_topic(LEDGER)
        return
    except ApiError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    brokers = len((await admin.describe_cluster()).brokers)
    safety = {"min.insync.replicas": str(IN_SYNC)} if brokers >= REPLICAS else {}
    topic = NewTopic(LEDGER, PARTITIONS, min(REPLICAS, brokers), configs={"cleanup.policy": "compact"} | safety)
    try:
        await admin.create_topics([topic])
    except ApiError as refusal:
        if refusal.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


def _producer(**settings: Any) -> Producer:
    return Producer(**settings, acks="all", linger_ms=0)


async def _newest_of(
    cluster: Cluster, home: int, low: int, high: int, query_id: str, batch_id: int
) -> tuple[int, bytes | None] | None:
    """The last word between two offsets about this batch or, if there is none, about an earlier one of the query."""
    found: tuple[int, bytes | None] | None = None
    offset = low
    while offset < high:
        attempt = partial(fetch, cluster, LEDGER, home, offset, False, FETCH_BYTES)
        data, _ = await cluster.persist(attempt, topics=(LEDGER,))
        batches = [] if data is None else list(decode_batches(data))
        if not batches:
            break
        for record in (record for _, records in batches for record in records):
            name, _, number = (record.key or b"").decode().rpartition("/")
            if name == query_id and (found is None or int(number) >= found[0]) and int(number) <= batch_id:
                found = int(number), record.value
        offset = batches[-1][0].next_offset
    return found


def _key(query_id: str, batch_id: int) -> bytes:
    return f"{query_id}/{batch_id}".encode()
