"""A log against a list: whatever is done in whatever order, with stops and crashes between, both hold the same."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.records.batch import check_batches
from ottla.storage import cleaner
from ottla.storage.compaction import compact
from ottla.storage.config import LogConfig
from ottla.storage.log import Log
from tests.storage.memory_disk import MemoryDisk
from tests.storage.scene import NOW, batch, open_log, read_bytes, records_of
from tests.storage.test_compaction import adopt

CONFIG = LogConfig(
    segment_bytes=500,
    index_interval_bytes=90,
    retention_ms=-1,
    file_delete_delay_ms=50,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=10**15,
)
Row = tuple[int, int, bytes, bytes | None]  # offset, timestamp, key, value


class LogAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.config = CONFIG
        self.now = NOW
        self.log = open_log(self.disk, CONFIG)
        self.rows: list[Row] = []
        self.start = self.end = self.high_watermark = self.epoch = 0
        self.epochs: list[tuple[int, int]] = []
        self.bases: list[int] = []  # where batches begin
        self.cleaned = 0

    # --- growing

    @rule(values=st.lists(st.one_of(st.none(), st.binary(max_size=60)), min_size=1, max_size=4), key=st.integers(0, 3), codec=st.integers(0, 4), late=st.integers(0, 20))  # fmt: skip
    def append(self, values: list[bytes | None], key: int, codec: int, late: int) -> None:
        self.now += 7
        name, timestamp = b"k%d" % key, self.now - late
        buffer = batch(*values, key=name, timestamp=timestamp, codec=codec)
        result = self.log.append_as_leader(buffer, check_batches(buffer), self.epoch, self.now)
        assert result.first_offset == self.end
        if not self.epochs or self.epochs[-1][0] != self.epoch:
            self.epochs.append((self.epoch, self.end))
        self.bases.append(self.end)
        self.rows += [(self.end + slot, timestamp + slot, name, value) for slot, value in enumerate(values)]
        self.end += len(values)

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def replicate(self) -> None:
        self.log.advance_high_watermark(self.end)
        self.high_watermark = self.end

    @rule()
    def roll(self) -> None:
        self.now += CONFIG.segment_ms + 1
        self.log.roll_if_due(self.now)

    # --- shrinking

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        target = self.start + round((self.end - self.start) * part)
        target = max((base for base in self.bases if base <= target), default=target)  # replicas cut between batches,
        target = max(target, self.cleaned)  # and never below the high watermark, up to which compaction goes
        self.log.truncate_to(target, self.now)
        if target < self.end:
            self.end = target
            self.bases = [base for base in self.bases if base < target]
            self.start = min(self.start, target)
            self.rows = [row for row in self.rows if row[0] < target]
            self.epochs = [entry for entry in self.epochs if entry[1] < target]
            self.high_watermark = min(self.high_watermark, target)

    @rule(gap=st.integers(0, 5))
    def restart_at(self, gap: int) -> None:
        self.start = self.end = self.high_watermark = self.end + gap
        self.log.truncate_fully_and_start_at(self.end, self.now)
        self.rows, self.epochs, self.bases = [], [], []

    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        target = self.start + int((self.high_watermark - self.start) * part)
        if target >= self.start:
            assert self.log.delete_records(target) == target
            self.start = target
            self.rows = [row for row in self.rows if row[0] >= target]
        self.log.apply_retention(self.now)

    @rule(bytes_kept=st.integers(0, 2000))
    def retain(self, bytes_kept: int) -> None:
        self.log.config = replace(CONFIG, retention_bytes=bytes_kept)
        self.log.apply_retention(self.now)
        self.log.config = CONFIG
        self.start = self.log.log_start_offset
        assert self.start <= self.high_watermark or not self.rows or self.start == self.rows[0][0]
        self.rows = [row for row in self.rows if row[0] >= self.start]

    @rule()
    def compact(self) -> None:
        self.log.config = replace(CONFIG, compact=True)
        chosen = cleaner.candidate(self.log, self.now)
        if chosen is not None:
            planned = cleaner.plan(chosen, self.now)
            cleaned = compact(self.disk, planned)
            assert adopt(self.log, planned, cleaned, self.now)
            self.cleaned = cleaned.end_offset
            latest = {row[2]: row[0] for row in self.rows if row[0] < cleaned.end_offset}
            self.rows = [row for row in self.rows if row[0] >= cleaned.end_offset or latest[row[2]] == row[0]]
        self.log.config = CONFIG

    # --- time and trouble

    @rule()
    def housekeep(self) -> None:
        self.now += 60
        self.log.housekeeping(self.now)

    @rule()
    def flush(self) -> None:
        self.log.flush(self.now)
        assert self.log.recovery_point == self.end

    @rule()
    def stop_and_start(self) -> None:
        self.log.close(self.now)
        self._reopen(clean=True)

    @rule()
    def crash(self) -> None:
        self.disk = self.disk.copy()
        self._reopen(clean=False)

    def _reopen(self, clean: bool) -> None:
        before: Log = self.log
        self.log = open_log(self.disk, CONFIG, self.now, clean=clean, recovery_point=before.recovery_point, log_start_offset=self.start, high_watermark=self.high_watermark)  # fmt: skip
        self.log.cleaner_offset = before.cleaner_offset

    # --- the same

    @invariant()
    def same_bounds(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (self.start, self.end, self.high_watermark)
        assert log.size == sum(self.disk.size(segment.path(".log")) for segment in log.segments)

    @invariant()
    def same_records(self) -> None:
        assert [(row.offset, row.timestamp, row.key, row.value) for row in records_of(self.log)] == self.rows

    @rule(max_bytes=st.integers(0, 300))
    def read_in_small_bites(self, max_bytes: int) -> None:
        for _ in range(2):  # the second time from the places that the first has left behind
            assert [row.offset for row in records_of(self.log, max_bytes=max_bytes)] == [row[0] for row in self.rows]

    @precondition(lambda self: self.rows)
    @rule(slot=st.integers(0, 10**6), max_bytes=st.integers(0, 700), data=st.data())
    def read_somewhere(self, slot: int, max_bytes: int, data: st.DataObject) -> None:
        offset = self.rows[slot % len(self.rows)][0]
        upper = data.draw(st.integers(offset, self.end))
        found = self.log.read(offset, max_bytes, upper)
        content = b"".join(part.read() for part in found.parts)
        batches = check_batches(content)
        assert all(header.base_offset < upper for _, header in batches)
        assert len(content) <= max_bytes or len(batches) == 1
        if batches:
            assert batches[0][1].base_offset <= offset <= batches[0][1].last_offset
            assert batches[-1][1].last_offset < found.end_offset

    @precondition(lambda self: self.rows)
    @rule(slot=st.integers(0, 10**6), more=st.integers(-3, 3))
    def find_time(self, slot: int, more: int) -> None:
        wanted = self.rows[slot % len(self.rows)][1] + more
        expected = next((row[0] for row in self.rows if row[1] >= wanted), None)
        found = self.log.lookup_timestamp(wanted)
        assert (found.offset if found else None) == expected

    @invariant()
    def same_largest_time(self) -> None:
        found = self.log.max_timestamp_offset()
        if self.rows and self.start == self.log.segments.first.base_offset:
            assert found is not None
            assert found.timestamp >= max(row[1] for row in self.rows)

    @invariant()
    def epochs_cover_the_log(self) -> None:
        for offset, *_ in self.rows:
            expected = next((epoch for epoch, begin in reversed(self.epochs) if begin <= offset), -1)
            assert self.log.epoch_of(offset) == expected


LogAgainstList.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestLogAgainstList = LogAgainstList.TestCase


def test_reading_on_from_any_slice_reaches_the_end() -> None:
    log = open_log(MemoryDisk(), CONFIG)
    for number in range(50):
        buffer = batch(b"%d" % number, bytes(number))
        log.append_as_leader(buffer, check_batches(buffer), 0, NOW)
    whole = read_bytes(log, 0)
    for max_bytes in (0, 1, 100, 150, 333, 1000, 10**6):
        log._places.clear()
        assert read_bytes(log, 0, max_bytes) == whole
