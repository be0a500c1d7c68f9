"""Lines of text in, records out, and back: what `ottla produce` reads and `ottla consume` prints.

Plain: the whole line is the value; with separators, `headers TAB key TAB value` style parts come first. JSON: one object a line with
`value` and, as wanted, `key`, `headers`, `partition`, `timestamp`; bytes that are no text are `{"base64": "…"}`, any other JSON
value is sent as JSON. `consume --json` prints what `produce --json` reads.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ottla.cli.output import json_bytes, text, time_text

Headers = list[tuple[str, bytes | None]]


class BadLine(ValueError):
    """A line that is no record; the message says why, without the line's number."""


class Outgoing(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: Headers = []
    partition: int | None = None
    timestamp: int | None = None


class LineFormat(NamedTuple):
    """How a line is cut. A separator that is None means that there is no such part."""

    key_separator: str | None = None
    headers_separator: str | None = None  # between the headers and the rest; a header is NAME:VALUE, several by commas
    null_marker: str | None = None
    is_json: bool = False


def parse_line(line: str, form: LineFormat) -> Outgoing:
    if form.is_json:
        return parse_json(line)
    headers: Headers = []
    rest = line
    if form.headers_separator is not None:
        before, found, rest = line.partition(form.headers_separator)
        if not found:
            raise BadLine(f"no {form.headers_separator!r} behind the headers")
        headers = [parse_header(part, ":") for part in before.split(",") if part]
    key: bytes | None = None
    if form.key_separator is not None:
        before, found, after = rest.partition(form.key_separator)
        if not found:
            raise BadLine(f"no {form.key_separator!r} between key and value")
        key, rest = _content(before, form), after
    return Outgoing(_content(rest, form), key, headers)


def parse_header(part: str, separator: str) -> tuple[str, bytes | None]:
    name, found, value = part.partition(separator)
    if not found or not name:
        raise BadLine(f"{part!r} is no header: write NAME{separator}VALUE")
    return name, value.encode()


def _content(part: str, form: LineFormat) -> bytes | None:
    return None if form.null_marker is not None and part == form.null_marker else part.encode("utf-8", "surrogateescape")


def parse_json(line: str) -> Outgoing:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise BadLine(f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or "value" not in found:
        raise BadLine('it is not an object with a "value"')
    partition, timestamp = found.get("partition"), found.get("timestamp")
    if not isinstance(partition, int | None) or not isinstance(timestamp, int | None):
        raise BadLine('"partition" and "timestamp" must be whole numbers')
    return Outgoing(
        _json_content(found["value"]), _json_content(found.get("key")), _json_headers(found.get("headers")), partition, timestamp
    )


def _json_headers(value: Any) -> Headers:
    if value is None:
        return []
    if isinstance(value, dict):
        return [(name, _json_content(content)) for name, content in value.items()]
    try:
        return [(str(header["key"]), _json_content(header["value"])) for header in value]
    except (TypeError, KeyError):
        raise BadLine('"headers" must be an object, or a list of objects with "key" and "value"') from None


def _json_content(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadLine("a base64 value that cannot be read") from None
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class Incoming(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Columns(NamedTuple):
    """What to print before the value, tab by tab."""

    partition: bool = False
    offset: bool = False
    timestamp: bool = False
    headers: bool = False
    key: bool = False
    separator: str = "\t"
    null: str = "null"


def format_record(record: Incoming, columns: Columns) -> str:
    parts = []
    if columns.partition:
        parts.append(f"{record.topic}-{record.partition}")
    if columns.offset:
        parts.append(str(record.offset))
    if columns.timestamp:
        parts.append(time_text(record.timestamp) or "-")
    if columns.headers:
        parts.append(",".join(f"{name}:{_shown(value, columns)}" for name, value in record.headers) or "-")
    if columns.key:
        parts.append(_shown(record.key, columns))
    return columns.separator.join([*parts, _shown(record.value, columns)])


def _shown(value: bytes | None, columns: Columns) -> str:
    return columns.null if value is None else text(value)


def record_row(record: Incoming) -> dict[str, Any]:
    """The object of `consume --json`."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
        "key": None if record.key is None else json_bytes(record.key),
        "value": None if record.value is None else json_bytes(record.value),
        "headers": [{"key": name, "value": None if value is None else json_bytes(value)} for name, value in record.headers],
    }
