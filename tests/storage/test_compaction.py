"""Compaction keeps the last record of each key, and everything a live producer or an undecided reader still needs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ottla.host.disk import RealDisk
from ottla.host.workers import RealWorkers
from ottla.model.errors import ApiError
from ottla.model.ids import TopicPartition
from ottla.records.batch import check_batches
from ottla.records.control import visible_batches
from ottla.records.record import Record, decode_batch
from ottla.storage import cleaner
from ottla.storage.compaction import MAP_ENTRY_BYTES, Cleaned, CleaningPlan, UncleanableLog, compact
from ottla.storage.config import LogConfig
from ottla.storage.log import Log
from tests.storage.memory_disk import MemoryDisk, PowerCut
from tests.storage.scene import FOLDER, NOW, append, batch, open_log, read_bytes, records_of, send, values_of

CONFIG = LogConfig(
    compact=True,
    delete=False,
    segment_bytes=600,
    index_interval_bytes=100,
    delete_retention_ms=1000,
    min_cleanable_dirty_ratio=0.0,
    verify_transactions=False,
    file_delete_delay_ms=0,
)


def adopt(log: Log, planned: CleaningPlan, cleaned: Cleaned, now_ms: int) -> bool:
    for job in cleaner.adoption(log, planned, cleaned, now_ms):
        job.run()
    return log.cleaner_offset == cleaned.end_offset


def clean(log: Log, now_ms: int = NOW, map_bytes: int = cleaner.MAP_BYTES) -> Cleaned | None:
    """What `clean_next` does, without a worker."""
    log.advance_high_watermark(log.log_end_offset)
    chosen = cleaner.filthiest([log], now_ms)
    if chosen is None:
        return None
    planned = cleaner.plan(chosen, now_ms, map_bytes)
    cleaned = compact(log._disk, planned)
    assert adopt(log, planned, cleaned, now_ms)
    return cleaned


def fill(log: Log, count: int, *, keys: int = 5, seed: int = 1) -> list[Record]:
    chance = random.Random(seed)
    for number in range(count):
        key, codec = b"key-%d" % chance.randrange(keys), chance.randrange(5)
        value = None if chance.random() < 0.1 else b"value-%d" % number
        append(log, value, key=key, timestamp=NOW + number, codec=codec)
    return records_of(log)


def last_of_each(records: list[Record], below: int) -> list[Record]:
    latest = {record.key: record.offset for record in records if record.offset < below}
    return [record for record in records if record.offset >= below or latest[record.key] == record.offset]


def test_only_the_last_record_of_each_key_is_left_and_its_offset_never_changes() -> None:
    disk = MemoryDisk()
    log = open_log(disk, CONFIG)
    before = fill(log, 100)
    cleaned = clean(log)
    assert cleaned is not None
    assert cleaned.end_offset == log.cleaner_offset == log.segments.active.base_offset
    assert cleaned.bytes_written < cleaned.bytes_read
    after = records_of(log)
    assert after == last_of_each(before, cleaned.end_offset)
    for offset in range(100):
        expected = next((record for record in after if record.offset >= offset), None)
        assert (records_of(log, offset) or [None])[0] == expected
    assert clean(log) is None, "nothing is dirty any more"
    assert records_of(open_log(disk.copy(), CONFIG)) == after
    log.close(NOW)
    assert records_of(open_log(disk, CONFIG, clean=True)) == after


def test_cleaning_again_and_again_equals_cleaning_once() -> None:
    log, once = open_log(MemoryDisk(), CONFIG), open_log(MemoryDisk(), CONFIG)
    for turn in range(6):
        fill(log, 30, seed=turn)
        clean(log)
        fill(once, 30, seed=turn)
    clean(once)
    assert records_of(log) == records_of(once)
    assert len(log.segments) <= len(once.segments) + 1


def test_batches_of_many_records_lose_records_and_keep_their_range() -> None:
    log = open_log(MemoryDisk(), CONFIG)
    for number in range(12):
        append(log, b"a%d" % number, b"b%d" % number, b"c%d" % number, key=b"k%d" % (number % 2), log_append_time=None)
    clean(log)
    kept = [record.offset for record in records_of(log) if record.offset < log.cleaner_offset]
    assert kept == [log.cleaner_offset - 4, log.cleaner_offset - 1]
    content = read_bytes(log, 0)
    assert all(header.last_offset_delta == 2 for _, header in check_batches(content))


def test_tombstones_are_readable_until_their_horizon_and_then_gone() -> None:
    log = open_log(MemoryDisk(), CONFIG)
    append(log, b"old", key=b"gone")
    append(log, None, key=b"gone")
    append(log, b"stays", key=b"here")
    fill(log, 20, keys=2)

    def tombstone() -> list[int]:
        return [record.offset for record in records_of(log) if record.key == b"gone"]

    clean(log, NOW)
    assert tombstone() == [1]
    [horizon] = [header.delete_horizon for _, header in check_batches(read_bytes(log, 1, 1, 2))]
    assert horizon == NOW + 1000
    [kept] = [record for record in records_of(log) if record.key == b"gone"]
    assert kept.timestamp == NOW, "the horizon takes the base timestamp's place, the record keeps its own"
    fill(log, 20, keys=2)
    clean(log, NOW + 999)
    assert tombstone() == [1]
    fill(log, 20, keys=2)
    clean(log, NOW + 1000)
    assert tombstone() == []


def test_records_without_a_key_are_dropped() -> None:
    log = open_log(MemoryDisk(), CONFIG)
    append(log, b"keyless")
    fill(log, 20)
    clean(log)
    assert records_of(log)[0].offset > 0


def test_a_live_producers_last_batch_stays_empty_and_its_sequence_holds_after_a_restart() -> None:
    disk = MemoryDisk()
    log = open_log(disk, CONFIG)
    for sequence in range(3):
        append(log, b"p", key=b"same", producer_id=9, producer_epoch=0, base_sequence=sequence)
    append(log, b"newer", key=b"same")
    fill(log, 30)
    clean(log)
    assert all(record.offset > 2 for record in records_of(log))
    assert [header.record_count for _, header in check_batches(read_bytes(log, 0, 1, 3))] == [0]
    for name in disk.list(FOLDER):
        if name.endswith(".snapshot"):
            disk.remove(f"{FOLDER}/{name}")
    again = open_log(disk, CONFIG)
    with pytest.raises(ApiError, match="OUT_OF_ORDER"):
        send(again, batch(b"x", key=b"k", producer_id=9, producer_epoch=0, base_sequence=5))
    assert send(again, batch(b"x", key=b"k", producer_id=9, producer_epoch=0, base_sequence=2)).duplicate
    send(again, batch(b"x", key=b"k", producer_id=9, producer_epoch=0, base_sequence=3))


def transactional(log: Log, producer: int, sequence: int, key: bytes, value: bytes) -> None:
    send(log, batch(value, key=key, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True))


def committed(log: Log) -> dict[bytes | None, bytes | None]:
    """What a read_committed reader ends up with: the last value of each key."""
    upper = log.last_stable_offset
    content = read_bytes(log, log.log_start_offset, upper_offset=upper)
    found = {}
    for position, _ in visible_batches(content, log.aborted_transactions(log.log_start_offset, upper)):
        for record in decode_batch(content, position):
            found[record.key] = record.value
    return found


def test_aborted_records_go_and_hide_nothing_and_markers_outlive_them_by_the_retention() -> None:
    log = open_log(MemoryDisk(), CONFIG)
    append(log, b"good", key=b"a")
    transactional(log, 1, 0, b"a", b"aborted")
    log.append_control(1, 0, 0, False, 0, NOW)
    transactional(log, 2, 0, b"b", b"committed")
    log.append_control(2, 0, 0, True, 0, NOW)
    for sequence in (1, 2):  # the last of each producer would stay; let it be another
        transactional(log, 1, sequence, b"c", b"c%d" % sequence)
        transactional(log, 2, sequence, b"d", b"d%d" % sequence)
    log.append_control(1, 0, 0, True, 0, NOW)
    log.append_control(2, 0, 0, True, 0, NOW)
    fill(log, 20, keys=2)
    expected = committed(log) | {}
    log.advance_high_watermark(log.log_end_offset)
    expected = committed(log)
    assert expected[b"a"] == b"good"

    def control() -> list[int]:
        return [header.base_offset for _, header in check_batches(read_bytes(log, 0)) if header.is_control]

    assert control()[:2] == [2, 4]
    clean(log, NOW)
    assert 1 not in [offset for offset, _ in values_of(log)]
    assert control()[:2] == [2, 4]
    assert [entry.first_offset for entry in log.aborted_entries(0, 5)] == [1]
    fill(log, 20, keys=2)
    clean(log, NOW)  # nothing is left of the aborted transaction: its marker gets a horizon
    assert control()[:2] == [2, 4]
    assert log.aborted_entries(0, 5) == []
    fill(log, 20, keys=2)
    clean(log, NOW + 1000)
    assert control()[0] == 4, "the committed record is still there, so is its marker"
    log.advance_high_watermark(log.log_end_offset)
    assert {key: committed(log)[key] for key in (b"a", b"b", b"c", b"d")} == {
        key: expected[key] for key in (b"a", b"b", b"c", b"d")
    }


def test_an_open_transaction_stops_the_cleaner_before_it() -> None:
    log = open_log(MemoryDisk(), CONFIG)
    fill(log, 20)
    transactional(log, 1, 0, b"key-0", b"open")
    start = log.log_end_offset - 1
    fill(log, 30)
    cleaned = clean(log)
    assert cleaned is not None
    assert cleaned.end_offset <= start
    assert log.last_stable_offset == start


def test_random_transactions_read_the_same_committed_state_after_any_number_of_cleanings() -> None:
    for seed in range(12):
        chance = random.Random(seed)
        log, reference = open_log(MemoryDisk(), CONFIG), open_log(MemoryDisk(), CONFIG)
        sequences: dict[int, int] = {}
        for step in range(120):
            producer, key = chance.randrange(3), b"k%d" % chance.randrange(6)
            action = chance.random()
            for each in (log, reference):
                if action < 0.6:
                    transactional(each, producer, sequences.get(producer, 0), key, b"%d" % step)
                elif action < 0.8:
                    each.append_control(producer, 0, 0, action < 0.7, 0, NOW)
                else:
                    append(each, b"plain-%d" % step, key=key)
                each.advance_high_watermark(each.log_end_offset)
            if action < 0.6:
                sequences[producer] = sequences.get(producer, 0) + 1
            if chance.random() < 0.1:
                clean(log, NOW + step * 200)
            assert log.last_stable_offset == reference.last_stable_offset
            assert committed(log) == committed(reference), (seed, step)


def test_a_power_cut_at_every_step_of_the_swap_loses_nothing() -> None:
    disk = MemoryDisk()
    log = open_log(disk, CONFIG)
    before = fill(log, 60)
    log.advance_high_watermark(60)
    chosen = cleaner.filthiest([log], NOW)
    assert chosen is not None
    after = last_of_each(before, chosen.end_offset)
    steps = 0
    while True:
        crashing = disk.copy()
        victim = open_log(crashing, CONFIG, high_watermark=60)
        chosen = cleaner.filthiest([victim], NOW)
        assert chosen is not None
        planned = cleaner.plan(chosen, NOW)
        crashing.fuse = steps
        try:
            cleaned = compact(crashing, planned)
            assert adopt(victim, planned, cleaned, NOW)
            finished = True
        except PowerCut:
            finished = False
        crashing.fuse = None
        again = open_log(crashing, CONFIG, high_watermark=60)
        found = records_of(again)
        assert {record.key: record for record in found} == {record.key: record for record in before}, steps
        assert set(after) <= set(found) <= set(before), steps
        assert not any(name.endswith((".cleaned", ".swap", ".deleted")) for name in crashing.list(FOLDER))
        assert clean(again) is not None or found == after
        assert records_of(again) == after, steps
        if finished:
            break
        steps += 1
    assert steps > 40


def test_work_on_a_log_that_was_cut_meanwhile_is_thrown_away() -> None:
    disk = MemoryDisk()
    log = open_log(disk, CONFIG)
    fill(log, 60)
    log.advance_high_watermark(60)
    chosen = cleaner.filthiest([log], NOW)
    assert chosen is not None
    planned = cleaner.plan(chosen, NOW)
    cleaned = compact(disk, planned)
    log.truncate_to(20, NOW)
    before = records_of(log)
    assert not adopt(log, planned, cleaned, NOW)
    assert records_of(log) == before
    assert not any(name.endswith(".cleaned") for name in disk.list(FOLDER))


def test_a_truncation_while_the_swap_becomes_durable_wins() -> None:
    disk = MemoryDisk()
    log = open_log(disk, CONFIG)
    fill(log, 60)
    log.advance_high_watermark(60)
    chosen = cleaner.filthiest([log], NOW)
    assert chosen is not None
    planned = cleaner.plan(chosen, NOW)
    for job in cleaner.adoption(log, planned, compact(disk, planned), NOW):
        job.run()
        log.truncate_to(20, NOW)
        before = records_of(log)
    assert records_of(log) == before
    assert log.cleaner_offset < 20
    assert not any(name.endswith((".cleaned", ".swap")) for name in disk.list(FOLDER))
    assert records_of(open_log(disk.copy(), CONFIG)) == before


def test_a_log_that_was_cut_and_grew_to_the_same_shape_is_told_apart() -> None:
    log = open_log(MemoryDisk(), CONFIG)
    for number in range(30):
        append(log, b"old-%02d" % number, key=b"k%02d" % number)
    log.advance_high_watermark(30)
    chosen = cleaner.filthiest([log], NOW)
    assert chosen is not None
    planned = cleaner.plan(chosen, NOW)
    cleaned = compact(log._disk, planned)
    log.truncate_to(10, NOW)
    for number in range(10, 30):
        append(log, b"new-%02d" % number, key=b"k%02d" % number)
    before = records_of(log)
    assert not adopt(log, planned, cleaned, NOW)
    assert records_of(log) == before


def test_a_truncation_below_the_cleaned_part_makes_the_rest_dirty_again() -> None:
    log = open_log(MemoryDisk(), CONFIG)
    fill(log, 60)
    clean(log)
    log.truncate_to(20, NOW)
    assert log.cleaner_offset == 20


def test_readers_get_past_a_segment_that_was_emptied() -> None:
    log = open_log(MemoryDisk(), CONFIG)
    for number in range(20):  # four segments of five; the keys of the second come again in the third
        append(log, bytes(30), key=b"key-%02d" % (number if number < 10 else number - 5))
    clean(log)
    sizes = [segment.size for segment in log.segments]
    assert sizes[0] > 0 == sizes[1] < sizes[2]
    expected = [record.offset for record in records_of(log)]
    for _ in range(2):
        assert [record.offset for record in records_of(log, max_bytes=1)] == expected


def test_a_map_that_is_full_cleans_as_far_as_it_reaches_and_goes_on_next_time() -> None:
    log = open_log(MemoryDisk(), CONFIG)
    before = fill(log, 100, keys=40)
    ends = []
    while (cleaned := clean(log, map_bytes=10 * MAP_ENTRY_BYTES)) is not None:
        ends.append(cleaned.end_offset)
    assert len(ends) > 2
    assert ends == sorted(ends)
    assert records_of(log) == last_of_each(before, ends[-1])


def test_lag_and_ratio_decide_when_a_log_is_cleaned() -> None:
    def filled(**options: Any) -> Log:
        from dataclasses import replace

        log = open_log(MemoryDisk(), replace(CONFIG, **options))
        fill(log, 60)
        log.advance_high_watermark(60)
        return log

    late = filled(min_compaction_lag_ms=100)
    assert cleaner.filthiest([late], NOW + 60) is None
    chosen = cleaner.filthiest([late], NOW + 130)
    assert chosen is not None
    assert 0 < chosen.end_offset < late.segments.active.base_offset
    picky = filled(min_cleanable_dirty_ratio=1.0)
    assert cleaner.filthiest([picky], NOW) is None
    urgent = filled(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=100)
    assert cleaner.filthiest([urgent], NOW + 100) is None
    assert cleaner.filthiest([urgent], NOW + 101) is not None
    dirty, cleaner_one = filled(), filled()
    clean(cleaner_one)
    fill(cleaner_one, 10)
    cleaner_one.advance_high_watermark(cleaner_one.log_end_offset)
    best = cleaner.filthiest([cleaner_one, dirty, filled(compact=False)], NOW)
    assert best is not None
    assert best.log is dirty


def test_a_damaged_log_is_left_as_it_is() -> None:
    disk = MemoryDisk()
    log = open_log(disk, CONFIG)
    fill(log, 60)
    log.advance_high_watermark(60)
    disk.files[log.segments[1].path(".log")].content[80] ^= 1
    names = disk.list(FOLDER)
    chosen = cleaner.filthiest([log], NOW)
    assert chosen is not None
    with pytest.raises(UncleanableLog):
        compact(disk, cleaner.plan(chosen, NOW))
    assert disk.list(FOLDER) == names


def test_a_full_disk_while_cleaning_leaves_no_half_written_segment() -> None:
    disk = MemoryDisk()
    log = open_log(disk, CONFIG)
    before = fill(log, 60)
    log.advance_high_watermark(60)
    names = disk.list(FOLDER)
    chosen = cleaner.filthiest([log], NOW)
    assert chosen is not None
    for budget in range(0, 400, 10):
        disk.budget = budget
        with pytest.raises(OSError, match="No space"):
            compact(disk, cleaner.plan(chosen, NOW))
        assert disk.list(FOLDER) == names
    disk.budget = None
    assert records_of(log) == before
    assert clean(log) is not None


def _flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


async def test_a_worker_process_cleans_while_the_loop_serves(tmp_path: Path) -> None:
    disk, workers = RealDisk(), RealWorkers()
    good, damaged = (
        Log.open(disk, f"{tmp_path}/orders-{number}", TopicPartition("orders", number), bytes(16), CONFIG, NOW)
        for number in range(2)
    )
    before = fill(good, 100)
    fill(damaged, 100)
    _flip_bit(Path(damaged.segments[0].path(".log")), 70)
    good.advance_high_watermark(100)
    damaged.advance_high_watermark(100)
    try:
        cleaned = [await cleaner.clean_next([good, damaged], disk, workers, NOW) for _ in range(3)]
    finally:
        workers.close()
    assert cleaned in ([good, damaged, None], [damaged, good, None])
    assert records_of(good) == last_of_each(before, good.cleaner_offset)
    assert damaged.uncleanable, "it is not tried again and again"
