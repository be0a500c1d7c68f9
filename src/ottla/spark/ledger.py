"""The ledger: what the driver has decided about each batch of each query, in a compacted topic.

A batch is written by executors inside transactions that stay open. The driver first writes here that the batch is to be
committed, with the transactions that make it up, and only then ends them. Whatever dies in between, the next life of the query
reads the ledger and knows: decided means finish it and write nothing again; not decided means write it anew, which fences and
aborts what an earlier life left.

Key: query id and batch id. Not the batch id alone, because a query over a deleted checkpoint counts from 0 again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ottla.client.admin import Admin
from ottla.client.admin.types import NewTopic
from ottla.client.consumer import Consumer
from ottla.client.partitioner import partition_of
from ottla.client.producer import Producer
from ottla.client.transactions import OpenTransaction
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition

TOPIC = "ottla-spark-ledger"
PARTITIONS = 8
REPLICAS = 3
KEPT_BATCHES = 2  # Spark replays at most the last one; older entries are tombstoned


@dataclass(frozen=True, slots=True)
class Entry:
    is_done: bool  # every transaction is ended
    transactions: tuple[OpenTransaction, ...]

    def to_bytes(self) -> bytes:
        rows = [[each.transactional_id, each.producer_id, each.producer_epoch] for each in self.transactions]
        return json.dumps({"state": "done" if self.is_done else "decided", "transactions": rows}).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Entry:
        row = json.loads(value)
        made = tuple(OpenTransaction(name, producer_id, epoch, False) for name, producer_id, epoch in row["transactions"])
        return cls(row["state"] == "done", made)


class Ledger:
    """`settings` are those of any client: bootstrap_servers and security."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)

    async def prepare(self, admin: Admin) -> None:
        """Make the topic if it is not there."""
        if TOPIC in await admin.list_topics():
            return
        brokers = len((await admin.describe_cluster()).brokers)
        topic = NewTopic(TOPIC, PARTITIONS, min(REPLICAS, brokers), configs={"cleanup.policy": "compact"})
        try:
            await admin.create_topics([topic])
        except ApiError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    async def find(self, query_id: str, batch_id: int) -> Entry | None:
        """What was decided about a batch; None: nothing, or long ago."""
        home = TopicPartition(TOPIC, partition_of(query_id.encode(), PARTITIONS))
        wanted, found = _key(query_id, batch_id), None
        async with Consumer(**self._settings, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            consumer.assign([home])
            consumer.seek_to_beginning([home])
            end = (await consumer.end_offsets([home]))[home]
            while await consumer.position(home) < end:
                for record in await consumer.poll(1000):
                    if record.key == wanted:
                        found = None if record.value is None else Entry.from_bytes(record.value)
        return found

    async def write(self, query_id: str, batch_id: int, entry: Entry) -> None:
        """On all in-sync replicas before it returns; entries that can no longer be asked for go."""
        home = partition_of(query_id.encode(), PARTITIONS)
        async with Producer(**self._settings, acks="all", linger_ms=0) as producer:
            await producer.send_and_wait(TOPIC, entry.to_bytes(), key=_key(query_id, batch_id), partition=home)
            if batch_id >= KEPT_BATCHES:
                await producer.send(TOPIC, None, key=_key(query_id, batch_id - KEPT_BATCHES), partition=home)


def _key(query_id: str, batch_id: int) -> bytes:
    return f"{query_id}/{batch_id}".encode()
