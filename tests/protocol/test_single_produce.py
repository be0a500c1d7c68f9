"""The short form of Produce is the codec's, byte for byte; whatever is not of that form is left to the codec."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.codec import decode, encode
from ottla.protocol.framing import response_frame
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.single_produce import SingleProduce, read_request, write_answer
from tests.protocol.strategies import values

INT16, INT32, INT64 = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
VERSIONS = st.integers(5, 13)
NAMES = st.one_of(st.text(max_size=20), st.sampled_from(["topic", "ø" * 63, "a" * 126]))
RECORDS = st.one_of(st.binary(min_size=1, max_size=300), st.sampled_from([b"r" * 126, b"r" * 127, b"r" * 20_000]))
UUID = st.binary(min_size=16, max_size=16)
quick = settings(deadline=None, derandomize=True)


@st.composite
def requests(draw: st.DrawFn) -> tuple[ProduceRequest, int]:
    data = ProduceRequest.TopicProduceData
    row = data.PartitionProduceData(index=draw(INT32), records=draw(RECORDS))
    topic = data(name=draw(NAMES), topic_id=draw(UUID), partition_data=[row])
    return ProduceRequest(acks=draw(INT16), timeout_ms=draw(INT32), topic_data=[topic]), draw(VERSIONS)


def whole(single: SingleProduce) -> ProduceRequest:
    data = ProduceRequest.TopicProduceData
    rows = [data.PartitionProduceData(index=single.partition, records=single.records)]
    named = data(name=single.topic) if isinstance(single.topic, str) else data(topic_id=single.topic)
    return ProduceRequest(acks=single.acks, timeout_ms=single.timeout_ms, topic_data=[named.replace(partition_data=rows)])


@quick
@given(requests())
def test_a_request_is_read_as_the_codec_wrote_it(drawn: tuple[ProduceRequest, int]) -> None:
    request, version = drawn
    body = encode(request, version)
    found = read_request(bytearray(b"header" + body), len(b"header"), version)
    assert found is not None
    assert encode(whole(found), version) == body


@quick
@given(requests(), st.data())
def test_a_changed_request_is_left_to_the_codec_or_read_as_the_codec_reads_it(
    drawn: tuple[ProduceRequest, int], data: st.DataObject
) -> None:
    request, version = drawn
    body = bytearray(encode(request, version))
    body[data.draw(st.integers(0, min(len(body), 160) - 1))] ^= data.draw(st.integers(1, 255))
    body = body[: data.draw(st.one_of(st.just(len(body)), st.integers(0, len(body))))]
    found = read_request(body, 0, version)
    if found is not None:
        assert encode(whole(found), version) == encode(decode(ProduceRequest, version, body), version)


@quick
@given(values(ProduceRequest), VERSIONS)
def test_any_request_is_left_to_the_codec_or_read_as_the_codec_reads_it(request: ProduceRequest, version: int) -> None:
    body = encode(request, version)
    found = read_request(bytearray(body), 0, version)
    assert found is None or encode(whole(found), version) == body


def test_what_follows_a_request_makes_it_the_codecs_to_read() -> None:
    data = ProduceRequest.TopicProduceData
    topic = data(name="topic", partition_data=[data.PartitionProduceData(index=1, records=b"records")])
    for version in range(3, 14):
        body = bytearray(encode(ProduceRequest(topic_data=[topic]), version))
        assert (read_request(body, 0, version) is None) == (version < 5)
        assert read_request(body + b"\x00", 0, version) is None


@quick
@given(requests(), INT32, INT64, INT64, INT64)
def test_an_answer_has_the_bytes_that_the_codec_writes(
    drawn: tuple[ProduceRequest, int], correlation_id: int, offset: int, time_ms: int, start: int
) -> None:
    request, version = drawn
    single = read_request(bytearray(encode(request, version)), 0, version)
    assert single is not None
    [topic] = request.topic_data
    reply = ProduceResponse.TopicProduceResponse
    row = reply.PartitionProduceResponse(
        index=single.partition, base_offset=offset, log_append_time_ms=time_ms, log_start_offset=start
    )
    response = ProduceResponse(responses=[reply(topic.name, topic.topic_id, [row])])
    sent = b"".join(write_answer(version, correlation_id, single.named, offset, time_ms, start))
    assert sent == b"".join(response_frame(response, version, correlation_id))
