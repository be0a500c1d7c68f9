"""What an assignor is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.groups.context import Topic


@dataclass(frozen=True, slots=True)
class MemberSpec:
    topic_ids: frozenset[bytes]
    instance_id: str | None = None
    rack_id: str | None = None
    target: Mapping[bytes, set[int]] = field(default_factory=dict)  # what the last assignment gave it


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """`topics` has every topic that any member is subscribed to."""

    members: Mapping[str, MemberSpec]
    topics: Mapping[bytes, Topic]

    @property
    def is_homogeneous(self) -> bool:
        subscriptions = {member.topic_ids for member in self.members.values()}
        return len(subscriptions) <= 1

    def in_rack(self, member_id: str, topic_id: bytes, partition: int) -> bool:
        """Whether the member is near a replica; False also when racks are not known."""
        racks = self.topics[topic_id].racks
        return bool(racks) and self.members[member_id].rack_id in racks[partition]

    @property
    def knows_racks(self) -> bool:
        return any(member.rack_id is not None for member in self.members.values()) and any(t.racks for t in self.topics.values())
