"""What an application can do when its partitions change."""

from __future__ import annotations

from ottla.model.ids import TopicPartition


class RebalanceListener:
    """Subclass what you need. Called from inside `poll`, never at the same time as your code; awaited before the group goes on.

    A good place to commit what was processed (`on_partitions_revoked`) and to seek (`on_partitions_assigned`).
    """

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """These are new. Their positions are not known yet; `seek` sets them."""

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """These go to another member once this returns. Offsets can still be committed."""

    async def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """These belong to another member already: committing is too late. Does what revocation does, unless you say otherwise."""
        await self.on_partitions_revoked(partitions)
