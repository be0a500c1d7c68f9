"""Offsets of a consumer: looked up, committed, reset."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ottla.client.admin.base import by_topic
from ottla.client.admin.groups import LAST_VERSION_WITH_NAMES, NO_ID, GroupsAdmin
from ottla.client.admin.topics import TopicsAdmin
from ottla.client.admin.types import EARLIEST, LATEST, CommittedOffset
from ottla.client.cluster import GROUP, Cluster
from ottla.client.coordination import Member
from ottla.client.errors import IllegalState, NoOffsetForPartition
from ottla.client.metadata import code_of
from ottla.client.positions import COMMITTED, POLICY, Position
from ottla.client.settings import ConsumerSettings
from ottla.client.settings_rules import duration_ms
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.group_offsets import OffsetCommitRequest

log = logging.getLogger("ottla.consumer")

_FORGOTTEN = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


class StaleEpoch(ApiError):
    """The member has a newer epoch by now (KIP-848); the next attempt carries it."""

    @property
    def retriable(self) -> bool:
        return True


class Offsets(TopicsAdmin, GroupsAdmin):
    """The questions about offsets that an Admin can ask, asked over the consumer's own connections, and commits."""

    _topic_patience_ms = float("inf")  # a consumer may be there before its topic; it waits for `default_api_timeout_ms`

    def __init__(self, cluster: Cluster, settings: ConsumerSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._started = True

    @property
    def group_id(self) -> str:
        group = self._settings["group_id"]
        if group is None:
            raise IllegalState("this Consumer has no group_id, so there is nothing to commit to or to look up")
        return group

    async def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, CommittedOffset]:
        stable = self._settings["isolation_level"] == "read_committed"
        return await self.group_offsets(self.group_id, list(partitions), require_stable=stable)

    # Positions ---------------------------------------------------------------------------------------------------------

    async def find_positions(self, positions: list[Position]) -> None:
        """Give every position its offset: the committed one, or what the policy or a seek says."""
        from_group = [position for position in positions if position.reset == COMMITTED]
        if from_group and self._settings["group_id"] is not None:
            found = await self.committed(position.key for position in from_group)
            for position in from_group:
                committed = found.get(position.key)
                if committed is not None and position.reset == COMMITTED:
                    position.seek(committed.offset, committed.leader_epoch)
        questions: dict[tuple[str, int], int] = {
            position.key: self._timestamp(position) for position in positions if position.reset is not None
        }
        if not questions:
            return
        answers = await self.list_offsets(questions, isolation_level=self._settings["isolation_level"])
        late = [key for key, answer in answers.items() if answer.offset < 0]  # nothing is as young as the asked time
        if late:
            answers |= await self.list_offsets(dict.fromkeys(late, LATEST), isolation_level=self._settings["isolation_level"])
        for position in positions:
            if position.reset is not None and position.key in answers:
                log.info("reset partition=%s offset=%s", position.key, answers[position.key].offset)
                position.seek(answers[position.key].offset, answers[position.key].leader_epoch)

    def _timestamp(self, position: Position) -> int:
        assert position.reset is not None
        if position.reset not in (COMMITTED, POLICY):
            return position.reset
        policy = self._settings["auto_offset_reset"]
        if policy == "none":
            raise NoOffsetForPartition(f"{position.key} has no committed offset, and auto_offset_reset is none; seek, or set it")
        if policy == "earliest":
            return EARLIEST
        if policy == "latest":
            return LATEST
        return max(0, self._cluster.world.clock.wall_ms() - duration_ms(policy.removeprefix("by_duration:")))

    # Commits -----------------------------------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset], member: Member | None, timeout_ms: float | None = None
    ) -> None:
        if not offsets:
            return

        async def attempt() -> None:
            await self.commit_once(offsets, member)

        await self._cluster.persist(attempt, timeout_ms=timeout_ms)

    async def commit_once(self, offsets: Mapping[TopicPartition, CommittedOffset], member: Member | None) -> None:
        """One attempt. Commits in the background are never retried: a late one would undo a newer."""
        try:
            await self._commit_once(offsets, member)
        except ApiError as error:
            if error.retriable:
                await self._cluster.learn(error, {key.topic for key in offsets})
            raise

    async def _commit_once(self, offsets: Mapping[TopicPartition, CommittedOffset], member: Member | None) -> None:
        connection = await self._cluster.connection(await self._cluster.coordinator(GROUP, self.group_id))
        ids = self._cluster.topic_ids({key.topic for key in offsets})
        version = connection.version_of(OffsetCommitRequest, None if ids else LAST_VERSION_WITH_NAMES)
        reply = await connection.request(self._request(offsets, ids or {}, member), version=version)
        for topic in reply.topics:
            for part in topic.partitions:
                if part.error_code:
                    name = topic.name or self._cluster.view.names.get(topic.topic_id, "")
                    self._refused(code_of(part.error_code), TopicPartition(name, part.partition_index), member)

    def _refused(self, code: ErrorCode, partition: TopicPartition, member: Member | None) -> None:
        if member is not None and (code in _FORGOTTEN or code is ErrorCode.STALE_MEMBER_EPOCH):
            member.forgotten()
        if code is ErrorCode.STALE_MEMBER_EPOCH:
            raise StaleEpoch(code)
        raise ApiError(code, f"commit of {partition}: {code.meaning}")

    def _request(
        self, offsets: Mapping[TopicPartition, CommittedOffset], ids: Mapping[str, bytes], member: Member | None
    ) -> OffsetCommitRequest:
        kind = OffsetCommitRequest.OffsetCommitRequestTopic
        topics: list[Any] = []
        for topic, numbers in by_topic(offsets).items():
            rows = [
                kind.OffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    committed_metadata=offset.metadata,
                )
                for number in numbers
                for offset in (offsets[TopicPartition(topic, number)],)
            ]
            topics.append(kind(name=topic, topic_id=ids.get(topic, NO_ID), partitions=rows))
        generation, member_id = (-1, "") if member is None else member.known_as
        return OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=self._settings["group_instance_id"] if member is not None else None,
            topics=topics,
        )
