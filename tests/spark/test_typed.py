"""Typed columns without a Spark session: what each format makes of bytes and of rows, and what it says of what it cannot read."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")
import pyarrow as pa
from pyspark.sql.types import StructType

from ottla.spark import typed
from ottla.spark.conversion import Mismatch
from ottla.spark.formats import Json, format_of, given_columns
from ottla.spark.options import OptionError, Options, parse
from ottla.spark.schemas import parse_ddl
from ottla.spark.sink import check_schema

pytestmark = pytest.mark.spark
ORDER = "order_id long NOT NULL, product string, quantity int, price double, paid boolean"


def options(**more: str) -> Options:
    names = {name.replace("_", "."): text for name, text in more.items()}
    names = {"deadLetterTopic" if name == "dead" else name: text for name, text in names.items()}
    return parse({"kafka.bootstrap.servers": "h:1", "topic": "orders", **names}, reading=True)


def records(values: list[bytes | None], keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "key": pa.array(keys or [b"k"] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "topic": pa.array(["orders"] * count),
        "partition": pa.array([3] * count, pa.int32()),
        "offset": pa.array(range(100, 100 + count), pa.int64()),
        "timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array([0] * count, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)


def read(asked: Options, values: list[bytes | None], schema: StructType | None = None) -> list[dict[str, Any]]:
    schema = schema or typed.schema_of(asked)
    return [row for batch in typed.TypedRows(asked, schema).rows([records(values)]) for row in batch.to_pylist()]


def test_json_becomes_columns_and_what_else_a_record_has_stands_beside_them() -> None:
    asked = options(value_format="json", value_schema=ORDER, key_format="string")
    row, gone = read(asked, [b'{"order_id": 7, "product": "tea", "price": 2, "more": [1]}', None])
    assert row == {
        "order_id": 7, "product": "tea", "quantity": None, "price": 2.0, "paid": None, "_key": "k", "_topic": "orders",
        "_partition": 3, "_offset": 100, "_timestamp": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), "_timestampType": 0,
        "_deleted": False, "_corrupt": None,
    }  # fmt: skip
    assert gone["_deleted"] is True
    assert gone["order_id"] is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"not json", "the value is not JSON: Expecting value at position 0"),
        (b"[1]", "the value is not a JSON object but [1]"),
        (b'{"product": "tea"}', "field order_id is missing"),
        (b'{"order_id": "7"}', "field order_id should be bigint and is '7'"),
        (b'{"order_id": 1.5}', "field order_id should be bigint and is 1.5"),
        (b'{"order_id": 1, "quantity": 4000000000}', "field quantity does not fit into int: 4000000000"),
        (b'{"order_id": 1, "paid": 1}', "field paid should be boolean and is 1"),
        (b"\xff\xfe", "the value is not UTF-8 text (byte 0)"),
        (b"", "the value is not JSON: Expecting value at position 0"),
        (b'{"order_id": 1} {"order_id": 2}', "the value is not JSON: Extra data at position 16"),
    ],
)
def test_a_value_that_does_not_parse_goes_to_corrupt_with_the_reason_and_nothing_else_is_lost(value: bytes, reason: str) -> None:
    asked = options(value_format="json", value_schema=ORDER, key_format="string")
    good = b'{"order_id": 9}'
    first, bad, last = read(asked, [good, value, good])
    assert bad["_key"] == "k"
    assert bad["_corrupt"] == {"reason": reason, "value": value}
    assert bad["order_id"] is None
    assert (bad["_partition"], bad["_offset"]) == (3, 101)
    assert first["order_id"] == last["order_id"] == 9
    assert first["_corrupt"] is None


def test_a_schema_given_to_spark_chooses_among_the_columns_and_may_not_forbid_nulls() -> None:
    asked = options(value_format="json", value_schema=ORDER)
    assert read(asked, [b'{"order_id": 1, "product": "tea"}'], parse_ddl("product string, _offset long", "x")) == [
        {"product": "tea", "_offset": 100}
    ]
    own = options(value_format="json")
    assert read(own, [b'{"a": 1}'], parse_ddl("a long, _deleted boolean", "x")) == [{"a": 1, "_deleted": False}]
    with pytest.raises(OptionError, match="column a is NOT NULL in the schema of the query"):
        read(own, [b'{"a": 1}'], parse_ddl("a long NOT NULL", "x"))
    with pytest.raises(OptionError, match=r"column b is not in option value\.schema"):
        read(asked, [], parse_ddl("b long", "x"))


def test_failfast_names_the_record() -> None:
    asked = options(value_format="json", value_schema=ORDER, value_mode="failfast")
    assert "_corrupt" not in typed.schema_of(asked).names
    with pytest.raises(typed.BadRecord, match="orders-3 at offset 101: the value is not JSON"):
        read(asked, [b'{"order_id": 9}', b"x"])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.dictionaries(st.sampled_from(["order_id", "product", "quantity", "price", "paid", "other"]), JSON_VALUES)
RIGHT = st.fixed_dictionaries(
    {"order_id": st.integers(-(2**63), 2**63 - 1)},
    optional={
        "product": st.text(),
        "quantity": st.integers(0, 99),
        "price": st.floats(allow_nan=False) | st.integers(),
        "paid": st.booleans(),
    },
)


@settings(max_examples=200, deadline=None)
@given(st.lists(RIGHT | FIELDS, max_size=6), st.sampled_from([None, ", ", "\n"]))
def test_reading_by_columns_gives_what_reading_one_by_one_gives(rows: list[Any], space: str | None) -> None:
    format_ = Json(parse_ddl(ORDER, "value.schema"))
    values = [
        json.dumps(row, ensure_ascii=False, separators=(space or ",", ":")).encode("utf-8", "surrogatepass") for row in rows
    ]
    table = format_.parse_all(pa.array(values, pa.binary()))
    if table is not None:
        assert table.to_pylist() == [format_.parse(value) for value in values]


def test_plain_rows_are_read_by_columns() -> None:
    format_ = Json(parse_ddl(ORDER, "value.schema"))
    assert format_.parse_all(pa.array([b'{"order_id": 1}', b'{"order_id": 2, "x": {}}'])) is not None
    assert format_.parse_all(pa.array([b'{"order_id": 1}', b'{"order_id": 1, "order_id": 2}'])) is None
    assert format_.parse_all(pa.array([b'{"order_id": 1}', b'{"product": "no id"}'])) is None


NESTED = (
    "a array<struct<n: int, s: string>>, m map<string, double>, d date, t timestamp, x decimal(20, 4), b binary, f float, "
    "n struct<inner: struct<deep: boolean>>, small tinyint, local timestamp_ntz"
)
ROW = {
    "a": [{"n": 1, "s": "é\n"}, {"n": None, "s": None}],
    "m": [("k", 1.5), ("nan", None)],
    "d": datetime.date(2026, 2, 28),
    "t": datetime.datetime(2026, 2, 28, 1, 2, 3, 456789, tzinfo=datetime.UTC),
    "x": decimal.Decimal("1234567890123456.7891"),
    "b": b"\x00\xff",
    "f": 0.5,
    "n": {"inner": {"deep": True}},
    "small": -128,
    "local": datetime.datetime(2026, 2, 28, 1, 2, 3),
}


def test_what_json_is_written_is_read_again_with_nested_types_and_digits() -> None:
    format_ = Json(parse_ddl(NESTED, "value.schema"))
    text = format_.render(ROW)
    assert b'"x":1234567890123456.7891' in text
    assert b'"t":"2026-02-28T01:02:03.456789Z"' in text
    found = format_.parse(text)
    assert found == ROW
    assert format_.parse(format_.render(dict.fromkeys(ROW))) == dict.fromkeys(ROW)
    numbers = Json(parse_ddl("f double", "value.schema"))
    assert [numbers.parse(numbers.render({"f": each}))["f"] for each in (math.inf, -math.inf)] == [math.inf, -math.inf]


def test_csv_has_one_line_and_an_empty_cell_is_null() -> None:
    asked = options(
        value_format="csv", value_schema="id long NOT NULL, name string, day date, x decimal(5,2)", value_delimiter=";"
    )
    rows = read(asked, [b'1;"a;b ""c""";2026-01-02;3.456', b"2;;;", b"x;;;", b"1;2", b";;;", b"1;a;2026-13-01;"])
    assert [(row["id"], row["name"], row["day"], row["x"]) for row in rows[:2]] == [
        (1, 'a;b "c"', datetime.date(2026, 1, 2), decimal.Decimal("3.46")),
        (2, None, None, None),
    ]
    assert [row["_corrupt"]["reason"] for row in rows[2:]] == [
        "field id should be bigint and is 'x'",
        "the value has 2 cells where one line of 4 cells should be",
        "field id is missing",
        "field day should be date and is '2026-13-01'",
    ]
    given = given_columns(asked)
    assert given is not None
    format_ = format_of(asked, given)
    row = {"id": 1, "name": "a;b\n", "day": datetime.date(2026, 1, 2), "x": decimal.Decimal("3.40")}
    assert format_.parse(format_.render(row) or b"") == row


def test_text_is_one_column() -> None:
    rows = read(options(value_format="string"), ["é".encode(), b"\xff", None])
    assert [row["value"] for row in rows] == ["é", None, None]
    assert rows[1]["_corrupt"]["reason"].startswith("the value is not UTF-8")
    asked = options(value_format="string", value_schema="line string")
    assert read(asked, [b"x"])[0]["line"] == "x"


def test_text_is_written_from_the_one_column_there_is_whatever_its_name() -> None:
    asked = parse({"kafka.bootstrap.servers": "h:1", "topic": "t", "value.format": "string"}, reading=False)
    schema = parse_ddl("line string, _key string", "x")
    check_schema(schema, asked)
    rows = pa.record_batch([pa.array(["é;\n", "", None]), pa.array(["a", None, "c"])], names=["line", "_key"])
    [written] = typed.WrittenRows(asked, schema).records([rows])
    assert written.to_pydict() == {"value": ["é;\n".encode(), b"", None], "key": ["a", None, "c"]}
    named = parse(
        {"kafka.bootstrap.servers": "h:1", "topic": "t", "value.format": "string", "value.schema": "line string"}, reading=False
    )
    check_schema(schema, named)
    for wrong, options_, sentence in (
        ("id long", asked, r"value\.format string has one column of type string, not struct<id:bigint>"),
        ("a string, b string", asked, "value.format string has one column of type string"),
        ("other string", named, "column other is not in option value.schema, which has line"),
    ):
        with pytest.raises(OptionError, match=sentence):
            check_schema(parse_ddl(wrong, "x"), options_)


@pytest.mark.parametrize("prefix", ["", "_"])
def test_headers_are_pairs_of_a_name_and_bytes_and_nothing_else(prefix: str) -> None:
    names = {"kafka.bootstrap.servers": "h:1", "topic": "t"} | ({"value.format": "string"} if prefix else {})

    def check(kind: str) -> None:
        check_schema(parse_ddl(f"value string, {prefix}headers {kind}", "x"), parse(names, reading=False))

    check("array<struct<key: string, value: binary>>")
    check("array<struct<key: string, value: string>>")
    for wrong in (
        "array<bigint>",
        "map<string,binary>",
        "array<struct<value: binary, key: string>>",
        "array<struct<key: int, value: binary>>",
        "string",
    ):
        with pytest.raises(
            OptionError, match=f"column {prefix}headers has type .*, which cannot be written; it must be array<struct<key: s"
        ):
            check(wrong)


AVRO = json.dumps(
    {
        "type": "record", "name": "Order", "namespace": "shop", "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"], "default": None},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "x", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
            {"name": "parts", "type": {"type": "array", "items": {"type": "record", "name": "Part", "fields": [{"name": "n", "type": "int"}]}}},
            {"name": "more", "type": {"type": "map", "values": "double"}},
            {"name": "f", "type": {"type": "fixed", "name": "Two", "size": 2}},
            {"name": "ok", "type": "boolean"},
            {"name": "s", "type": "float"},
        ],
    }
)  # fmt: skip
AVRO_ROW = {
    "id": -(2**63), "name": None, "kind": "B", "day": datetime.date(1969, 12, 31),
    "at": datetime.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=datetime.UTC), "x": decimal.Decimal("-12.34"), "parts": [{"n": 1}, {"n": -64}],
    "more": [("k", 0.5)], "f": b"ab", "ok": True, "s": 1.5,
}  # fmt: skip


def test_avro_is_read_as_it_was_written_and_every_cut_is_noticed() -> None:
    asked = options(value_format="avro", value_schema=AVRO)
    given = given_columns(asked)
    assert given is not None
    format_ = format_of(asked, given)
    data = format_.render(AVRO_ROW) or b""
    (row,) = read(asked, [data])
    assert {name: row[name] for name in AVRO_ROW} == AVRO_ROW
    for length in range(len(data)):
        with pytest.raises(Mismatch):
            format_.parse(data[:length])
    with pytest.raises(Mismatch, match="left over"):
        format_.parse(data + b"\x00")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_avro_or_a_mismatch(data: bytes) -> None:
    asked = options(value_format="avro", value_schema=AVRO)
    given = given_columns(asked)
    assert given is not None
    try:
        format_of(asked, given).parse(data)
    except Mismatch:
        pass


def test_numbers_of_avro_are_the_examples_of_its_specification() -> None:
    schema = '{"type":"record","name":"r","fields":[{"name":"a","type":"long"},{"name":"b","type":"string"}]}'
    asked = options(value_format="avro", value_schema=schema)
    given = given_columns(asked)
    assert given is not None
    assert format_of(asked, given).render({"a": 27, "b": "foo"}) == bytes.fromhex("3606666f6f")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"value_format": "xml"}, "option value.format must be one of json, csv, avro, string, not 'xml'"),
        ({"value_format": "json"}, "option value.schema is missing: which columns do the values have?"),
        ({"value_format": "avro"}, "option value.schema is missing: Avro cannot be read"),
        ({"value_format": "json", "value_schema": "a lng"}, "column a has an unknown type lng; did you mean long?"),
        ({"value_format": "json", "value_schema": "a int, A long"}, "option value.schema names the column a twice"),
        ({"value_format": "json", "value_schema": "a int b"}, "option value.schema has 'b' where ',' should be"),
        ({"value_format": "json", "value_schema": "a decimal(2,5)"}, "an impossible decimal(2, 5)"),
        ({"value_format": "json", "value_schema": "_offset int"}, "column _offset cannot be a field of the value"),
        ({"value_format": "csv", "value_schema": "a array<int>"}, "column a is array<int>, and CSV has no nested values"),
        (
            {"value_format": "json", "value_schema": "a int", "value_mode": "drop"},
            "option value.mode must be permissive or failfast",
        ),
        (
            {"value_format": "json", "value_schema": "a int", "value_mode": "failfast", "dead": "d"},
            "does not go with deadLetterTopic",
        ),
        ({"value_format": "json", "value_schema": "a int", "key_format": "json"}, "option key.format must be binary or string"),
        ({"value_format": "avro", "value_schema": "{"}, "option value.schema must be an Avro schema in JSON"),
        ({"value_format": "avro", "value_schema": '"int"'}, "must be an Avro schema of a record"),
        ({"value_schema": "a int"}, "option value.schema goes with the option value.format"),
    ],
)
def test_a_mistake_in_the_options_is_named(given: dict[str, str], sentence: str) -> None:
    asked = options(**given)
    with pytest.raises(OptionError) as raised:
        typed.schema_of(asked)
    assert sentence in str(raised.value)


def written(asked: Options, schema: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from pyspark.sql.pandas.types import to_arrow_schema

    kind = parse_ddl(schema, "x")
    typed.check_written(kind, asked)
    batch = pa.RecordBatch.from_pylist(rows, to_arrow_schema(kind, timezone="UTC"))
    return [row for made in typed.WrittenRows(asked, kind).records([batch]) for row in made.to_pylist()]


def test_columns_are_written_as_values_and_what_stands_beside_them_as_the_rest_of_the_record() -> None:
    rows = [
        {"id": 1, "name": "é", "_key": "k", "_deleted": None, "_partition": None, "_offset": 5},
        {"id": 2, "name": None, "_key": None, "_deleted": True, "_partition": None, "_offset": 6},
    ]
    schema = "id long, name string, _key string, _deleted boolean, _partition int, _offset long"
    assert written(options(value_format="json"), schema, rows) == [
        {"value": '{"id":1,"name":"é"}'.encode(), "key": "k"},
        {"value": None, "key": None},
    ]


@pytest.mark.parametrize(
    ("given", "schema", "sentence"),
    [
        ({"value_schema": "id long"}, "id int", "column id is int, and option value.schema says bigint"),
        ({"value_schema": "id long, a int"}, "id long", "column a of option value.schema is not there"),
        ({"value_schema": "id long"}, "id long, b int", "column b is not in option value.schema, which has id"),
        ({}, "_key string", "there is no column to make a value of"),
        ({}, "id int, _key int", "column _key is int; a key is binary or string: cast it"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_before_anything_is_written(
    given: dict[str, str], schema: str, sentence: str
) -> None:
    with pytest.raises(OptionError) as raised:
        written(options(value_format="json", **given), schema, [])
    assert sentence in str(raised.value)


def test_a_row_that_may_not_be_written_fails() -> None:
    with pytest.raises(typed.BadRecord, match=r"field id is null, and option value\.schema says NOT NULL"):
        written(options(value_format="json", value_schema="id long not null"), "id long", [{"id": None}])
    corrupt = "_corrupt struct<reason: string, value: binary>"
    with pytest.raises(typed.BadRecord, match="_corrupt"):
        written(options(value_format="json"), f"id long, {corrupt}", [{"id": 1, "_corrupt": {"reason": "r", "value": b""}}])
    with pytest.raises(typed.BadRecord, match="the partition is null in some rows"):
        written(
            options(value_format="json"), "id long, _partition int", [{"id": 1, "_partition": 1}, {"id": 1, "_partition": None}]
        )
