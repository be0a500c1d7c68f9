"""The data source: `spark.read.format("ottla")` and `spark.readStream.format("ottla")`.

Spark makes these objects in Python processes of its own: `OttlaSource` and the readers on the driver's side, for planning; `read`
in executors, with a pickled reader and one `RangePartition` each. Whatever they keep must pickle.

Every streaming query has a Python process of its own for planning, so what only some queries or only executors need (typed columns,
checksums) is loaded where it is used.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ottla.model.ids import TopicPartition
from ottla.spark import planning, tables
from ottla.spark.filters import Narrowing, narrow
from ottla.spark.options import EARLIEST, LATEST, OptionError, Options, parse, parse_offsets
from ottla.spark.ranges import DataLost, OffsetRange
from ottla.spark.schemas import parse_ddl
from ottla.spark.sentences import plainly, plainly_each
from ottla.spark.workers import settle

if TYPE_CHECKING:
    from ottla.spark.reading import Fetched

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS = ", headers array<struct<key: string, value: binary>>"
# A stream has no end. The connector refuses two of the three endings, and lets endingTimestamp pass without heeding it.
BATCH_ONLY = ("segments", "latestPerKey", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
MAX_TRIGGER_DELAY_S = 15 * 60.0  # the connector's default for maxTriggerDelay
R = TypeVar("R", bound="Reading")


class RangePartition(InputPartition):
    """What one Spark task reads, one range after the other."""

    def __init__(self, *wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.ranges = wanted


class OttlaSource(DataSource):
    """Made by Spark for every query, with the options as the user wrote them (names compared without regard to case)."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        settle()

    @classmethod
    def name(cls) -> str:
        return "ottla"

    @plainly
    def schema(self) -> StructType:
        """Called when a query is planned that names no schema, and by CREATE TABLE."""
        if not tables.is_creation(self.options):
            return self._columns(parse(dict(self.options), reading=True))
        given = tables.created_with(self.options)
        return tables.keeping(self._columns(parse(given, reading=True)), given)

    def _columns(self, options: Options) -> StructType:
        if options.value_format is not None:
            from ottla.spark import typed

            return typed.schema_of(options)
        return parse_ddl(COLUMNS + (HEADERS if options.flag("includeHeaders", False) else ""), "columns")

    def _options(self, schema: StructType, reading: bool = True) -> Options:
        return parse(tables.options_of(self.options, schema), reading=reading)

    def _typed(self, reader: R, schema: StructType) -> R:
        if reader.options.value_format is not None:
            from ottla.spark import dead_letters, typed

            typed.TypedRows(reader.options, schema)  # a schema that does not fit is refused here, not in an executor
            dead_letters.check(reader.options)
            reader.typed_schema = schema
        return reader

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        settle()
        options = self._options(schema)
        if options.text("segments") is not None:
            from ottla.spark.segments_reader import SegmentsReader

            return self._typed(SegmentsReader(options), schema)
        # Filters would come before the choice of the latest, which is another question; so those two do not meet.
        is_pushing = options.flag("pushFilters", False) and not options.flag("latestPerKey", False)
        return self._typed(PushingReader(options) if is_pushing else BatchReader(options), schema)

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._options(schema)
        for name in BATCH_ONLY:
            if options.text(name) is not None:
                raise OptionError(f"option {name} is for batch queries: spark.read, not spark.readStream")
        return self._typed(StreamReader(options), schema)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ottla.spark.sink import BatchWriter, check_schema

        settle()
        options = self._options(schema, reading=False)
        if overwrite:
            raise OptionError("a topic cannot be overwritten: records are only ever added; use mode append")
        check_schema(schema, options)
        return BatchWriter(options, schema)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from ottla.spark.sink import check_schema, stream_writer

        settle()
        options = self._options(schema, reading=False)
        check_schema(schema, options)
        return stream_writer(options, schema)


class Reading:
    """What batch and stream have in common: the settings of an executor's fetches, and turning fetches into Arrow."""

    typed_schema: StructType | None = None  # of a query with value.format
    is_stream = False

    def __init__(self, options: Options) -> None:
        self.options = options

    def fetches(self, wanted: OffsetRange) -> Iterator[Fetched]:
        from ottla.spark import connections
        from ottla.spark.reading import fetched

        committed_only = self.options.isolation_level == "read_committed"
        settings = connections.common_settings(self.options)
        fails = self.options.flag("failOnDataLoss", True)
        return fetched(settings, wanted, committed_only, fails, self.options.stalled_s)

    @plainly_each
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Called in an executor, once per task."""
        from ottla.spark.arrow import batches, latest_per_key

        settle()
        if not isinstance(partition, RangePartition):
            return iter(())  # Spark's stand-in when there is nothing to read
        headers = self.options.wants_headers
        rows: Iterator[Any] = chain.from_iterable(batches(self.fetches(each), each, headers) for each in partition.ranges)
        if self.options.flag("latestPerKey", False):
            rows = latest_per_key(rows)
        if self.typed_schema is None:
            return rows
        from ottla.spark import typed

        return typed.TypedRows(self.options, self.typed_schema).rows(rows)

    def ranges(self, start: planning.Positions, end: planning.Positions) -> list[InputPartition]:
        ranges = [OffsetRange(key.topic, key.partition, start[key], end[key]) for key in sorted(end) if key in start]
        if self.options.flag("latestPerKey", False):  # a key's records lie in one partition, and one task must see them all
            return [RangePartition(row) for row in ranges if row.start < row.end]
        at_least, at_most = self.options.number("minPartitions"), self.options.number("maxRecordsPerPartition")
        cut = planning.split(ranges, at_least, at_most)
        if at_least is None and self.is_stream:
            return [RangePartition(*rows) for rows in planning.grouped(cut, at_most)]
        return [RangePartition(row) for row in cut]


def _refuse(options: Options, name: str, place: int, word: str) -> None:
    """A batch query that starts at the end, or ends at the start, reads nothing: as the connector has it, that is a mistake."""
    asked = parse_offsets(name, options.text(name) or ("earliest" if word == "latest" else "latest"))
    if asked == place:
        raise OptionError(f"option {name} cannot be {word} in a batch query: there would be nothing to read")
    if not isinstance(asked, int):
        wrong = [f"{topic}-{number}" for topic, rows in asked.items() for number, at in rows.items() if at == place]
        if wrong:
            raise OptionError(f"option {name} cannot be {place} ({word}) for {', '.join(wrong)}: there would be nothing to read")


class BatchReader(Reading, DataSourceReader):
    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Called once, on the driver's side, when the query is planned."""
        return self.ranges(*self.bounds())

    def bounds(self) -> tuple[planning.Positions, planning.Positions]:
        options = self.options
        _refuse(options, "startingOffsets", LATEST, "latest")
        _refuse(options, "endingOffsets", EARLIEST, "earliest")

        async def plan(admin: Any) -> tuple[planning.Positions, planning.Positions]:
            partitions = await planning.partitions_of(admin, options)
            start = await planning.asked_for(admin, options, partitions, "starting", EARLIEST)
            end = await planning.asked_for(admin, options, partitions, "ending", LATEST)
            planning.check_order(options, start, end)
            start, end = await planning.real(admin, options, start), await planning.real(admin, options, end)
            await planning.check_within(admin, options, "startingOffsets", start)
            await planning.check_within(admin, options, "endingOffsets", end)
            return await self.narrowed(admin, start, end)

        return planning.ask(options, plan)

    async def narrowed(
        self, admin: Any, start: planning.Positions, end: planning.Positions
    ) -> tuple[planning.Positions, planning.Positions]:
        return start, end


class PushingReader(BatchReader):
    """Chosen by pushFilters=true. A class of its own, because Spark refuses every reader that defines `pushFilters` as long as
    spark.sql.python.filterPushdown.enabled is off, and that is its default.

    It is not chosen by itself where the setting is on: Spark 4.3 plans a frame's use without filters as it planned the last one with
    some, so that a program that uses a frame twice would lose rows in silence.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._narrowing = Narrowing()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Called before `partitions`; what is returned Spark filters itself."""
        self._narrowing, rest = narrow(filters, is_typed=self.options.value_format is not None)
        return rest

    async def narrowed(
        self, admin: Any, start: planning.Positions, end: planning.Positions
    ) -> tuple[planning.Positions, planning.Positions]:
        start, end = self._narrowing.ranges(start, end)
        time_ms = self._narrowing.from_timestamp_ms
        if time_ms is None or not end:
            return start, end
        found = await admin.list_offsets(dict.fromkeys(end, time_ms))
        late = {key: row.offset if row.offset >= 0 else end[key] for key, row in found.items()}
        return {key: max(offset, late[key]) for key, offset in start.items()}, end


class StreamReader(Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver's side for as long as the query runs; only `read` runs elsewhere."""

    is_stream = True

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._end_of_available: planning.Positions | None = None
        self._last_batch_s: float | None = None
        self._committed: planning.Positions = {}
        self._latest_seen: planning.Positions | None = None  # by `latestOffset`, for the report that Spark asks for next

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """Called once at the start of an AvailableNow query: what is there now is all that will be read."""
        self._end_of_available = planning.ask(self.options, self._latest)

    @plainly
    def initialOffset(self) -> dict[str, dict[str, int]]:
        """Called only when the query has no checkpoint yet."""

        async def first(admin: Any) -> planning.Positions:
            partitions = await planning.partitions_of(admin, self.options)
            start = await planning.asked_for(admin, self.options, partitions, "starting", LATEST)
            start = await planning.real(admin, self.options, start)
            await planning.check_within(admin, self.options, "startingOffsets", start)
            return start

        return planning.to_json(planning.ask(self.options, first))

    @plainly
    def getDefaultReadLimit(self) -> ReadLimit:
        """Both limits at once have no class of Spark's: then the lower one is named, and `latestOffset` knows of the upper one."""
        most, least = self.options.number("maxOffsetsPerTrigger"), self.options.number("minOffsetsPerTrigger")
        if most is not None and least is not None and least > most:
            raise OptionError(f"option minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})")
        if least is not None:
            return ReadMinRows(least)
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    async def _latest(self, admin: Any) -> planning.Positions:
        return await planning.latest_offsets(admin, self.options, await planning.partitions_of(admin, self.options))

    @plainly
    def latestOffset(self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:
        """Called at every trigger. What lies before `start` is done, so it is committed: an idle query shows no lag."""
        begin = planning.from_json(start)
        end = self._end_of_available or planning.ask(self.options, self._latest)
        self._latest_seen = end
        self._check_not_behind(begin, end)
        known = self._begin(begin, end)
        self._commit(begin)
        if isinstance(limit, ReadMinRows) and self._is_too_few(known, end, limit.min_rows):
            return planning.to_json(begin)
        most = self.options.number("maxOffsetsPerTrigger")
        if most is not None and not isinstance(limit, ReadAllAvailable):
            end = planning.limited(known, end, most)
        return planning.to_json(end)  # also where it lies before `start`: a topic made anew is gone on with from its end

    def _is_too_few(self, known: planning.Positions, end: planning.Positions, least: int) -> bool:
        """Wait for more, but not longer than maxTriggerDelay since the last batch; the first one does not wait."""
        if self._end_of_available is not None:
            return False  # there will never be more
        now = time.monotonic()
        waited = self._last_batch_s is None or now - self._last_batch_s >= self.options.duration_s(
            "maxTriggerDelay", MAX_TRIGGER_DELAY_S
        )
        if not waited and sum(max(0, end[key] - known[key]) for key in end) < least:
            return True
        self._last_batch_s = now
        return False

    def _check_not_behind(self, begin: planning.Positions, end: planning.Positions) -> None:
        if not self.options.flag("failOnDataLoss", True):
            return
        gone = [key for key in begin if key not in end]
        if gone:
            raise DataLost(
                f"the checkpoint has read {', '.join(map(str, gone))}, which this query does not read: the topic was deleted, or "
                "the option checkpointLocation names that of another query. Set failOnDataLoss=false to go on without it."
            )
        lost = [key for key, offset in begin.items() if end[key] < offset]
        if lost:
            raise DataLost(
                f"the checkpoint is ahead of {', '.join(map(str, lost))}: the topic was made anew. Set failOnDataLoss=false to go "
                "on with what comes from now on."
            )

    @plainly
    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        """Called after `latestOffset` for the query's progress."""
        seen, self._latest_seen = self._latest_seen, None
        return planning.to_json(planning.ask(self.options, self._latest) if seen is None else seen)

    @plainly
    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> Sequence[InputPartition]:
        """Called for every batch."""
        finish = planning.from_json(end)
        return self.ranges(self._begin(planning.from_json(start), finish), finish)

    def _begin(self, begin: planning.Positions, end: planning.Positions) -> planning.Positions:
        """Where each partition of `end` is read from. One that is new since the last batch: from the start of its log, which is
        not 0 when records were deleted (retention, or a topic that now matches the pattern). Nobody was promised those."""
        new = [key for key in end if key not in begin]
        if not new:
            return {key: begin[key] for key in end}
        starts = planning.ask(self.options, lambda admin: admin.earliest_offsets(new))
        return {key: begin[key] if key in begin else min(starts[key], end[key]) for key in end}

    @plainly
    def commit(self, end: Mapping[str, Mapping[str, int]]) -> None:
        """Called when the next batch is built."""
        self._commit(planning.from_json(end))

    def _commit(self, positions: planning.Positions) -> None:
        group = self.options.text("group.id")
        if group is None or not positions or positions == self._committed:
            return
        wanted: dict[tuple[str, int], int] = {TopicPartition(*key): offset for key, offset in positions.items()}
        planning.ask(self.options, lambda admin: admin.alter_group_offsets(group, wanted))
        self._committed = positions
