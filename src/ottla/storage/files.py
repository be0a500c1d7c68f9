"""Names of a log's files, Kafka's own, and the bound on how many of them are open at once.

A segment is named by its base offset in twenty digits, so that a sorted listing is in offset order.
"""

from __future__ import annotations

from collections.abc import Callable

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX)

DELETED = ".deleted"  # renamed away, removed after file.delete.delay.ms
CLEANED = ".cleaned"  # compaction's output, not yet complete: worthless after a crash
SWAP = ".swap"  # compaction's output, complete: must replace what it covers, also after a crash
TEMPORARY = ".tmp"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

# Most systems start a process with a limit of 1,024 descriptors, which sockets need too. The node raises both.
MAX_OPEN_FILES = 512


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """The offset a file is named by; None for files that are not named so (checkpoints, strangers)."""
    digits = name.partition(".")[0]
    return int(digits) if len(digits) == 20 and digits.isdecimal() else None


class OpenFiles:
    """At most `limit` segment files are open; opening one more closes the one opened longest ago.

    First in, first out, because the hot path must not pay for book-keeping; reopening a hot file costs a few microseconds.
    "Closing" drops our reference: a slice on its way to a socket keeps its file until it is sent.
    """

    __slots__ = ("_forget", "limit")

    def __init__(self, limit: int = MAX_OPEN_FILES) -> None:
        self.limit = limit
        self._forget: dict[int, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._forget)

    def opened(self, key: int, forget: Callable[[], None]) -> None:
        while len(self._forget) >= self.limit:
            oldest = next(iter(self._forget))
            self._forget.pop(oldest)()
        self._forget[key] = forget

    def closed(self, key: int) -> None:
        self._forget.pop(key, None)
