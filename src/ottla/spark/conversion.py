"""From text to columns: one value that JSON or CSV gave to one value of a column. The way back is in `rendering`.

In: what `json.loads` or a cell of CSV gave, and Spark's type. Out: what Arrow takes for that type. `Mismatch` says which field does
not fit and why; nothing is rounded or cut in silence, except the digits of a decimal beyond its scale, as Spark does.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from collections.abc import Callable
from typing import Any

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
    StructType,
    TimestampNTZType,
    TimestampType,
)

Convert = Callable[[Any], Any]
_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_NOT_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
_TRUTHS = {"true": True, "false": False}
_SHOWN = 40


class Mismatch(ValueError):
    """A value that is not of its column's type; the sentence names the field."""


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def from_json(kind: DataType, path: str) -> Convert:
    """The converter of a type; null stays null everywhere."""
    inner = _from_json(kind, path)
    return lambda value: None if value is None else inner(value)


def _from_json(kind: DataType, path: str) -> Convert:
    match kind:
        case StructType():
            return struct_from_json(kind, path)
        case ArrayType():
            return _array(from_json(kind.elementType, f"{path}[]"), path)
        case MapType():
            return _map(kind, path)
        case StringType():
            return lambda value: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
        case BooleanType():
            return lambda value: value if isinstance(value, bool) else _wrong(path, kind, value)
        case DoubleType() | FloatType():
            return _floating(kind, path)
        case DecimalType():
            return _decimal(kind, path)
        case DateType() | TimestampType() | TimestampNTZType() | BinaryType():
            parse = from_text(kind, path)
            return lambda value: parse(value) if isinstance(value, str) else _wrong(path, kind, value)
    return _whole(kind, path)


def _wrong(path: str, kind: DataType, value: Any) -> Any:
    raise Mismatch(f"field {path} should be {kind.simpleString()} and is {_shown(value)}")


def struct_from_json(kind: StructType, path: str = "") -> Convert:
    """An object as a dict with every field of the type; what the type does not name is left out."""
    start = f"{path}." if path else ""
    fields = [(field.name, from_json(field.dataType, start + field.name), field.nullable) for field in kind.fields]

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return _wrong(path, kind, value) if path else _no_object(value)
        made = {name: inner(value.get(name)) for name, inner, _ in fields}
        for name, _, may_be_null in fields:
            if not may_be_null and made[name] is None:
                raise Mismatch(f"field {start}{name} is missing")
        return made

    return convert


def _no_object(value: Any) -> Any:
    raise Mismatch(f"the value is not a JSON object but {_shown(value)}")


def _array(inner: Convert, path: str) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise Mismatch(f"field {path} should be an array and is {_shown(value)}")
        return [inner(each) for each in value]

    return convert


def _map(kind: MapType, path: str) -> Convert:
    key, inner = from_text(kind.keyType, f"{path} (a key)"), from_json(kind.valueType, f"{path}{{}}")

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Mismatch(f"field {path} should be an object and is {_shown(value)}")
        return [(key(name), inner(each)) for name, each in value.items()]

    return convert


def _whole(kind: DataType, path: str) -> Convert:
    limit = 1 << (_BITS[type(kind)] - 1)

    def convert(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int):
            return _wrong(path, kind, value)
        if not -limit <= value < limit:
            raise Mismatch(f"field {path} does not fit into {kind.simpleString()}: {_shown(value)}")
        return value

    return convert


def _floating(kind: DataType, path: str) -> Convert:
    def convert(value: Any) -> Any:
        if isinstance(value, str) and value in _NOT_NUMBERS:
            return _NOT_NUMBERS[value]
        if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
            return _wrong(path, kind, value)
        try:
            return float(value)
        except OverflowError:
            raise Mismatch(f"field {path} does not fit into {kind.simpleString()}: {_shown(value)}") from None

    return convert


def _decimal(kind: DecimalType, path: str) -> Convert:
    step = decimal.Decimal(1).scaleb(-kind.scale)
    limit = decimal.Decimal(10) ** (kind.precision - kind.scale)
    context = decimal.Context(prec=kind.precision + kind.scale + 2, rounding=decimal.ROUND_HALF_UP)

    def convert(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
            return _wrong(path, kind, value)
        try:
            exact = value if isinstance(value, decimal.Decimal) else decimal.Decimal(repr(value))
            made = exact.quantize(step, context=context)
        except decimal.InvalidOperation:
            made = limit
        if not abs(made) < limit:
            raise Mismatch(f"field {path} does not fit into {kind.simpleString()}: {value}")
        return made

    return convert


def from_text(kind: DataType, path: str) -> Convert:
    """A type from its text: a cell of CSV, the key of a JSON object, a date in a JSON string."""
    convert = _from_text(kind, path)

    def checked(text: str) -> Any:
        try:
            return convert(text)
        except Mismatch:
            raise
        except (ValueError, KeyError, ArithmeticError):
            return _wrong(path, kind, text)

    return checked


def _from_text(kind: DataType, path: str) -> Convert:
    match kind:
        case StringType():
            return str
        case BooleanType():
            return lambda text: _TRUTHS[text.strip().lower()]
        case DoubleType() | FloatType():
            return lambda text: _NOT_NUMBERS[text] if text in _NOT_NUMBERS else float(text)
        case DecimalType():
            inner = _decimal(kind, path)
            return lambda text: inner(decimal.Decimal(text.strip()))
        case DateType():
            return lambda text: datetime.date.fromisoformat(text.strip())
        case TimestampType():
            return lambda text: _in_utc(datetime.datetime.fromisoformat(text.strip()))
        case TimestampNTZType():
            return lambda text: datetime.datetime.fromisoformat(text.strip()).replace(tzinfo=None)
        case BinaryType():
            return lambda text: base64.b64decode(text, validate=True)
    whole = _whole(kind, path)
    return lambda text: whole(int(text))


def _in_utc(time: datetime.datetime) -> datetime.datetime:
    """A time without a zone is in UTC: an executor's own zone must not change what a record says."""
    return time.replace(tzinfo=datetime.UTC) if time.tzinfo is None else time.astimezone(datetime.UTC)
