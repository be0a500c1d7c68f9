"""Appends ask a ceiling of plain numbers; a segment is rolled exactly when `rolling.needed` says so."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ottla.storage import rolling
from ottla.storage.config import LogConfig
from tests.storage.memory_disk import MemoryDisk
from tests.storage.scene import NOW, batch, open_log, send

configs = st.builds(
    LogConfig,
    segment_bytes=st.sampled_from([300, 1000, 1 << 30]),
    segment_ms=st.sampled_from([5, 1000, 7 * 86_400_000]),
    segment_index_bytes=st.sampled_from([36, 60, 10 << 20]),
    index_interval_bytes=st.sampled_from([0, 80, 4096]),
)
# How many bytes, how much later by the records' clock (-1: without a timestamp) and by the wall's, cut back by so many offsets first.
steps = st.tuples(
    st.integers(0, 120), st.sampled_from([-1, 0, 1, 6, 2000]), st.sampled_from([0, 1, 6, 2000]), st.sampled_from([0, 0, 0, 1, 3])
)


@given(configs, st.lists(steps, max_size=40), st.sampled_from([None, 200, 1 << 30]))
def test_a_segment_is_rolled_when_it_is_needed_and_only_then(
    config: LogConfig, rows: list[tuple[int, int, int, int]], later_bytes: int | None
) -> None:
    log = open_log(MemoryDisk(), config)
    timestamp = now_ms = NOW
    for number, (size, later_ms, wall_ms, cut) in enumerate(rows):
        if number == len(rows) // 2 and later_bytes is not None:
            log.config = replace(config, segment_bytes=later_bytes)
        if cut:
            log.truncate_to(max(0, log.log_end_offset - cut), now_ms)
        now_ms += wall_ms
        timestamp += max(later_ms, 0)
        content = batch(bytes(size), timestamp=timestamp if later_ms >= 0 else -1)
        if len(content) > log.config.segment_bytes:
            continue
        before, offset = log.segments.active, log.log_end_offset
        given = -1 if later_ms < 0 else timestamp
        needed = rolling.needed(before, log.config, len(content), offset, given, now_ms, log._jitter_seed)
        send(log, content, now_ms=now_ms)
        assert (log.segments.active is not before) == (needed and before.size > 0)
