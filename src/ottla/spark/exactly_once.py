"""The streaming sink with `exactlyOnce=true`: executors leave transactions open; the driver decides through the ledger, ends them.

Three facts of Spark 4.3 shape it. A task learns the id of its query and of its batch only from its local properties. Attempts of
one task may run side by side (speculation, zombies), and any of them may be the one that counts; so each has a transactional id
of its own, and the driver aborts those that do not count before it decides. And when `commit` raises, Spark calls `abort` with
the same messages, although the batch may be decided; so `abort` looks into the ledger first.

    a task:    is the batch decided? no: write into a new transaction, leave it open
                                     yes: end my share of it; only if a time-out has aborted that, write it again
    commit:    abort what does not count → ledger: decided → end all transactions → ledger: done
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from ottla.client.admin import Admin
from ottla.client.open_transaction import OpenTransaction
from ottla.client.producer import Producer
from ottla.model.errors import ApiError, ErrorCode, OttlaError
from ottla.spark import connections
from ottla.spark.ledger import Entry, Ledger, Share
from ottla.spark.sentences import plainly
from ottla.spark.sink import Writing, send_all
from ottla.spark.task import Task
from ottla.spark.workers import settle

log = logging.getLogger("ottla.spark")
TRANSACTION_TIMEOUT_MS = 600_000
ABORT_LIMIT_S = 5.0  # a query that has failed shall say so soon
DEFAULT_PREFIX = "ottla-spark"
# The coordinator's words for a transaction that can no longer be committed: its producer was fenced, which aborts.
_ABORTED = (ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
# And for one of which nothing is known any more: how it ended cannot be told.
_FORGOTTEN = (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
_OPEN_STATES = ("Ongoing",)


class TransactionLost(OttlaError):
    """A batch that was decided cannot be finished now."""


@dataclass
class WrittenOnce(WriterCommitMessage):
    """What a task leaves behind. `transaction` None: the batch was decided before, and the task's share of it is committed."""

    rows: int
    query_id: str
    slot: int
    transaction: OpenTransaction | None


def transactional_id(task: Task, prefix: str) -> str:
    """The same for first attempts of all batches, so that a new batch, or a new life of the query, ends what was left."""
    name = f"{_query_prefix(prefix, task.query_id)}{task.slot}"
    return name if task.attempt == 0 else f"{name}.{task.attempt}"


def _query_prefix(prefix: str, query_id: str) -> str:
    return f"{prefix}-{query_id}-"


class ExactlyOnceWriter(Writing, DataSourceStreamArrowWriter):
    @property
    def ledger(self) -> Ledger:
        return Ledger(self.settings)

    @property
    def prefix(self) -> str:
        return self.options.text("transactional.id.prefix") or DEFAULT_PREFIX

    # In executors ------------------------------------------------------------------------------------------------------

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        settle()
        return connections.run(self._write(iterator, Task.current("exactlyOnce")))

    async def _write(self, iterator: Iterator[pa.RecordBatch], task: Task) -> WrittenOnce:
        # Before InitProducerId, which would abort what was decided.
        entry = await self.ledger.find(task.query_id, task.batch_id)
        lost = None if entry is None else await self._lost_share(entry, task)
        if entry is not None and lost is None:
            return WrittenOnce(0, task.query_id, task.slot, None)
        rows, transaction = await self._write_transaction(iterator, task)
        if lost is not None and rows != lost.rows:
            raise TransactionLost(
                f"batch {task.batch_id}: task {task.slot} wrote {lost.rows} rows, a time-out aborted them, and now there are "
                f"{rows}. The query or its source has changed in between, so the batch cannot be completed."
            )
        return WrittenOnce(rows, task.query_id, task.slot, transaction)

    async def _lost_share(self, entry: Entry, task: Task) -> Share | None:
        """This task's share of a decided batch, if it must be written again; otherwise it is committed when this returns."""
        share = None if entry.is_done else entry.share_of(task.slot)
        if share is None:
            return None
        async with connections.using(connections.admin, self.settings, connections.PATIENCE_S) as admin:
            is_committed = await _committed(admin, share.transaction, task.batch_id)
        return None if is_committed else share

    async def _write_transaction(self, iterator: Iterator[pa.RecordBatch], task: Task) -> tuple[int, OpenTransaction]:
        settings = {"transaction_timeout_ms": TRANSACTION_TIMEOUT_MS, **self.producer_settings}
        settings["transactional_id"] = transactional_id(task, self.prefix)
        producer = await connections.started(Producer, settings, connections.PATIENCE_S)
        try:
            await producer.init_transactions()
            await producer.begin_transaction()
            rows = await send_all(producer, self.records(iterator), self.options.text("topic"))
            return rows, await producer.detach_transaction()
        finally:
            await producer.close()

    # On the driver -----------------------------------------------------------------------------------------------------

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        connections.run(self._commit([each for each in messages if isinstance(each, WrittenOnce)], batchId))

    async def _commit(self, messages: list[WrittenOnce], batch_id: int) -> None:
        if not messages:
            return
        query_id = messages[0].query_id
        entry = await self.ledger.find(query_id, batch_id)
        if entry is not None and entry.is_done:
            return
        decided = _decision(messages, entry, batch_id)
        async with connections.using(connections.admin, self.settings, connections.PATIENCE_S) as admin:
            await self._abort_others(admin, query_id, decided)
            if not decided.shares:
                return  # nothing was written, and a replay of the batch will write nothing either
            if decided != entry:
                await self.ledger.write(query_id, batch_id, decided)
            ends = await asyncio.gather(*(_committed(admin, share.transaction, batch_id) for share in decided.shares))
        if not all(ends):
            lost = ", ".join(share.transaction.transactional_id for share, is_there in zip(decided.shares, ends) if not is_there)
            raise TransactionLost(
                f"batch {batch_id} took longer than transaction.timeout.ms, and the broker has aborted {lost}. Start the query "
                "again: what was aborted is then written once more, and nothing twice. Larger: kafka.transaction.timeout.ms."
            )
        await self.ledger.write(query_id, batch_id, Entry(True, decided.slots, decided.shares))

    async def _abort_others(self, admin: Admin, query_id: str, decided: Entry) -> None:
        """Attempts that do not count: killed, overtaken by another one, or left by an earlier life of the query."""
        prefix = _query_prefix(self.prefix, query_id)
        counting = {share.transaction.transactional_id for share in decided.shares}
        listed = await admin.list_transactions(states=_OPEN_STATES)
        others = [each.id for each in listed if each.id.startswith(prefix)]
        await admin.fence_producers([name for name in others if name not in counting])

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Never raises: then Spark would say "Writing job failed" and no longer why. What stays open the next life of the query
        fences, or its time-out ends it."""
        try:
            connections.run(self._abort([each for each in messages if isinstance(each, WrittenOnce)], batchId))
        except (OttlaError, TimeoutError) as error:
            log.warning("batch %d: its transactions are left open: %s", batchId, error)

    async def _abort(self, messages: list[WrittenOnce], batch_id: int) -> None:
        """Called for a failed task, but also when `commit` raised: what is decided must stay as it is."""
        open_ = [each.transaction for each in messages if each.transaction is not None]
        if not open_:
            return
        async with asyncio.timeout(ABORT_LIMIT_S):
            if await self.ledger.find(messages[0].query_id, batch_id) is not None:
                return
            async with connections.using(connections.admin, self.settings, connections.PATIENCE_S) as admin:
                for transaction in open_:
                    try:
                        await admin.end_transaction(transaction, commit=False)
                    except ApiError as error:
                        log.warning("not aborted transaction=%s error=%s", transaction.transactional_id, error)


def _decision(messages: list[WrittenOnce], entry: Entry | None, batch_id: int) -> Entry:
    """What is to be committed: what was written now, besides what was decided before and is not lost."""
    written = {
        each.slot: Share(each.slot, each.transaction, each.rows)
        for each in messages
        if each.transaction is not None and not each.transaction.is_empty
    }
    if entry is None:
        return Entry(False, len(messages), tuple(written.values()))
    if written and entry.slots != len(messages):
        raise TransactionLost(
            f"batch {batch_id} was decided when it had {entry.slots} tasks, a time-out aborted some of them, and now there are "
            f"{len(messages)}. Start the query with as many tasks (minPartitions) as before, so that they can be written again."
        )
    kept = {share.slot: share for share in entry.shares}
    return Entry(False, entry.slots, tuple((kept | written).values()))


async def _committed(admin: Admin, transaction: OpenTransaction, batch_id: int) -> bool:
    """Ends a transaction of a decided batch, again if need be. False: it was aborted."""
    try:
        await admin.end_transaction(transaction, commit=True)
    except ApiError as error:
        if error.code in _FORGOTTEN:
            raise TransactionLost(
                f"batch {batch_id} was decided long ago, and the brokers have forgotten transaction {transaction.transactional_id} "
                f"({error.code.name}): whether it was committed cannot be told. Compare input and output, and start with a new checkpoint."
            ) from error
        if error.code not in _ABORTED:
            raise
        log.warning("decided transaction is aborted transaction=%s error=%s", transaction.transactional_id, error.code.name)
        return False
    return True
