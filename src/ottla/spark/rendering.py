"""From columns to text: one value of a column as JSON or as a cell of CSV, in the spelling of Spark's `to_json` and `to_csv`.

In: what Arrow gives for a value (`to_pylist`). Times are in UTC with a Z, bytes are base64, fields of an object that are null are
left out, a decimal keeps its digits.
"""

from __future__ import annotations

import base64
import datetime
import math
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

Render = Callable[[Any], str]
_quoted: Render = encode_basestring


def to_json(kind: DataType) -> Render:
    """The renderer of a type; null is `null`."""
    inner = _to_json(kind)
    return lambda value: "null" if value is None else inner(value)


def _to_json(kind: DataType) -> Render:
    match kind:
        case StructType():
            return object_to_json(kind)
        case ArrayType():
            element = to_json(kind.elementType)
            return lambda value: f"[{','.join(map(element, value))}]"
        case MapType():
            return _map(kind)
        case StringType():
            return _quoted
        case DoubleType() | FloatType():
            return lambda value: repr(value) if math.isfinite(value) else _quoted(_floating(value))
        case DateType() | TimestampType() | TimestampNTZType() | BinaryType():
            text = to_text(kind)
            return lambda value: _quoted(text(value))
    return to_text(kind)


def object_to_json(kind: StructType) -> Render:
    fields = [(field.name, f"{_quoted(field.name)}:", _to_json(field.dataType)) for field in kind.fields]

    def render(value: Any) -> str:
        return f"{{{','.join([head + inner(value[name]) for name, head, inner in fields if value[name] is not None])}}}"

    return render


def _map(kind: MapType) -> Render:
    key, inner = to_text(kind.keyType), to_json(kind.valueType)
    return lambda value: f"{{{','.join([_quoted(key(name)) + ':' + inner(each) for name, each in value])}}}"


def to_text(kind: DataType) -> Render:
    """The text of a value that is not null."""
    match kind:
        case BooleanType():
            return lambda value: "true" if value else "false"
        case DoubleType() | FloatType():
            return _floating
        case TimestampType():
            return lambda value: _time(value.astimezone(datetime.UTC)).removesuffix("+00:00") + "Z"
        case TimestampNTZType():
            return _time
        case DateType():
            return datetime.date.isoformat
        case BinaryType():
            return lambda value: base64.b64encode(value).decode()
    return _digits_or_text


def _digits_or_text(value: Any) -> str:
    return format(value, "f") if hasattr(value, "as_tuple") else str(value)


def _floating(value: float) -> str:
    return repr(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _time(value: datetime.datetime) -> str:
    return value.isoformat(timespec="microseconds" if value.microsecond % 1000 else "milliseconds")
