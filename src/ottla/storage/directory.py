"""A node's data folder (surface; bodies land next)."""

from __future__ import annotations

from collections.abc import Callable

from ottla.host.disk import Disk
from ottla.model.ids import TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.log import Log


class StorageError(Exception):
    """The folder cannot be used: one clear sentence."""


class LogDirectory:
    path: str
    cluster_id: str
    node_id: int
    directory_id: bytes
    logs: dict[TopicPartition, Log]

    @staticmethod
    def format(disk: Disk, path: str, cluster_id: str, node_id: int, directory_id: bytes) -> None:
        """Writes meta.properties (version 1). Raises StorageError when it exists already."""
        raise NotImplementedError

    @classmethod
    def open(cls, disk: Disk, path: str) -> LogDirectory:
        """Takes the lock and reads meta.properties. Raises StorageError (in use, not formatted, unreadable)."""
        raise NotImplementedError

    def load(self, config_of: Callable[[str], LogConfig], now_ms: int) -> None:
        """Opens every log: cheaply after a clean stop, with recovery after a crash."""
        raise NotImplementedError

    def create_log(self, topic_partition: TopicPartition, topic_id: bytes, config: LogConfig, now_ms: int) -> Log:
        raise NotImplementedError

    def delete_log(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Renames the folder to `…-delete`; `housekeeping` removes it after file.delete.delay.ms."""
        raise NotImplementedError

    def mark_stray(self, topic_partition: TopicPartition) -> None:
        """Renames to `…-stray`: the cluster no longer knows it, an operator may."""
        raise NotImplementedError

    def checkpoint_recovery_points(self) -> None:
        raise NotImplementedError

    def checkpoint_high_watermarks(self) -> None:
        raise NotImplementedError

    def checkpoint_log_start_offsets(self) -> None:
        raise NotImplementedError

    def housekeeping(self, now_ms: int) -> None:
        raise NotImplementedError

    def usage(self) -> tuple[int, int]:
        """Total and usable bytes of the volume."""
        raise NotImplementedError

    def close(self, now_ms: int) -> None:
        """Closes all logs, writes all checkpoints, then the clean-shutdown marker, and releases the lock."""
        raise NotImplementedError
