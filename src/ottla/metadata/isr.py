"""What leaders and brokers report about replicas: AlterPartition (in-sync sets) and AssignReplicasToDirs (directories).

AlterPartition: 2 topic ids, 3 broker epochs of the new in-sync set (KIP-903). Codes tell the leader what to do next: give up
leading (FENCED_LEADER_EPOCH), look again (INVALID_UPDATE_VERSION, INELIGIBLE_REPLICA), or find the real controller.
"""

from __future__ import annotations

from ottla.metadata.changes import Election, propose
from ottla.metadata.delta import NO_LEADER_CHANGE, merge
from ottla.metadata.elections import Located, leadership_records
from ottla.metadata.image import RECOVERED, RECOVERING, Partition, Topic
from ottla.metadata.records import LEVEL_3_7_IV2, MetadataRecord
from ottla.metadata.state import Context, ControllerState, Outcome
from ottla.model.errors import ApiError, ErrorCode
from ottla.protocol.messages.controller import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.messages.log_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from ottla.protocol.messages.metadata_records import PartitionChangeRecord

Wanted = AlterPartitionRequest.TopicData.PartitionData
Answer = AlterPartitionResponse.TopicData.PartitionData
ANY_EPOCH = -1


def alter_partition(state: ControllerState, request: AlterPartitionRequest, context: Context) -> Outcome:
    state.check_broker_epoch(request.broker_id, request.broker_epoch)
    records: list[MetadataRecord] = []
    topics = []
    for wanted_topic in request.topics:
        topic = state.image.topics.get(wanted_topic.topic_id)
        answers = []
        for wanted in wanted_topic.partitions:
            if topic is None:
                answers.append(_refused(wanted, ErrorCode.UNKNOWN_TOPIC_ID))
            else:
                answers.append(_alter_one(state, request.broker_id, topic, wanted, context.version, records))
        topics.append(AlterPartitionResponse.TopicData(topic_id=wanted_topic.topic_id, partitions=answers))
    return Outcome(records, AlterPartitionResponse(topics=topics))


def _refused(wanted: Wanted, code: ErrorCode) -> Answer:
    return Answer(partition_index=wanted.partition_index, error_code=code)


def _new_isr(wanted: Wanted, version: int) -> list[tuple[int, int]]:
    """Broker ids with the epochs the leader knows them by."""
    if version < 3:
        return [(broker_id, ANY_EPOCH) for broker_id in wanted.new_isr]
    return [(row.broker_id, row.broker_epoch) for row in wanted.new_isr_with_epochs]


def _alter_one(
    state: ControllerState, leader: int, topic: Topic, wanted: Wanted, version: int, records: list[MetadataRecord]
) -> Answer:
    index = wanted.partition_index
    partition = topic.partitions.get(index)
    if partition is None:
        return _refused(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    isr = _new_isr(wanted, version)
    code = _why_not(state, leader, partition, wanted, isr)
    if code is not None:
        return _refused(wanted, code)
    record = _isr_change(state, topic, index, partition, [broker_id for broker_id, _ in isr], wanted.leader_recovery_state)
    if record is not None:
        records.append(record)
        partition = merge(partition, record)
        if record.leader not in (NO_LEADER_CHANGE, leader):
            # The change completed a reassignment that took the leadership away: both an error and a record.
            return _refused(wanted, ErrorCode.NEW_LEADER_ELECTED)
    return Answer(
        partition_index=index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=partition.recovery_state,
        partition_epoch=partition.partition_epoch,
    )


def _isr_change(
    state: ControllerState, topic: Topic, index: int, partition: Partition, isr: list[int], recovery_state: int
) -> PartitionChangeRecord | None:
    change = propose(state, topic, index, partition)
    if state.may_elect_unclean(topic.name):
        change.election = Election.UNCLEAN
    change.isr = isr
    change.recovery_state = recovery_state
    return change.build()


def _why_not(
    state: ControllerState, leader: int, partition: Partition, wanted: Wanted, isr: list[tuple[int, int]]
) -> ErrorCode | None:
    # A leader ahead of us means that we are no longer the controller it should talk to.
    if wanted.leader_epoch > partition.leader_epoch or wanted.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if wanted.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if leader != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if wanted.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    ids = [broker_id for broker_id, _ in isr]
    if not ids or len(set(ids)) < len(ids) or not set(ids) <= set(partition.replicas) or leader not in ids:
        return ErrorCode.INVALID_REQUEST
    if wanted.leader_recovery_state == RECOVERING and (len(ids) > 1 or partition.recovery_state == RECOVERED):
        return ErrorCode.INVALID_REQUEST
    if any(not _is_eligible(state, broker_id, epoch) for broker_id, epoch in isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return None


def _is_eligible(state: ControllerState, broker_id: int, epoch: int) -> bool:
    """In sync may be who is alive now, in the same life as the leader saw."""
    broker = state.image.brokers.get(broker_id)
    return broker is not None and broker.is_active and epoch in (ANY_EPOCH, broker.epoch)


# AssignReplicasToDirs ---------------------------------------------------------------------------------------------------


def assign_replicas_to_dirs(state: ControllerState, request: AssignReplicasToDirsRequest, context: Context) -> Outcome:
    if state.image.metadata_version < LEVEL_3_7_IV2:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "Directory assignment is not supported yet.")
    state.check_broker_epoch(request.broker_id, request.broker_epoch)
    broker = state.image.brokers[request.broker_id]
    response = AssignReplicasToDirsResponse
    records: list[MetadataRecord] = []
    offline: list[Located] = []
    directories = []
    for directory in request.directories:
        is_offline = not broker.has_online_directory(directory.id)
        topics = []
        for wanted in directory.topics:
            rows = []
            for row in wanted.partitions:
                code, located = _assign_one(state, request.broker_id, directory.id, wanted.topic_id, row.partition_index, records)
                if located is not None and is_offline:
                    offline.append(located)
                rows.append(response.DirectoryData.TopicData.PartitionData(partition_index=row.partition_index, error_code=code))
            topics.append(response.DirectoryData.TopicData(topic_id=wanted.topic_id, partitions=rows))
        directories.append(response.DirectoryData(id=directory.id, topics=topics))
    records += leadership_records(state, offline, gone=request.broker_id)
    return Outcome(records, response(directories=directories))


def _assign_one(
    state: ControllerState, broker_id: int, directory: bytes, topic_id: bytes, index: int, records: list[MetadataRecord]
) -> tuple[ErrorCode, Located | None]:
    topic = state.image.topics.get(topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID, None
    partition = topic.partitions.get(index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    if broker_id not in partition.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
    change = propose(state, topic, index, partition)
    change.directories = {broker_id: directory}
    record = change.build()
    if record is not None:
        records.append(record)
    return ErrorCode.NONE, (topic, index, partition)
