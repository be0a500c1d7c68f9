"""What every type of group is to the shard, so that offsets, listing and deletion need not know the types.

A further type (share, streams) is one more class with these methods, its records in `shard.apply` and its requests in the
shard's table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

from ottla.groups.offsets import PartitionCheck
from ottla.groups.records import GroupRecord

CLASSIC = "classic"
CONSUMER = "consumer"


class Group(Protocol):
    group_id: str

    @property
    def group_type(self) -> str: ...

    @property
    def listed_protocol_type(self) -> str: ...

    @property
    def state_name(self) -> str: ...

    @property
    def is_empty(self) -> bool: ...

    def is_subscribed_to(self, topic: str) -> bool: ...

    def expiry_base_ms(self, commit_timestamp_ms: int) -> int | None: ...

    def check_offset_commit(
        self, member_id: str, group_instance_id: str | None, generation: int, transactional: bool, version: int
    ) -> PartitionCheck | None:
        """Raises ApiError when the sender may not commit; otherwise what is left to check for each partition."""

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    def check_offset_delete(self) -> None: ...

    def check_delete(self) -> None: ...

    def tombstones(self) -> Iterator[GroupRecord]:
        """The records that make the log forget the group, apart from its offsets."""


class Drafted:
    """Mutable only while a decision drafts it: the shard never changes one that it holds."""

    __slots__: tuple[str, ...] = ()

    def copy(self) -> Self:
        """Shallow: values inside its dictionaries are replaced, never changed."""
        other = object.__new__(type(self))
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(other, name, dict(value) if type(value) is dict else value)
        return other
