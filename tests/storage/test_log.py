from __future__ import annotations

import pytest

from ottla.host.disk import RealDisk
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition
from ottla.records.batch import check_batches, read_header
from ottla.records.builder import assemble, attributes_of
from ottla.records.compression import ZSTD
from ottla.storage.config import LogConfig
from ottla.storage.log import Log
from ottla.storage.timestamps import MAX_DECODED_BATCHES
from tests.storage.memory_disk import MemoryDisk
from tests.storage.scene import FOLDER, NOW, TOPIC_ID, append, batch, open_log, read_bytes, records_of, send, values_of


def test_a_leader_stamps_offsets_and_epoch_and_reads_back_the_same_bytes() -> None:
    log = open_log(MemoryDisk())
    sent = [batch(b"a", b"b"), batch(b"c")]
    for epoch, buffer in enumerate(sent):
        result = send(log, buffer, epoch=epoch)
        assert read_header(buffer).leader_epoch == epoch
        assert result.first_offset == read_header(buffer).base_offset
    assert log.log_end_offset == 3
    assert read_bytes(log, 0) == b"".join(sent)
    assert values_of(log) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_a_read_returns_whole_batches_and_at_least_the_first() -> None:
    log = open_log(MemoryDisk())
    sizes = [len(batch(bytes(size))) for size in (10, 200, 30)]
    for size in (10, 200, 30):
        append(log, bytes(size))
    assert log.read(0, 1, 3).size == sizes[0]
    assert log.read(0, 1, 3, min_one=False).empty
    assert log.read(0, sizes[0] + sizes[1] - 1, 3).size == sizes[0]
    assert log.read(0, sizes[0] + sizes[1], 3).size == sizes[0] + sizes[1]
    assert log.read(1, 1 << 20, 2).size == sizes[1]
    assert log.read(2, 1 << 20, 2).empty
    for offset in (-1, 4):
        with pytest.raises(ApiError) as refusal:
            log.read(offset, 1, 3)
        assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_clean_stop_and_start_finds_everything_without_scanning() -> None:
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=400, index_interval_bytes=100)
    log = open_log(disk, config)
    for number in range(40):
        append(log, b"value-%d" % number, timestamp=NOW + number)
    before = values_of(log)
    log.close(NOW)
    again = open_log(disk, config, clean=True, recovery_point=log.recovery_point)
    assert again.recovery_point == again.log_end_offset == 40
    assert values_of(again) == before
    assert append(again, b"next").first_offset == 40


def test_a_roll_by_size_by_time_and_by_records_time() -> None:
    log = open_log(MemoryDisk(), LogConfig(segment_bytes=200))
    append(log, bytes(100))
    append(log, bytes(100))
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    log = open_log(MemoryDisk(), LogConfig(segment_ms=1000))
    append(log, b"a", timestamp=NOW)
    append(log, b"b", timestamp=NOW + 900)
    assert not log.roll_if_due(NOW + 1000)
    append(log, b"c", timestamp=NOW + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    assert log.roll_if_due(NOW + 3000)
    assert not log.roll_if_due(NOW + 9000)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 3]


def test_old_records_do_not_make_an_idle_log_roll_and_the_compaction_lag_does() -> None:
    log = open_log(MemoryDisk(), LogConfig(segment_ms=1000))
    append(log, b"a", timestamp=5)
    assert not log.roll_if_due(NOW + 1000)
    log = open_log(MemoryDisk(), LogConfig(segment_ms=1000, compact=True, max_compaction_lag_ms=100))
    append(log, b"a", timestamp=NOW)
    append(log, b"b", timestamp=NOW + 100)
    assert len(log.segments) == 1
    append(log, b"c", timestamp=NOW + 101)
    assert len(log.segments) == 2


def test_too_large_batches_are_refused_and_leave_nothing() -> None:
    log = open_log(MemoryDisk(), LogConfig(max_message_bytes=100, segment_bytes=150))
    with pytest.raises(ApiError) as refusal:
        append(log, bytes(100))
    assert refusal.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(ApiError) as refusal:
        send(log, batch(b"a") + batch(b"b") + batch(b"c"))
    assert refusal.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == log.size == 0


def test_log_append_time_replaces_the_producers_time_and_keeps_the_checksum_right() -> None:
    log = open_log(MemoryDisk(), LogConfig(log_append_time=True))
    result = append(log, b"a", b"b", timestamp=5)
    assert result.log_append_time_ms == NOW
    content = read_bytes(log, 0)
    assert [header.is_log_append_time for _, header in check_batches(content)] == [True]
    assert {record.timestamp for record in records_of(log)} == {NOW}


def test_a_follower_keeps_offsets_and_epochs_and_drops_a_partial_tail() -> None:
    leader, follower = open_log(MemoryDisk()), open_log(MemoryDisk())
    append(leader, b"a", b"b", epoch=3)
    append(leader, b"c", epoch=5)
    content = read_bytes(leader, 0)
    result = follower.append_as_follower(content + content[:70])
    assert result is not None
    assert (result.first_offset, result.last_offset) == (0, 2)
    assert read_bytes(follower, 0) == content
    assert follower.epoch_entries == leader.epoch_entries == [(3, 0), (5, 2)]
    assert follower.append_as_follower(content[:20]) is None
    with pytest.raises(ApiError):
        follower.append_as_follower(content)
    garbled = bytearray(content)
    garbled[-1] ^= 1
    with pytest.raises(ApiError) as refusal:
        open_log(MemoryDisk()).append_as_follower(garbled)
    assert refusal.value.code is ErrorCode.CORRUPT_MESSAGE


def test_an_empty_follower_takes_a_batch_in_whose_middle_the_leader_starts() -> None:
    leader, follower = open_log(MemoryDisk()), open_log(MemoryDisk())
    append(leader, b"a", b"b", b"c")
    follower.truncate_fully_and_start_at(2, NOW)
    follower.append_as_follower(read_bytes(leader, 2))
    follower.set_high_watermark(3)
    follower.advance_log_start_offset(2)
    assert values_of(follower) == [(2, b"c")]


def test_epochs_answer_where_they_ended() -> None:
    log = open_log(MemoryDisk())
    append(log, b"a", b"b", epoch=2)
    append(log, b"c", epoch=4)
    assert log.end_offset_for_epoch(4) == (3, 4)
    assert log.end_offset_for_epoch(3) == log.end_offset_for_epoch(2) == (2, 2)
    assert log.end_offset_for_epoch(1) == (0, 1)
    assert log.end_offset_for_epoch(5) == log.end_offset_for_epoch(-1) == (-1, -1)
    assert [log.epoch_of(offset) for offset in (0, 1, 2)] == [2, 2, 4]


def test_a_truncated_log_forgets_records_epochs_and_indexes_past_the_cut() -> None:
    config = LogConfig(segment_bytes=300, index_interval_bytes=50)
    disk = MemoryDisk()
    log = open_log(disk, config)
    for number in range(20):
        append(log, b"%d" % number, epoch=number // 5, timestamp=NOW + number)
    log.set_high_watermark(20)
    for cut in (17, 12, 12, 4):
        log.truncate_to(cut, NOW)
        assert (log.log_end_offset, log.high_watermark) == (cut, cut)
        assert [offset for offset, _ in values_of(log)] == list(range(cut))
        assert log.latest_epoch == (cut - 1) // 5
    append(log, b"new", epoch=9)
    assert values_of(log)[-1] == (4, b"new")
    log.close(NOW)
    assert values_of(open_log(disk, config, clean=True)) == values_of(log)


def test_truncating_at_the_end_forgets_an_epoch_that_has_no_record() -> None:
    log = open_log(MemoryDisk())
    append(log, b"a", epoch=2)
    log.assign_epoch(3, log.log_end_offset)
    assert log.latest_epoch == 3
    assert not log.truncate_to(1, NOW)
    assert (log.log_end_offset, log.latest_epoch) == (1, 2)


def test_a_log_truncated_fully_starts_at_the_given_offset() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, b"a", epoch=1)
    log.truncate_fully_and_start_at(100, NOW)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, log.latest_epoch) == (100, 100, 100, -1)
    assert append(log, b"b", epoch=2).first_offset == 100
    again = open_log(disk)
    assert values_of(again) == [(100, b"b")]
    assert again.log_start_offset == 100


def test_deleted_records_are_gone_and_their_segments_go_with_retention() -> None:
    disk = MemoryDisk()
    log = open_log(disk, LogConfig(segment_bytes=200, file_delete_delay_ms=10))
    for number in range(10):
        append(log, b"%d" % number)
    with pytest.raises(ApiError) as refusal:
        log.delete_records(5)
    assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    log.advance_high_watermark(10)
    assert log.delete_records(5) == 5
    assert [offset for offset, _ in values_of(log)] == [5, 6, 7, 8, 9]
    with pytest.raises(ApiError):
        log.read(4, 100, 10)
    assert log.apply_retention(NOW) == 2
    assert any(name.endswith(".deleted") for name in disk.list(FOLDER))
    log.housekeeping(NOW + 10)
    assert not any(name.endswith(".deleted") for name in disk.list(FOLDER))
    assert log.delete_records(-1) == 10
    assert values_of(log) == []
    assert append(log, b"x").first_offset == 10


def test_compacted_topics_refuse_to_delete_records() -> None:
    log = open_log(MemoryDisk(), LogConfig(compact=True, delete=False))
    with pytest.raises(ApiError) as refusal:
        log.delete_records(0)
    assert refusal.value.code is ErrorCode.POLICY_VIOLATION


def test_retention_by_time_takes_whole_segments_below_the_high_watermark_only() -> None:
    log = open_log(MemoryDisk(), LogConfig(segment_bytes=150, retention_ms=1000))
    for number in range(6):
        append(log, b"%d" % number, timestamp=NOW + number * 1000)
    assert log.apply_retention(NOW + 10_000) == 0
    log.advance_high_watermark(4)
    assert log.apply_retention(NOW + 4500) == 2
    assert log.log_start_offset == 4
    log.advance_high_watermark(6)
    log.apply_retention(NOW + 60_000)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (6, 6, 0)
    assert append(log, b"again").first_offset == 6


def test_retention_by_size_keeps_at_least_the_limit() -> None:
    log = open_log(MemoryDisk(), LogConfig(segment_bytes=150, retention_bytes=300, retention_ms=-1))
    for number in range(10):
        append(log, b"%d" % number)
    log.advance_high_watermark(10)
    log.apply_retention(NOW)
    assert log.size >= 300 > log.size - log.segments.first.size


def test_time_finds_the_first_record_at_or_after_it() -> None:
    config = LogConfig(segment_bytes=400, index_interval_bytes=60)
    disk = MemoryDisk()
    log = open_log(disk, config)
    times = [10, 30, 20, 50, 40, 40, 90, 70]
    for time in times:
        append(log, b"a", b"b", timestamp=time)  # two records: time and time + 1
    log.close(NOW)
    for candidate in (log, open_log(disk, config, clean=True)):
        for wanted in range(95):
            expected = next(
                (2 * slot + more for slot, time in enumerate(times) for more in (0, 1) if time + more >= wanted), None
            )
            found = candidate.lookup_timestamp(wanted)
            assert (found.offset if found else None) == expected
        largest = candidate.max_timestamp_offset()
        assert largest is not None
        assert (largest.timestamp, largest.offset, largest.leader_epoch) == (91, 13, 0)


def test_a_lookup_by_time_unpacks_no_more_than_the_topic_allows() -> None:
    """What its limit forbids to unpack, the header of the batch answers for."""
    log = open_log(MemoryDisk(), LogConfig(max_message_bytes=1000))
    append(log, b"a", timestamp=NOW)
    append(log, bytes(500), bytes(500), codec=ZSTD, timestamp=NOW + 10)  # it unpacks to more than 1000 bytes
    append(log, bytes(900), codec=ZSTD, timestamp=NOW + 5)
    for wanted, expected in ((NOW, (NOW, 0)), (NOW + 1, (NOW + 11, 1)), (NOW + 11, (NOW + 11, 1)), (NOW + 12, None)):
        found = log.lookup_timestamp(wanted)
        assert (found and (found.timestamp, found.offset)) == expected
    largest = log.max_timestamp_offset()
    assert largest is not None
    assert (largest.timestamp, largest.offset) == (NOW + 11, 2), "the last offset of the batch"
    log.advance_high_watermark(4)
    log.delete_records(2)
    within = log.lookup_timestamp(NOW + 1)
    assert within is not None
    assert within.offset == 2, "never below the log start"


def test_a_lookup_by_time_believes_a_header_after_a_few_that_lied() -> None:
    """Producers write the largest timestamp into a batch's header; a log full of wrong ones must not be unpacked whole."""
    log = open_log(MemoryDisk())
    one = batch(b"a", timestamp=NOW)
    payload = bytes(one[61:])
    for _ in range(100):
        liar = assemble(
            payload, record_count=1, last_offset_delta=0, base_timestamp=NOW, max_timestamp=NOW + 60, attributes=attributes_of(0)
        )
        send(log, bytearray(liar))
    found = log.lookup_timestamp(NOW + 30)
    assert found is not None
    assert found.timestamp == NOW + 60
    assert found.offset == MAX_DECODED_BATCHES
    assert log.lookup_timestamp(NOW + 61) is None


def test_the_high_watermark_stays_inside_the_log() -> None:
    log = open_log(MemoryDisk())
    append(log, b"a", b"b")
    assert log.advance_high_watermark(9)
    assert log.high_watermark == 2
    assert not log.advance_high_watermark(1)
    assert log.set_high_watermark(-5) == 0


def test_a_folder_of_another_topic_with_the_same_name_is_refused() -> None:
    disk = MemoryDisk()
    open_log(disk).close(NOW)
    with pytest.raises(ApiError) as refusal:
        Log.open(disk, FOLDER, TopicPartition("orders", 0), bytes(16)[:-1] + b"\x09", LogConfig(), NOW)
    assert refusal.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
    assert Log.open(disk, FOLDER, TopicPartition("orders", 0), bytes(16), LogConfig(), NOW).topic_id == TOPIC_ID


def test_flush_messages_ms_and_rolls_ask_for_a_flush_and_move_the_recovery_point() -> None:
    log = open_log(MemoryDisk(), LogConfig(flush_messages=3, flush_ms=1000))
    append(log, b"a", b"b")
    assert not log.flush_due(NOW + 999)
    assert log.flush_due(NOW + 1000)
    append(log, b"c")
    assert log.flush_due(NOW)
    job = log.prepare_flush()
    append(log, b"d")
    job.run()
    log.complete_flush(job, NOW)
    assert log.recovery_point == 3
    log = open_log(MemoryDisk(), LogConfig(segment_bytes=150))
    append(log, bytes(80))
    assert not log.flush_due(NOW)
    append(log, bytes(80))
    assert log.flush_due(NOW)


def test_a_slice_outlives_its_segment(tmp_path: object) -> None:
    disk = RealDisk()
    log = Log.open(
        disk, f"{tmp_path}/orders-0", TopicPartition("orders", 0), TOPIC_ID, LogConfig(segment_bytes=150, retention_bytes=0), NOW
    )
    append(log, bytes(80))
    append(log, bytes(80))
    part = log.read(0, 1 << 20, 2)
    log.advance_high_watermark(2)
    assert log.apply_retention(NOW) == 2
    log.housekeeping(NOW + 100_000)
    assert len(b"".join(piece.read() for piece in part.parts)) == part.size > 0
