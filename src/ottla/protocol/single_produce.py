"""The commonest request of a producer, in one piece: Produce with the records of one partition, outside of transactions.

Who waits for each record, or has few of them, sends nothing else. Its form is always the same, so two `struct`s read it and two write
the answer when all went well, where the codec makes six objects. The answer names the partition in the very bytes of the request. All
bytes are the codec's own; whatever has any other form is None here, and the codec's to read.

| versions | what is before the records, and behind |
|---|---|
| 5 to 8 | counts and lengths have fixed sizes; from 8 on the answer has room for what is wrong with which record |
| 9 to 12 | they are varints, and no tags end each struct; a name of 127 bytes or more is the codec's |
| 13 | the topic's id in the place of its name |
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from ottla.model.errors import ProtocolError
from ottla.protocol.primitives import uvarint_tail

_PLAIN = struct.Struct(">hhiih")  # no transactional id, acks, timeout, one topic, the length of its name
_PLAIN_ROW = struct.Struct(">iii")  # one partition, its index, the size of its records
_PLAIN_SIZE, _PLAIN_ROW_SIZE = _PLAIN.size, _PLAIN_ROW.size
_PLAIN_NAMED = 8  # where all that the answer repeats begins
_FLEXIBLE = struct.Struct(">BhiBB")  # the same, each length one larger than it is
_FLEXIBLE_ROW = struct.Struct(">BiB")
_FLEXIBLE_SIZE, _FLEXIBLE_ROW_SIZE = _FLEXIBLE.size, _FLEXIBLE_ROW.size
_FLEXIBLE_NAMED = 7
_BY_ID = struct.Struct(">BhiB16sBiB")
_BY_ID_SIZE = _BY_ID.size
_NO_TAGS = bytes(3)  # of the partition, the topic, the request
_new = tuple.__new__


class SingleProduce(NamedTuple):
    acks: int
    timeout_ms: int
    topic: str | bytes  # from version 13 on its id
    partition: int
    named: bytearray  # topic and partition as they stand in the request, and in the answer
    records: memoryview


def _read_plain(frame: bytearray, position: int) -> SingleProduce | None:
    transaction, acks, timeout_ms, topics, length = _PLAIN.unpack_from(frame, position)
    name = position + _PLAIN_SIZE
    row = name + length
    partitions, partition, size = _PLAIN_ROW.unpack_from(frame, row)
    start = row + _PLAIN_ROW_SIZE
    if transaction != -1 or topics != 1 or length < 0 or partitions != 1 or size < 1 or start + size != len(frame):
        return None
    named = frame[position + _PLAIN_NAMED : start - 4]
    return _new(SingleProduce, (acks, timeout_ms, frame[name:row].decode(), partition, named, memoryview(frame)[start:]))


def _read_flexible(frame: bytearray, position: int) -> SingleProduce | None:
    transaction, acks, timeout_ms, topics, length = _FLEXIBLE.unpack_from(frame, position)
    name = position + _FLEXIBLE_SIZE
    row = name + length - 1
    partitions, partition, size = _FLEXIBLE_ROW.unpack_from(frame, row)
    if transaction or topics != 2 or not 0 < length < 128 or partitions != 2:
        return None
    start = row + _FLEXIBLE_ROW_SIZE
    records = _flexible_records(frame, start, size)
    if records is None:
        return None
    named = frame[position + _FLEXIBLE_NAMED : start - 1]
    return _new(SingleProduce, (acks, timeout_ms, frame[name:row].decode(), partition, named, records))


def _read_by_id(frame: bytearray, position: int) -> SingleProduce | None:
    transaction, acks, timeout_ms, topics, topic_id, partitions, partition, size = _BY_ID.unpack_from(frame, position)
    if transaction or topics != 2 or partitions != 2:
        return None
    start = position + _BY_ID_SIZE
    records = _flexible_records(frame, start, size)
    if records is None:
        return None
    named = frame[position + _FLEXIBLE_NAMED : start - 1]
    return _new(SingleProduce, (acks, timeout_ms, topic_id, partition, named, records))


def _flexible_records(frame: bytearray, start: int, size: int) -> memoryview | None:
    """What follows the first byte of its size, if it is not nothing and the end of the request follows it."""
    if size > 127:
        size, start = uvarint_tail(frame, start, size)
    end = start + size - 1
    if size < 2 or end + len(_NO_TAGS) != len(frame) or not frame.endswith(_NO_TAGS):
        return None
    return memoryview(frame)[start:end]


class Form(NamedTuple):
    """How a version looks."""

    read: Callable[[bytearray, int], SingleProduce | None]
    head: struct.Struct  # of an answer: size and correlation id
    tail: struct.Struct  # no error; first offset, append time, start of the log; and what is not zero of the rest
    rest: int
    size: int  # of all that but the name


def _form(read: Callable[[bytearray, int], SingleProduce | None], head: str, tail: str, rest: int) -> Form:
    before, after = struct.Struct(head), struct.Struct(tail)
    return Form(read, before, after, rest, before.size - 4 + after.size)


_UP_TO_7 = _form(_read_plain, ">ii", ">2xqqqi", 0)  # no delay
_8 = _form(_read_plain, ">ii", ">2xqqq4xh4x", -1)  # no list, no message
_FROM_9_ON = (">iix", ">2xqqqb8x", 1)  # an empty list
_FORMS = dict.fromkeys((5, 6, 7), _UP_TO_7) | {8: _8}
_FORMS |= dict.fromkeys((9, 10, 11, 12), _form(_read_flexible, *_FROM_9_ON)) | {13: _form(_read_by_id, *_FROM_9_ON)}


def read_request(frame: bytearray, position: int, version: int) -> SingleProduce | None:
    """The body of a request from `position` to the end of its frame."""
    form = _FORMS.get(version)
    try:
        return None if form is None else form.read(frame, position)
    except (struct.error, IndexError, UnicodeDecodeError, ProtocolError):
        return None


def write_answer(
    version: int, correlation_id: int, named: bytearray, base_offset: int, append_time_ms: int, log_start_offset: int
) -> list[Any]:
    """The parts of a whole response that tells of no error."""
    _, head, tail, rest, size = _FORMS[version]
    return [head.pack(size + len(named), correlation_id), named, tail.pack(base_offset, append_time_ms, log_start_offset, rest)]
