"""A consumer group under a decision."""

from __future__ import annotations

from hashlib import blake2b

from ottla.groups.consumer import ConsumerGroup
from ottla.groups.context import Topics
from ottla.groups.draft import ClassicJoin, ClassicSync, Draft, MemberRevocation, MemberSession
from ottla.groups.records import GroupRecord


class Working:
    """Reading goes to the shard's own value until the first record makes it a copy."""

    __slots__ = ("_copied", "draft", "group")

    def __init__(self, group: ConsumerGroup, draft: Draft) -> None:
        self.group = group
        self.draft = draft
        self._copied = False

    def emit(self, record: GroupRecord) -> None:
        if not self._copied:
            self.group = self.group.copy()
            self._copied = True
        self.group.apply(record.key, record.value)
        self.draft.records.append(record)


def metadata_hash(names: frozenset[str], topics: Topics) -> int:
    """A number that changes with what an assignor would see of these topics. Only ever compared with itself."""
    known = [topics.by_name[name] for name in sorted(names) if name in topics.by_name]
    if not known:
        return 0
    digest = blake2b(digest_size=8)
    for topic in known:
        racks = [sorted(of_partition) for of_partition in topic.racks]
        digest.update(repr((topic.name, topic.topic_id, topic.partition_count, racks)).encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def cancel_timers(draft: Draft, group_id: str, member_id: str) -> None:
    for key in (MemberSession, MemberRevocation, ClassicJoin, ClassicSync):
        draft.timers[key(group_id, member_id)] = None
