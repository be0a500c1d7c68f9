"""`ottla log dump` on the small files beside a log: indexes, snapshots, checkpoints, as storage writes them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from click.testing import CliRunner

from ottla.cli.main import root
from ottla.storage import checkpoints, snapshots
from ottla.storage.producers import ProducerEntry, SentBatch


def rows(path: Path) -> list[dict[str, object]]:
    result = CliRunner().invoke(root, ["log", "dump", "--json", str(path)], prog_name="ottla")
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_indexes_are_shown_with_absolute_offsets_and_without_the_room_kafka_keeps_behind_them(tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000100.index"
    index.write_bytes(struct.pack(">iiii", 5, 4096, 9, 8200) + bytes(80))
    assert [(row["offset"], row["position"]) for row in rows(index)] == [(105, 4096), (109, 8200)]
    times = tmp_path / "00000000000000000100.timeindex"
    times.write_bytes(struct.pack(">qi", 1700000000000, 7))
    assert [(row["timestamp"], row["offset"], row["time"]) for row in rows(times)] == [
        (1700000000000, 107, "2023-11-14T22:13:20.000Z")
    ]


def test_aborted_transactions_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.txnindex"
    path.write_bytes(struct.pack(">hqqqq", 0, 9, 3, 8, 4))
    (row,) = rows(path)
    assert (row["producer_id"], row["first_offset"], row["last_offset"], row["last_stable_offset"]) == (9, 3, 8, 4)


def test_a_producer_snapshot_is_shown_and_a_damaged_one_named(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000012.snapshot"
    content = snapshots.encode({7: ProducerEntry(2, (SentBatch(4, 6, 10, 12, 99),), 5, 99, 10)})
    path.write_bytes(content)
    (row,) = rows(path)
    assert (row["producer_id"], row["producer_epoch"], row["last_sequence"], row["last_offset"], row["transaction_start"]) == (
        7,
        2,
        6,
        12,
        10,
    )
    path.write_bytes(content[:-1] + b"\xff")
    (row,) = rows(path)
    assert row["kind"] == "error"


def test_checkpoints_and_properties_are_shown(tmp_path: Path) -> None:
    epochs = tmp_path / "leader-epoch-checkpoint"
    epochs.write_bytes(checkpoints.write_lines(["0 0", "3 17"]))
    assert [(row["leader_epoch"], row["start_offset"]) for row in rows(epochs)] == [(0, 0), (3, 17)]
    points = tmp_path / checkpoints.RECOVERY_POINTS
    points.write_bytes(checkpoints.write_lines(["orders 1 42"]))
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows(points)] == [("orders", 1, 42)]
    points.write_bytes(b"0\n3\norders 1 42\n")
    assert rows(points)[0]["kind"] == "error"
    metadata = tmp_path / "partition.metadata"
    metadata.write_bytes(checkpoints.write_partition_metadata(bytes(range(16))))
    assert rows(metadata) == [{"file": str(metadata), "kind": "properties", "version": "0", "topic_id": "AAECAwQFBgcICQoLDA0ODw"}]
