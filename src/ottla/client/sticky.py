"""The sticky assignment (KIP-54, KIP-341, KIP-429): as even as possible first, then as few moves as possible. Pure.

Replicas in a member's own rack are preferred where the members tell their racks and it makes a difference (KIP-881).

Two ways. When all members subscribe to the same topics, every member's share is known beforehand: it keeps up to its share of
what it had, and the rest is dealt out in turn. Otherwise partitions go to the least loaded member that may have them, and then
move, one at a time, from members with too many to members with too few, until nothing improves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.assignors import Assigned, Member

Memory = Callable[["Member"], tuple[Sequence[TopicPartition], int]]
DEFAULT_GENERATION = -1


Racks = Mapping[TopicPartition, frozenset[str]]


class RackMap:
    """Which partitions have a replica close to which members. Empty, and without effect, unless racks tell partitions apart."""

    def __init__(self, racks: Racks, members: Sequence[Member], partitions: Mapping[str, int]) -> None:
        homes = {member.id: member.subscription.rack for member in members if member.subscription.rack}
        places = {each: racks.get(each, frozenset()) for each in _all_partitions(partitions, partitions)} if homes else {}
        crowd: dict[str, int] = {}
        for rack in homes.values():
            crowd[rack] = crowd.get(rack, 0) + 1
        self._takers = {partition: sum(crowd.get(rack, 0) for rack in near) for partition, near in places.items()}
        self.matters = rack_matters(frozenset(homes.values()), places)
        self.home: dict[str, str] = homes if self.matters else {}
        self._places = places if self.matters else {}

    def mismatch(self, member: str, partition: TopicPartition) -> bool:
        home = self.home.get(member)
        return home is not None and home not in self._places.get(partition, frozenset())

    def is_near(self, member: str, partition: TopicPartition) -> bool:
        return self.home.get(member) in self._places.get(partition, frozenset())

    def hardest_first(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Partitions that few members are close to are dealt before the others."""
        return sorted(partitions, key=lambda partition: self._takers.get(partition, 0)) if self._takers else partitions

    def next_near(self, partition: TopicPartition, members: Sequence[str], start: int) -> int | None:
        """The place of the first member from `start` on, around the circle, that is close to a replica."""
        for step in range(len(members)):
            place = (start + step) % len(members)
            if self.is_near(members[place], partition):
                return place
        return None


def rack_matters(homes: frozenset[str], places: Racks) -> bool:
    """Not when no member is close to anything, nor when every partition is in every rack."""
    everywhere = frozenset(rack for near in places.values() for rack in near)
    return bool(homes & everywhere) and any(near != everywhere for near in places.values())


def assign_sticky(
    partitions: Mapping[str, int], members: Sequence[Member], memory: Memory, racks: Racks
) -> tuple[Assigned, dict[TopicPartition, str] | None]:
    """The assignment, and which partitions change hands (None where that was not kept track of)."""
    topics = [set(member.subscription.topics) for member in members]
    partitions = {topic: count for topic, count in partitions.items() if any(topic in each for each in topics)}
    owned, contested = _owned(partitions, members, memory)
    near = RackMap(racks, members, partitions)
    if all(each == topics[0] for each in topics):
        return _Equal(partitions, owned, contested, near).build()
    return _General(partitions, owned, members, memory, near).build(), None


def transferring(members: Sequence[Member], assigned: Assigned) -> dict[TopicPartition, str]:
    """Partitions that one member gets and another still holds."""
    added: dict[TopicPartition, str] = {}
    revoked: set[TopicPartition] = set()
    for member in members:
        before, after = set(member.subscription.owned), assigned[member.id]
        added |= {partition: member.id for partition in after if partition not in before}
        revoked |= before.difference(after)
    return {partition: member for partition, member in added.items() if partition in revoked}


def _owned(partitions: Mapping[str, int], members: Sequence[Member], memory: Memory) -> tuple[Assigned, set[TopicPartition]]:
    """What each member had. Of two that claim a partition the newer generation is right; of the same generation neither."""
    owned: Assigned = {}
    owners: dict[TopicPartition, str] = {}
    generations = {member.id: member.subscription.generation for member in members}
    contested: set[TopicPartition] = set()
    for member in members:
        had, generation = memory(member)
        mine = owned[member.id] = []
        for partition in had:
            if partition.topic not in partitions:
                continue
            other = owners.get(partition)
            if other is None:
                mine.append(partition)
                owners[partition] = member.id
            elif generation >= generations[other]:
                if generation == generations[other]:
                    contested.add(partition)
                else:
                    mine.append(partition)
                if partition in owned[other]:
                    owned[other].remove(partition)
                owners[partition] = member.id
    return owned, contested


def _all_partitions(partitions: Mapping[str, int], topics: Iterable[str]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in topics for number in range(partitions[topic])]


class _Equal:
    """All members subscribe to the same topics."""

    def __init__(self, partitions: Mapping[str, int], owned: Assigned, contested: set[TopicPartition], near: RackMap) -> None:
        total = sum(partitions.values())
        self._near = near
        self._partitions = partitions
        self._owned = owned
        self._contested = contested
        self._least, self._odd = divmod(total, len(owned))
        self._most = self._least + (self._odd > 0)
        self._assigned: Assigned = {member: [] for member in owned}
        self._over = 0  # members with more than the least
        self._hungry: list[str] = []  # with less than the least
        self._fair: list[str] = []  # with exactly the least, and one more may come
        self._released: dict[TopicPartition, str] = {}
        self._moved: dict[TopicPartition, str] = {}

    def build(self) -> tuple[Assigned, dict[TopicPartition, str]]:
        for member, owned in self._owned.items():
            far = [each for each in owned if self._near.mismatch(member, each)]
            self._released |= dict.fromkeys(far, member)
            kept = (each for each in owned if each not in self._contested and each not in far)
            self._keep(member, sorted(kept, key=lambda each: (each.partition, each.topic)))
        self._hungry.sort()
        self._fair.sort()
        taken = {partition for mine in self._assigned.values() for partition in mine}
        unassigned = [each for each in _all_partitions(self._partitions, sorted(self._partitions)) if each not in taken]
        self._deal(self._deal_near(self._near.hardest_first(unassigned)))
        return self._assigned, self._moved

    def _keep(self, member: str, mine: list[TopicPartition]) -> None:
        if len(mine) < self._least:
            self._assigned[member] += mine
            self._hungry.append(member)
            return
        if len(mine) >= self._most and self._over < self._odd:
            keep = self._most
            self._over += 1
            if self._over == self._odd:
                self._fair.clear()
        else:
            keep = self._least
            if self._over < self._odd:
                self._fair.append(member)
        self._assigned[member] += mine[:keep]
        self._released |= dict.fromkeys(mine[keep:], member)

    def _give(self, partition: TopicPartition, member: str) -> int:
        """Returns how many the member has now."""
        mine = self._assigned[member]
        mine.append(partition)
        if self._released.get(partition, member) != member or partition in self._contested:
            self._moved[partition] = member
        return len(mine)

    def _deal_near(self, unassigned: list[TopicPartition]) -> list[TopicPartition]:
        """In turn to the hungry who are close to a replica, then to the fair; returns what nobody is close to."""
        if not self._near.home:
            return unassigned
        left, turn = [], 0
        for partition in unassigned:
            place = self._near.next_near(partition, self._hungry, turn)
            if place is not None:
                turn = self._feed(partition, place)
            elif (place := self._near.next_near(partition, self._fair, 0)) is not None:
                self._favour(partition, place)
            else:
                left.append(partition)
        return left

    def _feed(self, partition: TopicPartition, place: int) -> int:
        """To a hungry member; returns whose turn it is next."""
        member = self._hungry[place]
        count = self._give(partition, member)
        if count >= self._least:
            del self._hungry[place]
            if count < self._most and self._over < self._odd:
                self._fair.append(member)
        else:
            place += 1
        return place % len(self._hungry) if self._hungry else 0

    def _favour(self, partition: TopicPartition, place: int) -> None:
        member = self._fair[place]
        if self._give(partition, member) == self._most:
            del self._fair[place]
            self._over += 1
            if self._over == self._odd:
                self._fair.clear()

    def _deal(self, unassigned: list[TopicPartition]) -> None:
        """In turn to the hungry; who has the least then waits for an odd one."""
        turn = 0
        for partition in unassigned:
            if turn >= len(self._hungry):
                turn = 0
            hungry = bool(self._hungry)
            member = self._hungry[turn] if hungry else self._fair.pop(0)
            count = self._give(partition, member)
            if hungry and count == self._least:
                del self._hungry[turn]
                self._fair.append(member)
            elif hungry:
                turn += 1


class _General:
    """Members subscribe to different topics."""

    def __init__(
        self, partitions: Mapping[str, int], owned: Assigned, members: Sequence[Member], memory: Memory, near: RackMap
    ) -> None:
        self._partitions = partitions
        self._near = near
        self._topics = {member.id: [topic for topic in member.subscription.topics if topic in partitions] for member in members}
        self._takers: dict[str, list[str]] = {topic: [] for topic in partitions}
        for member, topics in self._topics.items():
            for topic in topics:
                self._takers[topic].append(member)
        self._assigned = owned
        self._previous = self._previous_owners(members, memory)
        self._movements: dict[TopicPartition, tuple[str, str]] = {}
        self._active = list(self._topics)
        self._revoking = False
        self._holder: dict[TopicPartition, str] = {}

    @staticmethod
    def _previous_owners(members: Sequence[Member], memory: Memory) -> dict[TopicPartition, str]:
        """Who had a partition in an earlier generation than the last: it may get it back."""
        remembered = [(member.id, *memory(member)) for member in members]
        newest = max(generation for _, _, generation in remembered)
        previous: dict[TopicPartition, tuple[int, str]] = {}
        for member, had, generation in remembered:
            for partition in had if generation < newest else ():
                if partition not in previous or generation > previous[partition][0]:
                    previous[partition] = (generation, member)
        return {partition: member for partition, (_, member) in previous.items()}

    def build(self) -> Assigned:
        for member, mine in self._assigned.items():
            kept = [each for each in mine if each.topic in self._topics[member] and not self._near.mismatch(member, each)]
            self._revoking |= any(partition.topic in self._takers and partition not in kept for partition in mine)
            mine[:] = kept
        order = sorted(self._takers, key=lambda topic: (len(self._takers[topic]), topic))
        everything = _all_partitions(self._partitions, order)
        self._holder = {partition: member for member, mine in self._assigned.items() for partition in mine}
        unassigned = [partition for partition in everything if partition not in self._holder]
        self._balance(everything, unassigned)
        return self._assigned

    def _ranked(self) -> list[str]:
        return sorted(self._active, key=lambda member: (len(self._assigned[member]), member))

    def _balance(self, everything: list[TopicPartition], unassigned: list[TopicPartition]) -> None:
        initial = not self._assigned[self._ranked()[-1]]
        if self._near.home:
            for partition in unassigned:
                self._assign(partition, near=True)
        for partition in unassigned:
            if partition not in self._holder:
                self._assign(partition, near=False)
        movable = [partition for partition in everything if len(self._takers[partition.topic]) >= 2]
        self._active = [member for member in self._active if self._can_take_part(member)]
        if not self._active:
            return
        before = {member: list(self._assigned[member]) for member in self._active}
        if not self._revoking:
            self._reassign([partition for partition in unassigned if partition in movable])
        changed = self._reassign(movable)
        if not initial and changed and self._score(self._assigned) >= self._score(before):
            self._assigned.update(before)

    def _assign(self, partition: TopicPartition, *, near: bool) -> None:
        """To the least loaded member that may have it; `near`: and is not far from it."""
        for member in self._ranked():
            if partition.topic in self._topics[member] and not (near and self._near.mismatch(member, partition)):
                self._assigned[member].append(partition)
                self._holder[partition] = member
                return

    def _can_take_part(self, member: str) -> bool:
        mine = self._assigned[member]
        could = sum(self._partitions[topic] for topic in self._topics[member])
        return len(mine) < could or any(len(self._takers[partition.topic]) >= 2 for partition in mine)

    def _score(self, assigned: Assigned) -> int:
        sizes = [len(assigned[member]) for member in self._active]
        return sum(abs(a - b) for index, a in enumerate(sizes) for b in sizes[index + 1 :])

    def _is_balanced(self) -> bool:
        ranked = self._ranked()
        if len(self._assigned[ranked[0]]) >= len(self._assigned[ranked[-1]]) - 1:
            return True
        for member in ranked:
            mine = len(self._assigned[member])
            for partition in _all_partitions(self._partitions, self._topics[member]):
                holder = self._holder.get(partition)
                if holder is not None and holder != member and mine + 1 < len(self._assigned[holder]):
                    return False
        return True

    def _reassign(self, candidates: list[TopicPartition]) -> bool:
        performed, modified = False, True
        while modified:
            modified = False
            for partition in candidates:
                if self._is_balanced():
                    break
                if self._improve(partition):
                    performed = modified = True
        return performed

    def _improve(self, partition: TopicPartition) -> bool:
        holder = self._holder[partition]
        size = len(self._assigned[holder])
        previous = self._previous.get(partition)
        if previous is not None and size > len(self._assigned[previous]) + 1:
            self._move(partition, previous)
            return True
        if any(size > len(self._assigned[other]) + 1 for other in self._takers[partition.topic]):
            self._move(partition, next(member for member in self._ranked() if partition.topic in self._topics[member]))
            return True
        return False

    def _move(self, partition: TopicPartition, taker: str) -> None:
        """Instead of sending a partition there and another of the topic back, let the other stay where it came from."""
        origin = self._movements[partition][0] if partition in self._movements else self._holder[partition]
        for other, pair in self._movements.items():
            if other.topic == partition.topic and pair == (taker, origin):
                partition = other
                break
        holder = self._holder[partition]
        self._note(partition, holder, taker)
        self._assigned[holder].remove(partition)
        self._assigned[taker].append(partition)
        self._holder[partition] = taker

    def _note(self, partition: TopicPartition, holder: str, taker: str) -> None:
        origin = self._movements.pop(partition)[0] if partition in self._movements else holder
        if origin != taker:
            self._movements[partition] = (origin, taker)
