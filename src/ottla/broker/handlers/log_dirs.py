"""DescribeLogDirs 1-5: where replicas lie on disk and how large they are. 3 an error of the whole; 4 volume sizes; 5 cordoned."""

from __future__ import annotations

from ottla.broker.dispatch import RequestContext, handles
from ottla.broker.replicas import Replica
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

Result = DescribeLogDirsResponse.DescribeLogDirsResult
TopicRow = Result.DescribeLogDirsTopic


@handles("DescribeLogDirs")
def describe_log_dirs(request: DescribeLogDirsRequest, context: RequestContext) -> DescribeLogDirsResponse:
    node = context.node
    asked = None if request.topics is None else {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    rows: dict[str, TopicRow] = {}
    for replica in node.replicas:
        topic, index = replica.topic_partition
        if asked is None or (topic, index) in asked:
            rows.setdefault(topic, TopicRow(name=topic)).partitions.append(_row(replica))
    total, usable = node.directory.usage()
    result = Result(
        error_code=ErrorCode.NONE, log_dir=node.directory.path, topics=list(rows.values()), total_bytes=total, usable_bytes=usable
    )
    return DescribeLogDirsResponse(results=[result])


def _row(replica: Replica) -> TopicRow.DescribeLogDirsPartition:
    return TopicRow.DescribeLogDirsPartition(
        partition_index=replica.topic_partition.partition,
        partition_size=replica.log.size,
        offset_lag=max(0, replica.log.high_watermark - replica.log.log_end_offset),
    )
