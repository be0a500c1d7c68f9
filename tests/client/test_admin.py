from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from ottla import ApiError
from ottla.client.admin import (
    Acl,
    AlterOperation,
    ConfigChange,
    ConfigResource,
    ConfigSource,
    NewTopic,
    QuotaEntity,
    ScramMechanism,
)
from ottla.client.errors import ClientClosed, PartialFailure, UnknownPartition, VersionUnsupported
from ottla.model.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.protocol.apis import Operation, Resource
from tests.client.waiting import eventually


async def test_topic_is_created_described_listed_and_deleted(admin, name):
    made = await admin.create_topic(name, 3, 1, configs={"retention.ms": "1000000"})
    assert (made.name, made.partitions, made.replication_factor) == (name, 3, 1)
    assert made.configs["retention.ms"] == "1000000"
    described = await eventually(lambda: admin.describe_topic(name), lambda described: len(described.partitions) == 3)
    assert described.id == made.id
    assert [part.partition for part in described.partitions] == [0, 1, 2]
    assert all(part.leader in part.in_sync_replicas for part in described.partitions)
    assert name in await admin.list_topics()
    await admin.delete_topic(name)
    await eventually(admin.list_topics, lambda listed: name not in listed)
    with pytest.raises(ApiError) as caught:
        await admin.describe_topic(name)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_defaults_of_the_broker_are_taken(admin, name):
    made = await admin.create_topic(name)
    assert (made.partitions, made.replication_factor) == (1, 1)


async def test_validate_only_creates_nothing(admin, name):
    await admin.create_topic(name, 2, validate_only=True)
    assert name not in await admin.list_topics()


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("fine-1", 0), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("fine-2", 1, 5), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("fine-3", 1, configs={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("fine-4", assignments={0: [77]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_impossible_topic_is_refused(admin, topic, code):
    with pytest.raises(ApiError) as caught:
        await admin.create_topics([topic])
    assert caught.value.code is code


async def test_some_of_several_fail_with_both_told(admin, name, topic):
    with pytest.raises(PartialFailure) as caught:
        await admin.create_topics([NewTopic(name, 1), NewTopic(topic, 1)])
    assert list(caught.value.results) == [name]
    assert caught.value.errors[topic].code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_partitions_grow_and_never_shrink(admin, topic):
    await admin.create_partitions(topic, 5)
    await eventually(lambda: admin.describe_topic(topic), lambda described: len(described.partitions) == 5)
    with pytest.raises(ApiError) as caught:
        await admin.create_partitions(topic, 2)
    assert caught.value.code is ErrorCode.INVALID_PARTITIONS


async def test_topic_settings_are_changed_one_by_one(admin, topic):
    await admin.set_topic_configs(topic, {"cleanup.policy": "compact", "retention.ms": "5000"})
    resource = ConfigResource.topic(topic)
    await admin.alter_configs({resource: [ConfigChange("cleanup.policy", "delete", AlterOperation.APPEND)]})
    entries = await eventually(
        lambda: admin.topic_configs(topic), lambda found: found["cleanup.policy"].value == "compact,delete"
    )
    assert entries["cleanup.policy"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    await admin.set_topic_configs(topic, {"retention.ms": None})
    entries = await eventually(lambda: admin.topic_configs(topic), lambda found: found["retention.ms"].value == "604800000")
    assert entries["retention.ms"].is_default


async def test_unknown_setting_is_refused(admin, topic):
    with pytest.raises(ApiError) as caught:
        await admin.set_topic_configs(topic, {"retention.msec": "1"})
    assert caught.value.code is ErrorCode.INVALID_CONFIG


async def test_broker_tells_its_settings(admin):
    broker = (await admin.describe_cluster()).brokers[0]
    entries = await admin.broker_configs(broker.id)
    assert entries["num.partitions"].value == "1"


async def test_cluster_knows_itself(admin):
    cluster = await admin.describe_cluster()
    assert len(cluster.id) == 22
    assert cluster.controller_id in [broker.id for broker in cluster.brokers]


async def test_quorum_knows_itself(admin):
    quorum = await admin.describe_quorum()
    assert quorum.leader_id in [voter.id for voter in quorum.voters]
    assert quorum.high_watermark > 0


async def test_features_are_told(admin):
    features = {feature.name: feature for feature in (await admin.describe_features()).features}
    assert features["metadata.version"].finalized_level >= 7


async def test_log_directories_hold_the_replicas(admin, topic):
    async def replicas():
        directories = await admin.describe_log_dirs()
        return {replica.partition for each in directories.values() for directory in each for replica in directory.replicas}

    await eventually(replicas, lambda found: {TopicPartition(topic, number) for number in range(3)} <= found)


async def test_offsets_by_kind_and_time(admin, producer, topic):
    sender = await producer()
    for time in (1000, 2000, 3000):
        await sender.send_and_wait(topic, b"x", partition=0, timestamp_ms=time)
    assert (await admin.earliest_offsets([(topic, 0)])) == {(topic, 0): 0}
    assert (await admin.latest_offsets([(topic, 0), (topic, 1)])) == {(topic, 0): 3, (topic, 1): 0}
    listed = (await admin.list_offsets({(topic, 0): 1500}))[topic, 0]
    assert (listed.offset, listed.timestamp) == (1, 2000)
    assert (await admin.list_offsets({(topic, 0): -3}))[topic, 0].offset == 2
    assert (await admin.list_offsets({(topic, 0): 9000}))[topic, 0].offset == -1


async def test_records_are_deleted_up_to_an_offset(admin, producer, topic):
    sender = await producer()
    for _ in range(5):
        await sender.send_and_wait(topic, b"x", partition=1)
    assert await admin.delete_records({(topic, 1): 3}) == {(topic, 1): 3}
    assert (await admin.earliest_offsets([(topic, 1)])) == {(topic, 1): 3}
    with pytest.raises(ApiError) as caught:
        await admin.delete_records({(topic, 1): 99})
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_unknown_partition_is_named(admin, topic):
    with pytest.raises(UnknownPartition, match="3 partitions"):
        await admin.latest_offsets([(topic, 9)])


async def test_offsets_of_a_group_are_set_read_and_deleted(admin, topic, name):
    await admin.alter_group_offsets(name, {(topic, 0): 0, (topic, 1): 0})
    assert {key: offset.offset for key, offset in (await admin.group_offsets(name)).items()} == {(topic, 0): 0, (topic, 1): 0}
    assert name in [group.id for group in await admin.list_groups()]
    await admin.delete_group_offsets(name, [(topic, 0)])
    assert list(await admin.group_offsets(name)) == [(topic, 1)]
    assert (await admin.describe_group(name)).state == "Empty"
    await admin.delete_groups([name])
    with pytest.raises(ApiError) as caught:
        await admin.describe_group(name)
    assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND


async def test_leader_that_leads_already_needs_no_election(admin, topic):
    [(key, error)] = (await admin.elect_leaders([(topic, 0)])).items()
    assert key == (topic, 0)
    assert error.code is ErrorCode.ELECTION_NOT_NEEDED


async def test_no_reassignment_is_under_way(admin, topic):
    assert await admin.list_partition_reassignments() == {}
    with pytest.raises(ApiError) as caught:
        await admin.alter_partition_reassignments({(topic, 0): None})
    assert caught.value.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


async def test_producers_of_a_partition_are_known(admin, producer, topic):
    sender = await producer()
    await sender.send_and_wait(topic, b"x", partition=2)
    [state] = (await admin.describe_producers([(topic, 2)]))[topic, 2]
    assert state.last_sequence == 0
    assert state.current_transaction_start_offset is None


async def test_use_after_close_is_refused(admin):
    await admin.close()
    with pytest.raises(ClientClosed):
        await admin.list_topics()


# What a broker may leave out. Kafka serves it all; ottla says at once, and by name, what it does not.


@pytest.fixture
def serves(request, admin) -> Callable[[Awaitable[object]], Awaitable[bool]]:
    is_kafka = request.node.callspec.params["bootstrap"] == "kafka"

    async def ask(question: Awaitable[object]) -> bool:
        try:
            await question
        except VersionUnsupported as error:
            if is_kafka or "does not serve" not in str(error):
                raise
            return False
        except ApiError:
            return True
        return True

    return ask


async def test_quotas_are_set_read_and_removed(admin, name, serves):
    entity = QuotaEntity.of(client_id=name)
    if not await serves(admin.describe_client_quotas()):
        return
    await admin.alter_client_quotas({entity: {"producer_byte_rate": 1e9, "consumer_byte_rate": 2e9}})
    wanted = {"producer_byte_rate": 1e9, "consumer_byte_rate": 2e9}
    await eventually(lambda: admin.describe_client_quotas(client_id=name), lambda found: found.get(entity) == wanted)
    await admin.alter_client_quotas({entity: {"producer_byte_rate": None}})
    await eventually(
        lambda: admin.describe_client_quotas(client_id=name), lambda found: found[entity] == {"consumer_byte_rate": 2e9}
    )


async def test_scram_passwords_are_set_and_only_their_kind_is_told(admin, name, serves):
    if not await serves(admin.describe_scram_credentials()):
        return
    await admin.set_scram_password(name, "secret", ScramMechanism.SCRAM_SHA_512, 4096)
    found = await eventually(lambda: admin.describe_scram_credentials([name]))
    assert [(each.mechanism, each.iterations) for each in found[name]] == [(ScramMechanism.SCRAM_SHA_512, 4096)]
    await admin.delete_scram_credential(name, ScramMechanism.SCRAM_SHA_512)


async def test_acls_without_an_authorizer_are_refused(admin, name, serves):
    if not await serves(admin.describe_acls()):
        return
    with pytest.raises(ApiError) as caught:
        await admin.describe_acls()
    assert caught.value.code is ErrorCode.SECURITY_DISABLED
    with pytest.raises(ApiError):
        await admin.create_acls([Acl(Resource.TOPIC, name, "User:me", Operation.READ)])
