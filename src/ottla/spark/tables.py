"""`CREATE TABLE … USING ottla OPTIONS (…)`: how the options find their way to the readers and writers of the table.

Spark 4.3 shows the options of a table to a Python source once, when it asks for the schema at CREATE TABLE; later it hands out an
empty map. But it keeps the schema in its catalog whole, with the metadata of columns, and gives it to every reader and writer. So the
options travel in the metadata of the first column. A table made with a list of columns is never asked for a schema, and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql.types import StructField, StructType

from ottla.spark.options import OptionError

METADATA = "ottla.options"
_OPTION = "option."  # Spark lists each option of CREATE TABLE with and without this, among the table's other properties
_BROKERS = ("offset", "timestampType")  # columns that only a broker sets


def is_creation(options: Mapping[str, str]) -> bool:
    """Is this CREATE TABLE asking? Only then is there a provider among the options."""
    return any(name.lower() == "provider" for name in options)


def created_with(options: Mapping[str, str]) -> dict[str, str]:
    """The options as the statement has them, without the table's other properties."""
    return {name[len(_OPTION) :]: text for name, text in options.items() if name.lower().startswith(_OPTION)}


def keeping(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema that carries the options."""
    first = schema.fields[0]
    kept = StructField(first.name, first.dataType, first.nullable, {METADATA: json.dumps(dict(options))})
    return StructType([kept, *schema.fields[1:]])


def options_of(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Those of a query, or of the table whose schema this is. Raises OptionError."""
    for field in schema.fields:
        if METADATA in field.metadata:
            kept: dict[str, str] = json.loads(field.metadata[METADATA])
            return kept | dict(options)
    if not options:
        raise OptionError(
            "this table has no options: Spark 4.3 keeps them only for a table that is made without a list of columns. "
            "Leave the list away; columns of values are given with value.format and value.schema in OPTIONS"
        )
    return dict(options)


def is_table(schema: StructType) -> bool:
    return any(METADATA in field.metadata for field in schema.fields)


def insertable(schema: StructType) -> StructType:
    """What an INSERT into a table without value.format writes: Spark fills in all columns of the table, and some are the broker's."""
    return StructType([field for field in schema.fields if field.name not in (*_BROKERS, "timestamp")])


def inserted(batches: Iterable[Any]) -> Iterator[Any]:
    from ottla.spark.typed import without_empty

    for batch in batches:
        yield without_empty(batch.drop_columns([name for name in _BROKERS if name in batch.schema.names]))
