"""From options to ranges of offsets: which partitions there are, where to start, where to end, how to split. On the driver.

Offsets of a stream are `{topic: {partition: offset}}` with text keys, as Spark keeps them in its checkpoint and as its own
connector writes them.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.client.errors import NetworkError, PartialFailure
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition
from ottla.spark import connections, topics
from ottla.spark.options import EARLIEST, LATEST, OptionError, Options, parse_offsets
from ottla.spark.ranges import OffsetRange

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.admin.types import TopicDescription

T = TypeVar("T")
Positions = dict[TopicPartition, int]
SMALL_TASK_RECORDS = 10_000


def ask(options: Options, question: Callable[[Admin], Awaitable[T]]) -> T:
    """One question to the cluster, over the connection of the last one. A cluster that cannot be reached is asked as often as
    fetchOffset.numRetries says: the first time counts, as in the connector."""
    attempts, between_s = options.offset_attempts

    async def main() -> T:
        for _ in range(attempts - 1):
            try:
                return await once()
            except NetworkError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(between_s)
        return await once()

    async def once() -> T:
        async with connections.using(connections.admin, connections.common_settings(options)) as admin:
            return await question(admin)

    return connections.run(main())


async def partitions_of(admin: Admin, options: Options) -> list[TopicPartition]:
    """Everything the options name. Raises OptionError for a topic that does not exist."""
    if options.pattern is not None:
        names = topics.matching(options.pattern, await admin.list_topics())
    else:
        names = list(options.topics) or sorted({topic for topic, _ in options.partitions})
    described = await _described(admin, options, names) if names else {}
    found = [TopicPartition(name, row.partition) for name in names for row in described[name].partitions]
    if options.partitions:
        unknown = [TopicPartition(*key) for key in options.partitions if TopicPartition(*key) not in found]
        if unknown:
            raise OptionError(f"option assign names partitions that do not exist: {', '.join(map(str, unknown))}")
        return [TopicPartition(*key) for key in options.partitions]
    return found


async def _described(admin: Admin, options: Options, names: list[str]) -> dict[str, TopicDescription]:
    try:
        return await admin.describe_topics(names)
    except PartialFailure:
        pass
    except ApiError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    listed = await admin.list_topics(internal=True)
    missing = [name for name in names if name not in listed]
    raise OptionError(f"there is no topic {', '.join(missing or names)} at {options.bootstrap_servers}") from None


async def asked_for(admin: Admin, options: Options, partitions: list[TopicPartition], side: str, default: int) -> Positions:
    """Where to start (`side` is "starting") or to end ("ending"). By time goes before by offset, and only by offset may some be
    EARLIEST or LATEST; `real` looks those up."""
    times = _times(options, side)
    if times is not None:
        return await _by_time(admin, options, partitions, times, side)
    text = options.text(f"{side}Offsets")
    asked = default if text is None else parse_offsets(f"{side}Offsets", text)
    return dict.fromkeys(partitions, asked) if isinstance(asked, int) else _exactly(asked, partitions, f"{side}Offsets")


def check_order(options: Options, start: Positions, end: Positions) -> None:
    """A batch that starts beyond its end is a mistake, as the connector has it. What was asked for by word is not compared: of a log
    whose start has passed the end there is nothing left, and that is nobody's mistake. Raises OptionError."""
    what, starts, ends = "offset", _times(options, "starting"), _times(options, "ending")
    if isinstance(starts, Mapping) and isinstance(ends, Mapping):  # compared as they are given: their offsets may be the same
        what, start, end = "timestamp", _by_partition(starts), _by_partition(ends)
    beyond = [f"{key} starts at {what} {at} and ends at {end[key]}" for key, at in start.items() if 0 <= end[key] < at]
    if beyond:
        raise OptionError(f"a batch query cannot start beyond its end: {', '.join(beyond)}")


def _exactly(asked: Mapping[str, Mapping[int, Any]], partitions: list[TopicPartition], name: str) -> dict[TopicPartition, Any]:
    """An offset for each partition and none besides, as Spark's connector demands."""
    given = _by_partition(asked)
    missing = [key for key in partitions if key not in given]
    extra = [key for key in given if key not in set(partitions)]
    if missing or extra:
        parts = [f"lacks {', '.join(map(str, missing))}"] if missing else []
        parts += [f"names {', '.join(map(str, extra))}, which are not read"] if extra else []
        raise OptionError(f"option {name} {' and '.join(parts)}; use -2 for earliest and -1 for latest")
    return given


def _by_partition(asked: Mapping[str, Mapping[int, Any]]) -> dict[TopicPartition, Any]:
    return {TopicPartition(topic, number): value for topic, rows in asked.items() for number, value in rows.items()}


async def real(admin: Admin, options: Options, wanted: Positions) -> Positions:
    """EARLIEST and LATEST looked up; what is a number stays."""
    earliest = [key for key, offset in wanted.items() if offset == EARLIEST]
    latest = [key for key, offset in wanted.items() if offset == LATEST]
    found = dict(wanted)
    if earliest:
        found |= await admin.earliest_offsets(earliest)
    if latest:
        found |= await latest_offsets(admin, options, latest)
    return found


async def latest_offsets(admin: Admin, options: Options, partitions: Iterable[TopicPartition]) -> Positions:
    """Up to the last stable offset for read_committed: what lies beyond may yet be aborted."""
    return await admin.latest_offsets(partitions, isolation_level=options.isolation_level)


async def check_within(admin: Admin, options: Options, name: str, asked: Positions) -> None:
    """Offsets that were given by number must be there: an end beyond the log would be waited for, a start reads nothing without
    saying so. Raises OptionError."""
    text = options.text(name)
    if text is None or isinstance(parse_offsets(name, text), int):
        return
    latest = await latest_offsets(admin, options, asked)
    beyond = [f"{key} ends at {latest[key]}, not {offset}" for key, offset in asked.items() if offset > latest[key]]
    if beyond:
        raise OptionError(f"option {name} goes beyond what is there: {', '.join(beyond)}")


def _times(options: Options, side: str) -> Mapping[str, Mapping[int, int]] | int | None:
    for name in (f"{side}Timestamp", f"{side}OffsetsByTimestamp"):
        text = options.text(name)
        if text is None:
            continue
        try:
            if name.endswith("ByTimestamp"):
                rows = json.loads(text)
                return {str(topic): {int(p): int(at) for p, at in parts.items()} for topic, parts in rows.items()}
            return int(text)
        except (ValueError, AttributeError, TypeError):
            raise OptionError(f"option {name} must give milliseconds since 1970, not {text!r}") from None
    return None


async def _by_time(
    admin: Admin, options: Options, partitions: list[TopicPartition], times: Mapping[str, Mapping[int, int]] | int, side: str
) -> Positions:
    if isinstance(times, int):
        questions: dict[Any, int] = dict.fromkeys(partitions, times)
    else:
        questions = dict(_exactly(times, partitions, f"{side}OffsetsByTimestamp"))
    found = await admin.list_offsets(questions, isolation_level=options.isolation_level)
    late = [key for key, row in found.items() if row.offset < 0]
    if late and side == "starting" and not options.starts_late_at_latest:
        named = ", ".join(map(str, late))
        raise OptionError(
            f"no record of {named} is as late as the starting timestamp; startingOffsetsByTimestampStrategy=latest would start at the end"
        )
    ends = await latest_offsets(admin, options, late) if late else {}
    return {key: ends[key] if row.offset < 0 else row.offset for key, row in found.items()}


def split(ranges: Iterable[OffsetRange], at_least: int | None, at_most_records: int | None) -> list[OffsetRange]:
    """Ranges cut so that there are about `at_least` of them and none has more than `at_most_records`."""
    kept = [row for row in ranges if row.end > row.start]
    total = sum(row.end - row.start for row in kept)
    out: list[OffsetRange] = []
    for row in kept:
        size = row.end - row.start
        pieces = 1
        if at_least is not None and at_least > len(kept):
            pieces = max(1, round(size / total * at_least))
        if at_most_records is not None:
            pieces = max(pieces, math.ceil(size / at_most_records))
        cuts = [row.start + size * number // pieces for number in range(pieces + 1)]
        out += [OffsetRange(row.topic, row.partition, cuts[n], cuts[n + 1]) for n in range(pieces) if cuts[n] < cuts[n + 1]]
    return out


def grouped(ranges: Iterable[OffsetRange], at_most_records: int | None) -> list[tuple[OffsetRange, ...]]:
    """Neighbours that are small together, as one task: what Spark and two Python workers do for a task costs as much as thousands of
    records, and a micro-batch often has fewer. The same ranges are grouped the same way, so a batch that is repeated has its tasks."""
    groups: list[tuple[OffsetRange, ...]] = []
    size, room = 0, min(SMALL_TASK_RECORDS, at_most_records or SMALL_TASK_RECORDS)
    for row in ranges:
        size += row.end - row.start
        if groups and size <= room:
            groups[-1] += (row,)
        else:
            groups.append((row,))
            size = row.end - row.start
    return groups


def limited(start: Positions, end: Positions, limit: int) -> Positions:
    """At most `limit` records, shared among partitions in proportion to what each has, so that none starves (as the connector does)."""
    sizes = {key: max(0, end[key] - start.get(key, end[key])) for key in end}
    total = sum(sizes.values())
    if total <= limit:
        return end
    shares = {key: limit * size / total for key, size in sizes.items()}
    return {
        key: start[key] + min(sizes[key], math.ceil(share) if share < 1 else math.floor(share)) if sizes[key] else end[key]
        for key, share in shares.items()
    }


def to_json(positions: Positions) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    for key, offset in sorted(positions.items()):
        out.setdefault(key.topic, {})[str(key.partition)] = offset
    return out


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Positions:
    return {TopicPartition(topic, int(number)): int(offset) for topic, rows in offsets.items() for number, offset in rows.items()}
