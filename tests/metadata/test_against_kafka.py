"""Every decision of the controller beside Kafka 4.3's: replies with their sentences, and records, field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.model.ids import ZERO_UUID
from ottla.protocol.messages.configs import AlterConfigsRequest, IncrementalAlterConfigsRequest
from ottla.protocol.messages.controller import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from ottla.protocol.messages.log_dirs import AssignReplicasToDirsRequest
from ottla.protocol.messages.quotas import AlterClientQuotasRequest
from ottla.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from tests.compatibility.kafka import KafkaPeer
from tests.metadata.twin import Twin, fields

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

Topic = CreateTopicsRequest.CreatableTopic
EXPANSION = re.compile(r"PartitionChangeRecord\(.*isr=\[\d, \d, \d\], leader=-2, replicas=None.*")


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twin]:
    settings = {
        "metadata.max.idle.interval.ms": "0",
        "auto.leader.rebalance.enable": "false",
        "replica.lag.time.max.ms": "300000",
    }
    with KafkaPeer(tmp_path_factory.mktemp("twin"), nodes=3, settings=settings) as kafka:
        yield Twin(kafka)


@pytest.fixture(autouse=True)
def _all_differences_at_once(twin: Twin) -> Iterator[None]:
    """A test goes on after a difference, because Kafka has to be started for each look."""
    twin.differences.clear()
    yield
    assert not twin.differences, "\n".join(twin.differences)


def same(twin: Twin, request: Any, *, version: int | None = None, hidden: tuple[str, ...] = ()) -> Any:
    if getattr(request, "timeout_ms", 1) == 0:
        request.timeout_ms = 30_000
    theirs, ours, their_records, our_records = twin.ask(request, version)
    masked = frozenset({"throttle_time_ms", *hidden})
    if fields(ours, masked) != fields(theirs, masked):
        twin.differences.append(f"{request}\n  kafka {fields(theirs, masked)}\n  ottla {fields(ours, masked)}")
    # Kafka's own leaders bring replicas back into sync whenever they like; that is no answer to the request.
    their_records = [row for row in their_records if row in our_records or not EXPANSION.match(row)]
    if our_records != their_records:
        twin.differences.append(f"{request}\n  kafka wrote {their_records}\n  ottla wrote {our_records}")
    return theirs


def create(*topics: Topic, **options: Any) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=list(topics), **options)


def manual(*replicas: list[int]) -> list[Any]:
    return [Topic.CreatableReplicaAssignment(partition_index=index, broker_ids=row) for index, row in enumerate(replicas)]


def made(twin: Twin, name: str, *replicas: list[int]) -> bytes:
    reply = same(
        twin,
        create(Topic(name=name, num_partitions=-1, replication_factor=-1, assignments=manual(*replicas))),
        hidden=("configs",),
    )
    topic_id: bytes = reply.topics[0].topic_id
    return topic_id


BAD_TOPICS = {
    "empty name": Topic(name="", num_partitions=1, replication_factor=1),
    "dot": Topic(name=".", num_partitions=1, replication_factor=1),
    "dots": Topic(name="..", num_partitions=1, replication_factor=1),
    "long name": Topic(name="x" * 250, num_partitions=1, replication_factor=1),
    "slash": Topic(name="a/b", num_partitions=1, replication_factor=1),
    "umlaut": Topic(name="größe", num_partitions=1, replication_factor=1),
    "the log itself": Topic(name="__cluster_metadata", num_partitions=1, replication_factor=1),
    "no partitions": Topic(name="b1", num_partitions=0, replication_factor=1),
    "minus partitions": Topic(name="b1", num_partitions=-2, replication_factor=1),
    "no replicas": Topic(name="b1", num_partitions=1, replication_factor=0),
    "minus replicas": Topic(name="b1", num_partitions=1, replication_factor=-2),
    "more replicas than brokers": Topic(name="b1", num_partitions=1, replication_factor=4),
    "too many partitions": Topic(name="b1", num_partitions=10_001, replication_factor=1),
    "both counts and assignment": Topic(name="b1", num_partitions=1, replication_factor=-1, assignments=manual([0])),
    "both factor and assignment": Topic(name="b1", num_partitions=-1, replication_factor=1, assignments=manual([0])),
    "unknown broker": Topic(name="b1", num_partitions=-1, replication_factor=-1, assignments=manual([0, 9])),
    "broker twice": Topic(name="b1", num_partitions=-1, replication_factor=-1, assignments=manual([0, 0])),
    "uneven factors": Topic(name="b1", num_partitions=-1, replication_factor=-1, assignments=manual([0], [0, 1])),
    "empty replica list": Topic(name="b1", num_partitions=-1, replication_factor=-1, assignments=manual([])),
    "index twice": Topic(name="b1", num_partitions=-1, replication_factor=-1, assignments=[*manual([0]), *manual([1])]),
    "gap": Topic(
        name="b1",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[Topic.CreatableReplicaAssignment(partition_index=1, broker_ids=[0])],
    ),
    "null setting": Topic(
        name="b1", num_partitions=1, replication_factor=1, configs=[Topic.CreatableTopicConfig(name="retention.ms", value=None)]
    ),
}


@pytest.mark.parametrize("name", BAD_TOPICS)
def test_a_topic_is_refused_with_kafkas_code_and_sentence(twin: Twin, name: str) -> None:
    same(twin, create(BAD_TOPICS[name]))


def test_topics_with_assignments_are_made_with_kafkas_records(twin: Twin) -> None:
    made(twin, "plain", [0, 1, 2], [1, 2, 0])
    same(twin, create(Topic(name="plain", num_partitions=1, replication_factor=1)))
    made(twin, "a.b", [0])
    same(twin, create(Topic(name="a_b", num_partitions=1, replication_factor=1)))
    twice = Topic(name="twice", num_partitions=1, replication_factor=1)
    same(
        twin,
        create(twice, twice, Topic(name="t-1", num_partitions=-1, replication_factor=-1, assignments=manual([2]))),
        hidden=("configs",),
    )
    same(
        twin,
        create(
            Topic(
                name="with-settings",
                num_partitions=-1,
                replication_factor=-1,
                assignments=manual([1]),
                configs=[Topic.CreatableTopicConfig(name="retention.ms", value="1000")],
            )
        ),
        hidden=("configs",),
    )
    only = create(Topic(name="dry", num_partitions=-1, replication_factor=-1, assignments=manual([0])), validate_only=True)
    same(twin, only, hidden=("configs", "topic_id"))


def test_partitions_are_added_as_kafka_adds_them(twin: Twin) -> None:
    made(twin, "wide", [0, 1])
    row = CreatePartitionsRequest.CreatePartitionsTopic

    def wanted(count: int, *replicas: list[int], name: str = "wide") -> CreatePartitionsRequest:
        assignments = [row.CreatePartitionsAssignment(broker_ids=ids) for ids in replicas] or None
        return CreatePartitionsRequest(topics=[row(name=name, count=count, assignments=assignments)])

    for request in (wanted(1), wanted(0), wanted(3, [0, 1]), wanted(2, [0]), wanted(2, [0, 9]), wanted(2, name="none")):
        same(twin, request)
    same(twin, wanted(3, [1, 2], [2, 0]))
    same(twin, CreatePartitionsRequest(topics=[row(name="wide", count=4, assignments=None)] * 2))


def test_topics_are_deleted_by_name_and_id(twin: Twin) -> None:
    first, second, third = (made(twin, f"gone-{index}", [0]) for index in range(3))
    state = DeleteTopicsRequest.DeleteTopicState
    same(
        twin,
        DeleteTopicsRequest(
            topics=[
                state(),
                state(name="gone-0", topic_id=first),
                state(name="nowhere"),
                state(topic_id=bytes(15) + b"\x63"),
                state(name="gone-1"),
                state(name="gone-1"),
                state(topic_id=second),
                state(topic_id=third),
                state(topic_id=third),
            ]
        ),
    )
    same(twin, DeleteTopicsRequest(topics=[state(name="gone-0"), state(topic_id=first)]))
    same(twin, DeleteTopicsRequest(topics=[state(topic_id=third)]))
    same(twin, DeleteTopicsRequest(topic_names=["gone-0", "gone-0", "nowhere"]), version=5)


def incremental(kind: int, name: str, *operations: tuple[str, int, str | None]) -> IncrementalAlterConfigsRequest:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    rows = [resource.AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in operations]
    return IncrementalAlterConfigsRequest(resources=[resource(resource_type=kind, resource_name=name, configs=rows)])


def test_settings_are_altered_as_kafka_alters_them(twin: Twin) -> None:
    made(twin, "tuned", [0, 1, 2])
    for request in (
        incremental(2, "tuned", ("retention.ms", 0, "5")),
        incremental(2, "tuned", ("retention.ms", 0, "5")),
        incremental(2, "tuned", ("retention.ms", 2, "5")),
        incremental(2, "tuned", ("cleanup.policy", 2, "compact")),
        incremental(2, "tuned", ("cleanup.policy", 3, "delete")),
        incremental(2, "tuned", ("retention.ms", 1, None), ("cleanup.policy", 1, None)),
        incremental(2, "tuned", ("min.insync.replicas", 0, "2")),
        incremental(2, "tuned", ("nonsense", 0, "2")),
        incremental(2, "nowhere", ("retention.ms", 0, "2")),
        incremental(2, "", ("retention.ms", 0, "2")),
        incremental(4, "", ("log.retention.ms", 0, "2000000")),
        incremental(4, "", ("min.insync.replicas", 0, "1")),
        incremental(4, "", ("min.insync.replicas", 1, None)),
        incremental(4, "1", ("min.insync.replicas", 0, "2")),
        incremental(4, "1", ("log.retention.ms", 0, "2000000")),
        incremental(4, "1", ("log.retention.ms", 1, None)),
        incremental(4, "99", ("log.retention.ms", 0, "2000000")),
        incremental(4, "x", ("log.retention.ms", 0, "2000000")),
        incremental(4, "-1", ("log.retention.ms", 0, "2000000")),
        incremental(32, "", ("consumer.session.timeout.ms", 0, "50000")),
        incremental(32, "readers", ("consumer.session.timeout.ms", 0, "50000")),
    ):
        same(twin, request)
    resource = AlterConfigsRequest.AlterConfigsResource
    rows = [resource.AlterableConfig(name="cleanup.policy", value="compact")]
    same(twin, incremental(2, "tuned", ("retention.ms", 0, "7")))
    same(twin, AlterConfigsRequest(resources=[resource(resource_type=2, resource_name="tuned", configs=rows)]))


def reassign(name: str, *moves: tuple[int, list[int] | None], **options: Any) -> AlterPartitionReassignmentsRequest:
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    rows = [topic.ReassignablePartition(partition_index=index, replicas=replicas) for index, replicas in moves]
    return AlterPartitionReassignmentsRequest(topics=[topic(name=name, partitions=rows)], **options)


def test_reassignments_are_begun_refused_and_cancelled_as_kafka_does(twin: Twin) -> None:
    made(twin, "moved", [0, 1], [1, 2])
    same(twin, reassign("moved", (0, None), (7, [0]), (0, [0, 9]), (0, []), (0, [1, 1])))
    same(twin, reassign("nowhere", (0, [0])))
    same(twin, reassign("moved", (0, [1, 0])))
    same(twin, reassign("moved", (1, [1])))
    same(twin, reassign("moved", (1, [1, 0]), allow_replication_factor_change=False))
    same(twin, ListPartitionReassignmentsRequest(topics=None))


def test_elections_say_what_kafka_says(twin: Twin) -> None:
    made(twin, "led", [0, 1], [2, 0])
    same(twin, reassign("led", (0, [1, 0])))
    partitions = [ElectLeadersRequest.TopicPartitions(topic="led", partitions=[0, 1, 9])]
    partitions.append(ElectLeadersRequest.TopicPartitions(topic="nowhere", partitions=[0]))
    same(twin, ElectLeadersRequest(election_type=1, topic_partitions=partitions))
    same(twin, ElectLeadersRequest(election_type=0, topic_partitions=partitions))
    same(twin, ElectLeadersRequest(election_type=0, topic_partitions=partitions))


def test_in_sync_sets_are_altered_and_refused_as_kafka_does(twin: Twin) -> None:
    topic_id = made(twin, "synced", [0, 1, 2])
    epochs = {broker_id: broker.epoch for broker_id, broker in twin.image.brokers.items()}
    data = AlterPartitionRequest.TopicData

    def wanted(
        isr: list[int], *, leader: int = 0, epoch: int = 0, partition_epoch: int = 0, topic: bytes = topic_id, **more: Any
    ) -> Any:
        stale = more.pop("stale", False)
        states = [
            data.PartitionData.BrokerState(broker_id=row, broker_epoch=epochs.get(row, 5) + (1 if stale and row else 0))
            for row in isr
        ]
        row = data.PartitionData(
            partition_index=0, leader_epoch=epoch, partition_epoch=partition_epoch, new_isr_with_epochs=states
        ).replace(**more)
        return AlterPartitionRequest(
            broker_id=leader, broker_epoch=epochs[leader], topics=[data(topic_id=topic, partitions=[row])]
        )

    for request in (
        wanted([0, 1], epoch=1),
        wanted([0, 1], partition_epoch=3),
        wanted([0, 1], leader=1),
        wanted([1, 2]),
        wanted([0, 9]),
        wanted([0, 0]),
        wanted([]),
        wanted([0, 1], stale=True),
        wanted([0, 1], leader_recovery_state=1),
        wanted([0], leader_recovery_state=1),
        wanted([0, 1], topic=bytes(15) + b"\x63"),
        wanted([0, 1], partition_index=4),
        wanted([0, 1]),
        wanted([0, 1]),
    ):
        same(twin, request)
    request = wanted([0, 1], partition_epoch=1)
    request.broker_epoch += 1
    same(twin, request)


def test_registration_and_heartbeats_are_refused_as_kafka_does(twin: Twin) -> None:
    own = BrokerRegistrationRequest(broker_id=7, cluster_id=twin.kafka.cluster_id, incarnation_id=b"i" * 16, log_dirs=[b"d" * 16])
    broker = twin.image.brokers[0]
    feature = BrokerRegistrationRequest.Feature
    levels = [
        feature(name=name, min_supported_version=low, max_supported_version=high) for name, (low, high) in broker.features.items()
    ]
    whole = own.replace(features=levels)
    for request in (
        own.replace(cluster_id="other"),
        own.replace(log_dirs=[]),
        own.replace(log_dirs=[bytes(15) + b"\x01"]),
        own.replace(log_dirs=[b"d" * 16, b"d" * 16]),
        own.replace(log_dirs=[broker.directories[0]]),
        own,
        own.replace(features=[*levels[:-1], levels[-1].replace(max_supported_version=0, min_supported_version=0)]),
        own.replace(features=[row for row in levels if row.name == "metadata.version"]),
        whole.replace(broker_id=0),
        whole,
        whole,
        BrokerHeartbeatRequest(broker_id=7, broker_epoch=1),
        BrokerHeartbeatRequest(broker_id=8, broker_epoch=1),
        UnregisterBrokerRequest(broker_id=8),
        UnregisterBrokerRequest(broker_id=7),
    ):
        same(twin, request)


def test_producer_ids_features_and_quotas_are_given_as_kafka_does(twin: Twin) -> None:
    epoch = twin.image.brokers[0].epoch
    same(twin, AllocateProducerIdsRequest(broker_id=0, broker_epoch=epoch))
    same(twin, AllocateProducerIdsRequest(broker_id=0, broker_epoch=epoch))
    same(twin, AllocateProducerIdsRequest(broker_id=0, broker_epoch=epoch + 1))
    update = UpdateFeaturesRequest.FeatureUpdateKey
    for feature, level, kind in (
        ("metadata.version", 99, 1),
        ("metadata.version", 25, 1),
        ("metadata.version", 25, 2),
        ("metadata.version", 25, 3),
        ("metadata.version", 29, 2),
        ("nonsense", 1, 1),
        ("kraft.version", 0, 1),
        ("kraft.version", -1, 1),
        ("group.version", 0, 1),
        ("group.version", -1, 1),
        ("group.version", 1, 1),
        ("group.version", 1, 2),
        ("transaction.version", 1, 2),
        ("transaction.version", 2, 1),
        ("transaction.version", 9, 1),
        ("eligible.leader.replicas.version", 0, 2),
        ("eligible.leader.replicas.version", 1, 1),
    ):
        row = update(feature=feature, max_version_level=level, upgrade_type=kind)
        same(twin, UpdateFeaturesRequest(feature_updates=[row]))
    entry = AlterClientQuotasRequest.EntryData

    def quota(entity: list[tuple[str, str | None]], *operations: tuple[str, float, bool]) -> AlterClientQuotasRequest:
        return AlterClientQuotasRequest(
            entries=[
                entry(
                    entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                    ops=[entry.OpData(key=key, value=value, remove=remove) for key, value, remove in operations],
                )
            ]
        )

    for request in (
        quota([("user", "ann")], ("producer_byte_rate", 1000.0, False)),
        quota([("user", "ann")], ("producer_byte_rate", 1000.0, False)),
        quota([("user", "ann")], ("producer_byte_rate", 0.0, True)),
        quota([("user", "ann")], ("producer_byte_rate", 0.5, False)),
        quota([("user", "ann")], ("producer_byte_rate", -1.0, False)),
        quota([("user", "ann")], ("nonsense", 1.0, False)),
        quota([("client-id", None)], ("request_percentage", 12.5, False)),
        quota([("ip", "10.0.0.1")], ("connection_creation_rate", 5.0, False)),
        quota([("ip", "10.0.0.1")], ("producer_byte_rate", 5.0, False)),
        quota([("user", "")], ("producer_byte_rate", 5.0, False)),
        quota([("planet", "mars")], ("producer_byte_rate", 5.0, False)),
        quota([], ("producer_byte_rate", 5.0, False)),
    ):
        same(twin, request)


def test_directories_are_assigned_as_kafka_does(twin: Twin) -> None:
    topic_id = made(twin, "placed", [0, 1])
    broker = twin.image.brokers[0]
    directory = AssignReplicasToDirsRequest.DirectoryData

    def wanted(to: bytes, *rows: tuple[bytes, int]) -> AssignReplicasToDirsRequest:
        return AssignReplicasToDirsRequest(
            broker_id=0,
            broker_epoch=broker.epoch,
            directories=[
                directory(
                    id=to,
                    topics=[
                        directory.TopicData(topic_id=topic, partitions=[directory.TopicData.PartitionData(partition_index=index)])
                        for topic, index in rows
                    ],
                )
            ],
        )

    same(twin, wanted(broker.directories[0], (topic_id, 0), (topic_id, 9), (bytes(15) + b"\x63", 0)))
    assert ZERO_UUID not in twin.image.topics
