"""The range assignment: each topic's partitions in order, cut into as many ranges as there are members. Pure.

Where members tell their racks and it makes a difference (KIP-881), each first takes, within its share, what is close to it; topics
with the same members and as many partitions stay aligned, so that records with the same key meet in one member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.client.sticky import Racks, rack_matters
from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.assignors import Assigned, Member


class _Topic:
    """One topic while it is dealt out."""

    def __init__(self, name: str, count: int, takers: Sequence[Member], racks: Racks) -> None:
        self.name = name
        self.takers = {member.id: member.subscription.rack for member in takers}
        self.left = [TopicPartition(name, number) for number in range(count)]
        self._each, self._odd = divmod(count, len(takers))
        self._given = dict.fromkeys(self.takers, 0)
        homes = frozenset(rack for rack in self.takers.values() if rack)
        self._places = {partition: racks.get(partition, frozenset()) for partition in self.left} if homes else {}
        self.count = len(self._places)  # as Java counts: none when no member has a rack
        self.rack_matters = rack_matters(homes, self._places)

    def is_near(self, member: str, partition: TopicPartition) -> bool:
        home = self.takers[member]
        return not home or home in self._places.get(partition, frozenset())

    def share_left(self, member: str) -> int:
        return max(0, self._each + (self._odd > 0) - self._given[member])

    def give(self, member: str, partitions: list[TopicPartition], assigned: Assigned) -> None:
        assigned[member] += partitions
        self._given[member] += len(partitions)
        if self._given[member] > self._each:
            self._odd -= 1
        self.left = [partition for partition in self.left if partition not in partitions]

    def deal(self, assigned: Assigned, *, near: bool) -> None:
        for member in self.takers:
            fitting = [partition for partition in self.left if not near or self.is_near(member, partition)]
            taken = fitting[: self.share_left(member)]
            if taken:
                self.give(member, taken, assigned)


def assign_ranges(partitions: Mapping[str, int], members: Sequence[Member], racks: Racks) -> Assigned:
    assigned: Assigned = {member.id: [] for member in members}
    ranked = sorted(members, key=lambda member: member.rank)
    topics = []
    for name, count in partitions.items():
        takers = [member for member in ranked if name in member.subscription.topics]
        if takers and count:
            topics.append(_Topic(name, count, takers, racks))
    use_racks = any(topic.rack_matters for topic in topics)
    if use_racks:
        _deal_near(topics, assigned)
    for topic in topics:
        topic.deal(assigned, near=False)
    if use_racks:
        for mine in assigned.values():
            mine.sort()
    return assigned


def _deal_near(topics: list[_Topic], assigned: Assigned) -> None:
    alike: dict[tuple[tuple[tuple[str, str | None], ...], int], list[_Topic]] = {}
    for topic in topics:
        alike.setdefault((tuple(topic.takers.items()), topic.count), []).append(topic)
    for (takers, count), group in alike.items():
        if len(group) > 1:
            _deal_aligned([member for member, _ in takers], count, group, assigned)
        elif group[0].rack_matters:
            group[0].deal(assigned, near=True)


def _deal_aligned(takers: list[str], count: int, group: list[_Topic], assigned: Assigned) -> None:
    """Partition by partition, of all these topics at once, to the first member that is close to all of them and has room."""
    for number in range(count):
        for member in takers:
            if all(topic.is_near(member, TopicPartition(topic.name, number)) and topic.share_left(member) for topic in group):
                for topic in group:
                    topic.give(member, [TopicPartition(topic.name, number)], assigned)
                if not any(topic.share_left(member) for topic in group):
                    takers = [each for each in takers if each != member]
                break
