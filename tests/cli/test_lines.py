"""Lines to records and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.lines import BadLine, Columns, Incoming, LineFormat, Outgoing, format_record, parse_line, record_row

contents = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), contents), max_size=3)


def test_a_plain_line_is_the_value() -> None:
    assert parse_line("hello\tworld", LineFormat()) == Outgoing(b"hello\tworld")


def test_parts_are_cut_in_order() -> None:
    form = LineFormat(key_separator=":", headers_separator="|", null_marker="NULL")
    assert parse_line("a:1,b:2|k:v:w", form) == Outgoing(b"v:w", b"k", [("a", b"1"), ("b", b"2")])
    assert parse_line("|NULL:NULL", form) == Outgoing(None, None, [])


@pytest.mark.parametrize(
    ("line", "form", "why"),
    [
        ("no key", LineFormat(key_separator=":"), "no ':' between key and value"),
        ("x", LineFormat(headers_separator="|"), "no '|' behind the headers"),
        ("h|v", LineFormat(headers_separator="|"), "'h' is no header"),
        ("{", LineFormat(is_json=True), "not JSON"),
        ("[1]", LineFormat(is_json=True), "not an object"),
        ('{"value": 1, "partition": "x"}', LineFormat(is_json=True), "whole numbers"),
        ('{"value": {"base64": "?"}}', LineFormat(is_json=True), "base64"),
        ('{"value": 1, "headers": 5}', LineFormat(is_json=True), '"headers" must be'),
    ],
)
def test_a_bad_line_says_why(line: str, form: LineFormat, why: str) -> None:
    with pytest.raises(BadLine, match=why.replace("|", r"\|")):
        parse_line(line, form)


@given(contents, contents, headers, st.integers(0, 9), st.integers(0, 2**40))
def test_what_consume_prints_as_json_produce_reads_back(
    key: bytes | None, value: bytes | None, header: list[tuple[str, bytes | None]], partition: int, timestamp: int
) -> None:
    row = record_row(Incoming("t", partition, 7, timestamp, "CreateTime", key, value, header))
    again = parse_line(json.dumps(row), LineFormat(is_json=True))
    assert again == Outgoing(value, key, header, partition, timestamp)


def test_columns_stand_before_the_value() -> None:
    record = Incoming("orders", 2, 41, 1700000000000, "CreateTime", b"k", None, [("a", b"1")])
    every = Columns(partition=True, offset=True, timestamp=True, headers=True, key=True)
    assert format_record(record, every) == "orders-2\t41\t2023-11-14T22:13:20.000Z\ta:1\tk\tnull"
    assert format_record(record, Columns()) == "null"
