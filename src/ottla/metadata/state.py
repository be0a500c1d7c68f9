"""What the controller knows and was told: the image, broker sessions, its settings; and the values that cross its border.

In and out of the controller go only the types of this module and Kafka's own messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ottla.metadata.image import BROKER, TOPIC, ClusterImage, LevelRange, Topic
from ottla.metadata.placement import UsableBroker
from ottla.metadata.records import MetadataRecord
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED
from ottla.model.machine import Ticket, Timer

MAX_RECORDS_PER_REQUEST = 10_000  # Kafka's MAX_RECORDS_PER_USER_OP: a batch must fit one append


@dataclass(frozen=True, slots=True)
class Context:
    """The world at the moment of a request; drawn by the shell, because the machine has no clock and no dice."""

    now_ms: int  # monotonic
    next_offset: int  # the end of the log: where the first record of this decision will be appended
    ticket: Ticket = 0  # who waits for the reply
    version: int = 0  # of the request
    new_uuid: Callable[[], bytes] = bytes  # a topic id
    random_index: Callable[[int], int] = lambda count: 0  # a number in [0, count)
    may_describe_configs: Callable[[str], bool] = lambda topic: True  # whether CreateTopics may tell the topic's settings


class EffectiveConfig(NamedTuple):
    """A setting of a topic as CreateTopics reports it."""

    name: str
    value: str | None
    source: int  # DescribeConfigs' source number
    read_only: bool = False
    is_sensitive: bool = False


class SettingsRules(Protocol):
    """What the controller asks about settings; the shell gives the table of `model.settings` this form."""

    def check(self, resource_type: int, resource_name: str, values: Mapping[str, str]) -> None:
        """Raise `ApiError` (INVALID_CONFIG, INVALID_REQUEST) if a resource must not have these values."""

    def is_list(self, resource_type: int, setting: str) -> bool:
        """Whether APPEND and SUBTRACT apply."""

    def default_value(self, resource_type: int, setting: str) -> str | None:
        """What holds when nothing was altered: the node's own properties, then Kafka's default."""

    def effective_topic_configs(
        self, overrides: Mapping[str, str], node: Mapping[str, str], cluster: Mapping[str, str]
    ) -> Iterable[EffectiveConfig]:
        """All settings of a topic, given what was set for it, for this node and for all nodes."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    cluster_id: str
    node_id: int
    supported_features: Mapping[str, LevelRange]
    bootstrap_features: Mapping[str, int]  # written by the first activation; see features.BOOTSTRAP_LEVELS
    quorum_ids: frozenset[int] = frozenset()  # all controllers; a feature may rise once all of them have registered
    session_timeout_ms: int = 9_000  # broker.session.timeout.ms
    default_partition_count: int = 1  # num.partitions
    default_replication_factor: int = 1  # default.replication.factor
    imbalance_check_interval_ms: int | None = 300_000  # leader.imbalance.check.interval.seconds; None: no balancing
    unclean_check_interval_ms: int = 300_000  # unclean.leader.election.interval.ms
    max_idle_interval_ms: int = 0  # metadata.max.idle.interval.ms: a NoOpRecord this often, for lag meters; 0 writes none
    max_elections_per_check: int = 1_000
    max_moves_per_decision: int = 500  # partitions that change at once when a broker comes or goes; the rest follows on a timer
    topic_deletion_enabled: bool = True  # delete.topic.enable


@dataclass(frozen=True, slots=True)
class Session:
    """A broker that has been heard of by this activation of the controller."""

    last_seen_ms: int
    metadata_offset: int = -1
    shutdown_offset: int | None = None  # set in controlled shutdown: all others must have read this far


# Volatile changes: applied by `Controller.apply_change`, never logged.


@dataclass(frozen=True, slots=True)
class SessionChange:
    broker_id: int
    session: Session | None  # None ends it


# Events beside Kafka's requests ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Activated:
    """This node became leader and every record up to the end of the log has been applied."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A timer of an earlier decision has run out."""

    key: Any


@dataclass(frozen=True, slots=True)
class BrokerUnreachable:
    """The broker's connection is lost and its port refuses a new one: it is gone, and need not time out."""

    broker_id: int
    broker_epoch: int


@dataclass(slots=True)
class Outcome:
    """What a handler decided; the controller makes a `Decision` of it."""

    records: list[MetadataRecord] = field(default_factory=list)
    reply: Any = None
    changes: list[SessionChange] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)


@dataclass(slots=True)
class ControllerState:
    settings: ControllerSettings
    rules: SettingsRules
    image: ClusterImage = field(default_factory=ClusterImage)
    sessions: dict[int, Session] = field(default_factory=dict)
    registered_at: dict[int, int] = field(default_factory=dict)  # the offset of each broker's registration
    colliding: dict[str, set[str]] = field(default_factory=dict)  # topic names by their form with '.' as '_'
    image_before_transaction: ClusterImage | None = None  # set while a metadata transaction is open

    def topic_or_error(self, name: str, message: str | None = None) -> Topic:
        topic = self.image.topic(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        return topic

    def is_active(self, broker_id: int) -> bool:
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def usable_brokers(self) -> list[UsableBroker]:
        """Brokers that may be given replicas: all registered ones, except those whose directories are all cordoned."""
        return [
            UsableBroker(broker.broker_id, broker.rack, not broker.is_active)
            for broker in self.image.brokers.values()
            if broker.cordoned is None or set(broker.directories) - set(broker.cordoned) or not broker.directories
        ]

    def default_directory(self, broker_id: int) -> bytes:
        """Where a new replica goes: surely into a broker's only directory; else the broker tells later (KIP-858)."""
        broker = self.image.brokers.get(broker_id)
        if broker is None or not broker.directories:
            return DIRECTORY_MIGRATING
        return broker.directories[0] if len(broker.directories) == 1 else DIRECTORY_UNASSIGNED

    def topic_setting(self, topic: str, setting: str) -> str | None:
        """The value that holds for a topic: set for it, for this node, for all nodes, or by default."""
        for resource in ((TOPIC, topic), (BROKER, str(self.settings.node_id)), (BROKER, "")):
            value = self.image.configs.get(resource, {}).get(setting)
            if value is not None:
                return value
        return self.rules.default_value(TOPIC, setting)

    def min_insync_replicas(self, topic: Topic) -> int:
        """As far as it can be reached: never more than the topic has replicas."""
        wanted = int(self.topic_setting(topic.name, "min.insync.replicas") or 1)
        first = topic.partitions.get(0)
        return min(wanted, len(first.replicas)) if first else wanted

    def may_elect_unclean(self, topic: str) -> bool:
        return (self.topic_setting(topic, "unclean.leader.election.enable") or "").lower() == "true"

    def check_broker_epoch(self, broker_id: int, broker_epoch: int) -> None:
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}")
        if broker.epoch != broker_epoch:
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Expected broker epoch {broker.epoch} for broker {broker_id}, but got {broker_epoch}",
            )
