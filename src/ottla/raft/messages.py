"""Kafka's quorum requests and responses, each about the one partition of `__cluster_metadata`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.model.errors import ErrorCode
from ottla.model.ids import METADATA_TOPIC, METADATA_TOPIC_ID
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.quorum import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from ottla.raft.log import OffsetAndEpoch
from ottla.raft.voters import Address, ReplicaKey

VOTE_VERSION, BEGIN_VERSION, END_VERSION, FETCH_VERSION, SNAPSHOT_VERSION = 2, 1, 1, 18, 1
FETCH_BY_ID_VERSION = 13
FETCH_STATE_VERSION = 15
FETCH_WATERMARK_VERSION = 18


_RESPONSES: dict[type[Any], Any] = {
    VoteRequest: VoteResponse,
    BeginQuorumEpochRequest: BeginQuorumEpochResponse,
    EndQuorumEpochRequest: EndQuorumEpochResponse,
    FetchRequest: FetchResponse,
    FetchSnapshotRequest: FetchSnapshotResponse,
}


def vote_request(
    cluster_id: str, epoch: int, replica: ReplicaKey, voter: ReplicaKey, end: OffsetAndEpoch, *, pre_vote: bool
) -> VoteRequest:
    partition = VoteRequest.TopicData.PartitionData(
        replica_epoch=epoch,
        replica_id=replica.node_id,
        replica_directory_id=replica.directory_id,
        voter_directory_id=voter.directory_id,
        last_offset_epoch=end.epoch,
        last_offset=end.offset,
        pre_vote=pre_vote,
    )
    topic = VoteRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return VoteRequest(cluster_id=cluster_id, voter_id=voter.node_id, topics=[topic])


def begin_request(cluster_id: str, epoch: int, leader_id: int, voter: ReplicaKey, leader: Address, listener: str) -> Any:
    partition = BeginQuorumEpochRequest.TopicData.PartitionData(
        voter_directory_id=voter.directory_id, leader_id=leader_id, leader_epoch=epoch
    )
    return BeginQuorumEpochRequest(
        cluster_id=cluster_id,
        voter_id=voter.node_id,
        topics=[BeginQuorumEpochRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        leader_endpoints=[BeginQuorumEpochRequest.LeaderEndpoint(name=listener, host=leader.host, port=leader.port)],
    )


def end_request(
    cluster_id: str, epoch: int, leader_id: int, successors: Iterable[ReplicaKey], leader: Address, listener: str
) -> EndQuorumEpochRequest:
    data = EndQuorumEpochRequest.TopicData.PartitionData
    partition = data(
        leader_id=leader_id,
        leader_epoch=epoch,
        preferred_candidates=[
            data.ReplicaInfo(candidate_id=key.node_id, candidate_directory_id=key.directory_id) for key in successors
        ],
    )
    return EndQuorumEpochRequest(
        cluster_id=cluster_id,
        topics=[EndQuorumEpochRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        leader_endpoints=[EndQuorumEpochRequest.LeaderEndpoint(name=listener, host=leader.host, port=leader.port)],
    )


def fetch_request(
    cluster_id: str, replica: ReplicaKey, epoch: int, end: OffsetAndEpoch, high_watermark: int, max_wait_ms: int, max_bytes: int
) -> FetchRequest:
    partition = FetchRequest.FetchTopic.FetchPartition(
        current_leader_epoch=epoch,
        fetch_offset=end.offset,
        last_fetched_epoch=end.epoch,
        partition_max_bytes=max_bytes,
        replica_directory_id=replica.directory_id,
        high_watermark=high_watermark,
    )
    return FetchRequest(
        cluster_id=cluster_id,
        replica_state=FetchRequest.ReplicaState(replica_id=replica.node_id),
        max_wait_ms=max_wait_ms,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )


def snapshot_request(
    cluster_id: str, replica: ReplicaKey, epoch: int, snapshot: OffsetAndEpoch, position: int, max_bytes: int
) -> FetchSnapshotRequest:
    data = FetchSnapshotRequest.TopicSnapshot.PartitionSnapshot
    partition = data(
        current_leader_epoch=epoch,
        snapshot_id=data.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        position=position,
        replica_directory_id=replica.directory_id,
    )
    return FetchSnapshotRequest(
        cluster_id=cluster_id,
        replica_id=replica.node_id,
        max_bytes=max_bytes,
        topics=[FetchSnapshotRequest.TopicSnapshot(name=METADATA_TOPIC, partitions=[partition])],
    )


def only_partition(request: Any) -> Any | None:
    """The partition of a request or response about the metadata log and nothing else; None otherwise."""
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return None
    topic, partition = request.topics[0], request.topics[0].partitions[0]
    name = topic.name if hasattr(topic, "name") else topic.topic_name
    index = partition.partition if hasattr(partition, "partition") else getattr(partition, "partition_index", 0)
    if hasattr(partition, "index"):
        index = partition.index
    return partition if name == METADATA_TOPIC and index == 0 else None


def only_fetch_partition(request: FetchRequest, version: int) -> FetchRequest.FetchTopic.FetchPartition | None:
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return None
    topic = request.topics[0]
    named = topic.topic_id == METADATA_TOPIC_ID if version >= FETCH_BY_ID_VERSION else topic.topic == METADATA_TOPIC
    return topic.partitions[0] if named and topic.partitions[0].partition == 0 else None


def epoch_response(
    request: Any, code: ErrorCode, leader_id: int, epoch: int, endpoint: tuple[int, Address] | None, *, granted: bool = False
) -> Any:
    """The response to Vote, BeginQuorumEpoch or EndQuorumEpoch: what happened, and who leads as far as we know."""
    kind = _RESPONSES[type(request)]
    partition = kind.TopicData.PartitionData(error_code=int(code), leader_id=leader_id, leader_epoch=epoch)
    if kind is VoteResponse:
        partition.vote_granted = granted
    response = kind(topics=[kind.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])])
    if endpoint is not None:
        node_id, address = endpoint
        response.node_endpoints = [kind.NodeEndpoint(node_id=node_id, host=address.host, port=address.port)]
    return response


def refusal(request: Any, code: ErrorCode) -> Any:
    """The whole request is refused."""
    return _RESPONSES[type(request)](error_code=int(code))


def fetch_response(
    code: ErrorCode,
    leader_id: int,
    epoch: int,
    endpoint: tuple[int, Address] | None,
    *,
    high_watermark: int = -1,
    log_start_offset: int = -1,
) -> FetchResponse:
    topic = FetchResponse.FetchableTopicResponse
    data = topic.PartitionData
    partition = data(
        error_code=int(code),
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        current_leader=data.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch),
        aborted_transactions=None,
        records=b"",
    )
    response = FetchResponse(responses=[topic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])])
    if endpoint is not None:
        node_id, address = endpoint
        response.node_endpoints = [FetchResponse.NodeEndpoint(node_id=node_id, host=address.host, port=address.port)]
    return response


def snapshot_response(
    code: ErrorCode,
    leader_id: int,
    epoch: int,
    endpoint: tuple[int, Address] | None,
    snapshot: OffsetAndEpoch,
    position: int = 0,
) -> FetchSnapshotResponse:
    topic = FetchSnapshotResponse.TopicSnapshot
    data = topic.PartitionSnapshot
    partition = data(
        error_code=int(code),
        snapshot_id=data.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        current_leader=data.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch),
        position=position,
        unaligned_records=b"",
    )
    response = FetchSnapshotResponse(topics=[topic(name=METADATA_TOPIC, partitions=[partition])])
    if endpoint is not None:
        node_id, address = endpoint
        response.node_endpoints = [FetchSnapshotResponse.NodeEndpoint(node_id=node_id, host=address.host, port=address.port)]
    return response
