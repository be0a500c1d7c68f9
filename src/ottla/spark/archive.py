"""The streaming sink with `archive`: rows as Parquet in folders by the values of columns (`day=2026-01-01/…`), exactly once.

Spark's own file sink does this where a program can say `partitionBy`; the pipelines of Spark 4.3 cannot: their streaming tables put
all files into one folder, and their sinks take options only.

Under the folder: `COLUMN=VALUE/QUERY-BATCH-SLOT-N.parquet`, and beside these `_pending/QUERY`, which readers of Spark pass over.
There a task writes its files, in a folder of its own for each attempt, and there the driver writes down which files a batch has
before it moves them to their places. A batch that is done again, because the driver died before Spark knew of its end, finds that
list and takes away what it put there before; so it makes no difference where it was interrupted.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from ottla.spark.options import OptionError, Options
from ottla.spark.sentences import plainly
from ottla.spark.task import Task

PENDING, LIST = "_pending", "files.json"
MAX_FOLDERS = 10_000  # that one task writes to
ROWS_IN_GROUP = 16_384  # at least, but for the last: small groups are slow to read
COMPRESSION = "zstd"


@dataclass
class Staged(WriterCommitMessage):
    """The files of a task: where they lie, and where they belong, both below the folder."""

    query_id: str
    files: tuple[tuple[str, str], ...]


def check(schema: StructType, options: Options) -> None:
    """On the driver, before anything is written. Raises OptionError."""
    columns = _columns(options)
    for name in columns:
        if name not in schema.names:
            raise OptionError(f"option archiveBy names column {name}, which is not there; there are {', '.join(schema.names)}")
        if _is_nested(schema[name].dataType):
            raise OptionError(
                f"option archiveBy names column {name}, which is {schema[name].dataType.simpleString()}: no folder's name"
            )
    if len(columns) == len(schema.names):
        raise OptionError("option archiveBy names every column, and nothing is left to be written")
    _place(options)


def _is_nested(kind: DataType) -> bool:
    return isinstance(kind, ArrayType | MapType | StructType)


def _columns(options: Options) -> list[str]:
    return [name.strip() for name in (options.text("archiveBy") or "").split(",") if name.strip()]


def _place(options: Options) -> tuple[fs.FileSystem, str]:
    given = options.text("archive") or ""
    try:
        system, path = fs.FileSystem.from_uri(given)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise OptionError(f"option archive must be an absolute path or the address of a folder, not {given!r}: {error}") from None
    return system, path.rstrip("/")


class ArchiveWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Options) -> None:
        self.options = options

    # In executors ------------------------------------------------------------------------------------------------------

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, Task.current("archive"))

    def _write(self, iterator: Iterator[pa.RecordBatch], task: Task) -> Staged:
        first = next(iterator, None)
        if first is None:
            return Staged(task.query_id, ())
        system, root = _place(self.options)
        staged = posixpath.join(PENDING, task.query_id, f"{task.batch_id}-{task.slot}.{task.attempt}")
        folder = posixpath.join(root, staged)
        if system.get_file_info(folder).type != fs.FileType.NotFound:
            system.delete_dir(folder)  # of an earlier life
        files: list[Any] = []
        ds.write_dataset(
            chain([first], iterator),
            folder,
            schema=first.schema,
            format="parquet",
            filesystem=system,
            file_options=ds.ParquetFileFormat().make_write_options(compression=COMPRESSION),
            partitioning=ds.partitioning(pa.schema([first.schema.field(name) for name in _columns(self.options)]), flavor="hive"),
            basename_template=f"{task.query_id}-{task.batch_id}-{task.slot}-{{i}}.parquet",
            max_partitions=MAX_FOLDERS,
            min_rows_per_group=ROWS_IN_GROUP,
            use_threads=False,
            file_visitor=files.append,
        )
        places = sorted(posixpath.relpath(each.path, folder) for each in files)
        return Staged(task.query_id, tuple((posixpath.join(staged, place), place) for place in places))

    # On the driver -----------------------------------------------------------------------------------------------------

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = [each for each in messages if isinstance(each, Staged)]
        if not staged:
            return
        system, root = _place(self.options)
        pending = posixpath.join(root, PENDING, staged[0].query_id)
        system.create_dir(pending, recursive=True)
        for place in _listed(system, posixpath.join(pending, LIST), batchId):
            if system.get_file_info(posixpath.join(root, place)).type != fs.FileType.NotFound:
                system.delete_file(posixpath.join(root, place))
        files = [file for each in staged for file in each.files]
        _write_list(system, posixpath.join(pending, LIST), batchId, [place for _, place in files])
        for folder in sorted({posixpath.dirname(place) for _, place in files}):
            system.create_dir(posixpath.join(root, folder), recursive=True)
        for source, place in files:
            system.move(posixpath.join(root, source), posixpath.join(root, place))
        for left in system.get_file_info(fs.FileSelector(pending)):  # of attempts that do not count, too
            if left.type == fs.FileType.Directory:
                system.delete_dir(left.path)

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is seen of what is pending; the next life of the batch takes it away."""


def _listed(system: fs.FileSystem, path: str, batch_id: int) -> list[str]:
    """The files that this batch has had before. Only the last batch of a query is ever done again."""
    if system.get_file_info(path).type == fs.FileType.NotFound:
        return []
    with system.open_input_stream(path) as file:
        kept = json.loads(file.read())
    files: list[str] = kept["files"]
    return files if kept["batch"] == batch_id else []


def _write_list(system: fs.FileSystem, path: str, batch_id: int, files: list[str]) -> None:
    with system.open_output_stream(f"{path}.new") as file:
        file.write(json.dumps({"batch": batch_id, "files": files}).encode())
    if not isinstance(system, fs.LocalFileSystem) and system.get_file_info(path).type != fs.FileType.NotFound:
        system.delete_file(path)  # elsewhere a move may refuse to replace; until it is done the old files are gone already
    system.move(f"{path}.new", path)
