"""SQL over topics: every topic that a statement names becomes a view for it, with key and value as text, or with columns.

In: a session, where the cluster is, a statement. Out: a DataFrame, of a batch or of a stream. What a user did wrong is raised as a
`StatementError` of one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.model.errors import OttlaError

OURS = re.compile(r"ottla\.[\w.]+: (.+)")
# What a user's function raised in a worker: where at last, and what.
_THEIRS = re.compile(
    r"Traceback \(most recent call last\):\n(?:.*\n)*?"
    r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)\n(?:(?!\s+File ).*\n)*?(?P<what>\w.*)'
)


class StatementError(OttlaError):
    """A statement that Spark refuses, or that failed."""


@dataclass(frozen=True, slots=True)
class Views:
    """How topics become views."""

    bootstrap: str
    is_streaming: bool = False
    start: str = "earliest"
    committed_only: bool = False
    latest_per_key: frozenset[str] = frozenset()
    columns: Mapping[str, str] = field(default_factory=dict)  # topic → the columns of its values, which are JSON

    def options(self, topic: str) -> dict[str, str]:
        made = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic, "includeHeaders": "true"}
        if self.is_streaming:
            made["startingOffsets"] = self.start
        if self.committed_only:
            made["isolation.level"] = "read_committed"
        if topic in self.latest_per_key:
            made["latestPerKey"] = "true"
        if topic in self.columns:
            made |= {"value.format": "json", "value.schema": self.columns[topic], "key.format": "string"}
        return made

    def create(self, spark: Any, topics: Iterable[str]) -> None:
        reader = spark.readStream if self.is_streaming else spark.read
        for topic in topics:
            frame = reader.format("ottla").options(**self.options(topic)).load()
            if topic in self.columns:
                frame.createOrReplaceTempView(f"`{topic}`")
                continue
            rest = [name for name in frame.columns if name not in ("key", "value")]
            text = frame.selectExpr("cast(key AS string) AS key", "cast(value AS string) AS value", *rest)
            text.createOrReplaceTempView(f"`{topic}`")


def topics_in(statement: str, topics: Iterable[str]) -> list[str]:
    """The topics whose names occur in a statement, as SQL compares names: without regard to case. One too many does no harm."""
    quoted = re.compile(r"`([^`]+)`")
    words = {word.lower() for word in quoted.findall(statement) + re.findall(r"\w+", quoted.sub(" ", statement))}
    return [topic for topic in topics if topic.lower() in words]


def statements(text: str) -> list[str]:
    """Statements end with a semicolon, unless it stands in quotes or in a comment."""
    parts = re.findall(r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/|[^;])+""", text, re.DOTALL)
    return [part.strip() for part in parts if part.strip()]


def run(spark: Any, views: Views, topics: Iterable[str], statement: str) -> Any:
    """The statements, one after the other; the last one as a DataFrame. Raises StatementError."""
    return plainly(lambda: _run(spark, views, topics, statement))


def _run(spark: Any, views: Views, topics: Iterable[str], statement: str) -> Any:
    views.create(spark, topics_in(statement, topics))
    frame = None
    for each in statements(statement):
        frame = spark.sql(each)
    if frame is None:
        raise StatementError("there is no statement")
    return frame


def follow(frame: Any, show: Callable[[list[str], list[Mapping[str, Any]]], None], checkpoint: str, until_now: bool) -> Any:
    """Starts a stream that shows what is new; a result that changes (an aggregate) is shown whole each time. Raises StatementError."""
    if not frame.isStreaming:
        raise StatementError("nothing to follow: the statement reads no topic")

    def batch(rows: Any, _batch_id: int) -> None:
        found = [row.asDict() for row in rows.collect()]
        if found:
            show(rows.columns, found)

    def start(mode: str) -> Any:
        writer = frame.writeStream.outputMode(mode).foreachBatch(batch).option("checkpointLocation", f"{checkpoint}/{mode}")
        return (writer.trigger(availableNow=True) if until_now else writer).start()

    from pyspark.errors import AnalysisException

    try:
        return start("append")
    except AnalysisException as error:
        if "complete" not in str(error) and "watermark" not in str(error):
            raise StatementError(sentence_of(error)) from None
    return plainly(lambda: start("complete"))


def plainly(work: Callable[[], Any]) -> Any:
    """Spark's errors as one sentence."""
    from pyspark.errors import PySparkException

    try:
        return work()
    except PySparkException as error:
        raise StatementError(sentence_of(error)) from None


def sentence_of(error: BaseException) -> str:
    """Ours if it is one of ours; what a user's function raised; otherwise the first line of Spark's."""
    text = str(error)
    found = OURS.search(text)
    if found is not None:
        return found[1].strip()
    theirs = _THEIRS.search(text)
    if theirs is not None:
        return "{what} ({file}, line {line}, in {function})".format(**theirs.groupdict())
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
