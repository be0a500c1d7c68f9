from __future__ import annotations

import pytest

from ottla.host.disk import RealDisk
from ottla.model.ids import TopicPartition, uuid_text
from ottla.storage import checkpoints
from ottla.storage.config import LogConfig
from ottla.storage.directory import LogDirectory, StorageError, partition_of
from tests.storage.memory_disk import MemoryDisk
from tests.storage.scene import NOW, TOPIC_ID, append, values_of

CONFIG = LogConfig(segment_bytes=300, file_delete_delay_ms=100)
A, B = TopicPartition("a.b-c", 0), TopicPartition("a.b-c", 11)


def formatted() -> MemoryDisk:
    disk = MemoryDisk()
    LogDirectory.format(disk, "data", "cluster", 7, bytes(range(16)))
    return disk


def loaded(disk: MemoryDisk) -> LogDirectory:
    directory = LogDirectory.open(disk, "data")
    directory.load(lambda topic: CONFIG, NOW)
    return directory


def test_meta_properties_are_kafkas() -> None:
    disk = formatted()
    assert checkpoints.read_properties(disk.read_all("data/meta.properties")) == {
        "version": "1",
        "cluster.id": "cluster",
        "node.id": "7",
        "directory.id": uuid_text(bytes(range(16))),
    }
    directory = LogDirectory.open(disk, "data")
    assert (directory.cluster_id, directory.node_id, directory.directory_id) == ("cluster", 7, bytes(range(16)))


def test_a_folder_that_cannot_be_used_is_one_clear_sentence(tmp_path: object) -> None:
    disk = formatted()
    with pytest.raises(StorageError, match="already formatted"):
        LogDirectory.format(disk, "data", "x", 1, bytes(16))
    with pytest.raises(StorageError, match="not formatted"):
        LogDirectory.open(disk, "elsewhere")
    first = LogDirectory.open(disk, "data")
    with pytest.raises(StorageError, match="in use by another node"):
        LogDirectory.open(disk, "data")
    first.close(NOW)
    disk.files["data/meta.properties"].content = bytearray(b"version=1\n")
    with pytest.raises(StorageError, match=r"meta\.properties cannot be used"):
        LogDirectory.open(disk, "data")
    (tmp_path / "file").write_bytes(b"")  # type: ignore[operator]
    with pytest.raises(StorageError, match="Cannot write"):
        LogDirectory.format(RealDisk(), f"{tmp_path}/file/data", "x", 1, bytes(16))


def test_logs_and_their_offsets_survive_a_clean_stop_and_a_crash() -> None:
    disk = formatted()
    directory = loaded(disk)
    for partition in (A, B):
        log = directory.create_log(partition, TOPIC_ID, CONFIG, NOW)
        for number in range(10):
            append(log, b"%d" % number)
        log.advance_high_watermark(8)
    directory.logs[A].delete_records(5)
    directory.checkpoint_log_start_offsets()
    directory.checkpoint_high_watermarks()
    expected = {partition: values_of(log) for partition, log in directory.logs.items()}

    crashed = loaded(disk.copy())
    assert {partition: values_of(log) for partition, log in crashed.logs.items()} == expected
    assert [log.high_watermark for log in crashed.logs.values()] == [8, 8]
    assert crashed.broker_epoch == -1

    directory.broker_epoch = 42
    directory.close(NOW)
    assert disk.exists("data/.kafka_cleanshutdown")
    assert LogDirectory.open(disk.copy(), "data").broker_epoch == 42, "a broker tells it when it registers, before it loads"
    again = loaded(disk)
    assert not disk.exists("data/.kafka_cleanshutdown")
    assert again.broker_epoch == 42
    assert {partition: values_of(log) for partition, log in again.logs.items()} == expected
    assert again.logs[A].log_start_offset == 5
    assert all(log.recovery_point == 10 and log.topic_id == TOPIC_ID for log in again.logs.values())


def test_loading_leaves_the_epoch_of_this_run_alone() -> None:
    disk = formatted()
    directory = loaded(disk)
    directory.broker_epoch = 42
    directory.close(NOW)
    again = LogDirectory.open(disk, "data")
    again.broker_epoch = 43  # registered
    again.load(lambda _: CONFIG, NOW)
    again.close(NOW)
    assert LogDirectory.open(disk, "data").broker_epoch == 43


def test_deleted_logs_leave_at_once_and_their_files_later() -> None:
    disk = formatted()
    directory = loaded(disk)
    append(directory.create_log(A, TOPIC_ID, CONFIG, NOW), b"a")
    directory.delete_log(A, NOW)
    assert A not in directory.logs
    again = directory.create_log(A, TOPIC_ID, CONFIG, NOW)
    assert again.log_end_offset == 0
    directory.delete_log(A, NOW)
    assert sum(name.endswith("-delete") for name in disk.list("data")) == 2
    directory.housekeeping(NOW + 99)
    assert sum(name.endswith("-delete") for name in disk.list("data")) == 2
    survivor = disk.copy()
    directory.housekeeping(NOW + 100)
    assert not any(name.endswith("-delete") for name in disk.list("data"))
    restarted = loaded(survivor)
    assert restarted.logs == {}
    restarted.housekeeping(NOW)
    assert not any(name.endswith("-delete") for name in survivor.list("data"))


def test_strays_futures_and_strangers_are_left_alone() -> None:
    disk = formatted()
    directory = loaded(disk)
    directory.create_log(A, TOPIC_ID, CONFIG, NOW)
    directory.mark_stray(A)
    disk.make_directory("data/x-0.0123456789abcdef0123456789abcdef-future")
    disk.make_directory("data/lost+found")
    directory.close(NOW)
    assert loaded(disk).logs == {}
    assert any(name.endswith("-stray") for name in disk.list("data"))


def test_an_unreadable_checkpoint_only_costs_time() -> None:
    disk = formatted()
    directory = loaded(disk)
    append(directory.create_log(A, TOPIC_ID, CONFIG, NOW), b"a")
    directory.close(NOW)
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS, checkpoints.LOG_START_OFFSETS):
        for content in (b"", b"0\n5\nx 0 1\n", b"\xff\xfe"):
            damaged = disk.copy()
            damaged.files[f"data/{name}"].content = bytearray(content)
            assert values_of(loaded(damaged).logs[A]) == [(0, b"a")]


def test_a_full_disk_at_the_stop_leaves_no_clean_marker() -> None:
    disk = formatted()
    directory = loaded(disk)
    append(directory.create_log(A, TOPIC_ID, CONFIG, NOW), b"a")
    disk.budget = 0
    directory.close(NOW)
    disk.budget = None
    assert not disk.exists("data/.kafka_cleanshutdown")
    assert values_of(loaded(disk).logs[A]) == [(0, b"a")]


def test_folder_names_are_told_from_other_names() -> None:
    assert partition_of("a-b.c_D-12") == TopicPartition("a-b.c_D", 12)
    for name in (
        "a",
        "-1",
        "a-",
        "a-1x",
        "a b-1",
        "x-0.0123456789abcdef0123456789abcdef-delete",
        "..-1",
        "recovery-point-offset-checkpoint",
    ):
        assert partition_of(name) is None


def test_many_logs_share_few_open_files(tmp_path: object) -> None:
    disk = RealDisk()
    LogDirectory.format(disk, str(tmp_path), "cluster", 7, bytes(range(16)))
    directory = LogDirectory.open(disk, str(tmp_path), max_open_files=4)
    directory.load(lambda topic: CONFIG, NOW)
    logs = [directory.create_log(TopicPartition("t", number), TOPIC_ID, CONFIG, NOW) for number in range(10)]
    for turn in range(3):
        for log in logs:
            append(log, b"%d" % turn)
            assert len(directory._open_files) <= 4
    slices = [log.read(0, 1 << 20, 3) for log in logs]
    assert all(sum(len(part.read()) for part in found.parts) == found.size > 0 for found in slices)
    directory.close(NOW)
