"""Drives a group member: performs its steps, keeps its heartbeats going, and watches that the application polls.

One task per consumer. What the application must do itself (give partitions up, take them) waits in `member.pending`; `notify`
wakes a poll that waits. The consumer reports back with `done`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

from ottla.client.cluster import GROUP, Cluster
from ottla.client.consumer_membership import ConsumerMember
from ottla.client.errors import NetworkError
from ottla.client.membership import ClassicMember, Duty, Idle, NeedTopics, Phase, Send
from ottla.client.settings import ConsumerSettings
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import INTERNAL_TOPICS, TopicPartition
from ottla.protocol.messages.metadata import MetadataRequest

log = logging.getLogger("ottla.consumer")

PURPOSE = "member"  # a join waits at the broker, and everything behind it on the same connection would wait too
MAX_IDLE_MS = 1_000.0
LEAVE_TIMEOUT_MS = 5_000.0
_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})

Member = ClassicMember | ConsumerMember


class Coordination:
    def __init__(self, cluster: Cluster, member: Member, settings: ConsumerSettings, notify: Callable[[], None]) -> None:
        self.member = member
        self._cluster = cluster
        self._settings = settings
        self._group = settings["group_id"] or ""
        self._notify = notify
        self._changed = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._last_poll_ms = cluster.now_ms()
        self._pattern: re.Pattern[str] | None = None
        self._names: frozenset[str] = frozenset()
        self._looked_ms = -float("inf")
        self._warned: set[str] = set()

    # From the consumer -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = self._cluster.spawn(self._run(), f"member of {self._group}")

    def subscribe(self, topics: frozenset[str], pattern: re.Pattern[str] | None = None, server_regex: str | None = None) -> None:
        self._names, self._pattern = topics, pattern
        if isinstance(self.member, ConsumerMember):
            self.member.subscribe(topics, server_regex)
        else:
            self.member.subscribe(topics)
        self._looked_ms = -float("inf")
        self.wake()

    def polled(self) -> None:
        """The application is alive."""
        self._last_poll_ms = self._cluster.now_ms()
        if self.member.phase is Phase.OUT:
            self.member.want()
            self.wake()

    def done(self, duty: Duty) -> None:
        self.member.done(duty)
        self.wake()

    def wake(self) -> None:
        self._changed.set()

    async def leave(self, reason: str) -> None:
        """Leave the group and stop; others get the partitions at once."""
        if self._task is not None:
            self._task.cancel()
        request = self.member.leave(reason)
        if request is not None:
            await self._tell(request)

    async def _tell(self, request: Any) -> None:
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_MS / 1000):
                node = await self._cluster.coordinator(GROUP, self._group)
                await (await self._cluster.connection(node)).request(request)
        except (NetworkError, ApiError, TimeoutError) as error:
            log.info("leave_failed group=%s error=%s", self._group, error)

    # The task ----------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            await self._look_at_topics()
            await self._check_poll_interval()
            step = self.member.next(self._cluster.now_ms())
            if isinstance(step, Send):
                await self._send(step)
            elif isinstance(step, NeedTopics):
                await self._tell_topics(step)
            if self.member.pending is not None or self.member.error is not None:
                self._notify()
            if isinstance(step, Idle):
                await self._idle(step)

    async def _idle(self, step: Idle) -> None:
        now = self._cluster.now_ms()
        until = now + MAX_IDLE_MS if step.until_ms is None else min(step.until_ms, now + MAX_IDLE_MS)
        try:
            async with asyncio.timeout(max(0.0, until - now) / 1000):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _send(self, step: Send) -> None:
        member = self.member
        try:
            node = await self._cluster.coordinator(GROUP, self._group)
            connection = await self._cluster.connection(node, PURPOSE)
            reply = await connection.request(step.request, timeout_ms=step.timeout_ms)
        except (NetworkError, ApiError) as error:
            if isinstance(error, ApiError) and not error.retriable:
                member.phase, member.error = Phase.FAILED, error
                return
            log.info("coordinator_unreachable group=%s error=%s", self._group, error)
            await self._cluster.learn(error)
            member.failed(self._cluster.now_ms())
            return
        if reply.error_code in _MOVED:
            self._cluster.forget_coordinator(GROUP, self._group)
        before = (member.phase, member.generation)
        member.answered(reply, self._cluster.now_ms())
        if (member.phase, member.generation) != before:
            log.info("member group=%s phase=%s generation=%s", self._group, member.phase.name, member.generation)

    async def _tell_topics(self, step: NeedTopics) -> None:
        try:
            if step.ids:
                await self._learn_ids(step.ids)
            if step.names:
                await self._cluster.refresh(step.names, allow_create=self._settings["allow_auto_create_topics"])
        except (NetworkError, ApiError) as error:
            log.info("metadata_failed error=%s", error)
            await asyncio.sleep(self._cluster.backoff_ms(0) / 1000)
            return
        names = self._cluster.view.names
        known = {topic: names[topic] for topic in step.ids if topic in names}
        if len(known) < len(step.ids):  # a topic made a moment ago, which this broker has not heard of
            await asyncio.sleep(self._cluster.backoff_ms(0) / 1000)
            if not known:
                return
        self.member.with_topics(self._counts(step.names), known, self._racks(step.names))

    async def _learn_ids(self, ids: frozenset[bytes]) -> None:
        if all(topic in self._cluster.view.names for topic in ids):
            return
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(topic_id=topic, name=None) for topic in ids],
            allow_auto_topic_creation=False,
        )
        reply = await self._cluster.ask_anyone(request)
        self._cluster.view.merge(reply)

    def _counts(self, names: frozenset[str]) -> dict[str, int]:
        topics = self._cluster.view.topics
        return {name: len(topics[name].partitions) for name in names if name in topics and topics[name].partitions}

    def _racks(self, names: frozenset[str]) -> dict[TopicPartition, frozenset[str]]:
        """Where the replicas stand; brokers that do not tell their rack are left out."""
        topics, brokers = self._cluster.view.topics, self._cluster.view.brokers
        return {
            TopicPartition(name, part.partition): frozenset(
                rack for replica in part.replicas if replica in brokers and (rack := brokers[replica].rack)
            )
            for name in names
            if name in topics
            for part in topics[name].partitions
        }

    async def _look_at_topics(self) -> None:
        """Now and then: new topics that match the pattern, new partitions of the group's topics."""
        member = self.member
        if member.is_leader and member.phase is Phase.STABLE:
            member.partitions_changed(self._counts(member.group_topics))
        now = self._cluster.now_ms()
        if now - self._looked_ms < self._settings["metadata_max_age_ms"]:
            return
        try:
            if self._pattern is not None:
                await self._cluster.refresh(None)
                member.subscribe(self._matching(self._pattern))
            elif member.group_topics or self._names:
                create = self._settings["allow_auto_create_topics"]
                await self._cluster.refresh(member.group_topics | self._names, allow_create=create)
        except (NetworkError, ApiError) as error:
            log.info("metadata_failed error=%s", error)
            await asyncio.sleep(self._cluster.backoff_ms(0) / 1000)
            return
        self._looked_ms = now
        self._warn_of_missing()

    def _warn_of_missing(self) -> None:
        """A misspelt name looks like a topic without records. It may also be made later, so it is no error."""
        topics = self._cluster.view.topics
        missing = {name for name in self._names if name in topics and topics[name].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        for name in sorted(missing - self._warned):
            log.warning("group=%s: topic %s does not exist; waiting for it", self._group, name)
        self._warned = missing

    def _matching(self, pattern: re.Pattern[str]) -> frozenset[str]:
        hide = self._settings["exclude_internal_topics"]
        names = (name for name, topic in self._cluster.view.topics.items() if not topic.error and topic.partitions)
        return frozenset(name for name in names if pattern.fullmatch(name) and not (hide and name in INTERNAL_TOPICS))

    async def _check_poll_interval(self) -> None:
        """A member that does not poll cannot give its partitions up when asked to, so it leaves."""
        limit = self._settings["max_poll_interval_ms"]
        if self.member.phase in (Phase.OUT, Phase.FAILED) or self._cluster.now_ms() - self._last_poll_ms < limit:
            return
        log.warning("left group=%s reason=no poll for max_poll_interval_ms (%s)", self._group, limit)
        request = self.member.leave("max_poll_interval_ms passed without a poll")
        if request is not None:
            await self._tell(request)
