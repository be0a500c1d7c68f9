"""The sink: `write` and `writeStream.format("ottla")`, by columns, at least once; `exactly_once` for `exactlyOnce=true`.

`write` runs in executors, once per task and attempt, and returns a message; `commit` and `abort` run on the driver with the
messages of all tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, StringType, StructType, TimestampType

from ottla.client.delivery import Delivery
from ottla.client.producer import Producer
from ottla.client.settings import ProducerSettings
from ottla.spark import connections, tables
from ottla.spark.client_settings import of_kind
from ottla.spark.options import OptionError, Options
from ottla.spark.sentences import plainly
from ottla.spark.workers import settle

log = logging.getLogger("ottla.spark")
BATCH_SIZE = 1_000_000  # a topic takes batches of a mebibyte unless it is told otherwise; the producer cuts those that it refuses
REQUEST_SIZE = 4 << 20
LINGER_MS = 20
_COLUMNS = {
    "key": (StringType, BinaryType),
    "value": (StringType, BinaryType),
    "topic": (StringType,),
    "partition": (IntegerType, LongType),
    "timestamp": (TimestampType,),
    "headers": (ArrayType,),
}
_HEADERS = "array<struct<key: string, value: binary>>"


@dataclass
class Written(WriterCommitMessage):
    rows: int


def check_schema(schema: StructType, options: Options) -> None:
    """On the driver, before anything is written. Raises OptionError."""
    if options.text("archive") is not None:
        from ottla.spark import archive

        archive.check(schema, options)
        return
    if options.value_format is not None:
        from ottla.spark import typed

        typed.check_written(schema, options)
        _check_types({field.name: typed.WRITTEN.get(field.name, "") for field in schema.fields}, schema)
        return
    if tables.is_table(schema):
        schema = tables.insertable(schema)
    _check_types({name: name for name in schema.names}, schema)
    if "value" not in schema.names:
        raise OptionError("a column named value is needed: it is what a record holds")
    if "topic" not in schema.names and options.text("topic") is None:
        raise OptionError("where to? Give the option topic, or a column named topic")


def _check_types(part: Mapping[str, str], schema: StructType) -> None:
    """`part` says which part of a record each column is; of what is no part any type will do."""
    for field in schema.fields:
        kind, wanted = field.dataType, _COLUMNS.get(part[field.name])
        if wanted is None:
            continue
        if not isinstance(kind, wanted) or (isinstance(kind, ArrayType) and not _are_headers(kind.elementType)):
            hint = f"; it must be {_HEADERS}" if wanted == _COLUMNS["headers"] else ""
            raise OptionError(f"column {field.name} has type {kind.simpleString()}, which cannot be written{hint}")


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, StructType) or kind.names != ["key", "value"]:
        return False
    return isinstance(kind["key"].dataType, StringType) and isinstance(kind["value"].dataType, StringType | BinaryType)


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


def _columns_of_records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Other columns are not written, as in the connector: so what a source gives (`offset`, `timestampType`) a sink takes."""
    for batch in batches:
        yield batch.select([name for name in batch.schema.names if name in _COLUMNS])


async def send_all(producer: Producer, iterator: Iterator[pa.RecordBatch], default: str | None) -> int:
    """Every row sent and delivered, or an error raised. Taking the next batch from Spark happens beside the sending."""
    loop, rows = asyncio.get_running_loop(), 0
    unknown: deque[Delivery] = deque()  # no longer than what fits into the producer's buffer
    while (batch := await loop.run_in_executor(None, next, iterator, None)) is not None:
        for topic, part in by_topic(batch, default):
            unknown += await producer.send_arrow(topic, part)
        rows += batch.num_rows
        while unknown and unknown[0].done:
            unknown.popleft().result()
    await producer.flush()
    for delivery in unknown:
        delivery.result()
    return rows


class Writing:
    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def records(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What Spark hands over, as columns of records."""
        if self.options.value_format is not None:
            from ottla.spark import typed

            return typed.WrittenRows(self.options, self.schema).records(iterator)
        return tables.inserted(iterator) if tables.is_table(self.schema) else _columns_of_records(iterator)

    @property
    def settings(self) -> dict[str, Any]:
        """Of every client: where the cluster is, and how to be let in."""
        return connections.common_settings(self.options)

    @property
    def producer_settings(self) -> dict[str, Any]:
        defaults = {"batch_size": BATCH_SIZE, "linger_ms": LINGER_MS, "max_request_size": REQUEST_SIZE}
        return defaults | of_kind(ProducerSettings, self.options.client) | self.settings

    def write_at_least_once(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        settle()

        async def work() -> Written:
            async with connections.using(Producer, self.producer_settings, connections.PATIENCE_S) as producer:
                return Written(await send_all(producer, self.records(iterator), self.options.text("topic")))

        return connections.run(work())


class BatchWriter(Writing, DataSourceArrowWriter):
    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.text("archive") is not None:
            raise OptionError('option archive is for streaming queries: in a batch query use partitionBy and format("parquet")')
        if options.flag("exactlyOnce", False):
            raise OptionError("option exactlyOnce is for streaming queries: a batch query that fails is not repeated by Spark")

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_at_least_once(iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: what was acknowledged is there."""

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("a batch write failed; what its tasks had sent stays in the topic, because it is at least once")


class StreamWriter(Writing, DataSourceStreamArrowWriter):
    """At least once."""

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_at_least_once(iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do."""

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log.warning("batch %d failed and will be written again", batchId)


def stream_writer(options: Options, schema: StructType) -> DataSourceStreamArrowWriter:
    if options.text("archive") is not None:
        from ottla.spark.archive import ArchiveWriter

        return ArchiveWriter(options)
    from ottla.spark.exactly_once import ExactlyOnceWriter

    return ExactlyOnceWriter(options, schema) if options.flag("exactlyOnce", False) else StreamWriter(options, schema)
