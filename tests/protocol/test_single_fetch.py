"""The short form of Fetch is the codec's, byte for byte; whatever is not of that form is left to the codec."""

from __future__ import annotations

from typing import get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.model.errors import ProtocolError
from ottla.protocol.codec import decode, encode
from ottla.protocol.framing import response_body_start, response_frame
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.single_fetch import VERSION, SingleAnswer, SingleFetch, read_answer, read_request, write_answer, write_request
from tests.protocol.strategies import values

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_WIDE = {"fetch_offset", "log_start_offset", "replica_epoch"}
UUID = st.binary(min_size=16, max_size=16)
FETCHES = st.builds(
    SingleFetch,
    **{
        name: UUID if kind is bytes else st.integers(0, 2**31 - 1) if name == "replica_id" else INT64 if name in _WIDE else INT32
        for name, kind in get_type_hints(SingleFetch).items()
    },
)
quick = settings(deadline=None, derandomize=True)


def whole(fetch: SingleFetch) -> FetchRequest:
    topic = FetchRequest.FetchTopic
    row = topic.FetchPartition(
        partition=fetch.partition,
        current_leader_epoch=fetch.current_leader_epoch,
        fetch_offset=fetch.fetch_offset,
        last_fetched_epoch=fetch.last_fetched_epoch,
        log_start_offset=fetch.log_start_offset,
        partition_max_bytes=fetch.partition_max_bytes,
    )
    return FetchRequest(
        replica_state=FetchRequest.ReplicaState(replica_id=fetch.replica_id, replica_epoch=fetch.replica_epoch),
        max_wait_ms=fetch.max_wait_ms,
        min_bytes=fetch.min_bytes,
        max_bytes=fetch.max_bytes,
        session_id=fetch.session_id,
        session_epoch=fetch.session_epoch,
        topics=[topic(topic_id=fetch.topic_id, partitions=[row])],
    )


@quick
@given(FETCHES)
def test_a_request_has_the_bytes_that_the_codec_writes(fetch: SingleFetch) -> None:
    body = write_request(fetch)
    assert body == encode(whole(fetch), VERSION)
    assert read_request(b"header" + body, len(b"header")) == fetch


@quick
@given(FETCHES, st.data())
def test_a_changed_request_is_left_to_the_codec_or_read_as_the_codec_reads_it(fetch: SingleFetch, data: st.DataObject) -> None:
    body = bytearray(write_request(fetch))
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    found = read_request(body, 0)
    if found is not None:
        assert whole(found) == decode(FetchRequest, VERSION, body)


@quick
@given(values(FetchRequest))
def test_any_request_is_left_to_the_codec_or_read_as_the_codec_reads_it(request: FetchRequest) -> None:
    body = encode(request, VERSION)
    found = read_request(body, 0)
    assert found is None or encode(whole(found), VERSION) == body


@quick
@given(INT32, INT32, UUID, INT32, INT64, INT64, INT64, st.one_of(st.binary(min_size=1, max_size=300), st.just(b"r" * 20_000)))
def test_an_answer_has_the_bytes_that_the_codec_writes(
    correlation_id, session_id, topic_id, partition, high, stable, start, records
):
    topic = FetchResponse.FetchableTopicResponse
    row = topic.PartitionData(
        partition_index=partition,
        high_watermark=high,
        last_stable_offset=stable,
        log_start_offset=start,
        aborted_transactions=None,
        records=records,
    )
    response = FetchResponse(session_id=session_id, responses=[topic(topic_id=topic_id, partitions=[row])])
    sent = b"".join(write_answer(correlation_id, session_id, topic_id, partition, high, stable, start, records))
    assert sent == b"".join(response_frame(response, VERSION, correlation_id))
    frame = sent[4:]
    found = read_answer(frame, response_body_start(frame, flexible=True))
    assert found == SingleAnswer(session_id, topic_id, partition, high, start, memoryview(records))


@quick
@given(st.data(), st.binary(min_size=1, max_size=200))
def test_a_changed_answer_is_left_to_the_codec_or_read_as_the_codec_reads_it(data: st.DataObject, records: bytes) -> None:
    frame = bytearray(b"".join(write_answer(1, 2, bytes(16), 3, 4, 5, 6, records))[4:])
    frame[data.draw(st.integers(5, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    frame = frame[: data.draw(st.integers(5, len(frame)))]
    try:
        found = read_answer(frame, 5)
    except ProtocolError:
        return
    if found is not None:
        decoded = decode(FetchResponse, VERSION, frame, 5)
        [topic] = decoded.responses
        [row] = topic.partitions
        assert (decoded.session_id, topic.topic_id, row.partition_index) == found[:3]
        assert (row.high_watermark, row.log_start_offset, bytes(row.records)) == (*found[3:5], bytes(found.records))
        assert (decoded.error_code, row.error_code, decoded.throttle_time_ms) == (0, 0, 0)
