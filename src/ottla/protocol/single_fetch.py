"""The commonest exchange between brokers, in one piece: a follower's Fetch that names one partition, and an answer with its records.

For every record that is produced to a partition with three replicas this pair passes twice, and who waits for the record waits for
it. Its form is always the same, so one `struct` reads or writes all of it, where the codec makes seven objects. The bytes are the
codec's own; whatever has any other form is None here, and the codec's to read.

The request goes on with a session: epoch, position and broker epoch are all that changes from one to the next.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from ottla.protocol.primitives import read_uvarint, uvarint

VERSION = 18  # of Fetch; no other is read or written here

# After the header: the numbers of the request and its session, one topic with one partition, no tags, nothing forgotten, no rack, and
# the replica's state behind its tag.
_REQUEST = struct.Struct(">iiibiis16ssiiqiqi7siqs")
_SAYS = struct.Struct(">iiixiix16sxiiqiqi7xiqx")  # the same without what is always the same,
_FORM = struct.Struct(">12xb8xs16xs32x7s12xs")  # and that alone
_ONE = b"\x02"  # the length of an array of one
_BEFORE_REPLICA_STATE = b"\x00\x00\x01\x01\x01\x01\x0d"
_NO_TAGS = b"\x00"
_THIS_FORM = (0, _ONE, _ONE, _BEFORE_REPLICA_STATE, _NO_TAGS)

_ANSWER_HEAD = struct.Struct(">iis")  # size, correlation id, no tags
_ANSWER = struct.Struct(">ihis16ssihqqqsi")  # up to the length of the records
_NULL = b"\x00"  # no list of aborted transactions: a follower copies them with the records
_NO_REPLICA = -1
_AFTER_RECORDS = b"\x00\x00\x00"  # no tags of the partition, the topic, the response


class SingleFetch(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    topic_id: bytes
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    replica_id: int
    replica_epoch: int


class SingleAnswer(NamedTuple):
    session_id: int
    topic_id: bytes
    partition: int
    high_watermark: int
    log_start_offset: int
    records: memoryview


def write_request(fetch: SingleFetch) -> bytes:
    return _REQUEST.pack(
        *fetch[:3], 0, *fetch[3:5], _ONE, fetch[5], _ONE, *fetch[6:12], _BEFORE_REPLICA_STATE, *fetch[12:], _NO_TAGS
    )  # fmt: skip


def read_request(frame: bytes | bytearray, position: int) -> SingleFetch | None:
    """The body of a request from `position` to the end of its frame."""
    if len(frame) - position != _REQUEST.size or _FORM.unpack_from(frame, position) != _THIS_FORM:
        return None
    return SingleFetch._make(_SAYS.unpack_from(frame, position))


def write_answer(
    correlation_id: int,
    session_id: int,
    topic_id: bytes,
    partition: int,
    high_watermark: int,
    last_stable_offset: int,
    log_start_offset: int,
    records: Any,
) -> list[Any]:
    """The parts of a whole response. Of `records` only the length must be known: it may be a range of a file."""
    size = len(records)
    length = uvarint(size + 1)
    whole = _ANSWER_HEAD.size - 4 + _ANSWER.size + len(length) + size + len(_AFTER_RECORDS)
    body = _ANSWER.pack(
        0, 0, session_id, _ONE, topic_id, _ONE, partition, 0, high_watermark, last_stable_offset, log_start_offset, _NULL, _NO_REPLICA
    )  # fmt: skip
    return [_ANSWER_HEAD.pack(whole, correlation_id, _NO_TAGS) + body + length, records, _AFTER_RECORDS]


def read_answer(frame: bytes | bytearray, position: int) -> SingleAnswer | None:
    """The body of a response, from `position` (behind the header's tags) to the end of its frame."""
    start = position + _ANSWER.size
    if len(frame) <= start:
        return None
    throttle, error, session, topics, topic, partitions, partition, partition_error, high, _, log_start, aborted, preferred = (
        _ANSWER.unpack_from(frame, position)
    )
    if (
        throttle
        or error
        or partition_error
        or aborted != _NULL
        or topics != _ONE
        or partitions != _ONE
        or preferred != _NO_REPLICA
    ):
        return None
    try:
        length, start = read_uvarint(frame, start)
    except IndexError:
        return None
    end = start + length - 1
    if length <= 1 or frame[end:] != _AFTER_RECORDS:
        return None
    return SingleAnswer(session, topic, partition, high, log_start, memoryview(frame)[start:end])
