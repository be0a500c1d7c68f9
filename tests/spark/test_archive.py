"""The sink that writes Parquet in folders, without Spark: what its tasks and its driver leave behind, wherever they are interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.dataset as ds

from ottla.spark.archive import ArchiveWriter, Staged
from ottla.spark.options import OptionError, parse
from ottla.spark.schemas import parse_ddl
from ottla.spark.sink import BatchWriter, check_schema, stream_writer
from ottla.spark.task import Task

pytestmark = pytest.mark.spark  # so that .ci/run, which has PySpark, runs what ./test leaves out

SCHEMA = parse_ddl("value string, day string, hour int", "schema")


def writer(folder: Path, by: str = "day") -> ArchiveWriter:
    made = stream_writer(parse({"archive": folder.as_uri(), "archiveBy": by}, reading=False), SCHEMA)
    assert isinstance(made, ArchiveWriter)
    return made


def rows(*values: str, day: str | None = "2026-01-01") -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([{"value": value, "day": day, "hour": 1} for value in values])


def archived(folder: Path) -> list[tuple[str, str | None]]:
    """As a reader of partitioned folders sees it: what begins with an underscore is passed over."""
    found = ds.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist()
    return sorted((row["value"], row["day"]) for row in found)


def test_rows_are_in_the_folder_of_their_day_once_the_batch_is_committed(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    messages = [
        sink._write(rows("a", "b"), Task("q", 0, 0, 0)),
        sink._write(rows("c", day="2026-01-02"), Task("q", 0, 1, 0)),
        sink._write(iter(()), Task("q", 0, 2, 0)),
        sink._write(rows("d", day=None), Task("q", 0, 3, 0)),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["_pending"]
    sink.commit([*messages, None], 0)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"_pending", "day=2026-01-01", "day=2026-01-02", "day=__HIVE_DEFAULT_PARTITION__"}
    assert archived(tmp_path) == [("a", "2026-01-01"), ("b", "2026-01-01"), ("c", "2026-01-02"), ("d", None)]
    assert not list((tmp_path / "_pending").rglob("*.parquet"))


def test_an_attempt_that_does_not_count_is_not_seen(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    message = sink._write(rows("a"), Task("q", 0, 0, 0))
    sink._write(rows("a"), Task("q", 0, 0, 1))
    sink.abort([message], 0)
    assert archived(tmp_path) == []
    again = sink._write(rows("a"), Task("q", 0, 0, 0))  # the next life of the query
    sink.commit([again], 0)
    assert archived(tmp_path) == [("a", "2026-01-01")]


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_batch_that_was_interrupted_is_done_again_and_nothing_is_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    """Even if its rows are now shared out among other tasks. Batches before it stay."""
    sink = writer(tmp_path)
    sink.commit([sink._write(rows("z"), Task("q", 0, 0, 0))], 0)
    first = [sink._write(rows("a", "b"), Task("q", 1, 0, 0)), sink._write(rows("c"), Task("q", 1, 1, 0))]
    with monkeypatch.context() as patch:
        patch.setattr("ottla.spark.archive._place", lambda options, real=_place(): _Breaking.after(moved, real, options))
        with pytest.raises(ConnectionError):
            sink.commit(list(first), 1)
    again = [sink._write(rows("a"), Task("q", 1, 0, 0)), sink._write(rows("b", "c", day="2026-01-02"), Task("q", 1, 1, 0))]
    sink.commit(list(again), 1)
    expected = [("a", "2026-01-01"), ("b", "2026-01-02"), ("c", "2026-01-02"), ("z", "2026-01-01")]
    assert archived(tmp_path) == expected
    sink.commit(
        [sink._write(rows("a"), Task("q", 1, 0, 0)), sink._write(rows("b", "c", day="2026-01-02"), Task("q", 1, 1, 0))], 1
    )
    assert archived(tmp_path) == expected, "after the end of the batch, which Spark did not hear of"


def _place() -> Any:
    from ottla.spark import archive

    return archive._place


class _Breaking:
    """A file system that is gone after so many files have been moved to their places."""

    def __init__(self, real: Any, left: int) -> None:
        self._real, self._left = real, left

    @classmethod
    def after(cls, moved: int, place: Any, options: Any) -> tuple[Any, str]:
        system, root = place(options)
        return cls(system, moved), root

    def move(self, source: str, target: str) -> None:
        if target.endswith(".parquet"):
            if self._left == 0:
                raise ConnectionError("the disk is gone")
            self._left -= 1
        self._real.move(source, target)

    def __getattr__(self, name: str) -> Any:
        if self._left == 0 and name == "delete_dir":
            raise ConnectionError("the disk is gone")
        return getattr(self._real, name)


def test_queries_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Two flows of one sink, or a new query over a deleted checkpoint: the same batches, but another query."""
    sink = writer(tmp_path)
    for query in ("one", "other"):
        sink.commit([sink._write(rows(query), Task(query, 0, 0, 0))], 0)
    assert archived(tmp_path) == [("one", "2026-01-01"), ("other", "2026-01-01")]


def test_folders_may_lie_in_folders(tmp_path: Path) -> None:
    sink = writer(tmp_path, "day, hour")
    sink.commit([sink._write(rows("a"), Task("q", 0, 0, 0))], 0)
    assert (tmp_path / "day=2026-01-01" / "hour=1").is_dir()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"archive": "here", "archiveBy": "day"},
            "option archive must be an absolute path or the address of a folder, not 'here'",
        ),
        (
            {"archive": "/tmp", "archiveBy": "date"},
            "option archiveBy names column date, which is not there; there are value, day",
        ),
        ({"archive": "/tmp", "archiveBy": "value,day,hour"}, "option archiveBy names every column"),
    ],
)
def test_what_cannot_be_archived_is_refused_before_anything_is_written(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        check_schema(SCHEMA, parse(options, reading=False))


def test_a_batch_query_has_a_way_of_its_own() -> None:
    with pytest.raises(OptionError, match="option archive is for streaming queries"):
        BatchWriter(parse({"archive": "/tmp"}, reading=False), SCHEMA)


def test_the_message_of_a_task_travels_to_the_driver(tmp_path: Path) -> None:
    import pickle

    message = writer(tmp_path)._write(rows("a"), Task("q", 0, 0, 0))
    assert isinstance(message, Staged)
    assert pickle.loads(pickle.dumps(message)) == message
