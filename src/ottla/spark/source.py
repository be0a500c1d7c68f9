"""The data source: `spark.read.format("ottla")` and `spark.readStream.format("ottla")`.

Spark makes these objects in Python processes of its own: `OttlaSource` and the readers on the driver's side, for planning; `read`
in executors, with a pickled reader and one `RangePartition` each. Whatever they keep must pickle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ottla.model.ids import TopicPartition
from ottla.spark import planning
from ottla.spark.options import EARLIEST, LATEST, OptionError, Options, parse
from ottla.spark.reading import DataLost, OffsetRange

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS = ", headers array<struct<key: string, value: binary>>"


class RangePartition(InputPartition):
    """What one Spark task reads."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.range = wanted


class OttlaSource(DataSource):
    """Made by Spark for every query, with the options as the user wrote them (names compared without regard to case)."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> str:
        return COLUMNS + (HEADERS if self._options.flag("includeHeaders", False) else "")

    @property
    def _options(self) -> Options:
        return parse(dict(self.options), reading=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self._options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ottla.spark.sink import BatchWriter, check_schema

        options = parse(dict(self.options), reading=False)
        if overwrite:
            raise OptionError("a topic cannot be overwritten: records are only ever added; use mode append")
        check_schema(schema, options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from ottla.spark.sink import check_schema, stream_writer

        options = parse(dict(self.options), reading=False)
        check_schema(schema, options)
        return stream_writer(options)


class _Reading:
    """What batch and stream have in common: the settings of an executor's fetches, and turning fetches into Arrow."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def settings(self) -> dict[str, Any]:
        given = dict(self.options.client)
        return given | {"bootstrap_servers": self.options.bootstrap_servers, "isolation_level": self.options.isolation_level}

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Called in an executor, once per task."""
        from ottla.spark.arrow import batches

        if not isinstance(partition, RangePartition):
            return iter(())  # Spark's stand-in when there is nothing to read
        return batches(
            self.settings(),
            partition.range,
            self.options.flag("includeHeaders", False),
            self.options.flag("failOnDataLoss", True),
        )

    def _partitions(self, start: planning.Positions, end: planning.Positions) -> list[InputPartition]:
        ranges = [OffsetRange(key.topic, key.partition, start[key], end[key]) for key in sorted(end) if key in start]
        cut = planning.split(ranges, self.options.number("minPartitions"), self.options.number("maxRecordsPerPartition"))
        return [RangePartition(row) for row in cut]


class BatchReader(_Reading, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        """Called once, on the driver's side, when the query is planned."""
        options = self.options
        if options.text("startingOffsets", "earliest").strip().lower() == "latest":  # type: ignore[union-attr]
            raise OptionError("option startingOffsets cannot be latest in a batch query: there would be nothing to read")
        if (options.text("endingOffsets") or "latest").strip().lower() == "earliest":
            raise OptionError("option endingOffsets cannot be earliest: there would be nothing to read")

        async def plan(admin: Any) -> tuple[planning.Positions, planning.Positions]:
            partitions = await planning.partitions_of(admin, options)
            start = await planning.resolve(admin, options, partitions, "starting", EARLIEST)
            end = await planning.resolve(admin, options, partitions, "ending", LATEST)
            return start, end

        start, end = planning.ask(options, plan)
        return self._partitions(start, end)


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver's side for as long as the query runs; only `read` runs elsewhere."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._end_of_available: planning.Positions | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """Called once at the start of an AvailableNow query: what is there now is all that will be read."""
        self._end_of_available = planning.ask(self.options, self._latest)

    def initialOffset(self) -> dict[str, dict[str, int]]:
        """Called only when the query has no checkpoint yet."""

        async def first(admin: Any) -> planning.Positions:
            partitions = await planning.partitions_of(admin, self.options)
            return await planning.resolve(admin, self.options, partitions, "starting", LATEST)

        return planning.to_json(planning.ask(self.options, first))

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self.options.number("maxOffsetsPerTrigger")
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    async def _latest(self, admin: Any) -> planning.Positions:
        return await planning.latest_offsets(admin, self.options, await planning.partitions_of(admin, self.options))

    def latestOffset(self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:
        """Called at every trigger. What lies before `start` is done, so it is committed: an idle query shows no lag."""
        begin = planning.from_json(start)
        end = self._end_of_available or planning.ask(self.options, self._latest)
        self._check_not_behind(begin, end)
        known = {key: begin.get(key, 0) for key in end}
        if isinstance(limit, ReadMaxRows):
            end = planning.limited(known, end, limit.max_rows)
        self._commit(begin)
        return planning.to_json({key: max(known[key], offset) for key, offset in end.items()})

    def _check_not_behind(self, begin: planning.Positions, end: planning.Positions) -> None:
        if not self.options.flag("failOnDataLoss", True):
            return
        lost = [key for key, offset in begin.items() if key not in end or end[key] < offset]
        if lost:
            raise DataLost(
                f"the checkpoint is ahead of {', '.join(map(str, lost))}: the topic was deleted or made anew, or the checkpoint "
                "belongs to another one. Set failOnDataLoss=false to go on with what is there."
            )

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        return planning.to_json(planning.ask(self.options, self._latest))

    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> Sequence[InputPartition]:
        """Called for every batch; a partition that is new since the last one is read from its beginning."""
        begin = planning.from_json(start)
        finish = planning.from_json(end)
        return self._partitions({key: begin.get(key, 0) for key in finish}, finish)

    def commit(self, end: Mapping[str, Mapping[str, int]]) -> None:
        """Called when the next batch is built."""
        self._commit(planning.from_json(end))

    def _commit(self, positions: planning.Positions) -> None:
        group = self.options.text("group.id")
        if group is None or not positions:
            return
        wanted: dict[tuple[str, int], int] = {TopicPartition(*key): offset for key, offset in positions.items()}
        planning.ask(self.options, lambda admin: admin.alter_group_offsets(group, wanted))
