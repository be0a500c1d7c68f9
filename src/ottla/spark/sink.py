"""The sink: `write` and `writeStream.format("ottla")`, by columns; at least once, or exactly once with `exactlyOnce=true`.

`write` runs in executors, once per task and attempt, and returns a message; `commit` and `abort` run on the driver with the
messages of all tasks. Exactly once (design.md §6) rests on two facts that Spark tells a task: the id of its query and of its batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType

from ottla.client.admin import Admin
from ottla.client.producer import Producer
from ottla.client.transactions import OpenTransaction
from ottla.model.errors import ApiError, ErrorCode, OttlaError
from ottla.spark import tables, typed
from ottla.spark.ledger import Entry, Ledger
from ottla.spark.options import OptionError, Options
from ottla.spark.sentences import plainly

log = logging.getLogger("ottla.spark")
TRANSACTION_TIMEOUT_MS = 600_000
BATCH_SIZE = 512 << 10
LINGER_MS = 20
_COLUMNS = {
    "key": (StringType, BinaryType),
    "value": (StringType, BinaryType),
    "topic": (StringType,),
    "partition": (IntegerType, LongType),
    "headers": (ArrayType,),
}
_GONE = (
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
)


class TransactionLost(OttlaError):
    """A batch that was decided cannot be finished: its transaction timed out at the broker."""


@dataclass
class Written(WriterCommitMessage):
    rows: int


@dataclass
class WrittenOnce(WriterCommitMessage):
    """What a task of an exactly-once query leaves behind: an open transaction, or the news that its batch was decided before."""

    rows: int
    query_id: str
    transaction: OpenTransaction | None
    was_decided: bool


def check_schema(schema: StructType, options: Options) -> None:
    """On the driver, before anything is written. Raises OptionError."""
    if typed.is_typed(options):
        typed.check_written(schema, options)
        return
    if tables.is_table(schema):
        schema = tables.insertable(schema)
    for field in schema.fields:
        if field.name not in _COLUMNS:
            raise OptionError(f"column {field.name} cannot be written: a topic takes {', '.join(_COLUMNS)}")
        if not isinstance(field.dataType, _COLUMNS[field.name]):
            raise OptionError(f"column {field.name} has type {field.dataType.simpleString()}, which cannot be written")
    if "value" not in schema.names:
        raise OptionError("a column named value is needed: it is what a record holds")
    if "topic" not in schema.names and options.text("topic") is None:
        raise OptionError("where to? Give the option topic, or a column named topic")


def by_topic(batch: pa.RecordBatch, default: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, without the column that names it. The option goes before the column, as in the connector."""
    if "topic" not in batch.schema.names:
        assert default is not None
        yield default, batch
        return
    names = batch.column("topic")
    rest = batch.drop_columns(["topic"])
    if default is not None:
        yield default, rest
        return
    if names.null_count:
        raise OptionError("a row has no topic: the column topic is null and there is no option topic")
    for name in pc.unique(names).to_pylist():
        yield name, rest.filter(pc.equal(names, name))


async def send_all(producer: Producer, iterator: Iterator[pa.RecordBatch], default: str | None) -> int:
    """Every row sent, none known to be delivered yet. Taking the next batch from Spark happens beside the sending."""
    loop, rows = asyncio.get_running_loop(), 0
    while (batch := await loop.run_in_executor(None, next, iterator, None)) is not None:
        for topic, part in by_topic(batch, default):
            await producer.send_arrow(topic, part)
        rows += batch.num_rows
    return rows


class _Writing:
    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def records(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What Spark hands over, as columns of records."""
        if typed.is_typed(self.options):
            return typed.WrittenRows(self.options, self.schema).records(iterator)
        return tables.inserted(iterator) if tables.is_table(self.schema) else iterator

    @property
    def settings(self) -> dict[str, Any]:
        return {"bootstrap_servers": self.options.bootstrap_servers}

    @property
    def producer_settings(self) -> dict[str, Any]:
        defaults = {"batch_size": BATCH_SIZE, "linger_ms": LINGER_MS}
        return defaults | dict(self.options.client) | self.settings

    async def write_at_least_once(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        async with Producer(**self.producer_settings) as producer:
            rows = await send_all(producer, self.records(iterator), self.options.text("topic"))
            await producer.flush()
        return Written(rows)


class BatchWriter(_Writing, DataSourceArrowWriter):
    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return asyncio.run(self.write_at_least_once(iterator))

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: what was acknowledged is there."""

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("a batch write failed; what its tasks had sent stays in the topic, because it is at least once")


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """At least once."""

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return asyncio.run(self.write_at_least_once(iterator))

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do."""

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log.warning("batch %d failed and will be written again", batchId)


class ExactlyOnceWriter(_Writing, DataSourceStreamArrowWriter):
    """Executors leave transactions open; the driver decides through the ledger and ends them."""

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.settings)

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        if query_id is None or batch_id is None:
            raise OptionError("exactlyOnce=true needs a streaming query of Spark 4.3: it does not say which batch this is")
        return asyncio.run(self._write(iterator, query_id, int(batch_id), context.partitionId()))

    async def _write(self, iterator: Iterator[pa.RecordBatch], query_id: str, batch_id: int, slot: int) -> WrittenOnce:
        async with Admin(**self.settings) as admin:
            await self.ledger.prepare(admin)
        # Before InitProducerId, which would abort what was decided.
        if await self.ledger.find(query_id, batch_id) is not None:
            return WrittenOnce(0, query_id, None, True)
        prefix = self.options.text("transactional.id.prefix", "ottla-spark")
        producer = Producer(
            **{"transaction_timeout_ms": TRANSACTION_TIMEOUT_MS, **self.producer_settings},
            transactional_id=f"{prefix}-{query_id}-{slot}",
        )
        async with producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            rows = await send_all(producer, self.records(iterator), self.options.text("topic"))
            return WrittenOnce(rows, query_id, await producer.detach_transaction(), False)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        asyncio.run(self._commit([each for each in messages if isinstance(each, WrittenOnce)], batchId))

    async def _commit(self, messages: list[WrittenOnce], batch_id: int) -> None:
        if not messages:
            return
        query_id = messages[0].query_id
        entry = await self.ledger.find(query_id, batch_id)
        if entry is None:
            open_ = tuple(each.transaction for each in messages if each.transaction is not None and not each.transaction.is_empty)
            entry = Entry(False, open_)
            await self.ledger.write(query_id, batch_id, entry)
        if not entry.is_done:
            await self._end(entry.transactions, batch_id)
            await self.ledger.write(query_id, batch_id, Entry(True, entry.transactions))

    async def _end(self, transactions: tuple[OpenTransaction, ...], batch_id: int) -> None:
        async with Admin(**self.settings) as admin:
            for each in transactions:
                try:
                    await admin.end_transaction(each, commit=True)
                except ApiError as error:
                    if error.code not in _GONE:
                        raise
                    raise TransactionLost(
                        f"batch {batch_id} was decided, but transaction {each.transactional_id} can no longer be committed "
                        f"({error.code.name}): it was open longer than transaction.timeout.ms. Its records are lost to "
                        "read_committed consumers; start the query from an earlier checkpoint, or write the batch again by hand."
                    ) from error

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        asyncio.run(self._abort([each for each in messages if isinstance(each, WrittenOnce)]))

    async def _abort(self, messages: list[WrittenOnce]) -> None:
        async with Admin(**self.settings) as admin:
            for each in messages:
                if each.transaction is not None:
                    try:
                        await admin.end_transaction(each.transaction, commit=False)
                    except ApiError as error:
                        log.warning("not aborted transaction=%s error=%s", each.transaction.transactional_id, error)


def stream_writer(options: Options, schema: StructType) -> DataSourceStreamArrowWriter:
    return ExactlyOnceWriter(options, schema) if options.flag("exactlyOnce", False) else StreamWriter(options, schema)
