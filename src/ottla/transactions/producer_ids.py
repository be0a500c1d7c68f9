"""Producer ids come from the controller in blocks (AllocateProducerIds); this hands out one after another.

The next block is asked for when a tenth of the current one is left, so that nobody waits. An id taken and not used is lost,
which costs nothing: there are 2^63 of them, and an id must never be given out twice.
"""

from __future__ import annotations

from ottla.model.errors import ApiError, ErrorCode

PREFETCH_FRACTION = 10


class ProducerIds:
    """Two blocks at most: the one in use and the one after it."""

    __slots__ = ("_ends", "_next", "_size", "_waiting")

    def __init__(self) -> None:
        self._next = 0
        self._ends = 0
        self._size = 0
        self._waiting: tuple[int, int] | None = None

    @property
    def needs_block(self) -> bool:
        """Whether the shell should ask the controller for a block now (one request at a time)."""
        return self._waiting is None and (self._ends - self._next) * PREFETCH_FRACTION <= self._size

    @property
    def is_empty(self) -> bool:
        return self._next == self._ends and self._waiting is None

    def add_block(self, start: int, length: int) -> None:
        assert length > 0, "a block of producer ids is never empty"
        assert start >= self._ends, "the controller never gives a producer id twice"
        if self._next == self._ends:
            self._use(start, length)
        else:
            assert self._waiting is None, "a block was added that was not needed"
            self._waiting = (start, length)

    def take(self) -> int:
        """Raises COORDINATOR_LOAD_IN_PROGRESS when all are taken, as Kafka does: the client tries again."""
        if self._next == self._ends:
            if self._waiting is None:
                raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no producer ids are left until the controller gives more")
            self._use(*self._waiting)
            self._waiting = None
        taken = self._next
        self._next += 1
        return taken

    def _use(self, start: int, length: int) -> None:
        self._next, self._ends, self._size = start, start + length, length
