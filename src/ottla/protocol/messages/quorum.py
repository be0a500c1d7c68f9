"""Agreement on the metadata log (KIP-595, KIP-630, KIP-853)."""

from __future__ import annotations

from typing import Any

from ottla.protocol.schema import Message, Struct, array, boolean, int16, int32, int64, records, string, struct, uint16, uuid


class VoteRequest(Message, key=52, versions="0-2", flexible="0+"):
    class TopicData(Struct):
        class PartitionData(Struct):
            partition_index: int = int32()
            replica_epoch: int = int32()
            replica_id: int = int32()
            replica_directory_id: bytes = uuid("1+")
            voter_directory_id: bytes = uuid("1+")
            last_offset_epoch: int = int32()
            last_offset: int = int64()
            pre_vote: bool = boolean("2+")

        topic_name: str = string()
        partitions: list[PartitionData] = array(PartitionData)

    cluster_id: str | None = string(nullable="0+", default=None)
    voter_id: int = int32("1+", default=-1)
    topics: list[TopicData] = array(TopicData)


class VoteResponse(Message, key=52, versions="0-2", flexible="0+"):
    class TopicData(Struct):
        class PartitionData(Struct):
            partition_index: int = int32()
            error_code: int = int16()
            leader_id: int = int32()
            leader_epoch: int = int32()
            vote_granted: bool = boolean()

        topic_name: str = string()
        partitions: list[PartitionData] = array(PartitionData)

    class NodeEndpoint(Struct):
        node_id: int = int32("1+")
        host: str = string("1+")
        port: int = uint16("1+")

    error_code: int = int16()
    topics: list[TopicData] = array(TopicData)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+", tag=0)


class BeginQuorumEpochRequest(Message, key=53, versions="0-1", flexible="1+"):
    class TopicData(Struct):
        class PartitionData(Struct):
            partition_index: int = int32()
            voter_directory_id: bytes = uuid("1+")
            leader_id: int = int32()
            leader_epoch: int = int32()

        topic_name: str = string()
        partitions: list[PartitionData] = array(PartitionData)

    class LeaderEndpoint(Struct):
        name: str = string("1+")
        host: str = string("1+")
        port: int = uint16("1+")

    cluster_id: str | None = string(nullable="0+", default=None)
    voter_id: int = int32("1+", default=-1)
    topics: list[TopicData] = array(TopicData)
    leader_endpoints: list[LeaderEndpoint] = array(LeaderEndpoint, "1+")


class BeginQuorumEpochResponse(Message, key=53, versions="0-1", flexible="1+"):
    class TopicData(Struct):
        class PartitionData(Struct):
            partition_index: int = int32()
            error_code: int = int16()
            leader_id: int = int32()
            leader_epoch: int = int32()

        topic_name: str = string()
        partitions: list[PartitionData] = array(PartitionData)

    class NodeEndpoint(Struct):
        node_id: int = int32("1+")
        host: str = string("1+")
        port: int = uint16("1+")

    error_code: int = int16()
    topics: list[TopicData] = array(TopicData)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+", tag=0)


class EndQuorumEpochRequest(Message, key=54, versions="0-1", flexible="1+"):
    class TopicData(Struct):
        class PartitionData(Struct):
            class ReplicaInfo(Struct):
                candidate_id: int = int32("1+")
                candidate_directory_id: bytes = uuid("1+")

            partition_index: int = int32()
            leader_id: int = int32()
            leader_epoch: int = int32()
            preferred_successors: list[int] = array(int32, "0")
            preferred_candidates: list[ReplicaInfo] = array(ReplicaInfo, "1+")

        topic_name: str = string()
        partitions: list[PartitionData] = array(PartitionData)

    class LeaderEndpoint(Struct):
        name: str = string("1+")
        host: str = string("1+")
        port: int = uint16("1+")

    cluster_id: str | None = string(nullable="0+", default=None)
    topics: list[TopicData] = array(TopicData)
    leader_endpoints: list[LeaderEndpoint] = array(LeaderEndpoint, "1+")


class EndQuorumEpochResponse(Message, key=54, versions="0-1", flexible="1+"):
    class TopicData(Struct):
        class PartitionData(Struct):
            partition_index: int = int32()
            error_code: int = int16()
            leader_id: int = int32()
            leader_epoch: int = int32()

        topic_name: str = string()
        partitions: list[PartitionData] = array(PartitionData)

    class NodeEndpoint(Struct):
        node_id: int = int32("1+")
        host: str = string("1+")
        port: int = uint16("1+")

    error_code: int = int16()
    topics: list[TopicData] = array(TopicData)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+", tag=0)


class FetchSnapshotRequest(Message, key=59, versions="0-1", flexible="0+"):
    class TopicSnapshot(Struct):
        class PartitionSnapshot(Struct):
            class SnapshotId(Struct):
                end_offset: int = int64()
                epoch: int = int32()

            partition: int = int32()
            current_leader_epoch: int = int32()
            snapshot_id: SnapshotId = struct(SnapshotId)
            position: int = int64()
            replica_directory_id: bytes = uuid("1+", tag=0)

        name: str = string()
        partitions: list[PartitionSnapshot] = array(PartitionSnapshot)

    cluster_id: str | None = string(nullable="0+", default=None, tag=0)
    replica_id: int = int32(default=-1)
    max_bytes: int = int32(default=2147483647)
    topics: list[TopicSnapshot] = array(TopicSnapshot)


class FetchSnapshotResponse(Message, key=59, versions="0-1", flexible="0+"):
    class TopicSnapshot(Struct):
        class PartitionSnapshot(Struct):
            class SnapshotId(Struct):
                end_offset: int = int64()
                epoch: int = int32()

            class LeaderIdAndEpoch(Struct):
                leader_id: int = int32()
                leader_epoch: int = int32()

            index: int = int32()
            error_code: int = int16()
            snapshot_id: SnapshotId = struct(SnapshotId)
            current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, tag=0)
            size: int = int64()
            position: int = int64()
            unaligned_records: Any = records()

        name: str = string()
        partitions: list[PartitionSnapshot] = array(PartitionSnapshot)

    class NodeEndpoint(Struct):
        node_id: int = int32("1+")
        host: str = string("1+")
        port: int = uint16("1+")

    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[TopicSnapshot] = array(TopicSnapshot)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+", tag=0)


class DescribeQuorumRequest(Message, key=55, versions="0-2", flexible="0+"):
    class TopicData(Struct):
        class PartitionData(Struct):
            partition_index: int = int32()

        topic_name: str = string()
        partitions: list[PartitionData] = array(PartitionData)

    topics: list[TopicData] = array(TopicData)


class ReplicaState(Struct):
    replica_id: int = int32()
    replica_directory_id: bytes = uuid("2+")
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64("1+", default=-1)
    last_caught_up_timestamp: int = int64("1+", default=-1)


class DescribeQuorumResponse(Message, key=55, versions="0-2", flexible="0+"):
    class TopicData(Struct):
        class PartitionData(Struct):
            partition_index: int = int32()
            error_code: int = int16()
            error_message: str | None = string("2+", nullable="2+")
            leader_id: int = int32()
            leader_epoch: int = int32()
            high_watermark: int = int64()
            current_voters: list[ReplicaState] = array(ReplicaState)
            observers: list[ReplicaState] = array(ReplicaState)

        topic_name: str = string()
        partitions: list[PartitionData] = array(PartitionData)

    class Node(Struct):
        class Listener(Struct):
            name: str = string("2+")
            host: str = string("2+")
            port: int = uint16("2+")

        node_id: int = int32("2+")
        listeners: list[Listener] = array(Listener, "2+")

    error_code: int = int16()
    error_message: str | None = string("2+", nullable="2+")
    topics: list[TopicData] = array(TopicData)
    nodes: list[Node] = array(Node, "2+")


class AddRaftVoterRequest(Message, key=80, versions="0-1", flexible="0+"):
    class Listener(Struct):
        name: str = string()
        host: str = string()
        port: int = uint16()

    cluster_id: str | None = string(nullable="0+")
    timeout_ms: int = int32()
    voter_id: int = int32()
    voter_directory_id: bytes = uuid()
    listeners: list[Listener] = array(Listener)
    ack_when_committed: bool = boolean("1+", default=True)


class AddRaftVoterResponse(Message, key=80, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class RemoveRaftVoterRequest(Message, key=81, versions="0", flexible="0+"):
    cluster_id: str | None = string(nullable="0+")
    voter_id: int = int32()
    voter_directory_id: bytes = uuid()


class RemoveRaftVoterResponse(Message, key=81, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class UpdateRaftVoterRequest(Message, key=82, versions="0", flexible="0+"):
    class Listener(Struct):
        name: str = string()
        host: str = string()
        port: int = uint16()

    class KRaftVersionFeature(Struct):
        min_supported_version: int = int16()
        max_supported_version: int = int16()

    cluster_id: str | None = string(nullable="0+")
    current_leader_epoch: int = int32()
    voter_id: int = int32()
    voter_directory_id: bytes = uuid()
    listeners: list[Listener] = array(Listener)
    k_raft_version_feature: KRaftVersionFeature = struct(KRaftVersionFeature)


class UpdateRaftVoterResponse(Message, key=82, versions="0", flexible="0+"):
    class CurrentLeader(Struct):
        leader_id: int = int32(default=-1)
        leader_epoch: int = int32(default=-1)
        host: str = string()
        port: int = int32()

    throttle_time_ms: int = int32()
    error_code: int = int16()
    current_leader: CurrentLeader = struct(CurrentLeader, tag=0)
