"""Filters that Spark pushes down: which of them narrow what is read, and by how much.

In: the filters of one query, all of which must hold. Out: a `Narrowing`, and the filters that Spark must still apply. Bounds on
partition and offset are kept exactly, so Spark need not look again. A lower bound on the timestamp only moves the start, to the
first record that is as late (ListOffsets by time); an upper bound moves nothing, because times of producers need not rise.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from ottla.model.ids import TopicPartition

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FAR = 1 << 62


@dataclass(frozen=True, slots=True)
class Bounds:
    """From `low` up to and with `high`, and if `among` is given only these."""

    low: int = -_FAR
    high: int = _FAR
    among: frozenset[int] | None = None

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high and (self.among is None or number in self.among)

    def narrowed(self, wanted: Filter) -> Bounds | None:
        """None: not a filter that bounds express."""
        value: Any = getattr(wanted, "value", None)
        if isinstance(wanted, In):
            if not all(_is_whole(each) for each in value or ()):
                return None
            among = frozenset(value or ())
            return replace(self, among=among if self.among is None else among & self.among)
        if not _is_whole(value):
            return None
        match wanted:
            case EqualTo():
                return replace(self, low=max(self.low, value), high=min(self.high, value))
            case GreaterThan():
                return replace(self, low=max(self.low, value + 1))
            case GreaterThanOrEqual():
                return replace(self, low=max(self.low, value))
            case LessThan():
                return replace(self, high=min(self.high, value - 1))
            case LessThanOrEqual():
                return replace(self, high=min(self.high, value))
        return None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Narrowing:
    partition: Bounds = Bounds()
    offset: Bounds = Bounds()
    from_timestamp_ms: int | None = None

    def ranges(
        self, start: dict[TopicPartition, int], end: dict[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """What is left of the ranges, but for time. A partition of which nothing is left is not there."""
        kept = [key for key in end if key.partition in self.partition]
        starts = {key: max(start[key], self.offset.low) for key in kept}
        ends = {key: min(end[key], self.offset.high + 1) for key in kept}
        full = [key for key in kept if starts[key] < ends[key]]
        return {key: starts[key] for key in full}, {key: ends[key] for key in full}


def narrow(filters: Iterable[Filter], *, is_typed: bool = False) -> tuple[Narrowing, list[Filter]]:
    """The narrowing, and what Spark still has to filter. In a typed query these names are fields of the value, and a record's own
    columns have an underscore."""
    partition, offset, timestamp = (("_" + name if is_typed else name,) for name in ("partition", "offset", "timestamp"))
    found, rest = Narrowing(), []
    for each in filters:
        column = getattr(each, "attribute", None)
        if column == partition and (bounds := found.partition.narrowed(each)) is not None:
            found = replace(found, partition=bounds)
        elif column == offset and not isinstance(each, In) and (bounds := found.offset.narrowed(each)) is not None:
            found = replace(found, offset=bounds)
        else:
            if column == timestamp:
                found = _later(found, each)
            rest.append(each)
    return found, rest


def _later(found: Narrowing, wanted: Filter) -> Narrowing:
    value = getattr(wanted, "value", None)
    if not isinstance(wanted, EqualTo | GreaterThan | GreaterThanOrEqual) or not isinstance(value, datetime.datetime):
        return found
    if value.tzinfo is None:
        return found
    millis = (value - _EPOCH) // datetime.timedelta(milliseconds=1)  # down: a record of that very millisecond stays in
    return replace(found, from_timestamp_ms=max(millis, found.from_timestamp_ms or millis))
