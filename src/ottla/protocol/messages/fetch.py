"""Records out, to consumers and to followers."""

from __future__ import annotations

from typing import Any

from ottla.protocol.schema import Message, Struct, array, int8, int16, int32, int64, records, string, struct, uuid


class FetchRequest(Message, key=1, versions="4-18", flexible="12+"):
    class ReplicaState(Struct):
        replica_id: int = int32("15+", default=-1)
        replica_epoch: int = int64("15+", default=-1)

    class FetchTopic(Struct):
        class FetchPartition(Struct):
            partition: int = int32()
            current_leader_epoch: int = int32("9+", default=-1)
            fetch_offset: int = int64()
            last_fetched_epoch: int = int32("12+", default=-1)
            log_start_offset: int = int64("5+", default=-1)
            partition_max_bytes: int = int32()
            replica_directory_id: bytes = uuid("17+", tag=0)
            high_watermark: int = int64("18+", default=9223372036854775807, tag=1)

        topic: str = string("0-12")
        topic_id: bytes = uuid("13+")
        partitions: list[FetchPartition] = array(FetchPartition)

    class ForgottenTopic(Struct):
        topic: str = string("7-12")
        topic_id: bytes = uuid("13+")
        partitions: list[int] = array(int32, "7+")

    cluster_id: str | None = string("12+", nullable="12+", default=None, tag=0)
    replica_id: int = int32("0-14", default=-1)
    replica_state: ReplicaState = struct(ReplicaState, "15+", tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32("3+", default=2147483647)
    isolation_level: int = int8("4+")
    session_id: int = int32("7+")
    session_epoch: int = int32("7+", default=-1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = string("11+")


class FetchResponse(Message, key=1, versions="4-18", flexible="12+"):
    class FetchableTopicResponse(Struct):
        class PartitionData(Struct):
            class EpochEndOffset(Struct):
                epoch: int = int32("12+", default=-1)
                end_offset: int = int64("12+", default=-1)

            class LeaderIdAndEpoch(Struct):
                leader_id: int = int32("12+", default=-1)
                leader_epoch: int = int32("12+", default=-1)

            class SnapshotId(Struct):
                end_offset: int = int64(default=-1)
                epoch: int = int32(default=-1)

            class AbortedTransaction(Struct):
                producer_id: int = int64("4+")
                first_offset: int = int64("4+")

            partition_index: int = int32()
            error_code: int = int16()
            high_watermark: int = int64()
            last_stable_offset: int = int64("4+", default=-1)
            log_start_offset: int = int64("5+", default=-1)
            diverging_epoch: EpochEndOffset = struct(EpochEndOffset, "12+", tag=0)
            current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "12+", tag=1)
            snapshot_id: SnapshotId = struct(SnapshotId, "12+", tag=2)
            aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, "4+", nullable="4+")
            preferred_read_replica: int = int32("11+", default=-1)
            records: Any = records(nullable="0+")

        topic: str = string("0-12")
        topic_id: bytes = uuid("13+")
        partitions: list[PartitionData] = array(PartitionData)

    class NodeEndpoint(Struct):
        node_id: int = int32("16+")
        host: str = string("16+")
        port: int = int32("16+")
        rack: str | None = string("16+", nullable="16+", default=None)

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("7+")
    session_id: int = int32("7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "16+", tag=0)
