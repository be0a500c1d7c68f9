"""The client's view of the cluster: brokers, topics, partitions and their leaders. Plain values; `cluster` keeps them fresh."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ottla.model.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataResponse


@dataclass(frozen=True, slots=True)
class Broker:
    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.id} ({self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    topic: str
    partition: int
    leader: int  # -1: none
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    id: bytes
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]  # by number
    error: ErrorCode = ErrorCode.NONE

    @property
    def is_known(self) -> bool:
        return bool(self.partitions) and not self.error

    def partition(self, number: int) -> PartitionInfo | None:
        if 0 <= number < len(self.partitions) and self.partitions[number].partition == number:
            return self.partitions[number]
        return next((info for info in self.partitions if info.partition == number), None)


@dataclass(slots=True)
class View:
    """Changed only by `merge` and `hint`; both keep the newest leader epoch they have seen of a partition."""

    brokers: dict[int, Broker] = field(default_factory=dict)
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    names: dict[bytes, str] = field(default_factory=dict)
    cluster_id: str | None = None
    controller_id: int = -1

    def merge(self, reply: MetadataResponse) -> None:
        self.brokers = {row.node_id: Broker(row.node_id, row.host, row.port, row.rack) for row in reply.brokers} or self.brokers
        self.cluster_id = reply.cluster_id
        self.controller_id = reply.controller_id
        for row in reply.topics:
            if row.name is not None:
                self._put(topic_info(row), self.topics.get(row.name))

    def _put(self, new: TopicInfo, old: TopicInfo | None) -> None:
        if old is not None and old.id == new.id:
            new = replace(new, partitions=tuple(_newer(info, old.partition(info.partition)) for info in new.partitions))
        self.topics[new.name] = new
        if any(new.id):
            self.names[new.id] = new.name

    def hint(self, topic: str, partition: int, leader: int, leader_epoch: int, brokers: Iterable[Broker]) -> bool:
        """A broker that is not the leader says who is (KIP-951). True when that is news."""
        for broker in brokers:
            self.brokers.setdefault(broker.id, broker)
        info = self.topics.get(topic)
        old = info.partition(partition) if info else None
        if info is None or old is None or leader < 0 or leader not in self.brokers or leader_epoch <= old.leader_epoch:
            return False
        changed = replace(old, leader=leader, leader_epoch=leader_epoch, error=ErrorCode.NONE)
        self.topics[topic] = replace(info, partitions=tuple(changed if each is old else each for each in info.partitions))
        return True


def _newer(new: PartitionInfo, old: PartitionInfo | None) -> PartitionInfo:
    """A broker that lags behind may tell an older leader than we already know of (KIP-320)."""
    return old if old is not None and old.leader_epoch > new.leader_epoch >= 0 else new


def topic_info(row: MetadataResponse.MetadataResponseTopic) -> TopicInfo:
    assert row.name is not None
    partitions = [
        PartitionInfo(
            row.name,
            part.partition_index,
            part.leader_id,
            part.leader_epoch,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
            tuple(part.offline_replicas),
            code_of(part.error_code),
        )
        for part in sorted(row.partitions, key=lambda part: part.partition_index)
    ]
    return TopicInfo(row.name, row.topic_id, row.is_internal, tuple(partitions), code_of(row.error_code))


def code_of(number: int) -> ErrorCode:
    """The error code of a reply; a number that this release does not know counts as unknown."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
