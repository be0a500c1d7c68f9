"""The metadata log on disk: what a start reads of it."""

from __future__ import annotations

from ottla.broker.metadata_log import MetadataLog
from ottla.host import World
from ottla.host.clock import RealClock, RealRandomness
from ottla.host.network import RealNetwork
from ottla.host.workers import RealWorkers
from ottla.metadata.image import METADATA_VERSION, ClusterImage
from ottla.metadata.records import LATEST_LEVEL
from ottla.protocol.messages.metadata_records import NoOpRecord
from ottla.storage.config import LogConfig
from tests.storage.memory_disk import MemoryDisk

CONFIG = LogConfig(retention_ms=-1, retention_bytes=-1)
EPOCH = 3


def opened(disk: MemoryDisk) -> MetadataLog:
    return MetadataLog(World(RealClock(), RealRandomness(), RealNetwork(), disk, RealWorkers()), "data", CONFIG)


def append(log: MetadataLog, count: int) -> None:
    for _ in range(count):
        log.append([NoOpRecord()], LATEST_LEVEL, EPOCH)


def snapshot(log: MetadataLog, end_offset: int) -> None:
    log.advance_high_watermark(end_offset)
    made = log.write_snapshot(ClusterImage(end_offset - 1, EPOCH, {METADATA_VERSION: LATEST_LEVEL}))
    log.forget_before(made)


def bytes_read_by_a_start(disk: MemoryDisk) -> int:
    disk.bytes_read = 0
    opened(disk)
    return disk.bytes_read


def test_a_start_reads_only_what_no_snapshot_stands_for() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    append(log, 2000)
    whole = bytes_read_by_a_start(disk.copy())
    begin = log.roll()
    append(log, 20)
    snapshot(log, begin + 5)
    after = disk.copy()
    assert bytes_read_by_a_start(after) < whole / 50
    again = opened(after)
    assert (again.start_offset, again.end_offset) == (begin + 5, begin + 20)
    assert again.view().last_epoch == EPOCH


def test_a_torn_end_behind_the_snapshot_is_cut() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    append(log, 10)
    begin = log.roll()
    append(log, 10)
    snapshot(log, begin)
    after = disk.copy()
    [segment] = [path for path in after.files if path.endswith(f"{begin:020d}.log")]
    del after.files[segment].content[-3:]
    again = opened(after)
    assert (again.start_offset, again.end_offset) == (begin, begin + 9)
