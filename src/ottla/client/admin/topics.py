"""Topics, partitions, their offsets and their places."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ottla.client.admin.base import AdminBase, by_topic, error_of, raise_code, settle
from ottla.client.admin.types import (
    EARLIEST,
    LATEST,
    ElectionType,
    ListedOffset,
    NewTopic,
    PartitionDescription,
    Reassignment,
    TopicCreated,
    TopicDescription,
    TopicListing,
)
from ottla.client.metadata import TopicInfo, topic_info
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.metadata import DescribeTopicPartitionsRequest, MetadataRequest
from ottla.protocol.messages.offsets import DeleteRecordsRequest, ListOffsetsRequest
from ottla.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)

PARTITIONS_PER_PAGE = 2000
REPLICA_ID_CONSUMER = -1


class TopicsAdmin(AdminBase):
    async def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> dict[str, TopicCreated]:
        wanted = list(topics)
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in wanted],
            timeout_ms=int(self._cluster.settings["request_timeout_ms"]),
            validate_only=validate_only,
        )
        reply = await self._ask_controller(request, lambda reply: (row.error_code for row in reply.topics))
        done: dict[str, TopicCreated] = {}
        failed: dict[str, ApiError] = {}
        for row in reply.topics:
            if row.error_code:
                failed[row.name] = ApiError(ErrorCode(row.error_code), row.error_message)
            else:
                configs = {config.name: config.value for config in row.configs or ()}
                done[row.name] = TopicCreated(row.name, row.topic_id, row.num_partitions, row.replication_factor, configs)
        return settle(done, failed)

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        *,
        configs: Mapping[str, str] | None = None,
        assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicCreated:
        topic = NewTopic(name, partitions, replication_factor, configs or {}, assignments or {})
        return (await self.create_topics([topic], validate_only=validate_only))[name]

    async def delete_topics(self, names: Iterable[str]) -> None:
        wanted = list(names)
        request = DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in wanted],
            topic_names=wanted,
            timeout_ms=int(self._cluster.settings["request_timeout_ms"]),
        )
        reply = await self._ask_controller(request, lambda reply: (row.error_code for row in reply.responses))
        failed = {row.name: error for row in reply.responses if (error := error_of(row.error_code, row.error_message))}
        for name in wanted:
            self._cluster.view.topics.pop(name, None)
        settle({name: None for name in wanted if name not in failed}, failed)

    async def delete_topic(self, name: str) -> None:
        await self.delete_topics([name])

    async def list_topics(self, *, internal: bool = False) -> dict[str, TopicListing]:
        self._check_running()
        reply = await self._persist(lambda: self._cluster.refresh(None))
        rows = [row for row in reply.topics if row.name is not None and (internal or not row.is_internal)]
        rows.sort(key=lambda row: row.name or "")
        return {row.name: TopicListing(row.name, row.topic_id, row.is_internal) for row in rows if row.name is not None}

    async def describe_topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """Partitions, leaders and replicas. Also tells eligible leaders (KIP-966) when the broker does."""
        self._check_running()
        connection = await self._persist(self._cluster.any_connection)
        if connection.speaks(DescribeTopicPartitionsRequest):
            return await self._describe_by_pages(names)
        return await self._describe_by_metadata(names)

    async def describe_topic(self, name: str) -> TopicDescription:
        return (await self.describe_topics([name]))[name]

    async def _describe_by_pages(self, names: Collection[str]) -> dict[str, TopicDescription]:
        topics = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in sorted(set(names))]
        cursor: Any = None
        done: dict[str, TopicDescription] = {}
        failed: dict[str, ApiError] = {}
        while True:
            reply = await self._ask_any(
                DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=PARTITIONS_PER_PAGE, cursor=cursor)
            )
            for row in reply.topics:
                if row.error_code:
                    failed[row.name] = ApiError(
                        ErrorCode(row.error_code), f"topic {row.name}: {ErrorCode(row.error_code).meaning}"
                    )
                    continue
                before = done[row.name].partitions if row.name in done else ()
                partitions = (*before, *(_described(row.name, part) for part in row.partitions))
                done[row.name] = TopicDescription(row.name, row.topic_id, row.is_internal, partitions)
            if reply.next_cursor is None:
                return settle(done, failed)
            cursor = DescribeTopicPartitionsRequest.Cursor(
                topic_name=reply.next_cursor.topic_name, partition_index=reply.next_cursor.partition_index
            )

    async def _describe_by_metadata(self, names: Collection[str]) -> dict[str, TopicDescription]:
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(set(names))]
        reply = await self._ask_any(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
        done: dict[str, TopicDescription] = {}
        failed: dict[str, ApiError] = {}
        for info in map(topic_info, reply.topics):
            if info.error:
                failed[info.name] = ApiError(info.error, f"topic {info.name}: {info.error.meaning}")
            else:
                done[info.name] = TopicDescription(info.name, info.id, info.is_internal, _from_metadata(info))
        return settle(done, failed)

    async def create_partitions(
        self, topic: str, total: int, *, assignments: Sequence[Sequence[int]] | None = None, validate_only: bool = False
    ) -> None:
        """Widen a topic to `total` partitions. Keys hash differently afterwards: old records stay where they are."""
        rows = None
        if assignments is not None:
            kind = CreatePartitionsRequest.CreatePartitionsTopic.CreatePartitionsAssignment
            rows = [kind(broker_ids=list(ids)) for ids in assignments]
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=total, assignments=rows)],
            timeout_ms=int(self._cluster.settings["request_timeout_ms"]),
            validate_only=validate_only,
        )
        reply = await self._ask_controller(request, lambda reply: (row.error_code for row in reply.results))
        for row in reply.results:
            raise_code(row.error_code, row.error_message)

    # Offsets -----------------------------------------------------------------------------------------------------------

    async def list_offsets(
        self, questions: Mapping[tuple[str, int], int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[TopicPartition, ListedOffset]:
        """For each partition, the first offset at or after a timestamp, or EARLIEST, LATEST, MAX_TIMESTAMP.

        As with all questions to the leaders of partitions, a topic that no broker knows for three seconds is an error.
        """

        async def ask(leader: int, share: list[tuple[str, int]]) -> dict[Any, Any]:
            reply = await self._cluster.ask(leader, _list_offsets_request(share, questions, isolation_level, self._timeout()))
            answers: dict[Any, Any] = {}
            for topic in reply.topics:
                for part in topic.partitions:
                    key = TopicPartition(topic.name, part.partition_index)
                    answers[key] = error_of(part.error_code) or ListedOffset(part.offset, part.timestamp, part.leader_epoch)
            return answers

        return await self._ask_leaders((TopicPartition(*key) for key in questions), ask)

    async def earliest_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        found = await self.list_offsets(dict.fromkeys(partitions, EARLIEST))
        return {key: listed.offset for key, listed in found.items()}

    async def latest_offsets(
        self, partitions: Iterable[tuple[str, int]], *, isolation_level: str = "read_uncommitted"
    ) -> dict[TopicPartition, int]:
        found = await self.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level=isolation_level)
        return {key: listed.offset for key, listed in found.items()}

    async def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """Delete records below an offset (-1: all that are committed); returns the new start of each log."""

        async def ask(leader: int, share: list[tuple[str, int]]) -> dict[Any, Any]:
            kind = DeleteRecordsRequest.DeleteRecordsTopic
            topics = [
                kind(
                    name=topic,
                    partitions=[
                        kind.DeleteRecordsPartition(partition_index=number, offset=before[topic, number]) for number in numbers
                    ],
                )
                for topic, numbers in by_topic(share).items()
            ]
            reply = await self._cluster.ask(leader, DeleteRecordsRequest(topics=topics, timeout_ms=self._timeout()))
            return {
                TopicPartition(topic.name, part.partition_index): error_of(part.error_code) or part.low_watermark
                for topic in reply.topics
                for part in topic.partitions
            }

        return await self._ask_leaders((TopicPartition(*key) for key in before), ask)

    # Places ------------------------------------------------------------------------------------------------------------

    async def alter_partition_reassignments(self, places: Mapping[tuple[str, int], Sequence[int] | None]) -> None:
        """Move partitions to these brokers; None cancels a move under way."""
        kind = AlterPartitionReassignmentsRequest.ReassignableTopic
        topics = []
        for topic, numbers in by_topic(places).items():
            rows = []
            for number in numbers:
                target = places[topic, number]
                rows.append(kind.ReassignablePartition(partition_index=number, replicas=None if target is None else list(target)))
            topics.append(kind(name=topic, partitions=rows))
        request = AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=self._timeout())
        reply = await self._ask_controller(request, lambda reply: (reply.error_code,))
        raise_code(reply.error_code, reply.error_message)
        failed: dict[TopicPartition, ApiError] = {}
        done: dict[TopicPartition, None] = {}
        for topic in reply.responses:
            for part in topic.partitions:
                key = TopicPartition(topic.name, part.partition_index)
                if error := error_of(part.error_code, part.error_message):
                    failed[key] = error
                else:
                    done[key] = None
        settle(done, failed)

    async def list_partition_reassignments(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        kind = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
        topics = None
        if partitions is not None:
            topics = [kind(name=topic, partition_indexes=numbers) for topic, numbers in by_topic(partitions).items()]
        request = ListPartitionReassignmentsRequest(topics=topics, timeout_ms=self._timeout())
        reply = await self._ask_controller(request, lambda reply: (reply.error_code,))
        raise_code(reply.error_code, reply.error_message)
        return {
            TopicPartition(topic.name, part.partition_index): Reassignment(
                tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
            )
            for topic in reply.topics
            for part in topic.partitions
        }

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, election: ElectionType = ElectionType.PREFERRED
    ) -> dict[TopicPartition, ApiError | None]:
        """What became of each partition; ELECTION_NOT_NEEDED means that the right broker led already."""
        kind = ElectLeadersRequest.TopicPartitions
        rows = None
        if partitions is not None:
            rows = [kind(topic=topic, partitions=numbers) for topic, numbers in by_topic(partitions).items()]
        request = ElectLeadersRequest(election_type=election, topic_partitions=rows, timeout_ms=self._timeout())
        reply = await self._ask_controller(request, lambda reply: (reply.error_code,))
        raise_code(reply.error_code)
        return {
            TopicPartition(topic.topic, part.partition_id): error_of(part.error_code, part.error_message)
            for topic in reply.replica_election_results
            for part in topic.partition_result
        }

    def _timeout(self) -> int:
        return int(self._cluster.settings["request_timeout_ms"])


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    kind = CreateTopicsRequest.CreatableTopic
    assigned = [
        kind.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
        for index, brokers in topic.assignments.items()
    ]
    return kind(
        name=topic.name,
        num_partitions=-1 if assigned else topic.partitions,
        replication_factor=-1 if assigned else topic.replication_factor,
        assignments=assigned,
        configs=[kind.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _described(topic: str, part: Any) -> PartitionDescription:
    return PartitionDescription(
        topic,
        part.partition_index,
        part.leader_id,
        part.leader_epoch,
        tuple(part.replica_nodes),
        tuple(part.isr_nodes),
        tuple(part.offline_replicas),
        tuple(part.eligible_leader_replicas or ()),
        tuple(part.last_known_elr or ()),
    )


def _from_metadata(info: TopicInfo) -> tuple[PartitionDescription, ...]:
    return tuple(
        PartitionDescription(
            part.topic,
            part.partition,
            part.leader,
            part.leader_epoch,
            part.replicas,
            part.in_sync_replicas,
            part.offline_replicas,
        )
        for part in info.partitions
    )


def _list_offsets_request(
    share: list[tuple[str, int]], questions: Mapping[tuple[str, int], int], isolation_level: str, timeout_ms: int
) -> ListOffsetsRequest:
    kind = ListOffsetsRequest.ListOffsetsTopic
    topics = [
        kind(
            name=topic,
            partitions=[
                kind.ListOffsetsPartition(partition_index=number, timestamp=questions[topic, number]) for number in numbers
            ],
        )
        for topic, numbers in by_topic(share).items()
    ]
    return ListOffsetsRequest(
        replica_id=REPLICA_ID_CONSUMER, isolation_level=isolation_level == "read_committed", topics=topics, timeout_ms=timeout_ms
    )
