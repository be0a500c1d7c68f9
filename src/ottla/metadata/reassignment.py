"""Replicas moved while the partition serves: AlterPartitionReassignments and ListPartitionReassignments.

A move has two records. The first makes the replicas those wanted plus those to be removed, and says which are which; the
second, made by `changes` as soon as every wanted replica is in sync, drops the rest. Cancelling takes the added ones out again.
A move that only reorders or removes replicas needs no waiting and is one record.
"""

from __future__ import annotations

from ottla.metadata.changes import Election, propose
from ottla.metadata.image import Partition, Topic
from ottla.metadata.records import MetadataRecord
from ottla.metadata.state import Context, ControllerState, Outcome
from ottla.metadata.topics import check_manual_assignment
from ottla.model.errors import ApiError, ErrorCode
from ottla.protocol.messages.metadata_records import PartitionChangeRecord
from ottla.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

TopicAnswer = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
Ongoing = ListPartitionReassignmentsResponse.OngoingTopicReassignment


def alter_partition_reassignments(
    state: ControllerState, request: AlterPartitionReassignmentsRequest, context: Context
) -> Outcome:
    if not request.topics:
        return Outcome(reply=AlterPartitionReassignmentsResponse(error_message=None))
    records: list[MetadataRecord] = []
    responses = []
    for topic in request.topics:
        rows = []
        for wanted in topic.partitions:
            row = TopicAnswer.ReassignablePartitionResponse(partition_index=wanted.partition_index, error_message=None)
            try:
                record = _reassign(state, topic.name, wanted.partition_index, wanted.replicas, request)
                records += [] if record is None else [record]
            except ApiError as error:
                row.error_code, row.error_message = error.code, error.message
            rows.append(row)
        responses.append(TopicAnswer(name=topic.name, partitions=rows))
    reply = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None, responses=responses
    )
    return Outcome(records, reply)


def _reassign(
    state: ControllerState, name: str, index: int, replicas: list[int] | None, request: AlterPartitionReassignmentsRequest
) -> PartitionChangeRecord | None:
    topic = state.topic_or_error(name, f"Unable to find a topic named {name}.")
    partition = topic.partitions.get(index)
    if partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    if replicas is None:
        return _cancel(state, topic, index, partition)
    return _move(state, topic, index, partition, replicas, request.allow_replication_factor_change)


def _move(
    state: ControllerState, topic: Topic, index: int, partition: Partition, wanted: list[int], may_change_factor: bool
) -> PartitionChangeRecord | None:
    check_manual_assignment(state, wanted, None)
    if not may_change_factor:
        _refuse_other_factor(partition, wanted)
    removing = sorted(set(partition.replicas) - set(wanted))
    adding = sorted(set(wanted) - set(partition.replicas))
    change = propose(state, topic, index, partition)
    change.replicas = [*wanted, *removing]
    change.removing = removing or None
    change.adding = adding or None
    return change.build()


def _refuse_other_factor(partition: Partition, wanted: list[int]) -> None:
    present = len([replica for replica in partition.replicas if replica not in partition.adding])
    if len(wanted) != present:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {present} to {len(wanted)}",
        )


def _cancel(state: ControllerState, topic: Topic, index: int, partition: Partition) -> PartitionChangeRecord | None:
    if not partition.is_reassigning:
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    replicas = [replica for replica in partition.replicas if replica not in partition.adding]
    isr = [replica for replica in partition.isr if replica not in partition.adding]
    may_be_unclean = state.may_elect_unclean(topic.name)
    if not replicas:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Invalid replica assignment: addingReplicas contains all replicas.")
    if not isr:
        # Only added replicas are in sync: going back would lose what they alone have.
        if not may_be_unclean:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{index} because it would require an unclean "
                "leader election.",
            )
        isr = [replicas[0]]
    change = propose(state, topic, index, partition)
    if may_be_unclean:
        change.election = Election.UNCLEAN
    change.isr, change.replicas, change.removing, change.adding = isr, replicas, [], []
    return change.build()


def list_partition_reassignments(state: ControllerState, request: ListPartitionReassignmentsRequest, context: Context) -> Outcome:
    if request.topics is None:
        asked = [(topic, list(topic.partitions)) for topic in state.image.topics.values()]
    else:
        named = ((state.image.topic(row.name), row.partition_indexes) for row in request.topics)
        asked = [(topic, indexes) for topic, indexes in named if topic is not None]
    listed = [_ongoing(topic, indexes) for topic, indexes in asked]
    reply = ListPartitionReassignmentsResponse(error_message=None, topics=[row for row in listed if row.partitions])
    return Outcome(reply=reply)


def _ongoing(topic: Topic, indexes: list[int]) -> Ongoing:
    moving = ((index, topic.partitions.get(index)) for index in indexes)
    return Ongoing(
        name=topic.name,
        partitions=[
            Ongoing.OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding),
                removing_replicas=list(partition.removing),
            )
            for index, partition in moving
            if partition is not None and partition.is_reassigning
        ],
    )
