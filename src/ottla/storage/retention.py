"""Which segments have outlived their topic's retention. Pure but for timestamps read from indexes."""

from __future__ import annotations

from ottla.storage.config import LogConfig
from ottla.storage.segments import Segments


def deletable(
    segments: Segments, config: LogConfig, log_start_offset: int, high_watermark: int, log_end_offset: int, now_ms: int
) -> int:
    """How many of the oldest segments may go.

    Never one that reaches past the high watermark (followers still need it), nor an empty last one. All of them may: the log
    then rolls first. Without `delete` in the policy only segments wholly below the start offset go (DeleteRecords).
    """
    excess = segments.size - config.retention_bytes if config.delete and config.retention_bytes >= 0 else -1
    count = 0
    for segment in segments:
        following = segments.after(segment)
        end_offset = following.base_offset if following is not None else log_end_offset
        if end_offset > high_watermark or (following is None and not segment.size):
            break
        below_start = following is not None and end_offset <= log_start_offset
        too_large = excess >= segment.size
        expired = config.delete and config.retention_ms >= 0 and now_ms - segment.retention_timestamp() > config.retention_ms
        if not (below_start or too_large or expired):
            break
        excess -= segment.size
        count += 1
    return count
