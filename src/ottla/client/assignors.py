"""Who gets which partition, as the leader of a classic group decides it: range, round robin, sticky, cooperative sticky. Pure.

In: the number of partitions of each topic and what each member subscribed to and owned. Out: partitions by member. Results equal
those of Java's assignors, down to the order in which its hash maps are walked, where that decides who keeps an odd partition.
The sticky ones carry what they need to remember in the subscription's user data, in Java's form.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ottla.client.ranges import assign_ranges
from ottla.client.sticky import Racks, assign_sticky, transferring
from ottla.client.subscriptions import Subscription
from ottla.model.ids import TopicPartition

DEFAULT_GENERATION = -1
NO_RACKS: Racks = {}
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")


class Member:
    """One member as the leader sees it."""

    __slots__ = ("id", "instance_id", "subscription")

    def __init__(self, id: str, instance_id: str | None, subscription: Subscription) -> None:
        self.id = id
        self.instance_id = instance_id
        self.subscription = subscription

    @property
    def rank(self) -> tuple[bool, str]:
        """Static members come first, by their names; the others by their ids."""
        return (self.instance_id is None, self.id if self.instance_id is None else self.instance_id)


Assigned = dict[str, list[TopicPartition]]


class Assignor(Protocol):
    name: str
    is_cooperative: bool

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """What a member puts into its subscription, so that the next leader knows what it had."""

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member], racks: Racks = NO_RACKS) -> Assigned:
        """`racks`: where the replicas of each partition stand."""


class Range:
    """Each topic for itself: its partitions in order, cut into as many ranges as there are members."""

    name = "range"
    is_cooperative = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return None

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member], racks: Racks = NO_RACKS) -> Assigned:
        return assign_ranges(partitions, members, racks)


class RoundRobin:
    """All partitions of all topics in turn."""

    name = "roundrobin"
    is_cooperative = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return None

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member], racks: Racks = NO_RACKS) -> Assigned:
        assigned: Assigned = {member.id: [] for member in members}
        ranked = sorted(members, key=lambda member: member.rank)
        subscribed = {topic for member in members for topic in member.subscription.topics}
        turn = 0
        for topic in sorted(subscribed & partitions.keys()):
            for number in range(partitions[topic]):
                while topic not in ranked[turn].subscription.topics:
                    turn = (turn + 1) % len(ranked)
                assigned[ranked[turn].id].append(TopicPartition(topic, number))
                turn = (turn + 1) % len(ranked)
        return assigned


class Sticky:
    """Even, and with as few moves as possible. An eager protocol: members say in user data what they had."""

    name = "sticky"
    is_cooperative = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        if not owned and generation == DEFAULT_GENERATION:
            return None
        topics: dict[str, list[int]] = {}
        for topic, number in owned:
            topics.setdefault(topic, []).append(number)
        parts = [_INT32.pack(len(topics))]
        for topic, numbers in topics.items():
            name = topic.encode()
            parts += [_INT16.pack(len(name)), name, struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
        return b"".join(parts) + _INT32.pack(generation)

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member], racks: Racks = NO_RACKS) -> Assigned:
        return assign_sticky(partitions, java_order(members), self._memory, racks)[0]

    @staticmethod
    def _memory(member: Member) -> tuple[Sequence[TopicPartition], int]:
        return read_sticky_user_data(member.subscription.user_data)


class CooperativeSticky:
    """The same, but a partition that changes hands is first only taken away (KIP-429): nobody stops for the others' sake."""

    name = "cooperative-sticky"
    is_cooperative = True

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return _INT32.pack(generation)

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member], racks: Racks = NO_RACKS) -> Assigned:
        assigned, moved = assign_sticky(partitions, java_order(members), self._memory, racks)
        if moved is None:
            moved = transferring(members, assigned)
        for partition, member in moved.items():
            assigned[member].remove(partition)
        return assigned

    @staticmethod
    def _memory(member: Member) -> tuple[Sequence[TopicPartition], int]:
        subscription = member.subscription
        generation = subscription.generation
        if generation < 0 and subscription.user_data is not None and len(subscription.user_data) >= 4:
            generation = _INT32.unpack_from(subscription.user_data)[0]
        return subscription.owned, generation


def read_sticky_user_data(data: bytes | None) -> tuple[list[TopicPartition], int]:
    """What a member had, and in which generation; an older form has no generation. Bytes that cannot be read count for nothing."""
    if not data:
        return [], DEFAULT_GENERATION
    try:
        (topics,), position = _INT32.unpack_from(data), 4
        owned = []
        for _ in range(topics):
            (size,) = _INT16.unpack_from(data, position)
            name = str(data[position + 2 : position + 2 + size], "utf-8")
            position += 2 + size
            (count,) = _INT32.unpack_from(data, position)
            owned += [TopicPartition(name, number) for number in struct.unpack_from(f">{count}i", data, position + 4)]
            position += 4 + 4 * count
        generation = _INT32.unpack_from(data, position)[0] if len(data) - position >= 4 else DEFAULT_GENERATION
    except (struct.error, UnicodeDecodeError):
        return [], DEFAULT_GENERATION
    return owned, generation


def java_hash(text: str) -> int:
    """Java's String.hashCode, as an unsigned number."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(encoded), 2):
        value = (31 * value + (encoded[index] << 8 | encoded[index + 1])) & 0xFFFFFFFF
    return value


def java_order(members: Sequence[Member]) -> list[Member]:
    """The order in which a Java HashMap with these members' ids is walked."""
    capacity = 16
    while len(members) > capacity * 3 // 4:
        capacity *= 2

    def bucket(member: Member) -> int:
        value = java_hash(member.id)
        return (value ^ value >> 16) & (capacity - 1)

    return sorted(members, key=bucket)


BUILT_IN: dict[str, Callable[[], Assignor]] = {each.name: each for each in (Range, RoundRobin, Sticky, CooperativeSticky)}
