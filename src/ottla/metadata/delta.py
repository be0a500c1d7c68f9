"""How records change the image: a builder per batch that copies only the dictionaries it writes to.

In: an image and records. Out: the next image and `Changes`, what the broker has to act on. `apply` cannot fail: a record
that refers to what is not there (it could only come from a log that lost its beginning) is skipped, and so is an unknown one.

The cost of a batch is its records plus one shallow copy of each table touched: never a copy of all partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ottla.metadata.image import (
    METADATA_VERSION,
    TOPIC,
    Broker,
    ClusterImage,
    ConfigKey,
    ControllerNode,
    LevelRange,
    Listener,
    Partition,
    QuotaEntity,
    Topic,
)
from ottla.metadata.records import MetadataRecord, OpaqueRecord
from ottla.model.ids import DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED
from ottla.protocol.messages import metadata_records as m

NO_LEADER_CHANGE = -2
MAX_OPAQUE_RECORDS = 100_000


@dataclass(slots=True)
class Changes:
    """What a batch touched, by key. Look into the images before and after to see how."""

    partitions: dict[bytes, set[int]] = field(default_factory=dict)  # by topic id: made or changed
    created_topics: set[bytes] = field(default_factory=set)
    deleted_topics: dict[bytes, Topic] = field(default_factory=dict)
    configs: set[ConfigKey] = field(default_factory=set)
    brokers: set[int] = field(default_factory=set)
    controllers: set[int] = field(default_factory=set)
    features: set[str] = field(default_factory=set)
    quotas: set[QuotaEntity] = field(default_factory=set)
    scram: set[tuple[int, str]] = field(default_factory=set)
    acls: set[bytes] = field(default_factory=set)
    tokens: set[str] = field(default_factory=set)
    producer_ids: bool = False

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)

    def portions(self, most: int) -> Iterator[Changes]:
        """The same in pieces with at most so many partitions each; whatever else changed is in the first."""
        touched = [(topic_id, index) for topic_id, indexes in self.partitions.items() for index in sorted(indexes)]
        for start in range(0, max(1, len(touched)), most):
            partitions: dict[bytes, set[int]] = {}
            for topic_id, index in touched[start : start + most]:
                partitions.setdefault(topic_id, set()).add(index)
            yield Changes(partitions) if start else replace(self, partitions=partitions)


def apply_batch(
    image: ClusterImage, records: Iterable[MetadataRecord], offset: int = -1, epoch: int = -1
) -> tuple[ClusterImage, Changes]:
    """`offset` and `epoch` are those of the last record. Metadata transactions are the business of `loader`."""
    delta = Delta(image)
    for record in records:
        delta.apply(record)
    return delta.finish(offset, epoch), delta.changes


def difference(before: ClusterImage, after: ClusterImage) -> Changes:
    """What changed between two images that no batch lies between: a snapshot took the place of the records."""
    changes = Changes()
    for topic_id, topic in after.topics.items():
        former = before.topics.get(topic_id)
        if former is None:
            changes.created_topics.add(topic_id)
        known = {} if former is None else former.partitions
        changed = {index for index, state in topic.partitions.items() if known.get(index) != state}
        if changed:
            changes.partitions[topic_id] = changed
    changes.deleted_topics = {topic_id: topic for topic_id, topic in before.topics.items() if topic_id not in after.topics}
    for name in ("configs", "brokers", "controllers", "features", "quotas", "scram", "acls", "tokens"):
        old, new = getattr(before, name), getattr(after, name)
        getattr(changes, name).update(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    changes.producer_ids = before.next_producer_id != after.next_producer_id
    return changes


class Delta:
    """The next image under construction."""

    __slots__ = ("changes", "_base", "_fields", "_copied_topics", "_copied_groups")

    def __init__(self, image: ClusterImage) -> None:
        self.changes = Changes()
        self._base = image
        self._fields: dict[str, Any] = {}
        self._copied_topics: dict[bytes, dict[int, Partition]] = {}
        self._copied_groups: set[tuple[str, Any]] = set()

    def apply(self, record: MetadataRecord) -> None:
        handler = _HANDLERS.get(type(record))
        if handler is not None:
            handler(self, record)

    def finish(self, offset: int, epoch: int) -> ClusterImage:
        return replace(self._base, **self._fields, offset=offset, epoch=epoch)

    # What handlers read and write ---------------------------------------------------------------------------------------

    def read(self, name: str) -> Any:
        return self._fields[name] if name in self._fields else getattr(self._base, name)

    def write(self, name: str, value: Any) -> None:
        self._fields[name] = value

    def table(self, name: str) -> dict[Any, Any]:
        """A dictionary of the image that may be written to: copied on first use."""
        table = self._fields.get(name)
        if table is None:
            table = self._fields[name] = dict(getattr(self._base, name))
        return cast("dict[Any, Any]", table)

    def group(self, name: str, key: Any) -> dict[Any, Any]:
        """A dictionary inside a table, made or copied on first use."""
        table = self.table(name)
        if (name, key) not in self._copied_groups:
            self._copied_groups.add((name, key))
            table[key] = dict(table.get(key, {}))
        return cast("dict[Any, Any]", table.setdefault(key, {}))

    def partitions(self, topic_id: bytes) -> dict[int, Partition] | None:
        """The partitions of a topic, to be written to; None if there is no such topic."""
        copied = self._copied_topics.get(topic_id)
        if copied is None:
            topic = self.read("topics").get(topic_id)
            if topic is None:
                return None
            copied = self._copied_topics[topic_id] = dict(topic.partitions)
            self.table("topics")[topic_id] = replace(topic, partitions=copied)
        return copied

    def touched(self, topic_id: bytes, index: int) -> None:
        self.changes.partitions.setdefault(topic_id, set()).add(index)

    def forget_topic(self, topic_id: bytes) -> None:
        self._copied_topics.pop(topic_id, None)
        self.changes.partitions.pop(topic_id, None)
        self.changes.created_topics.discard(topic_id)


# Topics and partitions --------------------------------------------------------------------------------------------------


def _topic(delta: Delta, record: m.TopicRecord) -> None:
    delta.table("topics")[record.topic_id] = Topic(record.name, record.topic_id, {})
    delta.table("topic_ids")[record.name] = record.topic_id
    delta.changes.created_topics.add(record.topic_id)


def _partition(delta: Delta, record: m.PartitionRecord) -> None:
    partitions = delta.partitions(record.topic_id)
    if partitions is None:
        return
    replicas = tuple(record.replicas)
    partitions[record.partition_id] = Partition(
        replicas=replicas,
        isr=_shared(record.isr, replicas),
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        directories=tuple(record.directories) or (DIRECTORY_MIGRATING,) * len(replicas),
        removing=tuple(record.removing_replicas),
        adding=tuple(record.adding_replicas),
        eligible_leaders=tuple(record.eligible_leader_replicas or ()),
        last_known_eligible=tuple(record.last_known_elr or ()),
        recovery_state=record.leader_recovery_state,
    )
    delta.touched(record.topic_id, record.partition_id)


def _shared(ids: list[int], replicas: tuple[int, ...]) -> tuple[int, ...]:
    """Nearly always all replicas are in sync: one tuple for both."""
    made = tuple(ids)
    return replicas if made == replicas else made


def _partition_change(delta: Delta, record: m.PartitionChangeRecord) -> None:
    partitions = delta.partitions(record.topic_id)
    before = None if partitions is None else partitions.get(record.partition_id)
    if partitions is None or before is None:
        return
    partitions[record.partition_id] = merge(before, record)
    delta.touched(record.topic_id, record.partition_id)


def merge(before: Partition, record: m.PartitionChangeRecord) -> Partition:
    """A partition after a change record. The leader epoch rises whenever the record names a leader, the partition epoch always."""
    leader_named = record.leader != NO_LEADER_CHANGE
    replicas = before.replicas if record.replicas is None else tuple(record.replicas)
    return Partition(
        replicas=replicas,
        isr=before.isr if record.isr is None else _shared(record.isr, replicas),
        leader=record.leader if leader_named else before.leader,
        leader_epoch=before.leader_epoch + leader_named,
        partition_epoch=before.partition_epoch + 1,
        directories=_merged_directories(before, record, replicas),
        removing=before.removing if record.removing_replicas is None else tuple(record.removing_replicas),
        adding=before.adding if record.adding_replicas is None else tuple(record.adding_replicas),
        eligible_leaders=(
            before.eligible_leaders if record.eligible_leader_replicas is None else tuple(record.eligible_leader_replicas)
        ),
        last_known_eligible=before.last_known_eligible if record.last_known_elr is None else tuple(record.last_known_elr),
        recovery_state=before.recovery_state if record.leader_recovery_state < 0 else record.leader_recovery_state,
    )


def _merged_directories(before: Partition, record: m.PartitionChangeRecord, replicas: tuple[int, ...]) -> tuple[bytes, ...]:
    if record.directories is not None and len(record.directories) == len(replicas):
        return tuple(record.directories)
    if replicas == before.replicas:
        return before.directories
    known = dict(zip(before.replicas, before.directories, strict=True))
    return tuple(known.get(replica, DIRECTORY_UNASSIGNED) for replica in replicas)


def _remove_topic(delta: Delta, record: m.RemoveTopicRecord) -> None:
    topic = delta.read("topics").get(record.topic_id)
    if topic is None:
        return
    was_created_here = record.topic_id in delta.changes.created_topics
    delta.forget_topic(record.topic_id)
    del delta.table("topics")[record.topic_id]
    delta.table("topic_ids").pop(topic.name, None)
    if (TOPIC, topic.name) in delta.read("configs"):
        delta.table("configs").pop((TOPIC, topic.name))
        delta.changes.configs.add((TOPIC, topic.name))
    if not was_created_here:
        delta.changes.deleted_topics[record.topic_id] = topic


def _clear_eligible(delta: Delta, record: m.ClearElrRecord) -> None:
    """Forget eligible leaders: of one topic, or of all when no name is given (min.insync.replicas has changed)."""
    if record.topic_name:
        topic_id = delta.read("topic_ids").get(record.topic_name)
        topics = [] if topic_id is None else [topic_id]
    else:
        topics = list(delta.read("topics"))
    for topic_id in topics:
        for index, partition in list(delta.read("topics")[topic_id].partitions.items()):
            if partition.eligible_leaders or partition.last_known_eligible:
                partitions = delta.partitions(topic_id)
                assert partitions is not None
                partitions[index] = replace(partition, eligible_leaders=(), last_known_eligible=())
                delta.touched(topic_id, index)


# Nodes ------------------------------------------------------------------------------------------------------------------


def _listeners(endpoints: Iterable[Any]) -> tuple[Listener, ...]:
    return tuple(Listener(end.name, end.host, end.port, end.security_protocol) for end in endpoints)


def _levels(features: Iterable[Any]) -> dict[str, LevelRange]:
    return {row.name: LevelRange(row.min_supported_version, row.max_supported_version) for row in features}


def _register_broker(delta: Delta, record: m.RegisterBrokerRecord) -> None:
    delta.table("brokers")[record.broker_id] = Broker(
        broker_id=record.broker_id,
        epoch=record.broker_epoch,
        incarnation_id=record.incarnation_id,
        listeners=_listeners(record.end_points),
        features=_levels(record.features),
        rack=record.rack,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        directories=tuple(sorted(record.log_dirs)),
        cordoned=None if record.cordoned_log_dirs is None else tuple(record.cordoned_log_dirs),
    )
    delta.changes.brokers.add(record.broker_id)


def _unregister_broker(delta: Delta, record: m.UnregisterBrokerRecord) -> None:
    if delta.table("brokers").pop(record.broker_id, None) is not None:
        delta.changes.brokers.add(record.broker_id)


def _change_broker(delta: Delta, broker_id: int, epoch: int, **changes: Any) -> None:
    broker = delta.read("brokers").get(broker_id)
    if broker is None or broker.epoch != epoch:
        return
    delta.table("brokers")[broker_id] = replace(broker, **changes)
    delta.changes.brokers.add(broker_id)


def _broker_change(delta: Delta, record: m.BrokerRegistrationChangeRecord) -> None:
    changes: dict[str, Any] = {}
    if record.fenced:
        changes["fenced"] = record.fenced > 0
    if record.in_controlled_shutdown > 0:
        changes["in_controlled_shutdown"] = True
    if record.log_dirs:
        changes["directories"] = tuple(sorted(record.log_dirs))
    if record.cordoned_log_dirs is not None:
        changes["cordoned"] = tuple(record.cordoned_log_dirs)
    _change_broker(delta, record.broker_id, record.broker_epoch, **changes)


def _fence(delta: Delta, record: m.FenceBrokerRecord) -> None:
    _change_broker(delta, record.id, record.epoch, fenced=True)


def _unfence(delta: Delta, record: m.UnfenceBrokerRecord) -> None:
    _change_broker(delta, record.id, record.epoch, fenced=False)


def _register_controller(delta: Delta, record: m.RegisterControllerRecord) -> None:
    delta.table("controllers")[record.controller_id] = ControllerNode(
        record.controller_id, record.incarnation_id, _listeners(record.end_points), _levels(record.features)
    )
    delta.changes.controllers.add(record.controller_id)


# Settings, levels, quotas, credentials ----------------------------------------------------------------------------------


def _config(delta: Delta, record: m.ConfigRecord) -> None:
    key = (record.resource_type, record.resource_name)
    values = delta.group("configs", key)
    if record.value is None:
        values.pop(record.name, None)
    else:
        values[record.name] = record.value
    if not values:
        del delta.table("configs")[key]
    delta.changes.configs.add(key)


def _feature(delta: Delta, record: m.FeatureLevelRecord) -> None:
    features = delta.table("features")
    if record.feature_level == 0 and record.name != METADATA_VERSION:
        features.pop(record.name, None)
    else:
        features[record.name] = record.feature_level
    delta.changes.features.add(record.name)


def _quota(delta: Delta, record: m.ClientQuotaRecord) -> None:
    entity = frozenset((row.entity_type, row.entity_name) for row in record.entity)
    values = delta.group("quotas", entity)
    if record.remove:
        values.pop(record.key, None)
    else:
        values[record.key] = record.value
    if not values:
        del delta.table("quotas")[entity]
    delta.changes.quotas.add(entity)


def _producer_ids(delta: Delta, record: m.ProducerIdsRecord) -> None:
    delta.write("next_producer_id", record.next_producer_id)
    delta.write("producer_ids_broker", (record.broker_id, record.broker_epoch))
    delta.changes.producer_ids = True


def _scram(delta: Delta, record: m.UserScramCredentialRecord) -> None:
    delta.table("scram")[record.mechanism, record.name] = record
    delta.changes.scram.add((record.mechanism, record.name))


def _remove_scram(delta: Delta, record: m.RemoveUserScramCredentialRecord) -> None:
    delta.table("scram").pop((record.mechanism, record.name), None)
    delta.changes.scram.add((record.mechanism, record.name))


def _acl(delta: Delta, record: m.AccessControlEntryRecord) -> None:
    delta.table("acls")[record.id] = record
    delta.changes.acls.add(record.id)


def _remove_acl(delta: Delta, record: m.RemoveAccessControlEntryRecord) -> None:
    delta.table("acls").pop(record.id, None)
    delta.changes.acls.add(record.id)


def _token(delta: Delta, record: m.DelegationTokenRecord) -> None:
    delta.table("tokens")[record.token_id] = record
    delta.changes.tokens.add(record.token_id)


def _remove_token(delta: Delta, record: m.RemoveDelegationTokenRecord) -> None:
    delta.table("tokens").pop(record.token_id, None)
    delta.changes.tokens.add(record.token_id)


def _opaque(delta: Delta, record: OpaqueRecord) -> None:
    kept = delta.read("opaque")
    if len(kept) < MAX_OPAQUE_RECORDS:
        delta.write("opaque", (*kept, record))


_HANDLERS: dict[type[Any], Callable[[Delta, Any], None]] = {
    m.TopicRecord: _topic,
    m.PartitionRecord: _partition,
    m.PartitionChangeRecord: _partition_change,
    m.RemoveTopicRecord: _remove_topic,
    m.ClearElrRecord: _clear_eligible,
    m.RegisterBrokerRecord: _register_broker,
    m.UnregisterBrokerRecord: _unregister_broker,
    m.BrokerRegistrationChangeRecord: _broker_change,
    m.FenceBrokerRecord: _fence,
    m.UnfenceBrokerRecord: _unfence,
    m.RegisterControllerRecord: _register_controller,
    m.ConfigRecord: _config,
    m.FeatureLevelRecord: _feature,
    m.ClientQuotaRecord: _quota,
    m.ProducerIdsRecord: _producer_ids,
    m.UserScramCredentialRecord: _scram,
    m.RemoveUserScramCredentialRecord: _remove_scram,
    m.AccessControlEntryRecord: _acl,
    m.RemoveAccessControlEntryRecord: _remove_acl,
    m.DelegationTokenRecord: _token,
    m.RemoveDelegationTokenRecord: _remove_token,
    OpaqueRecord: _opaque,
}
