"""Topics, partitions, settings: made, refused, altered. The sentences are held against Kafka's in test_against_kafka."""

from __future__ import annotations

import pytest

from ottla.metadata.image import BROKER, TOPIC
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.configs import AlterConfigsRequest, IncrementalAlterConfigsRequest
from ottla.protocol.messages.metadata_records import ClearElrRecord, ConfigRecord, PartitionRecord, TopicRecord
from ottla.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from tests.metadata.driver import Driver

Topic = CreateTopicsRequest.CreatableTopic


@pytest.fixture
def cluster() -> Driver:
    made = Driver()
    made.start(1, 2, 3)
    return made


def test_a_topic_is_its_record_then_its_settings_then_its_partitions(cluster: Driver) -> None:
    reply = cluster.create("orders", partitions=2, factor=3, retention_ms="5")
    assert (reply.error_code, reply.num_partitions, reply.replication_factor) == (0, 2, 3)
    assert ("retention.ms", "5", 1) in [(row.name, row.value, row.config_source) for row in reply.configs]
    assert [type(record) for record in cluster.last_records] == [TopicRecord, ConfigRecord, PartitionRecord, PartitionRecord]
    partitions = cluster.image.topics[reply.topic_id].partitions
    assert {partition.preferred_leader for partition in partitions.values()} <= {1, 2, 3}
    for partition in partitions.values():
        assert partition.isr == partition.replicas
        assert partition.directories == tuple((10_000 + replica).to_bytes(16, "big") for replica in partition.replicas)


def test_minus_one_asks_for_the_clusters_defaults() -> None:
    cluster = Driver(default_partition_count=4, default_replication_factor=2)
    cluster.start(1, 2)
    reply = cluster.create("t")
    assert (reply.num_partitions, reply.replication_factor) == (4, 2)


def test_validate_only_answers_as_if_and_writes_nothing(cluster: Driver) -> None:
    request = CreateTopicsRequest(topics=[Topic(name="t", num_partitions=1, replication_factor=1)], validate_only=True)
    assert cluster.ask(request).topics[0].error_code == 0
    assert not cluster.last_records
    assert "t" not in cluster.image.topic_ids


def test_one_bad_topic_does_not_hinder_the_others(cluster: Driver) -> None:
    topics = [Topic(name=name, num_partitions=1, replication_factor=1) for name in ("good", "b/ad", "twice", "twice")]
    reply = cluster.ask(CreateTopicsRequest(topics=topics))
    assert {row.name: row.error_code for row in reply.topics} == {
        "good": 0,
        "b/ad": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "twice": ErrorCode.INVALID_REQUEST,
    }
    assert set(cluster.image.topic_ids) == {"good"}


def test_names_that_metrics_cannot_tell_apart_collide_until_one_is_gone(cluster: Driver) -> None:
    assert cluster.create("a.b_c", partitions=1, factor=1).error_code == 0
    assert cluster.create("a_b.c", partitions=1, factor=1).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert cluster.create("a.b_c", partitions=1, factor=1).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    cluster.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="a.b_c")]))
    assert cluster.create("a_b.c", partitions=1, factor=1).error_code == 0


def test_replicas_go_on_fenced_brokers_only_when_there_are_no_others(cluster: Driver) -> None:
    cluster.kill(1)
    cluster.create("two", partitions=6, factor=2)
    assert all(
        1 not in partition.replicas for partition in cluster.image.topics[cluster.image.topic_ids["two"]].partitions.values()
    )
    cluster.create("three", partitions=3, factor=3)
    for partition in cluster.image.topics[cluster.image.topic_ids["three"]].partitions.values():
        assert partition.leader != 1
        assert 1 in partition.replicas
        assert 1 not in partition.isr


def test_no_live_broker_no_topic() -> None:
    cluster = Driver()
    assert cluster.create("t", partitions=1, factor=1).error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    cluster.register(1)
    assert cluster.create("t", partitions=1, factor=1).error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_deleted_topic_takes_its_settings_with_it(cluster: Driver) -> None:
    cluster.create("t", partitions=1, factor=1, retention_ms="5")
    assert cluster.image.config(TOPIC, "t") == {"retention.ms": "5"}
    cluster.ask(DeleteTopicsRequest(topic_names=["t"]), version=5)
    assert (TOPIC, "t") not in cluster.image.configs
    cluster.create("t", partitions=1, factor=1)
    assert cluster.image.config(TOPIC, "t") == {}


def test_deletion_can_be_switched_off() -> None:
    cluster = Driver(topic_deletion_enabled=False)
    cluster.start(1)
    cluster.create("t", partitions=1, factor=1)
    reply = cluster.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="t")]))
    assert reply.responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED
    assert "t" in cluster.image.topic_ids


def test_a_topic_grows_and_never_shrinks(cluster: Driver) -> None:
    cluster.create("t", [[1, 2]])
    row = CreatePartitionsRequest.CreatePartitionsTopic

    def grow(count: int) -> int:
        reply = cluster.ask(CreatePartitionsRequest(topics=[row(name="t", count=count, assignments=None)]))
        code: int = reply.results[0].error_code
        return code

    assert [grow(count) for count in (3, 3, 2, 20_000)] == [
        0,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.POLICY_VIOLATION,
    ]
    partitions = cluster.image.topics[cluster.image.topic_ids["t"]].partitions
    assert sorted(partitions) == [0, 1, 2]
    assert all(len(partition.replicas) == 2 for partition in partitions.values())


def alter(cluster: Driver, kind: int, name: str, *operations: tuple[str, int, str | None], validate_only: bool = False) -> int:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    rows = [resource.AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in operations]
    request = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=kind, resource_name=name, configs=rows)], validate_only=validate_only
    )
    code: int = cluster.ask(request).responses[0].error_code
    return code


SET, DELETE, APPEND, SUBTRACT = range(4)


def test_settings_are_set_taken_back_appended_and_subtracted(cluster: Driver) -> None:
    cluster.create("t", partitions=1, factor=1)
    assert alter(cluster, TOPIC, "t", ("retention.ms", SET, "7"), ("cleanup.policy", APPEND, "compact")) == 0
    assert cluster.image.config(TOPIC, "t") == {"retention.ms": "7", "cleanup.policy": "delete,compact"}
    assert alter(cluster, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert alter(cluster, TOPIC, "t", ("retention.ms", DELETE, None)) == 0
    assert cluster.image.config(TOPIC, "t") == {"cleanup.policy": "compact"}
    assert alter(cluster, TOPIC, "t", ("retention.ms", APPEND, "1")) == ErrorCode.INVALID_CONFIG
    assert alter(cluster, TOPIC, "t", ("nonsense", SET, "1")) == ErrorCode.INVALID_CONFIG
    assert alter(cluster, TOPIC, "nowhere", ("retention.ms", SET, "1")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(cluster, TOPIC, "t", ("retention.ms", SET, "9"), validate_only=True) == 0
    assert cluster.image.config(TOPIC, "t") == {"cleanup.policy": "compact"}


def test_altering_all_replaces_what_was_set(cluster: Driver) -> None:
    cluster.create("t", partitions=1, factor=1, retention_ms="5")
    resource = AlterConfigsRequest.AlterConfigsResource
    rows = [resource.AlterableConfig(name="cleanup.policy", value="compact")]
    cluster.ask(AlterConfigsRequest(resources=[resource(resource_type=TOPIC, resource_name="t", configs=rows)]))
    assert cluster.image.config(TOPIC, "t") == {"cleanup.policy": "compact"}


def test_a_new_minimum_in_sync_makes_former_eligible_leaders_forgotten(cluster: Driver) -> None:
    cluster.create("t", [[1, 2, 3]], min_insync_replicas="3")
    cluster.kill(3)
    assert cluster.show("t") == "leader=1/0 isr=1,2 replicas=1,2,3 eligible=3"
    assert alter(cluster, TOPIC, "t", ("min.insync.replicas", SET, "2")) == 0
    assert ClearElrRecord(topic_name="t") in cluster.last_records
    assert cluster.show("t") == "leader=1/0 isr=1,2 replicas=1,2,3"


def test_a_new_minimum_in_sync_leaves_those_who_may_lead_to_a_partition_without_a_leader(cluster: Driver) -> None:
    """Found by the simulator, seed 41: the minimum was raised while the last in-sync replica restarted, and nobody could lead again."""
    cluster.create("t", [[1, 2]])
    cluster.kill(1)
    cluster.kill(2)
    before = "leader=-1/2 isr=none replicas=1,2 eligible=2 last=2"
    assert cluster.show("t") == before
    assert alter(cluster, TOPIC, "t", ("min.insync.replicas", SET, "2")) == 0
    assert alter(cluster, BROKER, "", ("min.insync.replicas", SET, "2")) == 0
    assert cluster.show("t") == before
    cluster.beat(2)
    assert cluster.show("t").startswith("leader=2/3 isr=2 ")


def test_with_eligible_leaders_the_minimum_is_the_clusters_and_stays_set(cluster: Driver) -> None:
    assert cluster.image.config(BROKER, "") == {"min.insync.replicas": "1"}
    assert alter(cluster, BROKER, "1", ("min.insync.replicas", SET, "2")) == ErrorCode.INVALID_CONFIG
    assert alter(cluster, BROKER, "", ("min.insync.replicas", DELETE, None)) == ErrorCode.INVALID_CONFIG
    assert alter(cluster, BROKER, "", ("min.insync.replicas", SET, "2")) == 0
