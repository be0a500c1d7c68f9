"""The image as records, for a snapshot: `load(to_records(image)) == image`.

In: an image. Out: records in the order in which Kafka writes them (levels first, so that a reader knows how to read on),
in batches of a bounded size. Nothing here knows of offsets or files: the shell frames the batches between the snapshot's
header and footer records (KIP-630).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from ottla.metadata.delta import apply_batch
from ottla.metadata.image import METADATA_VERSION, Broker, ClusterImage, ControllerNode, Partition
from ottla.metadata.records import LEVEL_3_7_IV2, LEVEL_4_0_IV1, MetadataRecord
from ottla.protocol.messages import metadata_records as m

MAX_RECORDS_PER_BATCH = 1024  # as Kafka's RaftSnapshotWriter


def to_records(image: ClusterImage) -> Iterator[MetadataRecord]:
    yield from _features(image)
    yield from (broker_record(broker) for broker in image.brokers.values())
    yield from (_controller_record(controller) for controller in image.controllers.values())
    yield from _topics(image)
    for (resource_type, resource_name), values in image.configs.items():
        for name, value in values.items():
            yield m.ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)
    yield from _quotas(image)
    if image.next_producer_id >= 0:
        broker_id, epoch = image.producer_ids_broker
        yield m.ProducerIdsRecord(broker_id=broker_id, broker_epoch=epoch, next_producer_id=image.next_producer_id)
    yield from image.acls.values()
    yield from image.scram.values()
    yield from image.tokens.values()
    yield from image.opaque


def batches(image: ClusterImage) -> Iterator[list[MetadataRecord]]:
    records = to_records(image)
    while batch := list(islice(records, MAX_RECORDS_PER_BATCH)):
        yield batch


def load(records: Iterable[MetadataRecord], offset: int, epoch: int) -> ClusterImage:
    """The image that a snapshot holds; `offset` and `epoch` are those of the last record it stands for."""
    return apply_batch(ClusterImage(), records, offset, epoch)[0]


def _features(image: ClusterImage) -> Iterator[MetadataRecord]:
    for name, level in sorted(image.features.items(), key=lambda row: (row[0] != METADATA_VERSION, row[0])):
        yield m.FeatureLevelRecord(name=name, feature_level=level)


def broker_record(broker: Broker) -> m.RegisterBrokerRecord:
    record = m.RegisterBrokerRecord
    return record(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            record.BrokerEndpoint(name=end.name, host=end.host, port=end.port, security_protocol=end.security_protocol)
            for end in broker.listeners
        ],
        features=[
            record.BrokerFeature(name=name, min_supported_version=levels.lowest, max_supported_version=levels.highest)
            for name, levels in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.directories),
        cordoned_log_dirs=None if broker.cordoned is None else list(broker.cordoned),
    )


def _controller_record(controller: ControllerNode) -> m.RegisterControllerRecord:
    record = m.RegisterControllerRecord
    return record(
        controller_id=controller.controller_id,
        incarnation_id=controller.incarnation_id,
        end_points=[
            record.ControllerEndpoint(name=end.name, host=end.host, port=end.port, security_protocol=end.security_protocol)
            for end in controller.listeners
        ],
        features=[
            record.ControllerFeature(name=name, min_supported_version=levels.lowest, max_supported_version=levels.highest)
            for name, levels in controller.features.items()
        ],
    )


def _topics(image: ClusterImage) -> Iterator[MetadataRecord]:
    for topic in image.topics.values():
        yield m.TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for index, partition in topic.partitions.items():
            yield partition_record(topic.topic_id, index, partition, image.metadata_version)


def partition_record(topic_id: bytes, index: int, partition: Partition, metadata_version: int) -> m.PartitionRecord:
    """What the level cannot say is left out: a level below directories or eligible leaders knows neither."""
    with_eligible = metadata_version >= LEVEL_4_0_IV1
    return m.PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing),
        adding_replicas=list(partition.adding),
        leader=partition.leader,
        leader_recovery_state=partition.recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories) if metadata_version >= LEVEL_3_7_IV2 else [],
        eligible_leader_replicas=list(partition.eligible_leaders) or None if with_eligible else None,
        last_known_elr=list(partition.last_known_eligible) or None if with_eligible else None,
    )


def _quotas(image: ClusterImage) -> Iterator[MetadataRecord]:
    for entity, values in image.quotas.items():
        for key, value in values.items():
            yield quota_record(entity, key, value)


def quota_record(entity: Iterable[tuple[str, str | None]], key: str, value: float | None) -> m.ClientQuotaRecord:
    """A value of None removes the quota."""
    row = m.ClientQuotaRecord.EntityData
    return m.ClientQuotaRecord(
        entity=[row(entity_type=kind, entity_name=name) for kind, name in sorted(entity, key=lambda pair: pair[0])],
        key=key,
        value=0.0 if value is None else value,
        remove=value is None,
    )


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """When to write a snapshot: as Kafka, after enough log since the last one, or after enough time with any log at all."""

    max_new_record_bytes: int = 20 * 1024 * 1024  # metadata.log.max.record.bytes.between.snapshots
    max_interval_ms: int = 3_600_000  # metadata.log.max.snapshot.interval.ms; 0 is never by time

    def is_due(self, bytes_since: int, ms_since: int) -> bool:
        if bytes_since <= 0:
            return False
        return bytes_since >= self.max_new_record_bytes or 0 < self.max_interval_ms <= ms_since
