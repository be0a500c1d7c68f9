"""Where batches begin, for the offsets readers ask next: the tail of the log, and where each recent read ended.

A consumer that reads on, and a high watermark that moves on, hit this and need neither index nor scan.
"""

from __future__ import annotations

from ottla.storage.segment import SegmentReader

MAX_PLACES = 16  # a generation; there are two, and perhaps ten thousand logs


class Places:
    """Two generations: when the young one is full it becomes the old one, and what nobody asked for is forgotten."""

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: dict[int, tuple[SegmentReader, int]] = {}
        self._old: dict[int, tuple[SegmentReader, int]] = {}

    def remember(self, offset: int, segment: SegmentReader, position: int) -> None:
        if len(self._young) >= MAX_PLACES:
            self._old, self._young = self._young, {}
        self._young[offset] = (segment, position)

    def get(self, offset: int) -> tuple[SegmentReader, int] | None:
        return self._young.get(offset) or self._old.get(offset)

    def clear(self) -> None:
        self._young, self._old = {}, {}
