"""The reader of `option("segments", DIR)`: planning and reading from files. See `segments` for what is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ottla.model.ids import TopicPartition
from ottla.spark import segments
from ottla.spark.options import Options
from ottla.spark.ranges import OffsetRange
from ottla.spark.reading import Fetched
from ottla.spark.sentences import plainly
from ottla.spark.source import Reading


class SegmentsReader(Reading, DataSourceReader):
    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._aborted: dict[TopicPartition, tuple[segments.Aborted, ...]] = {}

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Called once, on the driver's side. The aborted transactions travel to the executors inside this object."""
        plan = segments.plan(self.options)
        self._aborted = plan.aborted
        return self.ranges(plan.start, plan.end)

    def fetches(self, wanted: OffsetRange) -> Iterator[Fetched]:
        key = TopicPartition(wanted.topic, wanted.partition)
        return segments.read(self.options.text("segments") or "", wanted, self._aborted.get(key, ()))
