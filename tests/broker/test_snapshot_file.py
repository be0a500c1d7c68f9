"""What formatting leaves for the first controller, in the form that Kafka's StorageTool writes."""

from __future__ import annotations

from ottla.broker.snapshot_file import BOOTSTRAP, from_bytes, read_bootstrap, to_bytes, write_bootstrap
from ottla.metadata.features import BOOTSTRAP_LEVELS
from ottla.metadata.records import LATEST_LEVEL
from ottla.protocol.messages.metadata_records import FeatureLevelRecord
from ottla.records.record import decode_batches
from tests.storage.memory_disk import MemoryDisk


def test_the_levels_of_a_folder_are_read_back_without_those_that_are_off() -> None:
    disk = MemoryDisk()
    disk.make_directory("data")
    assert read_bootstrap(disk, "data") is None
    write_bootstrap(disk, "data", {**BOOTSTRAP_LEVELS, "group.version": 0}, now_ms=5)
    assert read_bootstrap(disk, "data") == {name: level for name, level in BOOTSTRAP_LEVELS.items() if name != "group.version"}


def test_records_lie_between_a_header_and_a_footer_with_the_metadata_version_first() -> None:
    disk = MemoryDisk()
    disk.make_directory("data")
    write_bootstrap(disk, "data", BOOTSTRAP_LEVELS, now_ms=5)
    content = disk.read_all(f"data/{BOOTSTRAP}")
    assert [header.is_control for header, _ in decode_batches(content)] == [True, False, True]
    assert from_bytes(content)[0] == FeatureLevelRecord(name="metadata.version", feature_level=LATEST_LEVEL)


def test_features_of_a_kafka_that_we_do_not_have_are_left_out() -> None:
    """Kafka 4.3 formats with share.version=1 and streams.version=1."""
    disk = MemoryDisk()
    disk.make_directory("data")
    levels = {"metadata.version": LATEST_LEVEL + 3, "share.version": 1, "transaction.version": 2}
    records = [FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items()]
    disk.replace(f"data/{BOOTSTRAP}", to_bytes([records], epoch=0, level=LATEST_LEVEL, now_ms=1, contained_ms=0))
    assert read_bootstrap(disk, "data") == {"metadata.version": LATEST_LEVEL, "transaction.version": 2}
