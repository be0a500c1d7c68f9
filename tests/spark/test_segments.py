"""A log directory read without a broker gives what a broker would give, and nothing beyond the high watermark."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from ottla.model.ids import TopicPartition
from ottla.records.builder import build_batch
from ottla.records.control import EndTransaction, end_transaction_batch
from ottla.records.record import Record
from ottla.spark import segments
from ottla.spark.arrow import batches, latest_per_key
from ottla.spark.options import OptionError, parse
from ottla.spark.ranges import DataLost, OffsetRange
from ottla.storage import checkpoints

KEY = TopicPartition("orders", 0)


def record(offset: int, key: bytes | None = None, value: bytes | None = b"v") -> Record:
    return Record(offset, 1_000 + offset, key, value)


def write(folder: Path, parts: dict[int, list[bytes]], *, high_watermark: int, log_start: int = 0) -> str:
    """Segments by base offset, each a list of batches, and an index entry for each batch but the first."""
    home = folder / "orders-0"
    home.mkdir(parents=True)
    for base, made in parts.items():
        (home / f"{base:020d}.log").write_bytes(b"".join(made))
        entries, position = b"", 0
        for batch in made:
            if position:
                entries += (int.from_bytes(batch[:8], "big") - base).to_bytes(4, "big") + position.to_bytes(4, "big")
            position += len(batch)
        (home / f"{base:020d}.index").write_bytes(entries + bytes(80))
    (folder / checkpoints.HIGH_WATERMARKS).write_bytes(checkpoints.write_offsets({KEY: high_watermark}))
    (folder / checkpoints.LOG_START_OFFSETS).write_bytes(checkpoints.write_offsets({KEY: log_start}))
    return str(folder)


def read(directory: str, pieces: int = 1, **options: str) -> list[int]:
    plan = segments.plan(parse({"segments": directory} | options, reading=True))
    found: list[int] = []
    for key, end in plan.end.items():
        start = plan.start[key]
        cuts = [start + (end - start) * number // pieces for number in range(pieces + 1)]
        for first, last in itertools.pairwise(cuts):
            wanted = OffsetRange(key.topic, key.partition, first, last)
            rows: Any = batches(segments.read(directory, wanted, plan.aborted.get(key, ())), wanted, False)
            found += [offset for batch in rows for offset in batch.column("offset").to_pylist()]
    return found


def simple(folder: Path, **more: int) -> str:
    parts = {
        0: [build_batch([record(n) for n in range(start, start + 5)]) for start in range(0, 20, 5)],
        20: [build_batch([record(n) for n in range(start, start + 5)]) for start in range(20, 40, 5)],
    }
    return write(folder, parts, **({"high_watermark": 33} | more))


@pytest.mark.parametrize("pieces", [1, 2, 7, 33])
def test_however_it_is_cut_each_record_below_the_high_watermark_is_read_once(tmp_path: Path, pieces: int) -> None:
    assert read(simple(tmp_path), pieces) == list(range(33))


def test_reading_begins_at_the_log_start_and_keeps_to_the_offsets_asked_for(tmp_path: Path) -> None:
    directory = simple(tmp_path, log_start=7)
    assert read(directory) == list(range(7, 33))
    assert read(directory, startingOffsets='{"orders":{"0":22}}', endingOffsets='{"orders":{"0":24}}') == [22, 23]
    with pytest.raises(DataLost, match="offset 3 is gone"):
        read(directory, startingOffsets='{"orders":{"0":3}}')
    assert read(directory, startingOffsets='{"orders":{"0":3}}', failOnDataLoss="false") == list(range(7, 33))


def test_a_small_piece_is_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "READ_BYTES", 200)
    assert read(simple(tmp_path), 3) == list(range(33))


def transactional(producer_id: int, *offsets: int) -> bytes:
    return build_batch(
        [record(offset) for offset in offsets], producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )


def marker(producer_id: int, offset: int, *, commit: bool) -> bytes:
    return end_transaction_batch(
        EndTransaction(commit, 0), producer_id=producer_id, producer_epoch=0, timestamp=1, base_offset=offset
    )


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_read_committed_leaves_out_aborted_and_open_transactions(tmp_path: Path, pieces: int) -> None:
    parts = [
        transactional(1, 0, 1),
        transactional(2, 2, 3),
        marker(1, 4, commit=False),
        transactional(1, 5),
        marker(2, 6, commit=True),
        marker(1, 7, commit=True),
        transactional(3, 8),
        build_batch([record(9)]),
    ]
    directory = write(tmp_path, {0: parts}, high_watermark=10)
    assert read(directory, pieces, **{"isolation.level": "read_committed"}) == [2, 3, 5]
    assert read(directory, pieces) == [0, 1, 2, 3, 5, 8, 9]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    directory = simple(tmp_path)
    with pytest.raises(OptionError, match="no log of nowhere"):
        read(directory, subscribe="nowhere")
    with pytest.raises(OptionError, match="which is no directory"):
        read(f"{directory}/none")
    with pytest.raises(OptionError, match="orders-0 starts at offset 5 and ends at 4"):
        read(directory, startingOffsets='{"orders":{"0":5}}', endingOffsets='{"orders":{"0":4}}')
    with pytest.raises(OptionError, match="startingTimestamp needs a broker"):
        read(directory, startingTimestamp="5")
    with pytest.raises(OptionError, match="endingOffsets lacks orders-0"):
        read(directory, endingOffsets='{"other":{"0":3}}')


def test_a_pattern_means_what_it_means_with_a_broker(tmp_path: Path) -> None:
    names = ("orders", "reorders", "__consumer_offsets", "__cluster_metadata", "__of-a-user", "ottla-spark-ledger")
    for name in names:
        (tmp_path / f"{name}-0").mkdir()

    def found(**chosen: str) -> set[str]:
        return {key.topic for key in segments.plan(parse({"segments": str(tmp_path)} | chosen, reading=True)).end}

    assert found() == found(subscribePattern=".*") == {"orders", "reorders", "__of-a-user"}
    assert found(subscribePattern="order") == {"orders", "reorders"}
    assert found(subscribePattern="^order") == {"orders"}
    assert found(subscribe="__consumer_offsets") == {"__consumer_offsets"}


def test_the_latest_of_each_key_stays_and_a_tombstone_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.arrow.MAX_ROWS", 3)
    rows = [(n, [b"a", b"b", b"c", None, b"d"][n % 5], None if n in (11, 9) else b"%d" % n) for n in range(17)]
    directory = write(tmp_path, {0: [build_batch([record(*row) for row in rows])]}, high_watermark=17)
    wanted = OffsetRange("orders", 0, 0, 17)
    got = [
        row for batch in latest_per_key(batches(segments.read(directory, wanted, ()), wanted, False)) for row in batch.to_pylist()
    ]
    last = {key: value for _, key, value in rows if key is not None}
    assert {row["key"]: row["value"] for row in got} == {key: value for key, value in last.items() if value is not None}
    assert Counter(row["key"] for row in got).most_common(1)[0][1] == 1


@pytest.mark.parametrize("kinds", [(False, False), (True, True), (False, True), (True, False)])
def test_the_timestamp_type_is_that_of_each_batch(tmp_path: Path, kinds: tuple[bool, bool]) -> None:
    made = []
    for number, is_append_time in enumerate(kinds):
        batch = bytearray(build_batch([record(3 * number + n) for n in range(3)]))
        if is_append_time:
            from ottla.records.batch import crc_of

            batch[22] |= 0x08  # the low byte of the attributes
            batch[17:21] = crc_of(batch, 0, len(batch)).to_bytes(4, "big")
        made.append(bytes(batch))
    directory = write(tmp_path, {0: made}, high_watermark=6)
    wanted = OffsetRange("orders", 0, 1, 6)
    got = [row for batch in batches(segments.read(directory, wanted, ()), wanted, False) for row in batch.to_pylist()]
    assert [(row["offset"], row["timestampType"]) for row in got] == [(n, int(kinds[n // 3])) for n in range(1, 6)]
