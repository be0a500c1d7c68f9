"""What driver and executors speak of: ranges of offsets, and that some are gone. A module of its own, because it costs nothing."""

from __future__ import annotations

from typing import NamedTuple

from ottla.model.errors import OttlaError


class OffsetRange(NamedTuple):
    """Records from `start` up to but not including `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


class DataLost(OttlaError):
    """Offsets that were promised are no longer there."""
