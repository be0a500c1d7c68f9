"""The cluster as its metadata records add up to it: an immutable value that readers may keep as long as they like.

In: records, through `delta.apply_batch`. Out: a new image that shares everything the records did not touch, and what
changed. Mappings are plain dictionaries that nobody mutates once the image is made; only `delta.Delta` copies and writes them.

Invariants: `topic_ids` and `topics` name the same topics; a partition's `directories` has the length of its `replicas`;
`offset` and `epoch` are those of the last record contained, -1 before the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.metadata.records import OpaqueRecord
from ottla.model.ids import DIRECTORY_LOST, DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED
from ottla.protocol.messages.metadata_records import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    UserScramCredentialRecord,
)

NO_LEADER = -1
RECOVERED, RECOVERING = 0, 1  # leader recovery state (KIP-704)
METADATA_VERSION = "metadata.version"

# The types of configuration resource that live in the metadata log (`ConfigResource.Type`).
TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32

ConfigKey = tuple[int, str]  # resource type and name; the name "" is the default of all brokers
QuotaEntity = frozenset[tuple[str, str | None]]  # entity type and name; the name None is the default of its type


class Listener(NamedTuple):
    name: str
    host: str
    port: int
    security_protocol: int


class LevelRange(NamedTuple):
    """The levels of a feature that a node supports."""

    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class Broker:
    broker_id: int
    epoch: int
    incarnation_id: bytes
    listeners: tuple[Listener, ...]
    features: Mapping[str, LevelRange]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[bytes, ...]  # those online
    cordoned: tuple[bytes, ...] | None = None  # directories that take no new replicas (KIP-1066)

    @property
    def is_active(self) -> bool:
        """Whether the broker may lead and be in sync."""
        return not self.fenced and not self.in_controlled_shutdown

    def listener(self, name: str) -> Listener | None:
        return next((listener for listener in self.listeners if listener.name == name), None)

    def has_online_directory(self, directory: bytes) -> bool:
        if directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING):
            return True
        return directory != DIRECTORY_LOST and (not self.directories or directory in self.directories)


@dataclass(frozen=True, slots=True)
class ControllerNode:
    controller_id: int
    incarnation_id: bytes
    listeners: tuple[Listener, ...]
    features: Mapping[str, LevelRange]


@dataclass(frozen=True, slots=True)
class Partition:
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[bytes, ...] = ()
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    eligible_leaders: tuple[int, ...] = ()
    last_known_eligible: tuple[int, ...] = ()
    recovery_state: int = RECOVERED

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0] if self.replicas else NO_LEADER

    def directory_of(self, broker_id: int) -> bytes:
        """The log directory in which a replica lives, as far as the controller knows."""
        for replica, directory in zip(self.replicas, self.directories, strict=True):
            if replica == broker_id:
                return directory
        return DIRECTORY_UNASSIGNED


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    topic_id: bytes
    partitions: Mapping[int, Partition]


@dataclass(frozen=True, slots=True)
class ClusterImage:
    offset: int = -1
    epoch: int = -1
    features: Mapping[str, int] = field(default_factory=dict)  # finalized levels; a level of 0 is not kept
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    controllers: Mapping[int, ControllerNode] = field(default_factory=dict)
    topics: Mapping[bytes, Topic] = field(default_factory=dict)
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)
    configs: Mapping[ConfigKey, Mapping[str, str]] = field(default_factory=dict)
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    next_producer_id: int = -1  # -1 until a block was handed out
    producer_ids_broker: tuple[int, int] = (-1, -1)  # who got the last block: broker id and epoch
    scram: Mapping[tuple[int, str], UserScramCredentialRecord] = field(default_factory=dict)
    acls: Mapping[bytes, AccessControlEntryRecord] = field(default_factory=dict)
    tokens: Mapping[str, DelegationTokenRecord] = field(default_factory=dict)
    opaque: tuple[OpaqueRecord, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True until the first record: the log must be bootstrapped."""
        return METADATA_VERSION not in self.features and not self.brokers and not self.topics

    @property
    def metadata_version(self) -> int:
        return self.features.get(METADATA_VERSION, 0)

    @property
    def eligible_leaders_enabled(self) -> bool:
        return self.features.get("eligible.leader.replicas.version", 0) >= 1

    def topic(self, name: str) -> Topic | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, name: str, index: int) -> Partition | None:
        topic = self.topic(name)
        return None if topic is None else topic.partitions.get(index)

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """What was set for a resource, without defaults."""
        return self.configs.get((resource_type, name), {})

    def each_partition(self) -> Iterator[tuple[Topic, int, Partition]]:
        for topic in self.topics.values():
            for index, partition in topic.partitions.items():
                yield topic, index, partition
