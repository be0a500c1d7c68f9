"""Apache Kafka reads what we write, and we read what Apache Kafka wrote."""

from __future__ import annotations

import json
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.host.disk import RealDisk
from ottla.model.errors import ApiError
from ottla.model.ids import TopicPartition
from ottla.records.control import visible_batches
from ottla.records.record import decode_batch
from ottla.storage.config import LogConfig
from ottla.storage.directory import LogDirectory
from ottla.storage.files import OpenFiles
from ottla.storage.log import Log
from ottla.storage.segment import Segment
from tests.storage.memory_disk import Inode, MemoryDisk
from tests.storage.scene import NOW, append, batch, read_bytes, send

FIXTURE = Path(__file__).with_name("kafka-4.3.zip")
CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=200, verify_transactions=False, retention_ms=-1)


def unpacked() -> tuple[MemoryDisk, dict[str, Any]]:
    disk = MemoryDisk()
    with zipfile.ZipFile(FIXTURE) as packed:
        for name in packed.namelist():
            inode = disk.files[f"data/{name}"] = Inode()
            inode.content = bytearray(packed.read(name))
            disk.directories.add(f"data/{name}".rpartition("/")[0])
    return disk, json.loads(disk.files.pop("data/expected.json").content)


def loaded(disk: Any, path: str = "data") -> LogDirectory:
    directory = LogDirectory.open(disk, path)
    directory.load(lambda topic: CONFIG, NOW)
    return directory


def served(log: Log, isolation: str) -> list[list[Any]]:
    """As a consumer would see it: control batches skipped, aborted transactions left out of read_committed."""
    committed = isolation == "read_committed"
    upper = log.last_stable_offset if committed else log.high_watermark
    content = read_bytes(log, log.log_start_offset, upper_offset=upper)
    aborted = log.aborted_transactions(log.log_start_offset, upper) if committed else []
    text = [
        [record.offset, record.timestamp, record.key, record.value]
        for position, _ in visible_batches(content, aborted)
        for record in decode_batch(content, position)
    ]
    return [[*row[:2], *(None if cell is None else cell.decode("latin-1") for cell in row[2:])] for row in text]


def check_served(directory: LogDirectory, expected: dict[str, Any]) -> None:
    for topic, levels in expected.items():
        log = directory.logs[TopicPartition(topic, 0)]
        for level, rows in levels.items():
            assert served(log, level) == rows, (topic, level)


def check_continues(directory: LogDirectory) -> None:
    for topic in ("plain", "transactions", "compacted"):
        log = directory.logs[TopicPartition(topic, 0)]
        end = log.log_end_offset
        assert append(log, b"ours", epoch=log.latest_epoch + 1).first_offset == end
    transactions = directory.logs[TopicPartition("transactions", 0)]
    [left_open] = [row for row in transactions.active_producers() if row.current_transaction_start_offset >= 0]
    transactions.advance_high_watermark(transactions.log_end_offset)
    assert transactions.last_stable_offset == left_open.current_transaction_start_offset
    with pytest.raises(ApiError, match="OUT_OF_ORDER"):
        send(transactions, batch(b"x", producer_id=left_open.producer_id, producer_epoch=left_open.producer_epoch, base_sequence=77, transactional=True))  # fmt: skip


@pytest.mark.parametrize("clean", [True, False])
def test_a_folder_that_kafka_wrote_serves_what_kafka_served(clean: bool) -> None:
    disk, expected = unpacked()
    if not clean:
        disk.remove("data/.kafka_cleanshutdown")
        disk.remove("data/recovery-point-offset-checkpoint")
    directory = loaded(disk)
    assert directory.node_id == 0
    assert directory.logs[TopicPartition("compacted", 0)].cleaner_offset == 65
    check_served(directory, expected)
    check_continues(directory)
    directory.close(NOW)
    assert all(len(log.topic_id) == 16 and any(log.topic_id) for log in loaded(disk).logs.values())


def test_indexes_we_rebuild_are_byte_for_byte_those_kafka_wrote() -> None:
    disk, _ = unpacked()
    compared = 0
    for folder in ("plain-0", "transactions-0", "__transaction_state-0"):
        for name in [name for name in disk.list(f"data/{folder}") if name.endswith(".log")]:
            base = f"data/{folder}/{name.removesuffix('.log')}"
            theirs = [disk.read_all(base + kind) for kind in (".index", ".timeindex")]
            interval = 4096 if folder.startswith("__") else 200
            segment = Segment(
                disk,
                f"data/{folder}",
                int(name[:20]),
                OpenFiles(),
                size=disk.size(base + ".log"),
                created_ms=0,
                index_interval=interval,
            )
            segment.rebuild_indexes()
            assert [disk.read_all(base + kind) for kind in (".index", ".timeindex")] == theirs
            compared += len(theirs[0])
    assert compared


def test_transaction_indexes_we_rebuild_are_byte_for_byte_those_kafka_wrote() -> None:
    disk, _ = unpacked()
    names = [name for name in disk.list("data/transactions-0") if name.endswith(".txnindex")]
    theirs = {name: disk.read_all(f"data/transactions-0/{name}") for name in names}
    assert names
    for name in names:
        disk.remove(f"data/transactions-0/{name}")
    disk.remove("data/.kafka_cleanshutdown")
    disk.remove("data/recovery-point-offset-checkpoint")
    loaded(disk).close(NOW)
    assert {name: disk.read_all(f"data/transactions-0/{name}") for name in names} == theirs


def test_what_kafka_compacted_we_compact_to_the_same_records() -> None:
    """The same batches as `kafka_folder.fill` sent to Kafka, in segments of the same size."""
    from tests.storage.kafka_folder import BASE_TIME
    from tests.storage.test_compaction import clean

    _, expected = unpacked()
    config = replace(CONFIG, segment_bytes=1500, compact=True, delete=False, min_cleanable_dirty_ratio=0.01)
    log = Log.open(MemoryDisk(), "data/compacted-0", TopicPartition("compacted", 0), bytes(16), config, NOW)
    keyed = [
        (b"key-%d" % (number % 6), None if number % 6 == 5 and number > 50 else b"v%d" % number, number) for number in range(60)
    ]
    keyed += [(b"tail-%d" % number, bytes(400), 100 + number) for number in range(6)]
    for sequence, (key, value, moment) in enumerate(keyed):
        append(log, value, key=key, timestamp=BASE_TIME + moment, producer_id=5, producer_epoch=0, base_sequence=sequence)
        log.advance_high_watermark(log.log_end_offset)
    assert clean(log) is not None
    assert [segment.base_offset for segment in log.segments][-2:] == [62, 65], "segments end where Kafka's do"
    assert served(log, "read_uncommitted") == expected["compacted"]["read_uncommitted"]


def write_everything(folder: Path) -> Log:
    """A log with every kind of file: codecs, transactions that end both ways, several epochs, a clean stop."""
    log = Log.open(RealDisk(), f"{folder}/orders-0", TopicPartition("orders", 0), bytes(range(16)), CONFIG, NOW)
    sequences = {1: 0, 2: 0, 3: 0}
    for number in range(60):
        epoch, producer = number // 20, number % 3 + 1
        append(log, b"plain-%d" % number, key=b"k%d" % (number % 7), timestamp=NOW + number, codec=number % 5, epoch=epoch)
        buffer = batch(b"t", producer_id=producer, producer_epoch=0, base_sequence=sequences[producer], transactional=True, timestamp=NOW - number)  # fmt: skip
        sequences[producer] += 1
        send(log, buffer, epoch=epoch)
        if number % 5 == 0:
            log.append_control(producer, 0, 1, number % 2 == 0, epoch, NOW + number)
    log.close(NOW)
    return log


def dump(*arguments: str) -> subprocess.CompletedProcess[str]:
    from tests.compatibility.kafka import run_tool

    return run_tool("DumpLogSegments", *arguments)


def complaints(*folders: Path, values: bool = True) -> list[str]:
    """What Kafka's dump tool finds wrong with any file of these logs. `values`: they are text, which it can print without breaking lines."""
    kinds = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    names = [str(path) for folder in folders for path in sorted(folder.iterdir()) if path.name.endswith(kinds)]
    done = dump("--deep-iteration", *(["--print-data-log"] if values else []), "--files", ",".join(names))
    known = (
        "| ",
        "baseOffset:",
        "offset:",
        "timestamp:",
        "producerId:",
        "version:",
        "Dumping ",
        "Log starting offset:",
        "Snapshot end offset:",
    )
    found = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith(known)]
    checked = dump(
        "--index-sanity-check", "--files", ",".join(name for name in names if name.endswith("index") and "txn" not in name)
    )
    found += [
        line for line in checked.stdout.splitlines() if not line.startswith("Dumping") and "passed sanity check" not in line
    ]
    # The tool says this of every segment that does not begin at offset 0, Kafka's own included, and of every compacted one.
    harmless = ("Non-consecutive offsets in", " is followed by ", ".index is empty.")
    return [line for line in found if not any(words in line for words in harmless)]


@pytest.mark.kafka
def test_kafkas_dump_tool_reads_every_file_without_complaint(tmp_path: Path) -> None:
    log = write_everything(tmp_path)
    assert {path.suffix for path in Path(log.directory).iterdir()} >= {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    assert complaints(Path(log.directory)) == []


@pytest.mark.kafka
def test_the_dump_tool_does_complain_of_a_wrong_file(tmp_path: Path) -> None:
    log = write_everything(tmp_path)
    index = next(Path(log.directory).glob("*.index"))
    content = bytearray(index.read_bytes())
    content[7] ^= 1
    index.write_bytes(content)
    assert complaints(Path(log.directory)) != []


@pytest.mark.kafka
def test_kafkas_dump_tool_reads_a_compacted_log_without_complaint(tmp_path: Path) -> None:
    from tests.storage.test_compaction import CONFIG as COMPACTED
    from tests.storage.test_compaction import clean, fill, transactional

    log = Log.open(RealDisk(), f"{tmp_path}/orders-0", TopicPartition("orders", 0), bytes(range(16)), COMPACTED, NOW)
    for turn in range(3):
        fill(log, 20, seed=turn)
        transactional(log, 1, turn, b"a", b"t")
        log.append_control(1, 0, 0, turn % 2 == 0, 0, NOW)
        append(log, b"p", key=b"same", producer_id=9, producer_epoch=0, base_sequence=turn)
        fill(log, 20, seed=turn)
        clean(log, NOW + turn * 600)
    log.housekeeping(NOW + 10_000)
    log.close(NOW)
    assert complaints(Path(log.directory)) == []


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_a_folder_that_a_running_kafka_just_wrote_serves_what_kafka_served(tmp_path: Path, kill: bool) -> None:
    from tests.storage.kafka_folder import write

    folder, expected = write(tmp_path, kill=kill)
    directory = loaded(RealDisk(), str(folder))
    if kill:  # no checkpoint of the last moments: everything in the log was acknowledged
        for log in directory.logs.values():
            log.set_high_watermark(log.log_end_offset)
    check_served(directory, expected)
    check_continues(directory)
    directory.close(NOW)


@pytest.mark.kafka
@pytest.mark.slow
def test_kafka_goes_on_in_a_folder_where_we_went_on(tmp_path: Path) -> None:
    from tests.compatibility.kafka import KafkaPeer
    from tests.storage.kafka_folder import SETTINGS, TOPICS, consume, fill, wait_until_compacted

    kafka = KafkaPeer(tmp_path, settings=SETTINGS)
    with kafka:
        fill(kafka.bootstrap)
        wait_until_compacted(kafka.log_directory())
        before = {topic: consume(kafka.bootstrap, topic, "read_committed") for topic in TOPICS}
    directory = loaded(RealDisk(), str(kafka.log_directory()))
    directory.broker_epoch = 1
    ours: dict[str, list[list[Any]]] = {}
    for topic in TOPICS:
        log = directory.logs[TopicPartition(topic, 0)]
        log.config = LogConfig(segment_bytes=1500, index_interval_bytes=200, retention_ms=-1, verify_transactions=False)
        for row in log.active_producers():
            if row.current_transaction_start_offset >= 0:
                log.append_control(row.producer_id, row.producer_epoch, row.coordinator_epoch + 1, False, log.latest_epoch, NOW)
        first = log.log_end_offset
        for number in range(40):
            append(
                log, b"ours-%d" % number, key=b"o%d" % number, timestamp=NOW + number, codec=number % 5, epoch=log.latest_epoch
            )
        for sequence in range(4):
            send(log, batch(b"t%d" % sequence, key=b"t", producer_id=900, producer_epoch=0, base_sequence=sequence, transactional=True), epoch=log.latest_epoch)  # fmt: skip
            log.append_control(900, 0, 1, sequence % 2 == 0, log.latest_epoch, NOW)
        log.advance_high_watermark(log.log_end_offset)
        ours[topic] = [row for row in served(log, "read_committed") if row[0] >= first]
        assert len(ours[topic]) == 42
    directory.close(NOW)
    with kafka:
        for topic in TOPICS:
            assert consume(kafka.bootstrap, topic, "read_committed") == before[topic] + ours[topic], topic
        output = (tmp_path / "node-0" / "output.log").read_text()
    assert "ecovering unflushed segment" not in output
    assert "orrupt" not in output
