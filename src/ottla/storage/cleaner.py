"""Which log to compact next, and putting the result in its place. The loop's side of `compaction`.

The worker only reads sealed segments and writes `.cleaned` files. Here `.cleaned` becomes `.swap`; once that is durable, between
two events, the old segments become `.deleted` and `.swap` loses its suffix. `loading` knows what to do when the power goes
between any two of these renames.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ottla.host.disk import Disk
from ottla.host.workers import Workers
from ottla.model.errors import ApiError
from ottla.storage.compaction import Cleaned, CleaningPlan, UncleanableLog, compact
from ottla.storage.config import LONG_MAX
from ottla.storage.log import FlushJob, Log

log = logging.getLogger("ottla.cleaner")

MAP_BYTES = 128 << 20  # log.cleaner.dedupe.buffer.size


class Candidate(NamedTuple):
    ratio: float  # of dirty bytes among those that may be cleaned
    overdue: bool  # by max.compaction.lag.ms
    log: Log
    first_dirty_offset: int
    end_offset: int


def candidate(each: Log, now_ms: int) -> Candidate | None:
    """What could be cleaned of a log, whether or not it is worth it yet."""
    if not each.config.compact:
        return None
    first_dirty = each.cleaner_offset
    if not each.log_start_offset <= first_dirty <= each.log_end_offset:
        first_dirty = each.log_start_offset
    segments = each.segments
    end = min(each.last_stable_offset, segments.active.base_offset)
    lag_ms = each.config.min_compaction_lag_ms
    slot = segments.floor(first_dirty)
    if lag_ms > 0:
        young = (segment.base_offset for segment in segments.sealed(slot) if segment.retention_timestamp() > now_ms - lag_ms)
        end = min(end, next(young, end))
    if end < segments.active.base_offset:
        end = segments[segments.floor(end)].base_offset
    clean_bytes = sum(segments[index].size for index in range(slot) if segments[index].base_offset < end)
    dirty = [segment for segment in segments.sealed(slot) if segment.base_offset < end]
    dirty_bytes = sum(segment.size for segment in dirty)
    if not dirty_bytes:
        return None
    overdue = False
    if each.config.max_compaction_lag_ms < LONG_MAX:
        earliest = min((stamp for segment in dirty if (stamp := segment.first_timestamp) > 0), default=now_ms)
        overdue = earliest < now_ms - each.config.max_compaction_lag_ms
    return Candidate(dirty_bytes / (clean_bytes + dirty_bytes), overdue, each, first_dirty, end)


def filthiest(logs: Iterable[Log], now_ms: int) -> Candidate | None:
    """The one with the largest part to clean, of those that are dirty enough or overdue."""
    best = None
    for each in logs:
        found = candidate(each, now_ms) if each.config.compact and not each.uncleanable else None
        if found is not None and (found.overdue or found.ratio > each.config.min_cleanable_dirty_ratio):
            best = found if best is None or found.ratio > best.ratio else best
    return best


def plan(chosen: Candidate, now_ms: int, map_bytes: int = MAP_BYTES) -> CleaningPlan:
    each = chosen.log
    segments = [segment for segment in each.segments if segment.base_offset < chosen.end_offset]
    return CleaningPlan(
        directory=each.directory,
        truncations=each.truncations,
        segments=tuple((one.base_offset, one.size, each.segments.end_offset(one, each.log_end_offset)) for one in segments),
        first_dirty_offset=chosen.first_dirty_offset,
        end_offset=chosen.end_offset,
        aborted=tuple(each.aborted_entries(segments[0].base_offset, chosen.end_offset)),
        producers=each.last_records_of_producers(),
        now_ms=now_ms,
        delete_retention_ms=each.config.delete_retention_ms,
        segment_bytes=each.config.segment_bytes,
        index_bytes=each.config.segment_index_bytes,
        index_interval=each.config.index_interval_bytes,
        map_bytes=map_bytes,
    )


def _unchanged(each: Log, planned: CleaningPlan, bases: tuple[int, ...]) -> bool:
    """Whether the segments that were read are still the ones in the log."""
    if each.truncations != planned.truncations or each.directory != planned.directory:
        return False
    sizes = {base: size for base, size, _ in planned.segments}
    found = [(each.segment_at(base), sizes[base]) for base in bases]
    return all(segment is not None and not segment.active and segment.size == size for segment, size in found)


def adoption(each: Log, planned: CleaningPlan, cleaned: Cleaned, now_ms: int) -> Iterator[FlushJob]:
    """Swaps the new segments in, one after the other. Each yielded job must have run before it is resumed.

    When the log changed meanwhile (truncated, segments deleted, set aside) the rest of the work is thrown away.
    """
    for group in cleaned.groups:
        if not _unchanged(each, planned, group.bases):
            each.discard_cleaned()
            return
        each.begin_swap(group.bases, group.size, group.has_transactions, now_ms)
        job = each.prepare_flush()
        yield job
        each.complete_flush(job, now_ms)
        if not _unchanged(each, planned, group.bases) or not each.finish_swap(group.bases, now_ms):
            each.discard_cleaned()
            return
    each.cleaner_offset = cleaned.end_offset


async def clean_next(logs: Iterable[Log], disk: Disk, workers: Workers, now_ms: int, map_bytes: int = MAP_BYTES) -> Log | None:
    """Compacts the filthiest log in a worker process; which one it was, or None when all are clean enough.

    Call it again at once after a log, and after log.cleaner.backoff.ms after None. One at a time.
    """
    chosen = filthiest(logs, now_ms)
    if chosen is None:
        return None
    each, planned = chosen.log, plan(chosen, now_ms, map_bytes)
    try:
        cleaned = await workers.process(compact, disk, planned)
        for job in adoption(each, planned, cleaned, now_ms):
            await workers.thread(job.run)
    except UncleanableLog as error:
        each.uncleanable = True  # until the node starts again: trying on would burn a core for nothing
        log.warning("not compacted log=%s error=%s", each.topic_partition, error)
        return each
    except (ApiError, OSError) as error:  # a full disk, a log deleted meanwhile: try again after the pause
        log.warning("not compacted yet log=%s error=%s", each.topic_partition, error)
        return None
    if each.cleaner_offset == cleaned.end_offset:
        log.info("compacted log=%s until=%d from_bytes=%d to_bytes=%d", each.topic_partition, cleaned.end_offset, cleaned.bytes_read, cleaned.bytes_written)  # fmt: skip
    return each
