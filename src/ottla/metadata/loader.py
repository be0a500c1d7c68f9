"""From the committed log to images: batch by batch, with metadata transactions (KIP-868) honoured.

In: the records of each committed batch, in order, or a whole snapshot. Out: an image and what changed. The records of an open
transaction become visible together at its end, or never when it is aborted.

What the caller must do: feed every committed batch once, in order, with the offset and epoch of its last record; publish each
image returned. After truncation below what was fed, start again from a snapshot or from an empty loader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.metadata import snapshot
from ottla.metadata.delta import Changes, Delta
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import MetadataRecord
from ottla.protocol.messages.metadata_records import AbortTransactionRecord, BeginTransactionRecord, EndTransactionRecord


class Loader:
    """Follows the log. `image` is the last one made, `offset` the last offset fed."""

    def __init__(self, image: ClusterImage | None = None) -> None:
        self.image = image or ClusterImage()
        self.offset = self.image.offset
        self._transaction: list[MetadataRecord] | None = None

    @property
    def in_transaction(self) -> bool:
        return self._transaction is not None

    def apply_batch(self, records: Sequence[MetadataRecord], offset: int, epoch: int) -> tuple[ClusterImage, Changes]:
        """The image after the batch and what changed. The image's own offset stays before a transaction that is open."""
        delta = Delta(self.image)
        visible_offset = self.image.offset if self.in_transaction else offset
        for record_offset, record in enumerate(records, start=offset - len(records) + 1):
            if isinstance(record, BeginTransactionRecord):
                self._transaction, visible_offset = [], record_offset - 1
            elif isinstance(record, EndTransactionRecord):
                for held in self._transaction or ():
                    delta.apply(held)
                self._transaction, visible_offset = None, offset
            elif isinstance(record, AbortTransactionRecord):
                self._transaction, visible_offset = None, offset
            elif self._transaction is not None:
                self._transaction.append(record)
            else:
                delta.apply(record)
        self.offset = offset
        self.image = delta.finish(visible_offset, epoch)
        return self.image, delta.changes

    def load_snapshot(self, records: Iterable[MetadataRecord], offset: int, epoch: int) -> ClusterImage:
        """Replace everything. What changed is everything: compare with the former image."""
        self._transaction = None
        self.image = snapshot.load(records, offset, epoch)
        self.offset = offset
        return self.image
