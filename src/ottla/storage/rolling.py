"""When a segment has had enough."""

from __future__ import annotations

from ottla.storage.config import LogConfig
from ottla.storage.segment import MAX_RELATIVE_OFFSET, Segment


def needed(
    segment: Segment, config: LogConfig, size: int, last_offset: int, timestamp: int, now_ms: int, jitter_seed: int
) -> bool:
    """Before `size` bytes that end at `last_offset` and whose largest timestamp is `timestamp` are appended."""
    if segment.size + size > config.segment_bytes or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
        return True
    if segment.size and due(segment, config, timestamp, now_ms, jitter_seed):
        return True
    return segment.index_full(config.segment_index_bytes)


def due(segment: Segment, config: LogConfig, timestamp: int, now_ms: int, jitter_seed: int) -> bool:
    """By age: in the records' own time where they have one, so that a replayed log rolls as the first one did.

    The jitter that keeps partitions from rolling all at once comes from their name, not from chance.
    """
    first = segment.first_timestamp
    age = timestamp - first if first >= 0 else now_ms - segment.created_ms
    jitter = jitter_seed % config.segment_jitter_ms if config.segment_jitter_ms > 0 else 0
    return age > config.segment_ms - min(jitter, config.segment_ms)
