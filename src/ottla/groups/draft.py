"""A decision while it is being made, and the names of what it may change and wait for.

Deciding must not change the shard, yet the classic protocol changes many things at once. So a decision works on a copy of the
one group it is about and hands the copy over as the group's next value (`GroupReplaced`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.groups.records import GroupRecord
from ottla.model.machine import Decision, Reply, Ticket, Timer

if TYPE_CHECKING:
    from ottla.groups.classic import ClassicGroup


class GroupReplaced(NamedTuple):
    """A classic group's next value; what of it must survive the coordinator is in the records of the same decision."""

    group: ClassicGroup


class TopicsSeen(NamedTuple):
    """A consumer group has been compared with the topics of this version: until they change, nobody need look again."""

    group_id: str
    version: int


Change = GroupReplaced | TopicsSeen
GroupDecision = Decision[GroupRecord, Change]


# Timer keys are dataclasses and not named tuples: two named tuples of different types can be equal, and would replace each other.


@dataclass(frozen=True, slots=True)
class MemberSession:
    """The member has been silent for its session time-out (or never came back with the id it was given)."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class JoinPhase:
    """The time to (re)join is over; also each step of the initial delay."""

    group_id: str


@dataclass(frozen=True, slots=True)
class SyncPhase:
    """The time to sync is over."""

    group_id: str


@dataclass(frozen=True, slots=True)
class MemberRevocation:
    """The member was to give up partitions, and its rebalance time-out is over."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ClassicJoin:
    """A member of the classic protocol in a consumer group was told to join again, and its rebalance time-out is over."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ClassicSync:
    """A member of the classic protocol in a consumer group has joined, and its time to sync is over."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class OffsetExpiry:
    """Time to look for offsets and groups nobody needs any more."""


TimerKey = MemberSession | JoinPhase | SyncPhase | MemberRevocation | ClassicJoin | ClassicSync | OffsetExpiry


class Draft:
    """Collects a decision. A timer set twice keeps the last setting; a timer both set and cancelled likewise."""

    __slots__ = ("changes", "records", "replies", "timers", "timers_if_absent")

    def __init__(self) -> None:
        self.records: list[GroupRecord] = []
        self.changes: list[Change] = []
        self.replies: list[Reply] = []
        self.timers: dict[TimerKey, int | None] = {}
        self.timers_if_absent: dict[TimerKey, int] = {}

    def reply(self, ticket: Ticket, message: Any) -> None:
        self.replies.append(Reply(ticket, message))

    def finish(self) -> GroupDecision:
        timers = [Timer(key, delay_ms) for key, delay_ms in self.timers.items()]
        timers += [Timer(key, delay_ms, True) for key, delay_ms in self.timers_if_absent.items()]
        return Decision(tuple(self.records), tuple(self.changes), tuple(self.replies), tuple(timers))
