"""Making a log durable without blocking the loop.

The log says what to sync (`prepare_flush`, on the loop), a worker thread syncs (`FlushJob.run`, the GIL released), the log takes
note (`complete_flush`, on the loop). Appends go on meanwhile; the recovery point moves to where the log ended when it began.
"""

from __future__ import annotations

from typing import Protocol

from ottla.host.disk import Disk, File
from ottla.host.workers import Workers
from ottla.model.errors import ApiError, ErrorCode


class FlushJob:
    """Files to sync. `run` blocks and belongs on a worker thread; it touches nothing else of the log."""

    __slots__ = ("_disk", "directory", "end_offset", "files", "paths")

    def __init__(self, disk: Disk, directory: str, to_sync: list[File], end_offset: int, paths: frozenset[str]) -> None:
        self._disk = disk
        self.directory = directory
        self.files = to_sync
        self.end_offset = end_offset
        self.paths = paths  # of new and small files among them: their names are made durable, too

    def run(self) -> None:
        try:
            for file in self.files:
                file.sync()
            if self.paths:  # a new name, perhaps that of the folder itself
                self._disk.sync_directory(self.directory)
                self._disk.sync_directory(self.directory.rpartition("/")[0] or "/")
        except OSError as error:
            raise SyncFailed(ErrorCode.KAFKA_STORAGE_ERROR, f"syncing {self.directory}: {error.strerror or error}") from error


class SyncFailed(ApiError):
    """What was written may be lost, whatever a later sync says: unlike a full disk this cannot be waited out."""


class Flushable(Protocol):
    def prepare_flush(self) -> FlushJob: ...

    def complete_flush(self, job: FlushJob, now_ms: int) -> None: ...


async def flush(log: Flushable, workers: Workers, now_ms: int) -> None:
    """The loop's way. Raises ApiError KAFKA_STORAGE_ERROR (`SyncFailed` if it was the sync); the recovery point then stays where it was."""
    job = log.prepare_flush()
    await workers.thread(job.run)
    log.complete_flush(job, now_ms)


def storage_error(error: OSError, what: str) -> ApiError:
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{what}: {error.strerror or error}")
