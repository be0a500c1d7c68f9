"""The codecs: round trips, bombs, rubbish."""

from __future__ import annotations

import gzip
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.compression import GZIP, LZ4, NAMES, NONE, SNAPPY, ZSTD, codec_id, compress, decompress

PACKING = [GZIP, SNAPPY, LZ4, ZSTD]
contents = st.binary(max_size=300) | st.tuples(st.binary(min_size=1, max_size=4), st.integers(0, 60_000)).map(
    lambda pair: pair[0] * pair[1]
)


@given(contents, st.sampled_from([NONE, *PACKING]))
def test_data_survives_a_round_trip_at_exactly_its_size(data: bytes, codec: int) -> None:
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(bytearray(packed)), len(data)) == data


@pytest.mark.parametrize(("codec", "level"), [(GZIP, 1), (GZIP, 9), (LZ4, 1), (LZ4, 12), (LZ4, 17), (ZSTD, -5), (ZSTD, 19)])
def test_levels_change_the_effort_and_not_the_content(codec: int, level: int) -> None:
    data = b"".join(b"line %d of a log, " % (index % 97) for index in range(5000))
    assert decompress(codec, compress(codec, data, level), len(data)) == data


@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_is_refused_without_being_unpacked(codec: int) -> None:
    bomb = compress(codec, bytes(64_000_000))
    limit = 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as caught:
            decompress(codec, bomb, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert peak < 4 * limit + len(bomb)


@pytest.mark.parametrize("codec", PACKING)
def test_one_byte_over_the_limit_is_too_much(codec: int) -> None:
    data = b"some text, " * 40_000
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    with pytest.raises(ApiError) as caught:
        decompress(codec, packed, len(data) - 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@given(st.sampled_from(PACKING), st.binary(max_size=60))
def test_rubbish_is_an_error_of_ours(codec: int, rubbish: bytes) -> None:
    for data in (rubbish, compress(codec, b"a few words " * 20)[:-7] + rubbish):
        try:
            decompress(codec, data, 10_000)
        except ApiError as error:
            if error.code not in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE):
                raise


@pytest.mark.parametrize("codec", PACKING)
def test_data_that_ends_early_is_corrupt(codec: int) -> None:
    packed = compress(codec, bytes(range(256)) * 10)
    for end in (len(packed) // 2, len(packed) - 1):
        with pytest.raises(ApiError) as caught:
            decompress(codec, packed[:end], 10_000)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_what_other_writers_may_choose_is_read() -> None:
    data = b"what other writers may choose " * 4000
    assert decompress(GZIP, gzip.compress(data[:1000]) + gzip.compress(data[1000:])) == data
    assert decompress(LZ4, bytes(cramjam.lz4.compress(data))) == data  # linked blocks, checksums
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data  # no framing


def test_codecs_have_kafka_s_names_and_numbers() -> None:
    assert [codec_id(name) for name in ("none", "gzip", "snappy", "lz4", "zstd")] == [0, 1, 2, 3, 4]
    assert NAMES[ZSTD] == "zstd"
    with pytest.raises(ValueError, match="brotli"):
        codec_id("brotli")
    for unknown in (5, 7):
        with pytest.raises(ApiError) as caught:
            decompress(unknown, b"")
        assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
