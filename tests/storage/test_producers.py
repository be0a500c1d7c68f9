"""Sequences, epochs and transactions, as a 4.3 broker judges them."""

from __future__ import annotations

import pytest

from ottla.model.errors import ApiError, ErrorCode
from ottla.storage import snapshots
from ottla.storage.config import LogConfig
from ottla.storage.log import Log
from ottla.storage.producers import ProducerEntry, SentBatch
from ottla.storage.types import AppendResult, Origin
from tests.storage.memory_disk import MemoryDisk
from tests.storage.scene import NOW, batch, open_log, read_bytes, send

OPEN = LogConfig(verify_transactions=False)


def produce(log: Log, sequence: int, *, count: int = 1, producer: int = 7, epoch: int = 0, **options: object) -> AppendResult:
    transactional = bool(options.pop("transactional", False))
    buffer = batch(
        *[b"v"] * count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )
    return send(log, buffer, **options)  # type: ignore[arg-type]


def refused(log: Log, code: ErrorCode, sequence: int, **options: object) -> None:
    end = log.log_end_offset
    with pytest.raises(ApiError) as refusal:
        produce(log, sequence, **options)  # type: ignore[arg-type]
    assert refusal.value.code is code
    assert log.log_end_offset == end


def test_the_last_five_batches_are_answered_again_and_older_ones_are_out_of_order() -> None:
    log = open_log(MemoryDisk())
    first = [produce(log, 2 * number, count=2).first_offset for number in range(7)]
    for number in (6, 2, 4):
        again = produce(log, 2 * number, count=2)
        assert again.duplicate
        assert (again.first_offset, again.last_offset) == (first[number], first[number] + 1)
    refused(log, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 2, count=2)
    refused(log, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 15)
    assert not produce(log, 14).duplicate


def test_sequences_wrap_around() -> None:
    log = open_log(MemoryDisk())
    produce(log, 2**31 - 2, count=2)
    assert produce(log, 0).first_offset == 2
    assert produce(log, 2**31 - 2, count=2).duplicate
    wrapped = open_log(MemoryDisk())
    produce(wrapped, 2**31 - 2, count=4)
    assert produce(wrapped, 2).first_offset == 4


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    log = open_log(MemoryDisk())
    produce(log, 0)
    refused(log, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, epoch=1)
    produce(log, 0, epoch=1)
    refused(log, ErrorCode.INVALID_PRODUCER_EPOCH, 1, epoch=0)
    produce(log, 1, epoch=1)


def test_an_unknown_producer_may_start_anywhere() -> None:
    log = open_log(MemoryDisk())
    assert produce(log, 17).first_offset == 0
    refused(log, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 19)


def test_producers_expire_when_idle_unless_a_transaction_is_open() -> None:
    log = open_log(MemoryDisk(), LogConfig(producer_id_expiration_ms=1000, verify_transactions=False))
    produce(log, 0, producer=1)
    produce(log, 0, producer=2, transactional=True)
    log.housekeeping(NOW + 999)
    assert len(log.active_producers()) == 2
    log.housekeeping(NOW + 1000)
    assert [row.producer_id for row in log.active_producers()] == [2]
    produce(log, 50, producer=1)


def test_state_survives_a_restart_with_the_last_batch_only() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for number in range(3):
        produce(log, number)
    log.close(NOW)
    again = open_log(disk, clean=True)
    assert produce(again, 2).duplicate
    refused(again, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    assert produce(again, 3).first_offset == 3


def test_the_last_stable_offset_waits_for_the_marker_and_for_its_replication() -> None:
    log = open_log(MemoryDisk(), OPEN)
    produce(log, 0, producer=1, transactional=True)
    produce(log, 0, producer=2, transactional=True)
    log.advance_high_watermark(2)
    assert log.last_stable_offset == 0
    log.append_control(1, 0, 0, True, 0, NOW)
    assert log.last_stable_offset == 0, "the marker is not replicated yet"
    log.advance_high_watermark(3)
    assert log.last_stable_offset == 1
    log.append_control(2, 0, 0, False, 0, NOW)
    log.advance_high_watermark(4)
    assert log.last_stable_offset == 4
    assert log.aborted_transactions(0, 4) == [(2, 1)]
    assert log.aborted_transactions(0, 1) == []
    assert log.aborted_transactions(4, 9) == []


def test_markers_are_fenced_by_producer_and_coordinator_epoch() -> None:
    log = open_log(MemoryDisk(), OPEN)
    produce(log, 0, epoch=3, transactional=True)
    with pytest.raises(ApiError) as refusal:
        log.append_control(7, 2, 0, True, 0, NOW)
    assert refusal.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    log.append_control(7, 3, 5, True, 0, NOW)
    with pytest.raises(ApiError) as refusal:
        log.append_control(7, 3, 4, True, 0, NOW)
    assert refusal.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert [(row.coordinator_epoch, row.current_transaction_start_offset) for row in log.active_producers()] == [(5, -1)]


def test_transaction_version_two_demands_a_higher_epoch_of_the_marker_and_allows_its_retry() -> None:
    log = open_log(MemoryDisk(), OPEN)
    produce(log, 0, epoch=0, transactional=True)
    with pytest.raises(ApiError) as refusal:
        log.append_control(7, 0, 0, True, 0, NOW, transaction_version=2)
    assert refusal.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    log.append_control(7, 1, 0, True, 0, NOW, transaction_version=2)
    log.append_control(7, 1, 0, True, 0, NOW, transaction_version=2)
    produce(log, 0, epoch=1, transactional=True)
    with pytest.raises(ApiError):
        log.append_control(7, 1, 0, True, 0, NOW, transaction_version=2)


def test_a_transactional_batch_needs_its_coordinators_word_once_per_transaction() -> None:
    log = open_log(MemoryDisk())
    refused(log, ErrorCode.INVALID_TXN_STATE, 0, transactional=True)
    guard = log.start_verification(7, 0, 0, NOW, supports_epoch_bump=False)
    assert guard is not None
    assert log.start_verification(7, 0, 0, NOW, supports_epoch_bump=False) is guard
    refused(log, ErrorCode.INVALID_TXN_STATE, 0, transactional=True)
    produce(log, 0, transactional=True, guard=guard)
    assert log.has_ongoing_transaction(7, 0)
    assert log.start_verification(7, 1, 0, NOW, supports_epoch_bump=False) is None
    produce(log, 1, transactional=True)
    log.append_control(7, 0, 0, False, 0, NOW)
    assert not log.has_ongoing_transaction(7, 0)
    refused(log, ErrorCode.INVALID_TXN_STATE, 2, transactional=True, guard=guard)


def test_an_abort_between_verification_and_append_voids_the_guard() -> None:
    log = open_log(MemoryDisk())
    guard = log.start_verification(7, 0, 0, NOW, supports_epoch_bump=False)
    log.append_control(7, 0, 0, False, 0, NOW)
    refused(log, ErrorCode.INVALID_TXN_STATE, 0, transactional=True, guard=guard)


def test_a_verified_first_batch_may_not_overtake_an_earlier_one() -> None:
    log = open_log(MemoryDisk())
    guard = log.start_verification(7, 3, 0, NOW, supports_epoch_bump=False)
    log.start_verification(7, 2, 0, NOW, supports_epoch_bump=False)
    refused(log, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 3, transactional=True, guard=guard)
    produce(log, 2, transactional=True, guard=guard)
    bumping = open_log(MemoryDisk())
    guard = bumping.start_verification(7, 1, 0, NOW, supports_epoch_bump=True)
    refused(bumping, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, transactional=True, guard=guard)


def test_verification_of_an_old_epoch_is_refused() -> None:
    log = open_log(MemoryDisk())
    produce(log, 0, epoch=4)
    with pytest.raises(ApiError) as refusal:
        log.start_verification(7, 0, 3, NOW, supports_epoch_bump=True)
    assert refusal.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_plain_batches_inside_an_open_transaction_are_refused() -> None:
    log = open_log(MemoryDisk(), OPEN)
    produce(log, 0, transactional=True)
    refused(log, ErrorCode.INVALID_TXN_STATE, 1)


def test_coordinators_write_without_sequences_but_not_from_an_old_epoch() -> None:
    log = open_log(MemoryDisk(), OPEN)
    for _ in range(2):
        produce(log, -1, epoch=2, transactional=True, origin=Origin.COORDINATOR)
    refused(log, ErrorCode.INVALID_PRODUCER_EPOCH, -1, epoch=1, transactional=True, origin=Origin.COORDINATOR)


def test_several_batches_of_one_append_build_on_each_other() -> None:
    log = open_log(MemoryDisk())
    parts = [batch(b"v", producer_id=7, producer_epoch=0, base_sequence=number) for number in range(3)]
    send(log, parts[0] + parts[1] + parts[2])
    assert [row.last_sequence for row in log.active_producers()] == [2]
    gap = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=3) + batch(
        b"v", producer_id=7, producer_epoch=0, base_sequence=5
    )
    with pytest.raises(ApiError):
        send(log, gap)
    assert log.log_end_offset == 3
    assert [row.last_sequence for row in log.active_producers()] == [2]


def test_followers_follow_without_judging() -> None:
    leader, follower = open_log(MemoryDisk(), OPEN), open_log(MemoryDisk())
    produce(leader, 0, transactional=True)
    produce(leader, 1, transactional=True)
    leader.append_control(7, 0, 0, False, 0, NOW)
    follower.append_as_follower(read_bytes(leader, 0))
    assert follower.active_producers() == leader.active_producers()
    follower.set_high_watermark(3)
    assert follower.last_stable_offset == 3
    assert follower.aborted_transactions(0, 3) == [(7, 0)]


def test_truncation_takes_producers_back_with_the_records() -> None:
    log = open_log(MemoryDisk(), LogConfig(segment_bytes=250, verify_transactions=False))
    for number in range(9):
        produce(log, number, transactional=number >= 5)
    log.append_control(7, 0, 0, False, 0, NOW)
    log.advance_high_watermark(10)
    assert (log.last_stable_offset, len(log.aborted_transactions(0, 10))) == (10, 1)
    log.truncate_to(7, NOW)
    assert [(row.last_sequence, row.current_transaction_start_offset) for row in log.active_producers()] == [(6, 5)]
    assert log.last_stable_offset == 5
    assert log.aborted_transactions(0, 10) == []
    assert produce(log, 7, transactional=True).first_offset == 7


def test_a_snapshot_survives_its_round_trip_and_refuses_a_flipped_bit() -> None:
    entries = {
        1: ProducerEntry(3, (SentBatch(2**31 - 1, 1, 10, 12, 99),), 4, 99, 10),
        2: ProducerEntry(0, (), -1, 5, -1),
    }
    content = snapshots.encode(entries)
    assert snapshots.decode(content) == entries
    for bit in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(snapshots.CorruptSnapshot):
            snapshots.decode(bytes(damaged))
