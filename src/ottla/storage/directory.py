"""A node's data folder: who owns it, the logs in it, and the checkpoints that say where each stands.

    meta.properties                    version, cluster.id, node.id, directory.id
    .lock                              held while a node runs
    .kafka_cleanshutdown               there only between a clean stop and the next start
    recovery-point-offset-checkpoint   replication-offset-checkpoint   log-start-offset-checkpoint   cleaner-offset-checkpoint
    <topic>-<partition>/               a log
    <topic>-<partition>.<id>-delete/   a deleted log, removed after file.delete.delay.ms
    …-future, …-stray                  left alone

Opening ten thousand logs must be cheap: after a clean stop a log costs one listing, one small file and, unless it is empty, a look
at its last batch; files are opened and indexes and producers read when somebody needs them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping

from ottla.host.disk import DirectoryLock, Disk
from ottla.model.errors import ApiError, OttlaError
from ottla.model.ids import METADATA_TOPIC, ZERO_UUID, TopicPartition, uuid_parse
from ottla.storage import checkpoints
from ottla.storage.config import LogConfig
from ottla.storage.files import MAX_OPEN_FILES, OpenFiles
from ottla.storage.flushing import storage_error
from ottla.storage.log import Log

log = logging.getLogger("ottla.storage")

_LOG_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})")
_DELETE_FOLDER = re.compile(r".+\.[0-9a-f]{32}-delete")
MAX_NAME = 255  # of a folder, on most file systems


class StorageError(OttlaError):
    """The folder cannot be used: one clear sentence."""


class LogDirectory:
    def __init__(self, disk: Disk, path: str, lock: DirectoryLock, properties: Mapping[str, str], max_open_files: int) -> None:
        """Use `open`."""
        self._disk = disk
        self._lock = lock
        self.path = path
        self.cluster_id = properties["cluster.id"]
        self.node_id = int(properties["node.id"])
        self.directory_id = uuid_parse(properties["directory.id"])
        self.logs: dict[TopicPartition, Log] = {}
        marker = f"{path}/{checkpoints.CLEAN_SHUTDOWN}"
        self._was_clean = disk.exists(marker)
        # Of the run that stopped cleanly before this one (KIP-966), until it is set to this run's, which `close` writes down.
        self.broker_epoch = checkpoints.read_clean_shutdown(disk.read_all(marker)) if self._was_clean else -1
        self._open_files = OpenFiles(max_open_files)
        self._loaded = self._closed = False
        self._outgoing: list[tuple[int, str]] = []  # (due, folder)
        self._written: dict[str, bytes] = {}

    # --- the folder itself

    @staticmethod
    def format(disk: Disk, path: str, cluster_id: str, node_id: int, directory_id: bytes) -> None:
        """Writes meta.properties (version 1). Raises StorageError when it exists already."""
        try:
            if disk.exists(f"{path}/{checkpoints.META_PROPERTIES}"):
                raise StorageError(f"Log directory {path} is already formatted.")
            disk.make_directory(path)
            disk.replace(
                f"{path}/{checkpoints.META_PROPERTIES}", checkpoints.write_meta_properties(cluster_id, node_id, directory_id)
            )
        except OSError as error:
            raise StorageError(f"Cannot write to log directory {path}: {error.strerror}.") from error

    @classmethod
    def open(cls, disk: Disk, path: str, node_id: int | None = None, *, max_open_files: int = MAX_OPEN_FILES) -> LogDirectory:
        """Takes the lock and reads meta.properties. Raises StorageError (in use, not formatted, unreadable, another node's)."""
        meta = f"{path}/{checkpoints.META_PROPERTIES}"
        if not disk.exists(meta):
            raise StorageError(f"Log directory {path} is not formatted: it has no {checkpoints.META_PROPERTIES}.")
        try:
            lock = disk.lock(f"{path}/{checkpoints.LOCK}")
        except BlockingIOError as error:
            raise StorageError(f"Log directory {path} is in use by another node.") from error
        except OSError as error:
            raise StorageError(f"Cannot use log directory {path}: {error.strerror}.") from error
        try:
            opened = cls(disk, path, lock, checkpoints.read_properties(disk.read_all(meta)), max_open_files)
        except (KeyError, ValueError, OSError) as error:
            lock.release()
            raise StorageError(f"{meta} cannot be used: {error!r}.") from error
        if node_id not in (None, opened.node_id):
            lock.release()
            raise StorageError(f"Log directory {path} is that of node {opened.node_id}, and node.id is {node_id}.")
        return opened

    def usage(self) -> tuple[int, int]:
        """Total and usable bytes of the volume."""
        return self._disk.usage(self.path)

    # --- loading

    def load(self, config_of: Callable[[str], LogConfig], now_ms: int) -> None:
        """Opens every log: cheaply after a clean stop, with recovery after a crash."""
        clean = self._was_clean
        if clean:
            self._disk.remove(f"{self.path}/{checkpoints.CLEAN_SHUTDOWN}")
        recovery_points = self._read(checkpoints.RECOVERY_POINTS)
        start_offsets = self._read(checkpoints.LOG_START_OFFSETS)
        high_watermarks = self._read(checkpoints.HIGH_WATERMARKS)
        cleaner_offsets = self._read(checkpoints.CLEANER_OFFSETS)
        for name in self._disk.list(self.path):
            if _DELETE_FOLDER.fullmatch(name):
                self._outgoing.append((now_ms, f"{self.path}/{name}"))
            topic_partition = partition_of(name)
            if topic_partition is None or topic_partition.topic == METADATA_TOPIC:
                continue
            self.logs[topic_partition] = Log.open(
                self._disk,
                f"{self.path}/{name}",
                topic_partition,
                ZERO_UUID,
                config_of(topic_partition.topic),
                now_ms,
                clean=clean,
                recovery_point=recovery_points.get(topic_partition, 0),
                log_start_offset=start_offsets.get(topic_partition, 0),
                high_watermark=high_watermarks.get(topic_partition, 0),
                cleaner_offset=cleaner_offsets.get(topic_partition, -1),
                open_files=self._open_files,
                recovery_point_lowered=self.checkpoint_recovery_points,
            )
        self._loaded = True
        log.info("loaded logs=%d clean=%s path=%s", len(self.logs), clean, self.path)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        """An unreadable checkpoint counts as empty: logs are then recovered whole and start at their first segment."""
        path = f"{self.path}/{name}"
        if not self._disk.exists(path):
            return {}
        found = checkpoints.read_offsets(self._disk.read_all(path))
        if found is None:
            log.warning("unreadable checkpoint path=%s", path)
        return found or {}

    # --- logs come and go

    def create_log(self, topic_partition: TopicPartition, topic_id: bytes, config: LogConfig, now_ms: int) -> Log:
        """Opens it when it is there. Raises ApiError."""
        found = self.logs.get(topic_partition)
        if found is None:
            found = self.logs[topic_partition] = Log.open(
                self._disk,
                f"{self.path}/{topic_partition}",
                topic_partition,
                topic_id,
                config,
                now_ms,
                open_files=self._open_files,
                recovery_point_lowered=self.checkpoint_recovery_points,
            )
        return found

    def delete_log(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Renames the folder to `…-delete`; `housekeeping` removes it after file.delete.delay.ms."""
        gone = self.logs[topic_partition]
        folder = self._set_aside(topic_partition, "delete")
        self._outgoing.append((now_ms + gone.config.file_delete_delay_ms, folder))

    def mark_stray(self, topic_partition: TopicPartition) -> None:
        """Renames to `…-stray`: the cluster no longer knows it, an operator may."""
        self._set_aside(topic_partition, "stray")

    def _set_aside(self, topic_partition: TopicPartition, suffix: str) -> str:
        gone = self.logs.pop(topic_partition)
        try:
            folder = self._free_name(topic_partition, gone.topic_id, suffix)
            self._disk.rename(gone.directory, folder)
        except OSError as error:
            self.logs[topic_partition] = gone
            raise storage_error(error, f"renaming {gone.directory}") from error
        gone.moved(folder)
        return folder

    def _free_name(self, topic_partition: TopicPartition, topic_id: bytes, suffix: str) -> str:
        """Kafka puts a random id before the suffix; the topic's own serves as well and needs no chance."""
        number = int.from_bytes(topic_id)
        while True:
            tail = f".{number:032x}-{suffix}"
            folder = f"{self.path}/{str(topic_partition)[: MAX_NAME - len(tail)]}{tail}"
            if not self._disk.exists(folder):
                return folder
            number = (number + 1) % (1 << 128)

    def housekeeping(self, now_ms: int) -> None:
        """Removes folders of deleted logs whose delay has passed."""
        due = [folder for when, folder in self._outgoing if when <= now_ms]
        self._outgoing = [entry for entry in self._outgoing if entry[0] > now_ms]
        for folder in due:
            try:
                self._disk.remove_tree(folder)
            except OSError as error:
                log.warning("folder not removed path=%s error=%s", folder, error)

    # --- checkpoints

    def checkpoint_recovery_points(self) -> None:
        self._write(checkpoints.RECOVERY_POINTS, {key: value.recovery_point for key, value in self.logs.items()})

    def checkpoint_high_watermarks(self) -> None:
        self._write(checkpoints.HIGH_WATERMARKS, {key: value.high_watermark for key, value in self.logs.items()}, sync=False)

    def checkpoint_log_start_offsets(self) -> None:
        """Only where it is not what the first segment says."""
        self._write(
            checkpoints.LOG_START_OFFSETS,
            {
                key: value.log_start_offset
                for key, value in self.logs.items()
                if value.log_start_offset > value.segments.first.base_offset
            },
        )

    def checkpoint_cleaner_offsets(self) -> None:
        """After each compaction, and at the stop."""
        cleaned = {key: value.cleaner_offset for key, value in self.logs.items() if value.cleaner_offset >= 0}
        self._write(checkpoints.CLEANER_OFFSETS, cleaned)

    def _write(self, name: str, offsets: Mapping[TopicPartition, int], *, sync: bool = True) -> None:
        content = checkpoints.write_offsets(offsets)
        if self._written.get(name) == content:
            return
        try:
            self._disk.replace(f"{self.path}/{name}", content, sync=sync)
        except OSError as error:
            raise storage_error(error, f"writing {self.path}/{name}") from error
        self._written[name] = content

    def close(self, now_ms: int) -> None:
        """Closes all logs, writes all checkpoints, then the clean-shutdown marker, and releases the lock.

        The marker is left out when anything could not be written: the next start then recovers. A second call does nothing.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._loaded:
                for each in self.logs.values():
                    each.close(now_ms)
                self._written.clear()
                self.checkpoint_recovery_points()
                self.checkpoint_high_watermarks()
                self.checkpoint_log_start_offsets()
                self.checkpoint_cleaner_offsets()
                marker = f"{self.path}/{checkpoints.CLEAN_SHUTDOWN}"
                self._disk.replace(marker, checkpoints.write_clean_shutdown(self.broker_epoch))
        except (ApiError, OSError) as error:
            log.error("not stopped cleanly path=%s error=%s", self.path, error)
        finally:
            self._lock.release()


def partition_of(name: str) -> TopicPartition | None:
    """The partition a folder is named after; None for every other name."""
    match = _LOG_FOLDER.fullmatch(name)
    if match is None or match["topic"] in (".", ".."):
        return None
    return TopicPartition(match["topic"], int(match["partition"]))
