"""`range`: each topic's partitions in order, cut into consecutive ranges, the first members getting one more if it does not
come out even. Members that subscribe to the same topics get the same ranges of each, so equally partitioned topics can be
joined locally. Static members come first, by instance id, so that a restart under a new member id moves nothing.
"""

from __future__ import annotations

from ottla.groups.assignors.spec import GroupSpec


def assign_ranges(group: GroupSpec) -> dict[str, dict[bytes, set[int]]]:
    assignment: dict[str, dict[bytes, set[int]]] = {member_id: {} for member_id in group.members}
    for topic_id, topic in group.topics.items():
        takers = [member_id for member_id in _ordered(group) if topic_id in group.members[member_id].topic_ids]
        if not takers:
            continue
        share, extra = divmod(topic.partition_count, len(takers))
        start = 0
        for position, member_id in enumerate(takers):
            end = start + share + (position < extra)
            if end > start:
                assignment[member_id][topic_id] = set(range(start, end))
            start = end
    return assignment


def _ordered(group: GroupSpec) -> list[str]:
    def rank(member_id: str) -> tuple[bool, str]:
        instance_id = group.members[member_id].instance_id
        return instance_id is None, member_id if instance_id is None else instance_id

    return sorted(group.members, key=rank)
