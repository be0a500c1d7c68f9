"""Schemas as Spark writes them (`order_id long NOT NULL, lines array<struct<product: string>>`), read without a JVM.

Spark's own parser lives in the JVM, and a data source is asked for its schema in a Python process that has none. Beside that, a
mistake in an option is answered here with the option's name and the nearest right type.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ottla.spark.options import OptionError

_SIMPLE: dict[str, DataType] = {
    "string": StringType(), "binary": BinaryType(), "boolean": BooleanType(), "byte": ByteType(), "tinyint": ByteType(),
    "short": ShortType(), "smallint": ShortType(), "int": IntegerType(), "integer": IntegerType(), "long": LongType(),
    "bigint": LongType(), "float": FloatType(), "real": FloatType(), "double": DoubleType(), "date": DateType(),
    "timestamp": TimestampType(), "timestamp_ntz": TimestampNTZType(),
}  # fmt: skip
_NESTED = ("array", "map", "struct", "decimal")
MAX_PRECISION = 38
MAX_DEPTH = 32
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+|[<>(),:])")


def parse_ddl(text: str, option: str) -> StructType:
    """Raises OptionError, which names the option."""
    reading = _Reading(text, option)
    fields = reading.fields(end=None)
    if not fields:
        raise OptionError(f"option {option} names no column")
    return StructType(fields)


def nullable(schema: StructType) -> StructType:
    """The same columns, each of which may be null: a record that is not there or not readable has none of them."""
    return StructType([StructField(field.name, field.dataType, True, field.metadata) for field in schema.fields])


class _Reading:
    def __init__(self, text: str, option: str) -> None:
        self._option = option
        self._tokens = self._split(text)
        self._at = 0
        self._depth = 0

    def _split(self, text: str) -> list[str]:
        tokens, position = [], 0
        while position < len(text.rstrip()):
            found = _TOKEN.match(text, position)
            if found is None:
                raise OptionError(f"option {self._option} cannot be read at {text[position:].strip()[:20]!r}")
            tokens.append(found[1])
            position = found.end()
        return tokens

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, wanted: str) -> str:
        token = self._peek()
        if token is None:
            raise OptionError(f"option {self._option} ends where {wanted} should be")
        self._at += 1
        return token

    def _skip(self, word: str) -> bool:
        token = self._peek()
        if token is None or token.lower() != word:
            return False
        self._at += 1
        return True

    def _demand(self, word: str) -> None:
        found = self._next(word)
        if found.lower() != word:
            raise OptionError(f"option {self._option} has {found!r} where {word!r} should be")

    def fields(self, end: str | None) -> list[StructField]:
        found: list[StructField] = []
        while self._peek() is not None and self._peek() != end:
            if found:
                self._demand(",")
            found.append(self._field())
        names = [field.name.lower() for field in found]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise OptionError(f"option {self._option} names the column {twice} twice")
        return found

    def _field(self) -> StructField:
        name = self._next("the name of a column")
        if not re.fullmatch(r"\w+|`.+`", name):
            raise OptionError(f"option {self._option} has {name!r} where the name of a column should be")
        name = name[1:-1].replace("``", "`") if name.startswith("`") else name
        self._skip(":")
        kind = self._type(name)
        is_required = self._skip("not")
        if is_required:
            self._demand("null")
        if self._skip("comment"):
            self._next("a comment")
        return StructField(name, kind, not is_required)

    def _type(self, column: str) -> DataType:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise OptionError(f"option {self._option} nests more than {MAX_DEPTH} types into each other")
        try:
            return self._type_of(self._next(f"the type of {column}").lower(), column)
        finally:
            self._depth -= 1

    def _type_of(self, word: str, column: str) -> DataType:
        match word:
            case "array":
                self._demand("<")
                element = self._type(column)
                self._demand(">")
                return ArrayType(element)
            case "map":
                self._demand("<")
                key = self._type(column)
                self._demand(",")
                value = self._type(column)
                self._demand(">")
                return MapType(key, value)
            case "struct":
                self._demand("<")
                fields = self.fields(end=">")
                self._demand(">")
                return StructType(fields)
            case "decimal" | "dec" | "numeric":
                return self._decimal(column)
        if word not in _SIMPLE:
            near = get_close_matches(word, [*_SIMPLE, *_NESTED], 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join([*_SIMPLE, *_NESTED])}"
            raise OptionError(f"option {self._option}: column {column} has an unknown type {word}{hint}")
        return _SIMPLE[word]

    def _decimal(self, column: str) -> DecimalType:
        precision, scale = "10", "0"
        if self._skip("("):
            precision = self._next("a precision")
            if self._skip(","):
                scale = self._next("a scale")
            self._demand(")")
        if not (precision.isdigit() and scale.isdigit() and 0 < int(precision) <= MAX_PRECISION and int(scale) <= int(precision)):
            raise OptionError(
                f"option {self._option}: column {column} has an impossible decimal({precision}, {scale}); "
                f"the precision is 1 to {MAX_PRECISION} and the scale not above it"
            )
        return DecimalType(int(precision), int(scale))
