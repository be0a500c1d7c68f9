"""What happened: a digest of every event, which two runs of one seed must share, and a story of the few that matter to people."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

MAX_STORY_LINES = 20_000


class Journal:
    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self.events = 0
        self.counts: Counter[str] = Counter()
        self.story: list[str] = []
        self.time = 0.0

    def step(self, process: str, time: float) -> None:
        """One callback of one process: an `event` of its name and the time, in one piece because there are so many."""
        self.events += 1
        self.time = time
        self._hash.update(f"{process}\x00{time!r}\x00".encode())

    def event(self, *parts: str | bytes) -> None:
        """One step of the world, for the digest only."""
        self.events += 1
        self._hash.update(b"\x00".join([part.encode() if isinstance(part, str) else part for part in parts]))
        self._hash.update(b"\x00")

    def tell(self, kind: str, text: str) -> None:
        """A step that a reader of the story should know, counted under `kind`."""
        self.counts[kind] += 1
        self.event(kind, text)
        if len(self.story) < MAX_STORY_LINES:
            self.story.append(f"{self.time:12.6f}  {text}")

    def digest(self) -> str:
        return self._hash.hexdigest()
