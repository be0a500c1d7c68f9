"""Looking records up by time. The only reads that decode records, one batch at a time and only for ListOffsets.

They run on the loop, for whoever may read a topic, over batches that nobody has unpacked before. So a batch is unpacked up to
`limit` bytes, which is the topic's max.message.bytes, and one lookup decodes only so many; past either, the header answers. It says
what the largest timestamp of a batch is and where it begins and ends: a consumer that begins there misses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.record import Record, decode_batch
from ottla.storage.index import TimeIndex
from ottla.storage.segment import Place, Segment
from ottla.storage.segments import Segments
from ottla.storage.types import TimestampOffset

# Where headers tell the truth two will do: in the first batch what was looked for may lie before the log's start.
MAX_DECODED_BATCHES = 4


def lookup(segments: Segments, timestamp: int, log_start_offset: int, limit: int) -> TimestampOffset | None:
    for count, (segment, place) in enumerate(_candidates(segments, timestamp, log_start_offset)):
        header = place.header
        records = _decode(segment, place, limit) if count < MAX_DECODED_BATCHES else None
        if records is None:
            return TimestampOffset(header.max_timestamp, max(header.base_offset, log_start_offset), header.leader_epoch)
        for record in records:
            if record.timestamp >= timestamp and record.offset >= log_start_offset:
                return TimestampOffset(record.timestamp, record.offset, header.leader_epoch)
    return None


def _candidates(segments: Segments, timestamp: int, log_start_offset: int) -> Iterator[tuple[Segment, Place]]:
    """The batches that hold such a record by what their headers say."""
    for slot in range(segments.floor(log_start_offset), len(segments)):
        segment = segments[slot]
        if not segment.size or segment.max_timestamp[0] < timestamp:
            continue
        # The entry is the largest timestamp *before* it was written that is below ours: the record lies behind it.
        _, offset = segment.time_entry(lambda index: TimeIndex.lookup(index, timestamp - 1))
        first = segment.locate(max(offset, log_start_offset))
        for place in segment.batches(first.position if first else segment.size):
            if place.header.max_timestamp >= timestamp and place.header.last_offset >= log_start_offset:
                yield segment, place


def largest(segments: Segments, log_start_offset: int, limit: int) -> TimestampOffset | None:
    candidates = [segments[slot] for slot in range(segments.floor(log_start_offset), len(segments)) if segments[slot].size]
    if not candidates:
        return None
    segment = max(candidates, key=lambda candidate: candidate.max_timestamp[0])
    timestamp, offset = segment.max_timestamp
    place = segment.locate(offset)
    if timestamp < 0 or place is None:
        return None
    records = _decode(segment, place, limit)
    if records is None:
        return TimestampOffset(timestamp, offset, place.header.leader_epoch)
    for record in records:
        if record.timestamp == timestamp:
            return TimestampOffset(timestamp, record.offset, place.header.leader_epoch)
    return None


def _decode(segment: Segment, place: Place, limit: int) -> list[Record] | None:
    """None when it would unpack to more than the limit."""
    try:
        return decode_batch(segment.file.read(place.position, place.header.size), limit=limit)
    except ApiError as error:
        if error.code != ErrorCode.MESSAGE_TOO_LARGE:
            raise
        return None
