"""When a segment has had enough."""

from __future__ import annotations

from ottla.storage.config import LogConfig
from ottla.storage.segment import MAX_RELATIVE_OFFSET, Segment

_NEVER = -(2**63) - 1  # below every timestamp


def needed(
    segment: Segment, config: LogConfig, size: int, last_offset: int, timestamp: int, now_ms: int, jitter_seed: int
) -> bool:
    """Before `size` bytes that end at `last_offset` and whose largest timestamp is `timestamp` are appended.

    Age counts in the records' own time where they have one, so that a replayed log rolls as the first one did.
    """
    if segment.size + size > config.segment_bytes or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
        return True
    if segment.size:
        first = segment.first_timestamp
        age = timestamp - first if first >= 0 else now_ms - segment.created_ms
        if age > _limit_ms(config, jitter_seed):
            return True
    return segment.index_full(config.segment_index_bytes)


class Ceiling:
    """How far a segment may grow before it is worth asking `needed`: a comparison of numbers for each append instead.

    It holds for one segment and one config; cutting the log makes it void. Where the answer depends on more (no batch yet, batches
    without timestamps, whose age is the wall clock's) nothing lies under it.
    """

    __slots__ = ("config", "last_offset", "segment", "size", "timestamp")

    def __init__(self, segment: Segment, config: LogConfig, jitter_seed: int) -> None:
        self.segment = segment
        self.config = config
        self.last_offset = segment.base_offset + MAX_RELATIVE_OFFSET
        first = segment.first_timestamp
        self.timestamp = first + _limit_ms(config, jitter_seed) if segment.size and first >= 0 else _NEVER
        # An entry is made at once if enough bytes have passed, and then one for each interval.
        until_full = (segment.index_room(config.segment_index_bytes) - 1) * segment.index_interval
        self.size = min(config.segment_bytes, segment.size + until_full)


def due(segment: Segment, config: LogConfig, now_ms: int, jitter_seed: int) -> bool:
    """For a log that nobody appends to: by the wall clock, because its records may be from any time."""
    return segment.size > 0 and now_ms - segment.created_ms > _limit_ms(config, jitter_seed)


def _limit_ms(config: LogConfig, jitter_seed: int) -> int:
    """The jitter that keeps partitions from rolling all at once comes from their name, not from chance.

    A record can only be compacted once its segment is sealed, so max.compaction.lag.ms bounds it, too.
    """
    limit = min(config.segment_ms, config.max_compaction_lag_ms) if config.compact else config.segment_ms
    jitter = jitter_seed % config.segment_jitter_ms if config.segment_jitter_ms > 0 else 0
    return limit - min(jitter, limit)
