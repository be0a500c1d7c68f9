"""`uniform`: the same number of partitions for everybody, as far as subscriptions allow, moving as few as possible.

Homogeneous group (all members subscribe to the same topics): every member has a quota, `partitions // members`, and the
remainder gets one more each. A member keeps what it had up to its quota; what is left over fills the quotas.

Heterogeneous group: members keep what they had; unowned partitions go to the least loaded member that may have them, topics
with few subscribers first; then partitions move from a fuller to an emptier member as long as that narrows the gap.

Where racks are known, a member is offered partitions with a replica in its rack before others. Balance and stickiness come
first: Kafka's own assignors ignore racks, and nobody should get more than its share to be near its data.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.groups.assignors.spec import GroupSpec

Assignment = dict[str, dict[bytes, set[int]]]
Partition = tuple[bytes, int]


def assign_uniformly(group: GroupSpec) -> Assignment:
    return _assign_homogeneous(group) if group.is_homogeneous else _assign_heterogeneous(group)


# Homogeneous -----------------------------------------------------------------------------------------------------------


def _assign_homogeneous(group: GroupSpec) -> Assignment:
    assignment: Assignment = {member_id: {} for member_id in group.members}
    partitions = [
        (topic_id, partition) for topic_id in sorted(group.topics) for partition in range(group.topics[topic_id].partition_count)
    ]
    if not partitions or not group.members:
        return assignment
    quota, extras = divmod(len(partitions), len(group.members))
    previous = {member_id: list(_still_there(group, member_id)) for member_id in group.members}
    # Those that had the most keep the extra partition: then nobody has to give one up for it.
    order = sorted(group.members, key=lambda member_id: (-len(previous[member_id]), member_id))
    quotas = {member_id: quota + (position < extras) for position, member_id in enumerate(order)}
    taken: set[Partition] = set()
    for member_id in order:
        offered = sorted(previous[member_id], key=lambda held: (not group.in_rack(member_id, *held), held))
        for held in offered:
            if quotas[member_id] and held not in taken:
                _give(assignment, member_id, held)
                taken.add(held)
                quotas[member_id] -= 1
    free = [partition for partition in partitions if partition not in taken]
    _fill(group, assignment, free, quotas)
    return assignment


def _fill(group: GroupSpec, assignment: Assignment, free: list[Partition], quotas: dict[str, int]) -> None:
    if group.knows_racks:
        rest = []
        for partition in free:
            near = [member_id for member_id in sorted(quotas) if quotas[member_id] and group.in_rack(member_id, *partition)]
            if near:
                taker = max(near, key=lambda member_id: quotas[member_id])
                _give(assignment, taker, partition)
                quotas[taker] -= 1
            else:
                rest.append(partition)
        free = rest
    supply = iter(free)
    for member_id in sorted(quotas):
        for _, partition in zip(range(quotas[member_id]), supply):
            _give(assignment, member_id, partition)


def _still_there(group: GroupSpec, member_id: str) -> Iterator[Partition]:
    """What the member had and may keep: the topic is still subscribed to and still has the partition."""
    member = group.members[member_id]
    for topic_id in sorted(member.target):
        if topic_id in member.topic_ids and topic_id in group.topics:
            count = group.topics[topic_id].partition_count
            yield from ((topic_id, partition) for partition in sorted(member.target[topic_id]) if partition < count)


def _give(assignment: Assignment, member_id: str, partition: Partition) -> None:
    assignment[member_id].setdefault(partition[0], set()).add(partition[1])


def _take(assignment: Assignment, member_id: str, partition: Partition) -> None:
    held = assignment[member_id][partition[0]]
    held.discard(partition[1])
    if not held:
        del assignment[member_id][partition[0]]


# Heterogeneous ---------------------------------------------------------------------------------------------------------


def _assign_heterogeneous(group: GroupSpec) -> Assignment:
    assignment: Assignment = {member_id: {} for member_id in group.members}
    load = dict.fromkeys(group.members, 0)
    takers = {
        topic_id: sorted(member_id for member_id, member in group.members.items() if topic_id in member.topic_ids)
        for topic_id in group.topics
    }
    taken: set[Partition] = set()
    for member_id in sorted(group.members):
        for held in _still_there(group, member_id):
            if held not in taken:
                _give(assignment, member_id, held)
                taken.add(held)
                load[member_id] += 1
    for topic_id in sorted(group.topics, key=lambda topic_id: (len(takers[topic_id]), topic_id)):
        for index in range(group.topics[topic_id].partition_count if takers[topic_id] else 0):
            partition = (topic_id, index)
            if partition not in taken:
                taker = min(takers[topic_id], key=lambda m: (load[m], not group.in_rack(m, *partition), m))
                _give(assignment, taker, partition)
                load[taker] += 1
    _balance(assignment, load, takers)
    return assignment


def _balance(assignment: Assignment, load: dict[str, int], takers: dict[bytes, list[str]]) -> None:
    """Move single partitions while that narrows a gap of two or more.

    Each move lowers the sum of the squared loads, which bounds the number of rounds; chains over a third member come about
    by themselves, because the member in the middle becomes the fuller one.
    """
    moved = True
    while moved:
        moved = False
        for giver in sorted(load, key=lambda member_id: (-load[member_id], member_id)):
            for topic_id in sorted(assignment[giver]):
                taker = min(takers[topic_id], key=lambda member_id: (load[member_id], member_id))
                while load[giver] - load[taker] > 1 and topic_id in assignment[giver]:
                    partition = (topic_id, max(assignment[giver][topic_id]))
                    _take(assignment, giver, partition)
                    _give(assignment, taker, partition)
                    load[giver] -= 1
                    load[taker] += 1
                    moved = True
                    taker = min(takers[topic_id], key=lambda member_id: (load[member_id], member_id))
