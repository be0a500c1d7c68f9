"""Groups and the offsets they committed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ottla.client.admin.base import AdminBase, by_topic, error_of, raise_code, settle
from ottla.client.admin.types import CommittedOffset, GroupDescription, GroupListing, MemberDescription
from ottla.client.cluster import GROUP
from ottla.client.errors import VersionUnsupported
from ottla.client.metadata import Broker, code_of
from ottla.client.subscriptions import decode_assignment, decode_subscription
from ottla.model.errors import ApiError, ErrorCode, ProtocolError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.classic_groups import LeaveGroupRequest
from ottla.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from ottla.protocol.messages.group_offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from ottla.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest

LAST_VERSION_WITH_NAMES = 9  # of OffsetFetch and OffsetCommit; 10 takes topic ids instead
NO_ID = bytes(16)


class GroupsAdmin(AdminBase):
    async def list_groups(self, *, states: Collection[str] = (), types: Collection[str] = ()) -> tuple[GroupListing, ...]:
        """All groups: every broker is asked for those that it coordinates."""
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        await self._persist(lambda: self._cluster.refresh(()))

        async def ask(broker: int) -> list[GroupListing]:
            async def attempt() -> Any:
                reply = await self._cluster.ask(broker, request)
                raise_code(reply.error_code)
                return reply

            reply = await self._persist(attempt)
            return [GroupListing(row.group_id, row.group_state, row.group_type, row.protocol_type) for row in reply.groups]

        found = await asyncio.gather(*(ask(broker) for broker in self._cluster.view.brokers))
        return tuple(sorted((listing for listings in found for listing in listings), key=lambda listing: listing.id))

    async def describe_groups(self, ids: Iterable[str]) -> dict[str, GroupDescription]:
        done: dict[str, GroupDescription] = {}
        failed: dict[str, ApiError] = {}

        async def ask(group: str) -> None:
            try:
                done[group] = await self._describe(group)
            except ApiError as error:
                failed[group] = error

        await asyncio.gather(*map(ask, dict.fromkeys(ids)))
        return settle(done, failed)

    async def describe_group(self, group: str) -> GroupDescription:
        return (await self.describe_groups([group]))[group]

    async def _describe(self, group: str) -> GroupDescription:
        """A group of KIP-848 first; what the coordinator does not know as one is a classic group, or none."""
        try:
            request = ConsumerGroupDescribeRequest(group_ids=[group])
            reply = await self._ask_coordinator(GROUP, group, request, lambda reply: (row.error_code for row in reply.groups))
            row = reply.groups[0]
            if row.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
                raise_code(row.error_code, row.error_message)
                return _modern(row, await self._coordinator_of(group))
        except VersionUnsupported:
            pass
        reply = await self._ask_coordinator(
            GROUP, group, DescribeGroupsRequest(groups=[group]), lambda reply: (row.error_code for row in reply.groups)
        )
        row = reply.groups[0]
        raise_code(row.error_code, row.error_message)
        if row.group_state == "Dead" and not row.members:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group}")
        return _classic(row, await self._coordinator_of(group))

    async def _coordinator_of(self, group: str) -> Broker:
        return self._cluster.view.brokers[await self._cluster.coordinator(GROUP, group)]

    async def delete_groups(self, ids: Iterable[str]) -> None:
        done: dict[str, None] = {}
        failed: dict[str, ApiError] = {}
        for group in dict.fromkeys(ids):
            request = DeleteGroupsRequest(groups_names=[group])
            reply = await self._ask_coordinator(GROUP, group, request, lambda reply: (row.error_code for row in reply.results))
            for row in reply.results:
                if error := error_of(row.error_code):
                    failed[row.group_id] = error
                else:
                    done[row.group_id] = None
        settle(done, failed)

    async def remove_members(self, group: str, *, member_ids: Collection[str] = (), instance_ids: Collection[str] = ()) -> None:
        """Make members leave; their partitions go to the others at once."""
        kind = LeaveGroupRequest.MemberIdentity
        members = [kind(member_id=member, reason="removed by an administrator") for member in member_ids]
        members += [kind(group_instance_id=name, reason="removed by an administrator") for name in instance_ids]
        request = LeaveGroupRequest(group_id=group, members=members)
        reply = await self._ask_coordinator(GROUP, group, request, lambda reply: (reply.error_code,))
        raise_code(reply.error_code)
        failed = {row.group_instance_id or row.member_id: error for row in reply.members if (error := error_of(row.error_code))}
        settle({row.member_id: None for row in reply.members if not row.error_code}, failed)

    # Offsets -----------------------------------------------------------------------------------------------------------

    async def group_offsets(
        self, group: str, partitions: Collection[tuple[str, int]] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """What a group has committed; partitions without a committed offset are left out."""
        await self._persist(lambda: self._cluster.coordinator(GROUP, group))

        async def attempt() -> Any:
            connection = await self._cluster.connection(await self._cluster.coordinator(GROUP, group))
            # Who names no partitions is told of all topics, and could not tell the names of those that are gone by their ids.
            ids = None if partitions is None else self._cluster.topic_ids({topic for topic, _ in partitions})
            version = connection.version_of(OffsetFetchRequest, None if ids else LAST_VERSION_WITH_NAMES)
            reply = await connection.request(_offset_fetch(group, partitions, ids or {}, require_stable), version=version)
            answer = reply.groups[0] if reply.groups else reply
            raise_code(answer.error_code)
            for topic in answer.topics:
                for part in topic.partitions:
                    if code_of(part.error_code) is ErrorCode.UNKNOWN_TOPIC_ID:  # made anew under the same name
                        await self._cluster.refresh({topic for topic, _ in partitions or ()})
                    if code_of(part.error_code).retriable:  # a transaction that is about to end holds the offset back
                        raise_code(part.error_code)
            return answer

        answer = await self._persist(attempt)
        done: dict[TopicPartition, CommittedOffset] = {}
        failed: dict[TopicPartition, ApiError] = {}
        for topic in answer.topics:
            for part in topic.partitions:
                name = topic.name or self._cluster.view.names.get(topic.topic_id, "")
                key = TopicPartition(name, part.partition_index)
                if error := error_of(part.error_code):
                    failed[key] = error
                elif part.committed_offset >= 0:
                    done[key] = CommittedOffset(part.committed_offset, part.committed_leader_epoch, part.metadata or "")
        return settle(done, failed)

    async def alter_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int | CommittedOffset]) -> None:
        """Commit offsets for a group that has no members."""
        wanted = {
            TopicPartition(*key): value if isinstance(value, CommittedOffset) else CommittedOffset(value)
            for key, value in offsets.items()
        }

        async def attempt() -> Any:
            connection = await self._cluster.connection(await self._cluster.coordinator(GROUP, group))
            version = connection.version_of(OffsetCommitRequest, LAST_VERSION_WITH_NAMES)
            reply = await connection.request(_offset_commit(group, wanted), version=version)
            for topic in reply.topics:
                for part in topic.partitions:
                    if part.error_code in (14, 15, 16, 27):
                        raise_code(part.error_code)
            return reply

        await self._settle_partitions(await self._persist(attempt))

    async def delete_group_offsets(self, group: str, partitions: Iterable[tuple[str, int]]) -> None:
        kind = OffsetDeleteRequest.OffsetDeleteRequestTopic
        topics = [
            kind(name=topic, partitions=[kind.OffsetDeleteRequestPartition(partition_index=number) for number in numbers])
            for topic, numbers in by_topic(partitions).items()
        ]
        request = OffsetDeleteRequest(group_id=group, topics=topics)
        reply = await self._ask_coordinator(GROUP, group, request, lambda reply: (reply.error_code,))
        raise_code(reply.error_code)
        await self._settle_partitions(reply)

    @staticmethod
    async def _settle_partitions(reply: Any) -> None:
        done: dict[TopicPartition, None] = {}
        failed: dict[TopicPartition, ApiError] = {}
        for topic in reply.topics:
            for part in topic.partitions:
                key = TopicPartition(topic.name, part.partition_index)
                if error := error_of(part.error_code):
                    failed[key] = error
                else:
                    done[key] = None
        settle(done, failed)


def _offset_fetch(
    group: str, partitions: Collection[tuple[str, int]] | None, ids: Mapping[str, bytes], require_stable: bool
) -> OffsetFetchRequest:
    grouped = None if partitions is None else by_topic(partitions)
    kind = OffsetFetchRequest.OffsetFetchRequestGroup
    old = OffsetFetchRequest.OffsetFetchRequestTopic
    return OffsetFetchRequest(
        group_id=group,
        topics=None if grouped is None else [old(name=name, partition_indexes=numbers) for name, numbers in grouped.items()],
        groups=[
            kind(
                group_id=group,
                topics=None
                if grouped is None
                else [
                    kind.OffsetFetchRequestTopics(name=name, topic_id=ids.get(name, NO_ID), partition_indexes=numbers)
                    for name, numbers in grouped.items()
                ],
            )
        ],
        require_stable=require_stable,
    )


def _offset_commit(group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> OffsetCommitRequest:
    kind = OffsetCommitRequest.OffsetCommitRequestTopic
    topics = []
    for topic, numbers in by_topic(offsets).items():
        rows = []
        for number in numbers:
            offset = offsets[TopicPartition(topic, number)]
            rows.append(
                kind.OffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    committed_metadata=offset.metadata,
                )
            )
        topics.append(kind(name=topic, partitions=rows))
    return OffsetCommitRequest(group_id=group, topics=topics)


def _classic(row: Any, coordinator: Any) -> GroupDescription:
    members = []
    for member in row.members:
        assignment: tuple[TopicPartition, ...] = ()
        topics: tuple[str, ...] = ()
        if row.protocol_type == "consumer":  # other kinds (Connect) put bytes of their own there
            try:
                assignment = (
                    tuple(sorted(decode_assignment(member.member_assignment).partitions)) if member.member_assignment else ()
                )
                topics = tuple(decode_subscription(member.member_metadata).topics) if member.member_metadata else ()
            except ProtocolError:
                pass
        members.append(
            MemberDescription(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                assignment,
                subscribed_topics=topics,
            )
        )
    return GroupDescription(
        row.group_id, row.group_state, "classic", row.protocol_type, row.protocol_data, tuple(members), coordinator
    )


def _modern(row: Any, coordinator: Any) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            _assigned(member.assignment),
            member.rack_id,
            member.member_epoch,
            _assigned(member.target_assignment),
            tuple(member.subscribed_topic_names),
            member.subscribed_topic_regex,
            member.member_type == 0,
        )
        for member in row.members
    )
    return GroupDescription(
        row.group_id,
        row.group_state,
        "consumer",
        "consumer",
        row.assignor_name,
        members,
        coordinator,
        row.group_epoch,
        row.assignment_epoch,
    )


def _assigned(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(TopicPartition(topic.topic_name, number) for topic in assignment.topic_partitions for number in topic.partitions)
    )
