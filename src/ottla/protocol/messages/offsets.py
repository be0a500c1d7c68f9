"""Questions about a log: offsets by time, the end of an epoch, deletion up to an offset."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int8, int16, int32, int64, string


class ListOffsetsRequest(Message, key=2, versions="1-11", flexible="6+"):
    class ListOffsetsTopic(Struct):
        class ListOffsetsPartition(Struct):
            partition_index: int = int32()
            current_leader_epoch: int = int32("4+", default=-1)
            timestamp: int = int64()

        name: str = string()
        partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)

    replica_id: int = int32()
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32("10+")


class ListOffsetsResponse(Message, key=2, versions="1-11", flexible="6+"):
    class ListOffsetsTopicResponse(Struct):
        class ListOffsetsPartitionResponse(Struct):
            partition_index: int = int32()
            error_code: int = int16()
            timestamp: int = int64("1+", default=-1)
            offset: int = int64("1+", default=-1)
            leader_epoch: int = int32("4+", default=-1)

        name: str = string()
        partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)

    throttle_time_ms: int = int32("2+")
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


class OffsetForLeaderEpochRequest(Message, key=23, versions="2-4", flexible="4+"):
    class OffsetForLeaderTopic(Struct):
        class OffsetForLeaderPartition(Struct):
            partition: int = int32()
            current_leader_epoch: int = int32("2+", default=-1)
            leader_epoch: int = int32()

        topic: str = string()
        partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)

    replica_id: int = int32("3+", default=-2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


class OffsetForLeaderEpochResponse(Message, key=23, versions="2-4", flexible="4+"):
    class OffsetForLeaderTopicResult(Struct):
        class EpochEndOffset(Struct):
            error_code: int = int16()
            partition: int = int32()
            leader_epoch: int = int32("1+", default=-1)
            end_offset: int = int64(default=-1)

        topic: str = string()
        partitions: list[EpochEndOffset] = array(EpochEndOffset)

    throttle_time_ms: int = int32("2+")
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)


class DeleteRecordsRequest(Message, key=21, versions="0-2", flexible="2+"):
    class DeleteRecordsTopic(Struct):
        class DeleteRecordsPartition(Struct):
            partition_index: int = int32()
            offset: int = int64()

        name: str = string()
        partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()


class DeleteRecordsResponse(Message, key=21, versions="0-2", flexible="2+"):
    class DeleteRecordsTopicResult(Struct):
        class DeleteRecordsPartitionResult(Struct):
            partition_index: int = int32()
            low_watermark: int = int64()
            error_code: int = int16()

        name: str = string()
        partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)

    throttle_time_ms: int = int32()
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)
