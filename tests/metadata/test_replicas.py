"""In-sync sets altered by leaders, replicas moved by operators, directories told by brokers."""

from __future__ import annotations

import pytest

from ottla.model.errors import ErrorCode
from ottla.protocol.messages.log_dirs import AssignReplicasToDirsRequest
from ottla.protocol.messages.topics import AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest
from tests.metadata.driver import Driver


@pytest.fixture
def cluster() -> Driver:
    made = Driver()
    made.start(1, 2, 3, 4)
    made.create("t", [[1, 2, 3]])
    return made


def test_an_in_sync_set_shrinks_and_grows_and_each_change_has_its_epoch(cluster: Driver) -> None:
    reply = cluster.alter_isr("t", 0, [1, 2])
    assert (reply.error_code, reply.isr, reply.leader_epoch, reply.partition_epoch) == (0, [1, 2], 0, 1)
    assert cluster.show("t") == "leader=1/0 isr=1,2 replicas=1,2,3"
    assert cluster.alter_isr("t", 0, [1, 2, 3]).partition_epoch == 2


def test_a_leader_that_knows_less_or_more_than_the_controller_is_told_which(cluster: Driver) -> None:
    cluster.alter_isr("t", 0, [1, 2])
    assert cluster.alter_isr("t", 0, [1], partition_epoch=0).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert cluster.alter_isr("t", 0, [1], partition_epoch=5).error_code == ErrorCode.NOT_CONTROLLER
    assert cluster.alter_isr("t", 0, [1], leader_epoch=5).error_code == ErrorCode.NOT_CONTROLLER
    cluster.kill(1)
    assert cluster.alter_isr("t", 0, [2], leader_epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_only_live_replicas_in_their_present_life_come_in_sync(cluster: Driver) -> None:
    cluster.kill(3)
    assert cluster.alter_isr("t", 0, [1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA
    cluster.beat(3)
    assert cluster.alter_isr("t", 0, [1, 2, 3]).error_code == 0
    assert cluster.alter_isr("t", 0, [1, 2, 4]).error_code == ErrorCode.INVALID_REQUEST
    assert cluster.alter_isr("t", 0, [2, 3]).error_code == ErrorCode.INVALID_REQUEST


def move(cluster: Driver, replicas: list[int] | None, **options: bool) -> int:
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    row = topic.ReassignablePartition(partition_index=0, replicas=replicas)
    reply = cluster.ask(AlterPartitionReassignmentsRequest(topics=[topic(name="t", partitions=[row])], **options))
    code: int = reply.responses[0].partitions[0].error_code
    return code


def test_a_move_adds_waits_for_sync_then_removes(cluster: Driver) -> None:
    assert move(cluster, [2, 4]) == 0
    assert cluster.show("t") == "leader=1/0 isr=1,2,3 replicas=2,4,1,3 adding=4 removing=1,3"
    listed = cluster.ask(ListPartitionReassignmentsRequest(topics=None)).topics[0].partitions[0]
    assert (listed.replicas, listed.adding_replicas, listed.removing_replicas) == ([2, 4, 1, 3], [4], [1, 3])
    reply = cluster.alter_isr("t", 0, [1, 2, 3, 4])
    assert reply.error_code == ErrorCode.NEW_LEADER_ELECTED  # the old leader is among the removed
    assert cluster.show("t") == "leader=2/1 isr=2,4 replicas=2,4"
    assert cluster.ask(ListPartitionReassignmentsRequest(topics=None)).topics == []


def test_a_move_that_needs_no_copying_is_done_at_once(cluster: Driver) -> None:
    assert move(cluster, [3, 1]) == 0
    assert cluster.show("t") == "leader=1/1 isr=1,3 replicas=3,1"


def test_a_cancelled_move_leaves_no_trace(cluster: Driver) -> None:
    move(cluster, [2, 4])
    assert move(cluster, None) == 0
    assert cluster.show("t") == "leader=1/1 isr=1,2,3 replicas=2,1,3"
    assert move(cluster, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_move_to_nowhere_is_refused(cluster: Driver) -> None:
    assert move(cluster, [1, 9]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(cluster, []) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(cluster, [1], allow_replication_factor_change=False) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert cluster.show("t") == "leader=1/0 isr=1,2,3 replicas=1,2,3"


def test_a_move_goes_on_when_the_leader_dies_meanwhile(cluster: Driver) -> None:
    move(cluster, [2, 4])
    cluster.kill(1)
    assert cluster.show("t") == "leader=2/1 isr=2,3 replicas=2,4,1,3 adding=4 removing=1,3"
    assert cluster.alter_isr("t", 0, [2, 3, 4]).error_code == 0
    assert cluster.show("t") == "leader=2/2 isr=2,4 replicas=2,4"


def test_brokers_with_several_directories_tell_where_replicas_went() -> None:
    cluster = Driver()
    first, second = b"first directory!", b"second directory"
    cluster.register(1, log_dirs=[first, second])
    cluster.beat(1)
    cluster.create("t", [[1]])
    partition = cluster.image.partition("t", 0)
    assert partition is not None
    assert partition.directories == (bytes(16),)
    directory = AssignReplicasToDirsRequest.DirectoryData
    row = directory.TopicData(
        topic_id=cluster.image.topic_ids["t"], partitions=[directory.TopicData.PartitionData(partition_index=0)]
    )
    request = AssignReplicasToDirsRequest(
        broker_id=1, broker_epoch=cluster.image.brokers[1].epoch, directories=[directory(id=second, topics=[row])]
    )
    assert cluster.ask(request).error_code == 0
    partition = cluster.image.partition("t", 0)
    assert partition is not None
    assert partition.directories == (second,)
    cluster.beat(1, offline_log_dirs=[first])
    assert cluster.show("t").startswith("leader=1/0")
    cluster.beat(1, offline_log_dirs=[second])
    assert cluster.show("t").startswith("leader=-1/1")


def test_a_broker_whose_directories_are_all_cordoned_gets_no_new_replicas(cluster: Driver) -> None:
    cluster.beat(4, cordoned_log_dirs=list(cluster.image.brokers[4].directories))
    cluster.create("new", partitions=8, factor=3)
    assert all(
        4 not in partition.replicas for partition in cluster.image.topics[cluster.image.topic_ids["new"]].partitions.values()
    )
    cluster.beat(4, cordoned_log_dirs=None)
    assert cluster.last_records == ()
    cluster.beat(4, cordoned_log_dirs=[])
    cluster.create("newer", partitions=8, factor=4)
    assert all(
        4 in partition.replicas for partition in cluster.image.topics[cluster.image.topic_ids["newer"]].partitions.values()
    )
