"""Looking records up by time. The only reads that decode records, one batch at a time and only for ListOffsets."""

from __future__ import annotations

from ottla.records.batch import BatchHeader
from ottla.records.record import decode_batch
from ottla.storage.index import TimeIndex
from ottla.storage.segment import Segment
from ottla.storage.segments import Segments
from ottla.storage.types import TimestampOffset


def lookup(segments: Segments, timestamp: int, log_start_offset: int) -> TimestampOffset | None:
    for slot in range(segments.floor(log_start_offset), len(segments)):
        segment = segments[slot]
        if segment.size and segment.max_timestamp[0] >= timestamp:
            found = _lookup(segment, timestamp, log_start_offset)
            if found is not None:
                return found
    return None


def _lookup(segment: Segment, timestamp: int, log_start_offset: int) -> TimestampOffset | None:
    # The entry is the largest timestamp *before* it was written that is below ours: the record lies behind it.
    _, offset = segment.time_entry(lambda index: TimeIndex.lookup(index, timestamp - 1))
    place = segment.locate(max(offset, log_start_offset))
    for position, header in segment.batches(place.position if place else segment.size):
        if header.max_timestamp < timestamp or header.last_offset < log_start_offset:
            continue
        for record in decode_batch(_read(segment, position, header)):
            if record.timestamp >= timestamp and record.offset >= log_start_offset:
                return TimestampOffset(record.timestamp, record.offset, header.leader_epoch)
    return None


def largest(segments: Segments, log_start_offset: int) -> TimestampOffset | None:
    candidates = [segments[slot] for slot in range(segments.floor(log_start_offset), len(segments)) if segments[slot].size]
    if not candidates:
        return None
    segment = max(candidates, key=lambda candidate: candidate.max_timestamp[0])
    timestamp, offset = segment.max_timestamp
    place = segment.locate(offset)
    if timestamp < 0 or place is None:
        return None
    for record in decode_batch(_read(segment, place.position, place.header)):
        if record.timestamp == timestamp:
            return TimestampOffset(timestamp, record.offset, place.header.leader_epoch)
    return None


def _read(segment: Segment, position: int, header: BatchHeader) -> bytes:
    return segment.file.read(position, header.size)
