"""A member of a group whose coordinator assigns (KIP-848), as a machine of the same shape as `membership.ClassicMember`.

    OUT ──poll──▶ JOINING ──answered──▶ STABLE ◀──────────────── heartbeats, every interval the coordinator names
                                          │  ▲
             a new assignment ──▶ (NeedTopics for unknown ids) ──▶ Revoke ──▶ Assign ──▶ heartbeat at once: this is what I own
     fenced, unknown ──▶ OUT: everything owned is lost, join again with epoch 0

A heartbeat names only what changed since the last that was answered; the first, and one after a failure, names everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ottla.client.assignors import NO_RACKS
from ottla.client.membership import (
    COORDINATOR_RETRY,
    Assign,
    Duty,
    Idle,
    Lose,
    MemberSettings,
    NeedTopics,
    Partitions,
    Phase,
    Revoke,
    Send,
    Step,
)
from ottla.client.sticky import Racks
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
_FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})


class ConsumerMember:
    def __init__(self, settings: MemberSettings, member_id: str) -> None:
        self._settings = settings
        self.member_id = member_id
        self.phase = Phase.OUT
        self.generation = JOIN_EPOCH  # the member epoch
        self.owned: Partitions = frozenset()
        self.pending: Duty | None = None
        self.error: ApiError | None = None
        self.is_leader = False
        self.group_topics: frozenset[str] = frozenset()
        self._wanted = False
        self._topics: tuple[str, ...] = ()
        self._regex: str | None = None
        self._sent: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        self._target: dict[bytes, tuple[int, ...]] | None = None  # an assignment that is not taken up yet
        self._taking: dict[bytes, tuple[int, ...]] | None = None  # the assignment that the pending duty is about
        self._names: dict[bytes, str] = {}
        self._ids: dict[str, bytes] = {}
        self._interval_ms = float(settings.heartbeat_interval_ms)
        self._last_beat = -float("inf")
        self._not_before = 0.0
        self._waiting = False
        self._hurry = False

    # From the application ----------------------------------------------------------------------------------------------

    @property
    def known_as(self) -> tuple[int, str]:
        """As whom it commits: its name it never loses."""
        return self.generation, self.member_id

    def subscribe(self, topics: Collection[str], regex: str | None = None) -> None:
        self._topics, self._regex = tuple(sorted(topics)), regex
        self._hurry = True

    def want(self) -> None:
        self._wanted = True

    def rejoin(self, reason: str) -> None:
        """The coordinator rebalances by itself; there is nothing a member could ask for."""

    def partitions_changed(self, counts: Mapping[str, int]) -> None:
        """The coordinator sees that by itself."""

    def done(self, duty: Duty) -> None:
        """The application has done this; the machine may have moved on meanwhile."""
        current = self.pending is duty
        if isinstance(duty, Assign):
            if current:
                self.owned = duty.owned
        else:
            self.owned -= duty.partitions
        self._hurry = True
        if not current:
            self.pending = Lose(self.owned) if isinstance(self.pending, Lose) and self.owned else None
            return
        self.pending = None
        if isinstance(duty, Revoke) and self._target is not None:
            self._take_up()
        elif isinstance(duty, Assign) and self._target is self._taking:
            self._target = None

    def leave(self, reason: str) -> ConsumerGroupHeartbeatRequest | None:
        request = None
        if self.phase is not Phase.OUT and self.generation != JOIN_EPOCH:
            static = self._settings.instance_id is not None
            request = ConsumerGroupHeartbeatRequest(
                group_id=self._settings.group_id,
                member_id=self.member_id,
                instance_id=self._settings.instance_id,
                member_epoch=LEAVE_STATIC_EPOCH if static else LEAVE_EPOCH,
            )
        self._wanted = False
        self._reset()
        return request

    def forgotten(self) -> None:
        """A commit was told that the epoch is stale: the next heartbeat brings the right one."""
        self._hurry = True

    # Steps -------------------------------------------------------------------------------------------------------------

    def next(self, now_ms: float) -> Step:
        if self._waiting or self.phase is Phase.FAILED:
            return Idle(None)
        if self.phase is Phase.OUT:
            if not self._wanted or self.pending is not None:
                return Idle(None)
            self.phase = Phase.JOINING
        if self._target is not None and self.pending is None:
            unknown = frozenset(topic for topic in self._target if topic not in self._names)
            if unknown:
                return NeedTopics(ids=unknown)
            self._take_up()
        if self._not_before > now_ms:
            return Idle(self._not_before)
        due = self._last_beat + self._interval_ms
        if self.phase is not Phase.JOINING and not self._hurry and now_ms < due:
            return Idle(due)
        return self._beat(now_ms)

    def _beat(self, now_ms: float) -> Send:
        self._waiting, self._hurry, self._last_beat = True, False, now_ms
        everything = self._everything()
        self._asked = everything
        joining = self.generation == JOIN_EPOCH
        fields = everything if joining else {key: value for key, value in everything.items() if self._sent.get(key) != value}
        return Send(
            ConsumerGroupHeartbeatRequest(
                group_id=self._settings.group_id,
                member_id=self.member_id,
                member_epoch=self.generation,
                instance_id=self._settings.instance_id,
                rack_id=self._settings.rack if joining else None,
                **fields,
            )
        )

    def _everything(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "rebalance_timeout_ms": self._settings.rebalance_timeout_ms,
            "subscribed_topic_names": list(self._topics),
            "server_assignor": self._settings.server_assignor,
            "topic_partitions": self._owned_by_id(),
        }
        if self._regex is not None or self._sent.get("subscribed_topic_regex"):
            fields["subscribed_topic_regex"] = self._regex or ""
        return fields

    def _owned_by_id(self) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        grouped: dict[bytes, list[int]] = {}
        for topic, number in sorted(self.owned):
            grouped.setdefault(self._ids[topic], []).append(number)
        kind = ConsumerGroupHeartbeatRequest.TopicPartitions
        return [kind(topic_id=topic_id, partitions=numbers) for topic_id, numbers in grouped.items()]

    def with_topics(self, counts: Mapping[str, int], names: Mapping[bytes, str] | None = None, racks: Racks = NO_RACKS) -> None:
        """What topics are called. An id that no broker knows any more stands for a deleted topic and is left out."""
        self._names |= names or {}
        self._ids |= {name: topic for topic, name in (names or {}).items()}
        if self._target is not None:
            self._target = {topic: numbers for topic, numbers in self._target.items() if topic in self._names}

    def _take_up(self) -> None:
        """Give up what is not ours any more, then take what is new."""
        assert self._target is not None
        if any(topic not in self._names for topic in self._target):
            return  # a newer assignment came meanwhile; its names are asked for first
        self._taking = self._target
        target = frozenset(
            TopicPartition(self._names[topic], number) for topic, numbers in self._target.items() for number in numbers
        )
        revoked = self.owned - target
        if revoked:
            self.pending = Revoke(revoked)
        else:
            self.pending = Assign(target - self.owned, target)

    # Answers -----------------------------------------------------------------------------------------------------------

    def answered(self, reply: ConsumerGroupHeartbeatResponse, now_ms: float) -> None:
        self._waiting = False
        if self.phase in (Phase.OUT, Phase.FAILED):
            return
        code = ErrorCode(reply.error_code)
        if code in COORDINATOR_RETRY:
            self.failed(now_ms)
        elif code in _FENCED:
            self._reset()
        elif code:
            self.phase, self.error = Phase.FAILED, ApiError(code, reply.error_message)
        else:
            self._accepted(reply)

    def _accepted(self, reply: ConsumerGroupHeartbeatResponse) -> None:
        self._sent = self._asked
        self.member_id = reply.member_id or self.member_id
        self.generation = reply.member_epoch
        self._interval_ms = reply.heartbeat_interval_ms or self._interval_ms
        self.phase = Phase.STABLE
        if reply.assignment is not None:
            self._target = {row.topic_id: tuple(row.partitions) for row in reply.assignment.topic_partitions}

    def failed(self, now_ms: float) -> None:
        self._waiting = False
        self._sent = {}
        self._hurry = True
        self._not_before = now_ms + self._settings.retry_backoff_ms

    def _reset(self) -> None:
        self.phase = Phase.OUT
        self.generation = JOIN_EPOCH
        self._sent = {}
        self._target = None
        self._waiting = False
        self.pending = Lose(self.owned) if self.owned else None
