"""What a group decision may know of the world, as frozen values: the moment, who asks, the topics, the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from ottla.model.machine import Ticket

INT32_MAX = 2**31 - 1
NO_TICKET: Ticket = -1


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as an assignor sees it. `racks[p]` are the racks that hold a replica of partition p; empty when none is known."""

    name: str
    topic_id: bytes
    partition_count: int
    racks: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class Topics:
    """All topics of the cluster. `version` grows whenever any of them changes, so that looking again costs one comparison."""

    version: int = 0
    by_name: Mapping[str, Topic] = field(default_factory=lambda: MappingProxyType({}))
    by_id: Mapping[bytes, Topic] = field(default_factory=lambda: MappingProxyType({}))

    @staticmethod
    def of(topics: Iterable[Topic], version: int = 0) -> Topics:
        listed = list(topics)
        return Topics(version, {topic.name: topic for topic in listed}, {topic.topic_id: topic for topic in listed})


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings that groups obey, with Kafka's defaults. Those from `consumer_session_timeout_ms` on can differ per group."""

    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 10080 * 60 * 1000
    offsets_retention_check_interval_ms: int = 600_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = INT32_MAX
    consumer_group_max_size: int = INT32_MAX
    consumer_migration_policy: str = "bidirectional"
    consumer_assignors: tuple[str, ...] = ("uniform", "range")  # the first is the default
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_assignment_interval_ms: int = 1_000


DEFAULT_SETTINGS = GroupSettings()


def default_settings(group_id: str) -> GroupSettings:
    return DEFAULT_SETTINGS


class Context(NamedTuple):
    """Given with every request and every time-out.

    `new_member_id` is sixteen random bytes, drawn by the shell, from which a new member's id is made when one is needed.
    `client_host` is written as Kafka writes it, with a leading slash. `settings_for` gives the settings in force for one group.
    """

    now_ms: int
    ticket: Ticket = NO_TICKET
    version: int = 0
    client_id: str = ""
    client_host: str = ""
    new_member_id: bytes = bytes(16)
    topics: Topics = Topics()
    settings: GroupSettings = DEFAULT_SETTINGS
    settings_for: Callable[[str], GroupSettings] = default_settings
