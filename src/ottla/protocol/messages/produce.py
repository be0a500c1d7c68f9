"""Records in."""

from __future__ import annotations

from typing import Any

from ottla.protocol.schema import Message, Struct, array, int16, int32, int64, records, string, struct, uuid


class ProduceRequest(Message, key=0, versions="3-13", flexible="9+"):
    class TopicProduceData(Struct):
        class PartitionProduceData(Struct):
            index: int = int32()
            records: Any = records(nullable="0+")

        name: str = string("0-12")
        topic_id: bytes = uuid("13+")
        partition_data: list[PartitionProduceData] = array(PartitionProduceData)

    transactional_id: str | None = string("3+", nullable="3+", default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class ProduceResponse(Message, key=0, versions="3-13", flexible="9+"):
    class TopicProduceResponse(Struct):
        class PartitionProduceResponse(Struct):
            class BatchIndexAndErrorMessage(Struct):
                batch_index: int = int32("8+")
                batch_index_error_message: str | None = string("8+", nullable="8+", default=None)

            class LeaderIdAndEpoch(Struct):
                leader_id: int = int32("10+", default=-1)
                leader_epoch: int = int32("10+", default=-1)

            index: int = int32()
            error_code: int = int16()
            base_offset: int = int64()
            log_append_time_ms: int = int64("2+", default=-1)
            log_start_offset: int = int64("5+", default=-1)
            record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, "8+")
            error_message: str | None = string("8+", nullable="8+", default=None)
            current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "10+", tag=0)

        name: str = string("0-12")
        topic_id: bytes = uuid("13+")
        partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)

    class NodeEndpoint(Struct):
        node_id: int = int32("10+")
        host: str = string("10+")
        port: int = int32("10+")
        rack: str | None = string("10+", nullable="10+", default=None)

    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32("1+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "10+", tag=0)
