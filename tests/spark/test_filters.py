"""What is pushed down narrows what is read, and never leaves out a record that the query asks for."""

from __future__ import annotations

import datetime
import random

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from ottla.model.ids import TopicPartition
from ottla.spark.filters import narrow

pytestmark = pytest.mark.spark  # so that .ci/run, which has PySpark, runs what ./test leaves out

HOLDS = {
    EqualTo: lambda number, value: number == value,
    GreaterThan: lambda number, value: number > value,
    GreaterThanOrEqual: lambda number, value: number >= value,
    LessThan: lambda number, value: number < value,
    LessThanOrEqual: lambda number, value: number <= value,
}
START = {TopicPartition("a", 0): 0, TopicPartition("a", 1): 5, TopicPartition("a", 2): 9}
END = {TopicPartition("a", 0): 10, TopicPartition("a", 1): 12, TopicPartition("a", 2): 9}


def rows(start: dict[TopicPartition, int], end: dict[TopicPartition, int]) -> set[tuple[int, int]]:
    return {(key.partition, offset) for key in end for offset in range(start[key], end[key])}


@pytest.mark.parametrize("seed", range(50))
def test_bounds_on_partition_and_offset_keep_exactly_the_rows_that_pass(seed: int) -> None:
    dice = random.Random(seed)
    filters: list[Filter] = []
    wanted = rows(START, END)
    for _ in range(dice.randint(1, 4)):
        column, kind, value = dice.randint(0, 1), dice.choice(list(HOLDS)), dice.randint(-1, 13)
        filters.append(kind((("partition", "offset")[column],), value))
        wanted = {row for row in wanted if HOLDS[kind](row[column], value)}
    narrowing, rest = narrow(filters)
    assert rest == []
    assert rows(*narrowing.ranges(START, END)) == wanted


def test_what_is_not_understood_is_left_to_spark() -> None:
    filters = [IsNotNull(("offset",)), Not(EqualTo(("partition",), 1)), In(("offset",), (1, 2)), EqualTo(("key",), b"k")]
    narrowing, rest = narrow(filters)
    assert rest == filters
    assert rows(*narrowing.ranges(START, END)) == rows(START, END)


def test_a_choice_of_partitions_is_kept() -> None:
    narrowing, rest = narrow([In(("partition",), (0, 2))])
    assert rest == []
    assert rows(*narrowing.ranges(START, END)) == {(0, offset) for offset in range(10)}


def test_a_lower_bound_on_time_moves_the_start_and_is_still_filtered_by_spark() -> None:
    moment = datetime.datetime(2026, 1, 1, microsecond=1500, tzinfo=datetime.UTC)
    filters = [GreaterThan(("timestamp",), moment), LessThan(("timestamp",), moment)]
    narrowing, rest = narrow(filters)
    assert rest == filters
    assert narrowing.from_timestamp_ms == int(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp() * 1000) + 1


def test_beside_the_columns_of_values_a_records_own_are_those_with_an_underscore() -> None:
    """A field of the value may be named partition, too."""
    filters = [EqualTo(("_partition",), 0), LessThan(("_offset",), 3), EqualTo(("partition",), 7)]
    narrowing, rest = narrow(filters, is_typed=True)
    assert rest == filters[2:]
    assert rows(*narrowing.ranges(START, END)) == {(0, offset) for offset in range(3)}
