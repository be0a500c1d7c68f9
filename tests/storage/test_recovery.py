"""A crash at any byte, files that vanished or rotted, a disk that is full: whole batches are served, and only those."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ottla.model.errors import ApiError, ErrorCode
from ottla.records.batch import headers
from ottla.storage import cleaner
from ottla.storage.compaction import compact
from ottla.storage.config import LogConfig
from ottla.storage.log import Log
from ottla.storage.types import Origin
from tests.storage.memory_disk import MemoryDisk
from tests.storage.scene import FOLDER, NOW, append, batch, open_log, read_bytes, records_of, send, values_of
from tests.storage.test_compaction import adopt

CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=150)


def written(count: int = 30, *, producer: bool = True) -> tuple[MemoryDisk, Log]:
    disk = MemoryDisk()
    log = open_log(disk, CONFIG)
    for number in range(count):
        options = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number} if producer else {}
        append(log, b"value-%d" % number, timestamp=NOW + number, epoch=number // 10, **options)
    return disk, log


def test_a_log_cut_at_every_byte_of_its_last_two_batches_serves_exactly_the_whole_ones() -> None:
    disk, log = written()
    path = log.segments.active.path(".log")
    whole = values_of(log)
    size, last = disk.size(path), len(batch(b"value-29"))
    for cut in range(size - 2 * last, size):
        crashed = disk.copy()
        del crashed.files[path].content[cut:]
        kept = 28 + (cut >= size - last)
        again = open_log(crashed, CONFIG)
        assert values_of(again) == whole[:kept], cut
        assert again.log_end_offset == kept
        assert crashed.size(path) == size - (30 - kept) * last, "the torn tail is cut from the file"
        [producer] = again.active_producers()
        assert producer.last_sequence == kept - 1
        assert append(again, b"more", epoch=9).first_offset == kept


def test_a_flipped_bit_in_an_unflushed_batch_ends_the_log_before_it() -> None:
    disk, log = written()
    path = log.segments[1].path(".log")
    size = len(batch(b"value-29"))
    for bit in range(0, size * 8, 7):
        if bit // 8 in range(12, 16):
            continue  # the leader epoch lies outside the checksum
        crashed = disk.copy()
        crashed.files[path].content[size + bit // 8] ^= 1 << bit % 8
        again = open_log(crashed, CONFIG)
        first = log.segments[1].base_offset
        if bit < 64:  # the base offset lies outside the checksum, too: a larger one is a gap, not an error
            assert again.log_end_offset >= first + 1
        else:
            assert [offset for offset, _ in values_of(again)] == list(range(first + 1)), bit
            assert len(again.segments) == 2, "everything after it is gone"


def test_deleted_or_garbled_indexes_are_rebuilt_clean_or_not() -> None:
    disk, log = written()
    whole = values_of(log)
    log.close(NOW)
    chance = random.Random(1)
    for clean in (True, False):
        for name in [name for name in disk.list(FOLDER) if name.endswith(("index", ".snapshot"))]:
            for damage in ("delete", "empty", "random", "short", "zero"):
                crashed = disk.copy()
                content = crashed.files[f"{FOLDER}/{name}"].content
                if damage == "delete":
                    del crashed.files[f"{FOLDER}/{name}"]
                elif damage == "random":
                    content[:] = chance.randbytes(len(content))
                else:
                    content[:] = {"empty": b"", "short": content[:-3], "zero": bytes(len(content))}[damage]
                again = open_log(crashed, CONFIG, clean=clean, recovery_point=30 if clean else 0)
                assert values_of(again) == whole, (clean, name, damage)
                for number in range(30):
                    assert read_bytes(again, number, max_bytes=1)
                    again._places.clear()
                    found = again.lookup_timestamp(NOW + number)
                    assert found is not None
                    assert found.offset == number, (clean, name, damage)
                next_batch = batch(b"z", producer_id=5, producer_epoch=0, base_sequence=30)
                assert send(again, next_batch, epoch=9).first_offset == 30, (clean, name, damage)


def test_random_garbage_anywhere_never_serves_a_torn_batch() -> None:
    disk, log = written()
    whole = read_bytes(log, 0)
    chance = random.Random(2)
    for _ in range(150):
        crashed = disk.copy()
        name = chance.choice(crashed.list(FOLDER))
        content = crashed.files[f"{FOLDER}/{name}"].content
        start = chance.randrange(len(content) + 1)
        content[start : start + chance.randrange(1, 50)] = chance.randbytes(chance.randrange(0, 50))
        again = open_log(crashed, CONFIG)
        served = read_bytes(again, again.log_start_offset)
        assert whole.startswith(served) or name.endswith(".log")
        assert append(again, b"next", epoch=30).first_offset == again.log_end_offset - 1
        values_of(again)


def test_only_segments_from_the_recovery_point_on_are_checked() -> None:
    disk, log = written()
    log.flush(NOW)
    for number in range(3):
        append(log, b"unflushed-%d" % number, epoch=3)
    crashed = disk.copy()
    first = crashed.files[log.segments[0].path(".log")].content
    first[100] ^= 1  # rot in what was flushed is not looked for at start
    again = open_log(crashed, CONFIG, recovery_point=log.recovery_point)
    assert again.log_end_offset == 33
    assert open_log(crashed.copy(), CONFIG, recovery_point=0).log_end_offset < 33


def test_leader_epochs_that_were_never_synced_are_read_from_the_batches() -> None:
    disk, _ = written()
    for damage in (None, b"", b"0\n1\ngarbage\n"):
        crashed = disk.copy()
        path = f"{FOLDER}/leader-epoch-checkpoint"
        if damage is None:
            del crashed.files[path]
        else:
            crashed.files[path].content = bytearray(damage)
        assert open_log(crashed, CONFIG, recovery_point=25).epoch_entries == [(0, 0), (1, 10), (2, 20)]


def test_a_full_disk_refuses_the_append_keeps_the_log_and_serves_again_once_there_is_space() -> None:
    disk, log = written(10)
    before, state = values_of(log), log.active_producers()
    codes = set()
    for budget in range(400):
        disk.budget = budget
        try:
            result = append(log, bytes(90), epoch=7, producer_id=5, producer_epoch=0, base_sequence=10)
        except ApiError as refusal:
            codes.add(refusal.code)
            assert values_of(log) == before
            assert log.active_producers() == state
            assert values_of(open_log(disk.copy(), CONFIG)) == before, "nor is there anything torn on the disk"
        else:
            assert result.first_offset == 10
            break
    else:
        pytest.fail("it never served again")
    assert codes == {ErrorCode.KAFKA_STORAGE_ERROR}
    disk.budget = None
    assert append(log, b"a", epoch=7, producer_id=5, producer_epoch=0, base_sequence=11).first_offset == 11
    assert len(values_of(open_log(disk.copy(), CONFIG))) == 12


def test_a_full_disk_during_a_roll_leaves_the_old_segment_active_and_whole() -> None:
    for budget in range(0, 600, 3):
        disk, log = written(12)
        disk.budget = budget
        done = 12
        for number in range(12, 20):
            try:
                append(log, b"value-%d" % number, epoch=1)
                done += 1
            except ApiError:
                break
        assert [offset for offset, _ in values_of(log)] == list(range(done))
        disk.budget = None
        for number in range(done, 25):
            append(log, b"value-%d" % number, epoch=1)
        assert [offset for offset, _ in values_of(open_log(disk.copy(), CONFIG))] == list(range(25))
        log.close(NOW)
        assert [offset for offset, _ in values_of(open_log(disk, CONFIG, clean=True))] == list(range(25))


def test_transactions_are_rebuilt_with_their_index() -> None:
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=400, index_interval_bytes=100, verify_transactions=False)
    log = open_log(disk, config)
    for number in range(8):
        for producer in (1, 2, 3):
            buffer = batch(b"t", producer_id=producer, producer_epoch=0, base_sequence=number, transactional=True)
            send(log, buffer, origin=Origin.CLIENT)
        log.append_control(1, 0, 0, number % 2 == 0, 0, NOW)
        log.append_control(2, 0, 0, number % 3 == 0, 0, NOW)
        if number < 7:
            log.append_control(3, 0, 0, False, 0, NOW)
    log.advance_high_watermark(log.log_end_offset)
    end = log.log_end_offset
    aborted, stable = log.aborted_transactions(0, end), log.last_stable_offset
    assert len(aborted) == 4 + 5 + 7
    assert stable < end
    for clean in (False, True):
        if clean:
            log.close(NOW)
        again = open_log(disk.copy(), config, clean=clean, high_watermark=end)
        assert again.aborted_transactions(0, end) == aborted
        assert again.last_stable_offset == stable
        again.append_control(3, 0, 0, True, 0, NOW)
        again.advance_high_watermark(end + 1)
        assert again.last_stable_offset == end + 1


def test_a_garbled_transaction_index_is_rebuilt_clean_or_not() -> None:
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=400, index_interval_bytes=100, verify_transactions=False)
    log = open_log(disk, config)
    for number in range(12):
        send(log, batch(b"t", producer_id=1, producer_epoch=0, base_sequence=number, transactional=True))
        log.append_control(1, 0, 0, False, 0, NOW)
    end = log.log_end_offset
    expected = log.aborted_transactions(0, end)
    assert len(expected) == 12
    log.close(NOW)
    chance = random.Random(3)
    names = [name for name in disk.list(FOLDER) if name.endswith(".txnindex")]
    assert len(names) > 3
    for name in names:
        for clean in (True, False):
            for damage in ("random", "short", "long"):
                crashed = disk.copy()
                content = crashed.files[f"{FOLDER}/{name}"].content
                content[:] = {"random": chance.randbytes(len(content)), "short": content[:-1], "long": content + b"x"}[damage]
                again = open_log(crashed, config, clean=clean, recovery_point=end, high_watermark=end)
                assert again.aborted_transactions(0, end) == expected, (name, clean, damage)
                assert again.log_end_offset == end
                again.close(NOW)
                reopened = open_log(crashed, config, clean=True, high_watermark=end)
                assert reopened.aborted_transactions(0, end) == expected, (name, clean, damage)


def test_a_power_cut_that_loses_all_that_was_not_synced_keeps_everything_below_the_recovery_point() -> None:
    config = replace(CONFIG, segment_bytes=400, compact=True, min_cleanable_dirty_ratio=0.0, verify_transactions=False)
    for seed in range(40):
        chance = random.Random(seed)
        disk = MemoryDisk()
        log = open_log(disk, config)
        rows: list[tuple[int, bytes | None]] = []
        sequence = 0
        for step in range(chance.randrange(1, 80)):
            action = chance.random()
            if action < 0.6:
                result = append(log, b"%d" % step, key=b"k%d" % chance.randrange(4), epoch=step // 20)
                rows.append((result.first_offset, b"%d" % step))
            elif action < 0.75:
                send(
                    log,
                    batch(b"t", key=b"t", producer_id=3, producer_epoch=0, base_sequence=sequence, transactional=True),
                    epoch=step // 20,
                )
                rows.append((log.log_end_offset - 1, b"t"))
                log.append_control(3, 0, 0, chance.random() < 0.5, step // 20, NOW)
                sequence += 1
            elif action < 0.85:
                log.flush(NOW)
            else:
                log.advance_high_watermark(log.log_end_offset)
                chosen = cleaner.candidate(log, NOW)
                if chosen is not None:
                    planned = cleaner.plan(chosen, NOW)
                    assert adopt(log, planned, compact(disk, planned), NOW)
        expected = [row for row in values_of(log) if row[0] < log.recovery_point]
        aborted = log.aborted_transactions(0, log.recovery_point)
        survivor = disk.after_power_cut(lambda size, luck=chance.random(): int(size * luck))  # type: ignore[misc]
        again = open_log(survivor, config, recovery_point=log.recovery_point)
        found = values_of(again)
        assert again.log_end_offset >= log.recovery_point
        assert set(expected) <= set(found) <= set(rows), seed
        assert again.aborted_transactions(0, log.recovery_point) == aborted, seed
        epochs = [entry for entry in log.epoch_entries if entry[1] < log.recovery_point]
        assert [entry for entry in again.epoch_entries if entry[1] < log.recovery_point] == epochs


def test_what_comes_after_a_hole_between_segments_is_cut() -> None:
    """A power cut may take whole batches from the end of an unsynced segment and leave the next one as it was."""
    config = LogConfig(segment_bytes=300)
    disk = MemoryDisk()
    log = open_log(disk, config)
    for number in range(12):
        append(log, b"%d" % number * 20)
    names = sorted(name for name in disk.list(FOLDER) if name.endswith(".log"))
    first, second = int(names[0][:20]), int(names[1][:20])
    content = disk.read_all(f"{FOLDER}/{names[0]}")
    last = list(headers(content))[-1][0]
    disk.open(f"{FOLDER}/{names[0]}").truncate(last)
    again = open_log(disk, config)
    assert again.log_end_offset == second - 1
    assert [record.offset for record in records_of(again)] == list(range(first, second - 1))


def test_a_hole_that_compaction_left_is_no_hole_even_when_the_topic_is_no_longer_compacted() -> None:
    disk, log = written()
    disk.files[log.segments[0].path(".log")].content.clear()  # every key of it was written again later
    expected = [row for row in values_of(log) if row[0] >= log.segments[1].base_offset]
    assert values_of(open_log(disk.copy(), CONFIG)) == [], "never compacted: a power cut took it"
    assert values_of(open_log(disk.copy(), CONFIG, cleaner_offset=log.segments.active.base_offset)) == expected
