"""Batches as Kafka's own library and librdkafka wrote them (`golden/`): we read them, and write the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.records import compression
from ottla.records.batch import HEADER_SIZE, check_batches, read_header, stamp, stamp_append_time
from ottla.records.builder import BatchBuilder, build_batch, empty_batch
from ottla.records.control import ControlType, EndTransaction, end_transaction_batch, read_control_type, read_end_transaction
from ottla.records.record import Record, decode_batch, unpack

GOLDEN = Path(__file__).parent / "golden"
HEADERS = (("trace", b"\x01\x02\x03"), ("größe", None), ("", b""))


def read(name: str) -> dict[str, bytes]:
    lines = (GOLDEN / name).read_text().splitlines()
    return {label: bytes.fromhex(digits) for label, digits in (line.split() for line in lines)}


JAVA = read("java.txt")
LIBRDKAFKA = read("librdkafka.txt")


def few(base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset, 1700000000000, b"key", b"value"),
        Record(base_offset + 1, 1700000000005, None, b"no key"),
        Record(base_offset + 2, 1699999999000, b"tombstone", None),
        Record(base_offset + 3, 1700000100000, b"", b"", HEADERS),
    ]


def many() -> list[Record]:
    return [Record(index, 1700000000000 + index * 7, b"key-%d" % (index % 10), b"x" * index) for index in range(300)]


def from_librdkafka() -> list[Record]:
    return [
        Record(
            index,
            1700000000000 + index,
            None if index == 3 else b"key-%d" % index,
            None if index == 7 else b"x" * index,
            HEADERS if index % 10 == 0 else (),
        )
        for index in range(50)
    ]


@pytest.mark.parametrize("codec", range(5))
def test_java_batches_of_every_codec_are_read(codec: int) -> None:
    name = compression.NAMES[codec]
    assert decode_batch(JAVA[f"few-{name}"]) == few()
    if codec:
        assert decode_batch(JAVA[f"many-{name}"]) == many()


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("prefix", ["", "idempotent-"])
def test_librdkafka_batches_of_every_codec_are_read(codec: int, prefix: str) -> None:
    batch = LIBRDKAFKA[prefix + compression.NAMES[codec]]
    [(_, header)] = check_batches(batch)
    assert (header.codec, header.has_producer) == (codec, bool(prefix))
    assert decode_batch(batch) == from_librdkafka()


def test_both_framings_of_snappy_occur() -> None:
    assert JAVA["many-snappy"][HEADER_SIZE:].startswith(b"\x82SNAPPY\x00")
    assert not LIBRDKAFKA["snappy"][HEADER_SIZE:].startswith(b"\x82SNAPPY\x00")


@pytest.mark.parametrize("name", ["few-none", "idempotent", "transactional"])
def test_uncompressed_batches_are_java_s_byte_for_byte(name: str) -> None:
    golden = JAVA[name]
    header = read_header(golden)
    producer = {"producer_id": header.producer_id, "producer_epoch": header.producer_epoch, "base_sequence": header.base_sequence}
    batch = build_batch(
        few(header.base_offset), leader_epoch=header.leader_epoch, transactional=header.is_transactional, **producer
    )
    assert batch.hex() == golden.hex()
    builder = BatchBuilder()
    for record in few():
        builder.append(record.timestamp, record.key, record.value, record.headers)
    built = bytearray(builder.build(transactional=header.is_transactional, **producer))
    stamp(built, 0, header.base_offset, header.leader_epoch)
    assert built.hex() == golden.hex()


@pytest.mark.parametrize("codec", [compression.SNAPPY, compression.LZ4])
def test_framed_codecs_begin_as_java_s_do(codec: int) -> None:
    golden = JAVA[f"many-{compression.NAMES[codec]}"]
    ours = build_batch(many(), codec=codec)
    prefix = {compression.SNAPPY: 16, compression.LZ4: 7}[codec]
    assert ours[HEADER_SIZE : HEADER_SIZE + prefix] == golden[HEADER_SIZE : HEADER_SIZE + prefix]
    assert unpack(ours, 0, read_header(ours)) == unpack(golden, 0, read_header(golden))


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_markers_are_java_s_byte_for_byte(commit: bool) -> None:
    golden = JAVA["end-commit" if commit else "end-abort"]
    end = EndTransaction(commit, 9)
    batch = end_transaction_batch(
        end, producer_id=4242, producer_epoch=3, timestamp=1700000000000, base_offset=500, leader_epoch=5
    )
    assert batch.hex() == golden.hex()
    [record] = decode_batch(golden)
    assert read_control_type(record.key) is (ControlType.COMMIT if commit else ControlType.ABORT)
    assert read_end_transaction(record) == end


def test_restamping_for_log_append_time_gives_java_s_batch() -> None:
    batch = bytearray(build_batch(few(20)))
    stamp_append_time(batch, 0, 1800000000000)
    golden = JAVA["append-time"]
    assert batch.hex() == golden.hex()
    assert {record.timestamp for record in decode_batch(golden)} == {1800000000000}


def test_an_emptied_batch_is_java_s_byte_for_byte() -> None:
    golden = JAVA["empty"]
    full = build_batch(
        few(100), last_offset=109, producer_id=4242, producer_epoch=3, base_sequence=77, transactional=True, leader_epoch=5
    )
    header = read_header(full)._replace(max_timestamp=1700000000000)
    assert empty_batch(header).hex() == golden.hex()
