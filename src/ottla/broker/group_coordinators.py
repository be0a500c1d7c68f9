"""Groups as a kind of coordinator: what a group decision may know of this node and its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.coordinators import Kind
from ottla.groups import records
from ottla.groups.context import Context, GroupSettings, Topic, Topics
from ottla.groups.records import GroupRecord
from ottla.groups.replies import error_reply
from ottla.groups.shard import GroupShard
from ottla.groups.versions import shape
from ottla.metadata.delta import Changes
from ottla.metadata.image import GROUP, ClusterImage
from ottla.metadata.image import Topic as TopicImage
from ottla.model.errors import ApiError
from ottla.model.ids import OFFSETS_TOPIC
from ottla.model.machine import Decision, Ticket
from ottla.protocol.messages.classic_groups import JoinGroupRequest
from ottla.protocol.schema import Message

if TYPE_CHECKING:
    from ottla.broker.dispatch import RequestContext
    from ottla.broker.node import Node

NO_ID = bytes(16)
MAX_DELETION_ROUNDS = 10_000


class TopicsView:
    """The cluster's topics as groups see them. A new version only when something an assignor could see has changed."""

    def __init__(self) -> None:
        self.topics = Topics(0, {}, {})
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}

    def load(self, image: ClusterImage) -> None:
        self._by_name.clear()
        self._by_id.clear()
        for topic in image.topics.values():
            self._put(_seen(topic, image))
        self._publish()

    def follow(self, image: ClusterImage, changes: Changes) -> None:
        if changes.brokers and any(broker.rack for broker in image.brokers.values()):
            touched = set(image.topics)
        else:
            touched = changes.created_topics | changes.partitions.keys()
        changed = False
        for topic_id in changes.deleted_topics:
            gone = self._by_id.pop(topic_id, None)
            if gone is not None:
                changed = True
                if self._by_name.get(gone.name) is gone:
                    del self._by_name[gone.name]
        for topic_id in touched:
            current = image.topics.get(topic_id)
            if current is not None:
                seen = _seen(current, image)
                if self._by_id.get(topic_id) != seen:
                    self._put(seen)
                    changed = True
        if changed:
            self._publish()

    def _put(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def _publish(self) -> None:
        # The dictionaries are shared: decisions are made and done with between two changes of the metadata.
        self.topics = Topics(self.topics.version + 1, self._by_name, self._by_id)


def _seen(topic: TopicImage, image: ClusterImage) -> Topic:
    racks: tuple[frozenset[str], ...] = ()
    if any(broker.rack for broker in image.brokers.values()):
        racks = tuple(
            frozenset(rack for replica in topic.partitions[index].replicas if (rack := _rack(image, replica)) is not None)
            for index in sorted(topic.partitions)
        )
    return Topic(topic.name, topic.topic_id, len(topic.partitions), racks)


def _rack(image: ClusterImage, broker_id: int) -> str | None:
    broker = image.brokers.get(broker_id)
    return None if broker is None else broker.rack


class GroupKind(Kind):
    topic = OFFSETS_TOPIC

    def __init__(self, node: Node) -> None:
        self._node = node
        self.view = TopicsView()
        self._settings_source: Any = None
        self._settings = GroupSettings()
        self._of_group: dict[str, GroupSettings] = {}

    @property
    def commit_timeout_ms(self) -> int:
        return int(self._node.settings["offsets.commit.timeout.ms"])

    def partition_for(self, key: str, partition_count: int) -> int:
        return records.partition_for(key, partition_count)

    # The machine ---------------------------------------------------------------------------------------------------------

    def new_shard(self) -> GroupShard:
        return GroupShard()

    def loaded(self, shard: GroupShard, context: Context) -> Decision[Any, Any]:
        return shard.loaded(context)

    def decide(self, shard: GroupShard, request: Message, context: Context) -> Decision[Any, Any]:
        return shard.decide(request, context)

    def expire(self, shard: GroupShard, key: Any, context: Context) -> Decision[Any, Any]:
        return shard.expire(key, context)

    def apply(self, shard: GroupShard, record: GroupRecord, offset: int) -> None:
        shard.apply(record, offset)

    def apply_change(self, shard: GroupShard, change: Any) -> None:
        shard.apply_change(change)

    def complete_transaction(self, shard: GroupShard, producer_id: int, producer_epoch: int, committed: bool) -> None:
        shard.complete_transaction(producer_id, producer_epoch, committed)

    # What it knows and says ------------------------------------------------------------------------------------------------

    def context(self, ticket: Ticket, request: RequestContext | None) -> Context:
        world = self._node.world
        settings = self.settings
        if request is None:
            return Context(
                world.clock.wall_ms(), ticket, topics=self.view.topics, settings=settings, settings_for=self.settings_for
            )
        needs_id = request.api.request is JoinGroupRequest or request.api.name == "ConsumerGroupHeartbeat"
        return Context(
            world.clock.wall_ms(),
            ticket,
            request.version,
            request.client_id,
            f"/{request.address}",
            world.random.bytes(16) if needs_id else NO_ID,
            self.view.topics,
            settings,
            self.settings_for,
        )

    @property
    def settings(self) -> GroupSettings:
        if self._settings_source is not self._node.settings.merged:
            self._settings_source = self._node.settings.merged
            self._settings = _settings(self._settings_source)
            self._of_group.clear()
        return self._settings

    def settings_for(self, group_id: str) -> GroupSettings:
        """The broker's settings, with those of the group's own where it has any."""
        own = self._node.image.configs.get((GROUP, group_id))
        if not own:
            return self.settings
        settings = self.settings  # also drops what was computed from older ones
        found = self._of_group.get(group_id)
        if found is None:
            effective = self._node.settings.group(own)
            found = self._of_group[group_id] = GroupSettings(
                **{name: getattr(settings, name) for name in GroupSettings.__slots__}
                | {
                    "consumer_session_timeout_ms": effective["consumer.session.timeout.ms"],
                    "consumer_heartbeat_interval_ms": effective["consumer.heartbeat.interval.ms"],
                    "consumer_assignment_interval_ms": effective["consumer.assignment.interval.ms"],
                }
            )
        return found

    def refusal(self, request: Message, error: ApiError, version: int) -> Message:
        return error_reply(request, error.code, error.message, version)

    def shape(self, reply: Message, version: int) -> Message:
        shape(reply, version)
        return reply

    # Records as bytes ------------------------------------------------------------------------------------------------------

    def encode(self, record: GroupRecord) -> tuple[bytes, bytes | None]:
        return records.encode(record)

    def decode(self, key: bytes, value: bytes | None, producer_id: int, producer_epoch: int) -> GroupRecord | None:
        return records.decode(key, value, producer_id, producer_epoch)

    def producer_of(self, record: GroupRecord) -> tuple[int, int]:
        return record.producer_id, record.producer_epoch

    # Following the metadata ------------------------------------------------------------------------------------------------

    def follow(self, image: ClusterImage, changes: Changes) -> None:
        self.view.follow(image, changes)
        for kind, name in changes.configs:
            if kind == GROUP:
                self._of_group.pop(name, None)
        if changes.deleted_topics:
            self._forget_topics([(topic.name, topic_id) for topic_id, topic in changes.deleted_topics.items()])

    def _forget_topics(self, topics: list[tuple[str, bytes]]) -> None:
        for coordinator in self._node.coordinators.loaded_of(self):
            for _ in range(MAX_DELETION_ROUNDS):
                decision = coordinator.shard.topics_deleted(topics, self.context(-1, None))
                if not decision.records or not coordinator.carry_out(decision):
                    break


def _settings(values: Any) -> GroupSettings:
    return GroupSettings(
        offset_metadata_max_bytes=values["offset.metadata.max.bytes"],
        offsets_retention_ms=values["offsets.retention.minutes"] * 60_000,
        offsets_retention_check_interval_ms=values["offsets.retention.check.interval.ms"],
        group_min_session_timeout_ms=values["group.min.session.timeout.ms"],
        group_max_session_timeout_ms=values["group.max.session.timeout.ms"],
        group_initial_rebalance_delay_ms=values["group.initial.rebalance.delay.ms"],
        group_max_size=values["group.max.size"],
        consumer_group_max_size=values["group.consumer.max.size"],
        consumer_migration_policy=values["group.consumer.migration.policy"].lower(),
        consumer_assignors=tuple(values["group.consumer.assignors"]),
        consumer_session_timeout_ms=values["group.consumer.session.timeout.ms"],
        consumer_heartbeat_interval_ms=values["group.consumer.heartbeat.interval.ms"],
        consumer_assignment_interval_ms=values["group.consumer.assignment.interval.ms"],
    )
