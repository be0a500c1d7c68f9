"""Typed columns: the layer between records and the frames of a query that gives `value.format`.

Reading, a value's fields are columns of their own, and what else a record has stands beside them with an underscore, so that a field
named `timestamp` or `key` is in nobody's way. Writing is the same in reverse. A value that does not parse goes to `_corrupt`
(permissive, the default), fails the query (failfast), or goes to another topic (deadLetterTopic); it is never left out in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StringType, StructType

from ottla.model.errors import OttlaError
from ottla.spark.conversion import Mismatch
from ottla.spark.formats import Format, format_of, given_columns
from ottla.spark.options import VALUE_SCHEMA as SCHEMA
from ottla.spark.options import OptionError, Options
from ottla.spark.schemas import nullable, parse_ddl

ROWS = 8192  # parsed at a time: rows of Python objects are large, and a worker's memory is small
_FROM_RECORD = {
    "_key": "key", "_topic": "topic", "_partition": "partition", "_offset": "offset", "_timestamp": "timestamp",
    "_timestampType": "timestampType", "_headers": "headers",
}  # fmt: skip
_COLUMNS = "_topic string, _partition int, _offset bigint, _timestamp timestamp, _timestampType int, _deleted boolean"
_HEADERS = "_headers array<struct<key: string, value: binary>>"
_CORRUPT = "_corrupt struct<reason: string, value: binary>"
OUR_NAMES = (*_FROM_RECORD, "_deleted", "_corrupt")
WRITTEN = {"_key": "key", "_topic": "topic", "_partition": "partition", "_timestamp": "timestamp", "_headers": "headers"}


class BadRecord(OttlaError):
    """A record that does not fit its schema; the sentence says which, and why."""


def is_permissive(options: Options) -> bool:
    mode = (options.text("value.mode", "permissive") or "").strip().lower()
    if mode not in ("permissive", "failfast"):
        raise OptionError(
            f"option value.mode must be permissive or failfast, not {mode!r}; deadLetterTopic is an option of its own"
        )
    if options.text("deadLetterTopic") is None:
        return mode == "permissive"
    if options.text("value.mode") is not None:
        raise OptionError("option value.mode does not go with deadLetterTopic: bad records go there")
    return False


def schema_of(options: Options) -> StructType:
    """The columns of a typed read. Raises OptionError."""
    columns = given_columns(options)
    if columns is None:
        raise OptionError(
            f"option {SCHEMA} is missing: which columns do the values have? For example order_id long, product string"
        )
    _check_names(columns)
    format_of(options, columns)
    ours = f"_key {_key_type(options)}, {_COLUMNS}"
    ours += f", {_HEADERS}" if options.flag("includeHeaders", False) else ""
    ours += f", {_CORRUPT}" if is_permissive(options) else ""
    return StructType(nullable(columns).fields + parse_ddl(ours, SCHEMA).fields)


def _key_type(options: Options) -> str:
    name = (options.text("key.format", "binary") or "").strip().lower()
    if name not in ("binary", "string"):
        raise OptionError(f"option key.format must be binary or string, not {name!r}")
    return name


def _check_names(columns: StructType) -> None:
    taken = [name for name in columns.names if name in OUR_NAMES]
    if taken:
        raise OptionError(f"column {taken[0]} cannot be a field of the value: the source has a column of this name")


class TypedRows:
    """Records of the source as rows of `schema`, in an executor. `schema` is what Spark was told, or what the user told Spark."""

    def __init__(self, options: Options, schema: StructType) -> None:
        asked = StructType([field for field in schema.fields if field.name not in OUR_NAMES])
        given = given_columns(options)
        self._format: Format = format_of(options, asked if given is None else given)
        self._options = options
        self._permissive = is_permissive(options)
        self._schema = schema
        self._key_is_text = _key_type(options) == "string"
        unknown = [name for name in asked.names if name not in self._format.columns.names]
        if unknown:
            raise OptionError(f"column {unknown[0]} is not in option {SCHEMA}, which has {', '.join(self._format.columns.names)}")
        required = [field.name for field in schema.fields if not field.nullable]
        if required:  # Spark would believe it, and a record without a value has no columns
            raise OptionError(f"column {required[0]} is NOT NULL in the schema of the query; say that in option {SCHEMA} instead")

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS):
                made = self._typed(batch.slice(start, ROWS))
                if made.num_rows:
                    yield made

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns, bad = self._parsed(batch)
        if bad and not self._permissive:
            self._refuse(batch, bad)
            good = pa.array([row not in bad for row in range(batch.num_rows)])
            batch, bad = batch.filter(good), {}
            columns = {name: column.filter(good) for name, column in columns.items()}
        return self._assembled(batch, columns, bad)

    def _parsed(self, batch: pa.RecordBatch) -> tuple[dict[str, Any], dict[int, str]]:
        """The columns of the values, null where there is none, and the reasons of the rows that do not parse."""
        values = batch.column("value")
        bad = self._bad_keys(batch) if self._key_is_text else {}
        present = values.drop_null()
        table = None if bad else self._format.parse_all(present)
        if table is not None:
            # Row n of the table is the n-th value that is not null.
            numbers = pc.subtract(pc.cumulative_sum(pc.cast(pc.is_valid(values), pa.int32())), 1)
            rows = pc.if_else(pc.is_valid(values), numbers, pa.scalar(None, pa.int32()))
            return {name: table.column(name).combine_chunks().take(rows) for name in table.column_names}, {}
        return self._parsed_one_by_one(values.to_pylist(), bad)

    def _parsed_one_by_one(self, values: list[bytes | None], bad: dict[int, str]) -> tuple[dict[str, Any], dict[int, str]]:
        made: list[dict[str, Any] | None] = []
        for row, value in enumerate(values):
            found = None
            if value is not None and row not in bad:
                try:
                    found = self._format.parse(value)
                except Mismatch as error:
                    bad[row] = str(error)
            made.append(found)
        arrow = _arrow_types(nullable(self._format.columns))
        return {
            name: pa.array([None if each is None else each[name] for each in made], arrow[name])
            for name in self._format.columns.names
        }, bad

    def _bad_keys(self, batch: pa.RecordBatch) -> dict[int, str]:
        try:
            batch.column("key").cast(pa.string())
            return {}
        except pa.ArrowInvalid:
            keys = batch.column("key").to_pylist()
            return {row: "the key is not UTF-8 text" for row, key in enumerate(keys) if key is not None and not _is_text(key)}

    def _refuse(self, batch: pa.RecordBatch, bad: dict[int, str]) -> None:
        topic = self._options.text("deadLetterTopic")
        if topic is None:
            row = min(bad)
            where = f"{batch.column('topic')[row]}-{batch.column('partition')[row]} at offset {batch.column('offset')[row]}"
            raise BadRecord(f"{where}: {bad[row]} (value.mode is failfast)")
        from ottla.spark.dead_letters import send

        send(self._options, topic, batch, bad)

    def _assembled(self, batch: pa.RecordBatch, columns: dict[str, Any], bad: dict[int, str]) -> pa.RecordBatch:
        arrow, arrays = _arrow_types(self._schema), []
        for name, kind in arrow.items():
            if name in columns:
                arrays.append(columns[name].cast(kind))
            elif name == "_deleted":
                arrays.append(pc.is_null(batch.column("value")))
            elif name == "_corrupt":
                arrays.append(_corrupt(batch, bad, kind))
            elif name == "_key" and self._key_is_text and bad:
                keys = [key if key is not None and _is_text(key) else None for key in batch.column("key").to_pylist()]
                arrays.append(pa.array(keys, pa.binary()).cast(kind))
            else:
                arrays.append(batch.column(_FROM_RECORD[name]).cast(kind))
        fields = [pa.field(name, kind, field.nullable) for (name, kind), field in zip(arrow.items(), self._schema.fields)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _corrupt(batch: pa.RecordBatch, bad: dict[int, str], kind: Any) -> Any:
    values = batch.column("value")
    return pa.array(
        [{"reason": bad[row], "value": values[row].as_py()} if row in bad else None for row in range(batch.num_rows)], kind
    )


def _arrow_types(schema: StructType) -> dict[str, Any]:
    from pyspark.sql.pandas.types import to_arrow_schema

    return {field.name: field.type for field in to_arrow_schema(schema, timezone="UTC")}


# Writing ---------------------------------------------------------------------------------------------------------------


def value_columns(schema: StructType) -> StructType:
    return StructType([field for field in schema.fields if field.name not in OUR_NAMES])


def check_written(schema: StructType, options: Options) -> None:
    """On the driver, before anything is written. Raises OptionError."""
    is_permissive(options)
    if options.text("deadLetterTopic") is not None:
        raise OptionError("option deadLetterTopic is for reading: what is written always fits its format")
    columns, given = value_columns(schema), _given_to_write(options)
    if not columns.fields:
        raise OptionError(f"there is no column to make a value of: {', '.join(schema.names)} stand beside the value")
    if given is not None:
        _check_same(columns, given)
    format_of(options, columns if given is None else given)
    for field in schema.fields:
        if field.name == "_key" and not isinstance(field.dataType, StringType | BinaryType):
            raise OptionError(f"column _key is {field.dataType.simpleString()}; a key is binary or string: cast it")
    if "_topic" not in schema.names and options.text("topic") is None:
        raise OptionError("where to? Give the option topic, or a column named _topic")


def _given_to_write(options: Options) -> StructType | None:
    """As `given_columns`; but the one column of text has the name that it has in the frame."""
    return given_columns(options) if options.value_format != "string" or options.text(SCHEMA) is not None else None


def _check_same(columns: StructType, given: StructType) -> None:
    wanted = {field.name: field.dataType for field in nullable(given).fields}
    for field in columns.fields:
        if field.name not in wanted:
            raise OptionError(f"column {field.name} is not in option {SCHEMA}, which has {', '.join(wanted)}")
        # Whether nested values may be null is not asked: what is not null can be written as what may be.
        if field.dataType.simpleString() != wanted[field.name].simpleString():
            there, here = wanted[field.name].simpleString(), field.dataType.simpleString()
            raise OptionError(f"column {field.name} is {here}, and option {SCHEMA} says {there}")
    missing = [name for name in wanted if name not in columns.names]
    if missing:
        raise OptionError(f"column {missing[0]} of option {SCHEMA} is not there; there are {', '.join(columns.names)}")


class WrittenRows:
    """Rows of `schema` as records of the sink, in an executor."""

    def __init__(self, options: Options, schema: StructType) -> None:
        columns, given = value_columns(schema), _given_to_write(options)
        self._format: Format = format_of(options, columns if given is None else given)
        self._required = [] if given is None else [field.name for field in given.fields if not field.nullable]

    def records(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS):
                yield self._record(batch.slice(start, ROWS))

    def _record(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.schema.names
        if "_corrupt" in names and batch.column("_corrupt").null_count < batch.num_rows:
            raise BadRecord("a row has a value in _corrupt, which cannot be written: send such rows elsewhere")
        deleted = batch.column("_deleted").to_pylist() if "_deleted" in names else [False] * batch.num_rows
        rows = batch.select(self._format.columns.names).to_pylist()
        values = [None if gone else self._rendered(row) for row, gone in zip(rows, deleted, strict=True)]
        made = {"value": pa.array(values, pa.binary())}
        made |= {there: batch.column(here) for here, there in WRITTEN.items() if here in names}
        return without_empty(pa.RecordBatch.from_pydict(made))

    def _rendered(self, row: dict[str, Any]) -> bytes | None:
        try:
            for name in self._required:
                if row[name] is None:
                    raise Mismatch(f"field {name} is null, and option {SCHEMA} says NOT NULL")
            return self._format.render(row)
        except Mismatch as error:
            raise BadRecord(f"a row cannot be written: {error}") from None


def without_empty(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without the columns that would choose a partition, a time or headers and say nothing at all."""
    empty = [name for name in ("partition", "timestamp", "headers") if name in batch.schema.names]
    batch = batch.drop_columns([name for name in empty if batch.column(name).null_count == batch.num_rows])
    if "partition" in batch.schema.names and batch.column("partition").null_count:
        raise BadRecord("the partition is null in some rows and not in others; give all of them one, or none")
    return batch
