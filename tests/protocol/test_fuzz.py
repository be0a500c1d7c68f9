"""What a broken or hostile peer may send: every decoder and the frame reader answer with a value or a ProtocolError.

Nothing else may be raised, because the server closes a connection on ProtocolError alone; and nothing big may be made of a
few bytes.
"""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.model.errors import ProtocolError
from ottla.protocol.codec import MAX_STRUCTS, decode, encode
from ottla.protocol.framing import Frames, FrameSizeError, read_request_head, request_frame, response_body_start, skip_tags
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.primitives import uvarint
from ottla.protocol.schema import Message
from tests.protocol.strategies import all_messages, at_version, values

LIMIT = 1000
KIB = 1024
MESSAGES = {message.__name__: message for message in all_messages()}
HUGE_LENGTHS = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\x00\x00\x00", b"\x7f\xff", b"\xfe"]
quick = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def _read_or_refuse(message: type[Message], version: int, data: bytes) -> None:
    try:
        value = decode(message, version, data)
    except ProtocolError:
        return
    encode(value, version)  # whatever was accepted can be said again


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_decoder_refuses_or_reads_random_bytes(name: str) -> None:
    message = MESSAGES[name]

    @settings(quick, max_examples=30)
    @given(st.binary(max_size=200))
    def judge(data: bytes) -> None:
        for version in message.VERSIONS:
            _read_or_refuse(message, version, data)

    judge()


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_decoder_refuses_or_reads_what_was_cut_flipped_or_given_huge_lengths(name: str) -> None:
    message = MESSAGES[name]

    @settings(quick, max_examples=15)
    @given(values(message), st.randoms(use_true_random=False))
    def judge(value: Message, random: object) -> None:
        for version in message.VERSIONS:
            whole = encode(at_version(value, version), version)
            if not whole:
                continue
            at = random.randrange(len(whole))  # type: ignore[attr-defined]
            with pytest.raises(ProtocolError):
                decode(message, version, whole + b"\x00")
            _read_or_refuse(message, version, whole[:at])
            _read_or_refuse(message, version, whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            huge = HUGE_LENGTHS[at % len(HUGE_LENGTHS)]
            _read_or_refuse(message, version, whole[:at] + huge + whole[at + len(huge) :])

    judge()


def test_huge_lengths_make_nothing_huge() -> None:
    tracemalloc.start()
    try:
        for message in MESSAGES.values():
            for version in message.VERSIONS:
                whole = encode(message(), version) + bytes(64)
                for at in range(0, len(whole), 3):
                    for huge in HUGE_LENGTHS[:3]:
                        _read_or_refuse(message, version, whole[:at] + huge + whole[at + len(huge) :])
        assert tracemalloc.get_traced_memory()[1] < 60_000_000  # the compiled codecs themselves are most of it
    finally:
        tracemalloc.stop()


def test_a_million_tags_cannot_have_the_same_bytes_read_again_and_again() -> None:
    """Tag 0 of a ProduceResponse is an array. If its size of 0 were believed, each tag would read all the bytes that follow."""
    head = encode(ProduceResponse(), 10)[:-1]
    for size in (0, 1, 3):
        with pytest.raises(ProtocolError):
            decode(ProduceResponse, 10, head + uvarint(300_000) + bytes([0, size]) * 300_000)


def test_a_fixed_tag_of_the_wrong_size_is_refused() -> None:
    partition = FetchRequest.FetchTopic.FetchPartition(high_watermark=5)
    whole = encode(FetchRequest(topics=[FetchRequest.FetchTopic(partitions=[partition])]), 18)
    tag = b"\x01\x08" + struct.pack(">q", 5)
    assert tag in whole
    with pytest.raises(ProtocolError):
        decode(FetchRequest, 18, whole.replace(tag, b"\x01\x07" + tag[3:]))


def test_an_array_of_structs_has_a_limit() -> None:
    with pytest.raises(ProtocolError):
        decode(MetadataRequest, 1, struct.pack(">i", MAX_STRUCTS + 1) + bytes(2 * MAX_STRUCTS + 2))


@settings(quick, max_examples=200)
@given(st.lists(st.binary(max_size=50), max_size=8), st.randoms(use_true_random=False))
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(frames: list[bytes], random: object) -> None:
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    reader, seen, position = Frames(LIMIT), [], 0
    while position < len(stream):
        size = random.randrange(1, 20)  # type: ignore[attr-defined]
        seen += reader.feed(stream[position : position + size])
        position += size
    assert seen == frames


@settings(quick, max_examples=300)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_the_frame_reader_refuses_or_cuts_random_bytes(pieces: list[bytes]) -> None:
    reader = Frames(LIMIT)
    for piece in pieces:
        try:
            frames = reader.feed(piece)
        except ProtocolError:
            return
        for frame in frames:
            _read_head(frame)


@pytest.mark.parametrize("size", [-1, -(2**31), LIMIT + 1, 2**31 - 1])
@pytest.mark.parametrize("rest", [b"", b"x", b"x" * 2000])
def test_a_frame_size_that_is_negative_or_over_the_limit_is_refused(size: int, rest: bytes) -> None:
    with pytest.raises(FrameSizeError) as refused:
        Frames(LIMIT).feed(struct.pack(">i", size) + rest)
    assert refused.value.start == (struct.pack(">i", size) + rest)[:64]


@pytest.mark.parametrize(("belief", "rooms"), [(8, [70, 560, 384]), (1024, [1014])])
def test_a_large_frame_is_received_where_it_stays_as_far_as_its_size_is_believed(belief: int, rooms: list[int]) -> None:
    content = bytes(range(256)) * (4 * KIB)
    arrived = 10 * KIB
    reader = Frames(len(content), bytearray(16 * KIB), belief)
    frames, seen = reader.feed(struct.pack(">i", len(content)) + content[:arrived]), []
    while not frames:
        room = reader.room()
        seen.append(len(room) // KIB)
        room[:] = content[arrived : arrived + len(room)]
        arrived += len(room)
        frames = reader.filled(len(room))
    assert (frames, seen) == ([content], rooms)


def _read_head(frame: bytes) -> None:
    try:
        head = read_request_head(frame)
        skip_tags(frame, head.position)
    except ProtocolError:
        pass
    try:
        response_body_start(frame, True)
    except ProtocolError:
        pass


@settings(quick, max_examples=500)
@given(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda tail: struct.pack(">hhih", 3, 9, 1, 2) + tail)))
def test_a_header_is_refused_or_read_from_random_bytes(frame: bytes) -> None:
    _read_head(frame)


@pytest.mark.parametrize("client_id", [None, "", "me", "ø" * 200])
@pytest.mark.parametrize("version", [8, 9])
def test_a_request_header_is_read_as_it_was_written(client_id: str | None, version: int) -> None:
    frame = b"".join(request_frame(MetadataRequest(), version, 77, client_id))
    [body] = Frames(LIMIT).feed(frame)
    head = read_request_head(body)
    assert head[:4] == (3, version, 77, client_id)
    start = skip_tags(body, head.position) if version >= 9 else head.position
    assert decode(MetadataRequest, version, body, start) == MetadataRequest()
