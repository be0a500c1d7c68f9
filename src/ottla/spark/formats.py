"""`value.format`: how the bytes of a value become columns, and columns bytes. One class each for json, csv, avro and string.

`parse` takes one value and gives a dict with every column, or raises `Mismatch` with the reason. `render` is the way back.
"""

from __future__ import annotations

import csv
import decimal
import io
import json
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

from ottla.spark import avro
from ottla.spark.conversion import Mismatch, from_text, struct_from_json
from ottla.spark.options import VALUE_SCHEMA as SCHEMA
from ottla.spark.options import OptionError, Options
from ottla.spark.rendering import object_to_json, to_text
from ottla.spark.schemas import parse_ddl

_BY_COLUMNS = ("string", "bigint", "int", "double", "boolean")  # what Arrow's JSON reader and `conversion` understand alike


class Format(Protocol):
    columns: StructType  # nullable=False: a value without it is not a record of this kind

    def parse(self, value: bytes) -> dict[str, Any]: ...

    def parse_all(self, values: Any) -> Any | None:
        """A table of all values at once, where that gives what `parse` gives for each; otherwise None."""

    def render(self, row: dict[str, Any]) -> bytes | None: ...


def given_columns(options: Options) -> StructType | None:
    """The columns that the options name; None: those of the frame are taken. Raises OptionError."""
    text = options.text(SCHEMA)
    match options.value_format, text:
        case "string", None:
            return StructType([StructField("value", StringType())])
        case "avro", None:
            raise OptionError(f"option {SCHEMA} is missing: Avro cannot be read or written without its schema")
        case "avro", str(text):
            kind = avro.compiled(text, SCHEMA).type
            assert isinstance(kind, StructType)
            return kind
        case _, None:
            return None
    return parse_ddl(text or "", SCHEMA)


def format_of(options: Options, columns: StructType) -> Format:
    """Raises OptionError."""
    match options.value_format:
        case "json":
            return Json(columns)
        case "csv":
            return Csv(columns, options.text("value.delimiter", ",") or ",")
        case "avro":
            return Avro(options.text(SCHEMA) or "")
    return Text(columns)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Mismatch(f"the value is not UTF-8 text (byte {error.start})") from None


class Json:
    def __init__(self, columns: StructType) -> None:
        self.columns = columns
        self._convert = struct_from_json(columns)
        self._render = object_to_json(columns)
        # Digits of a decimal would be lost in a float.
        self._parse_float = decimal.Decimal if _has(columns, DecimalType) else None

    def parse(self, value: bytes) -> dict[str, Any]:
        try:
            found = json.loads(_text(value), parse_float=self._parse_float)
        except json.JSONDecodeError as error:
            raise Mismatch(f"the value is not JSON: {error.msg} at position {error.pos}") from None
        except RecursionError:
            raise Mismatch("the value is not JSON that can be read: it is nested too deeply") from None
        made: dict[str, Any] = self._convert(found)
        return made

    def parse_all(self, values: Any) -> Any | None:
        """By Arrow's reader, four times as fast, where its rules are ours: flat columns, one object without line ends in each value.

        A value that begins with { and ends with } is at least one row or an error, so as many rows as values are one each.
        """
        if any(field.dataType.simpleString() not in _BY_COLUMNS for field in self.columns.fields) or not len(values):
            return None
        if not (pc.all(pc.starts_with(values, "{")).as_py() and pc.all(pc.ends_with(values, "}")).as_py()):
            return None
        try:
            lines = values.cast(pa.string())
            if pc.any(pc.match_substring_regex(lines, r"[\r\n]")).as_py():
                return None
            table = _read_json(
                pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")[0].as_buffer(), self.columns
            )
        except pa.ArrowInvalid:
            return None
        missing = any(not field.nullable and table.column(field.name).null_count for field in self.columns.fields)
        return None if missing or table.num_rows != len(values) else table

    def render(self, row: dict[str, Any]) -> bytes:
        return self._render(row).encode()


def _read_json(text: Any, columns: StructType) -> Any:
    import pyarrow.json as pj
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(columns, timezone="UTC")
    wanted = pa.schema([field.with_nullable(True) for field in wanted])
    return pj.read_json(
        pa.BufferReader(text),
        pj.ReadOptions(use_threads=False, block_size=max(1, text.size + 1)),
        pj.ParseOptions(explicit_schema=wanted, newlines_in_values=False, unexpected_field_behavior="ignore"),
    ).select(columns.names)


class Csv:
    """One line of RFC 4180, without a head. An empty cell is null."""

    def __init__(self, columns: StructType, delimiter: str) -> None:
        delimiter = {"\\t": "\t"}.get(delimiter, delimiter)
        if len(delimiter) != 1 or delimiter in '\r\n"':
            raise OptionError(f"option value.delimiter must be one character, not {delimiter!r}")
        nested = next((field for field in columns.fields if _has(field.dataType, ArrayType, MapType, StructType)), None)
        if nested is not None:
            raise OptionError(f"column {nested.name} is {nested.dataType.simpleString()}, and CSV has no nested values")
        self.columns = columns
        self._delimiter = delimiter
        self._cells: list[tuple[str, Callable[[str], Any], bool]] = [
            (field.name, from_text(field.dataType, field.name), field.nullable) for field in columns.fields
        ]
        self._texts = [(field.name, to_text(field.dataType)) for field in columns.fields]

    def parse(self, value: bytes) -> dict[str, Any]:
        try:
            rows = list(csv.reader(io.StringIO(_text(value), newline=""), delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            raise Mismatch(f"the value is not CSV: {error}") from None
        if len(rows) != 1 or len(rows[0]) != len(self._cells):
            found = f"{len(rows)} lines" if len(rows) != 1 else f"{len(rows[0])} cells"
            raise Mismatch(f"the value has {found} where one line of {len(self._cells)} cells should be")
        made = {}
        for cell, (name, convert, may_be_null) in zip(rows[0], self._cells, strict=True):
            if not cell and not may_be_null:
                raise Mismatch(f"field {name} is missing")
            made[name] = convert(cell) if cell else None
        return made

    def parse_all(self, values: Any) -> None:
        return None

    def render(self, row: dict[str, Any]) -> bytes:
        out = io.StringIO()
        cells = ["" if row[name] is None else text(row[name]) for name, text in self._texts]
        csv.writer(out, delimiter=self._delimiter, lineterminator="").writerow(cells)
        return out.getvalue().encode()


class Avro:
    def __init__(self, schema: str) -> None:
        codec = avro.compiled(schema, SCHEMA)
        assert isinstance(codec.type, StructType)
        self.columns = codec.type
        self._codec = codec

    def parse(self, value: bytes) -> dict[str, Any]:
        made, end = self._codec.read(value, 0)
        if end != len(value):
            raise Mismatch(f"the value is no Avro of this schema: {len(value) - end} of its {len(value)} bytes are left over")
        found: dict[str, Any] = made
        return found

    def parse_all(self, values: Any) -> None:
        return None

    def render(self, row: dict[str, Any]) -> bytes:
        out = bytearray()
        self._codec.write(row, out)
        return bytes(out)


class Text:
    """The value as one column of text."""

    def __init__(self, columns: StructType) -> None:
        if len(columns) != 1 or not isinstance(columns[0].dataType, StringType):
            raise OptionError(f"value.format string has one column of type string, not {columns.simpleString()}")
        self.columns = columns
        self._name = columns[0].name

    def parse(self, value: bytes) -> dict[str, Any]:
        return {self._name: _text(value)}

    def parse_all(self, values: Any) -> Any | None:
        try:
            return pa.table({self._name: values.cast(pa.string())})
        except pa.ArrowInvalid:
            return None

    def render(self, row: dict[str, Any]) -> bytes | None:
        found: str | None = row[self._name]
        return None if found is None else found.encode()


def _has(kind: DataType, *wanted: type[DataType]) -> bool:
    match kind:
        case StructType():
            return isinstance(kind, wanted) or any(_has(field.dataType, *wanted) for field in kind.fields)
        case ArrayType():
            return isinstance(kind, wanted) or _has(kind.elementType, *wanted)
        case MapType():
            return isinstance(kind, wanted) or _has(kind.keyType, *wanted) or _has(kind.valueType, *wanted)
    return isinstance(kind, wanted)
