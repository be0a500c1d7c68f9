"""`ottla log dump` on files written here, and on what damage leaves of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.cli.main import root
from ottla.protocol import codec
from ottla.protocol.messages.group_records import OffsetCommitKey, OffsetCommitValue
from ottla.protocol.messages.metadata_records import TopicRecord
from ottla.records.builder import build_batch
from ottla.records.control import EndTransaction, end_transaction_batch
from ottla.records.record import Record


def dump(*arguments: str | Path) -> Result:
    return CliRunner().invoke(root, ["log", "dump", *map(str, arguments)], prog_name="ottla")


def rows(*arguments: str | Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in dump(*arguments, "--json").stdout.splitlines()]


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    folder = tmp_path / "orders-0"
    folder.mkdir()
    path = folder / "00000000000000000007.log"
    first = build_batch([Record(7, 1000, b"k", b"v", (("trace", b"1"), ("trace", None))), Record(8, 1001, None, b"\xff\x00")])
    marker = end_transaction_batch(EndTransaction(False, 3), producer_id=9, producer_epoch=1, timestamp=1002, base_offset=9)
    path.write_bytes(first + marker)
    return path


def test_batches_and_records_are_shown_with_all_they_carry(segment: Path) -> None:
    batch, first, second, marker_batch, marker = rows(segment)
    assert (batch["base_offset"], batch["last_offset"], batch["count"], batch["position"], batch["valid"]) == (7, 8, 2, 0, True)
    assert (first["offset"], first["timestamp"], first["key"], first["value"]) == (7, 1000, "k", "v")
    assert first["headers"] == [{"key": "trace", "value": "1"}, {"key": "trace", "value": None}]
    assert second["value"] == {"base64": "/wA="}
    assert marker_batch["control"] is True
    assert marker["decoded"] == {"type": "abort", "coordinator_epoch": 3}


def test_text_form_is_one_line_each(segment: Path) -> None:
    result = dump(segment)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[1].startswith("  batch 7..8 count=2 position=0")
    assert lines[2] == "    7 1970-01-01T00:00:01.000Z key=k value=v headers[trace=1,trace=null]"
    assert len(lines) == 6


@pytest.mark.parametrize("cut", [1, 30, 61, 70])
def test_a_torn_tail_is_named_with_its_position(segment: Path, cut: int) -> None:
    content = segment.read_bytes()
    segment.write_bytes(content[:-cut])
    result = dump(segment, "--json")
    assert result.exit_code == 1
    last = json.loads(result.stdout.splitlines()[-1])
    assert last["kind"] == "error"
    assert last["position"] == len(
        build_batch([Record(7, 1000, b"k", b"v", (("trace", b"1"), ("trace", None))), Record(8, 1001, None, b"\xff\x00")])
    )


def test_a_flipped_bit_is_a_wrong_checksum(segment: Path) -> None:
    content = bytearray(segment.read_bytes())
    content[70] ^= 1
    segment.write_bytes(content)
    result = dump(segment)
    assert result.exit_code == 1
    assert "damaged at position 0: the checksum does not fit the batch" in result.stdout


def test_records_of_internal_topics_are_decoded_by_the_name_of_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "__consumer_offsets-12"
    folder.mkdir()
    key = b"\x00\x01" + codec.encode(OffsetCommitKey(group="billing", topic="orders", partition=2), 0)
    value = b"\x00\x03" + codec.encode(OffsetCommitValue(offset=41, leader_epoch=5, metadata="", commit_timestamp=17), 3)
    (folder / "00000000000000000000.log").write_bytes(build_batch([Record(0, 17, key, value)]))
    record = rows(folder)[1]
    assert record["decoded"] == {
        "type": "offset-commit",
        "key": {"group": "billing", "topic": "orders", "partition": 2},
        "value": {
            "offset": 41,
            "leader_epoch": 5,
            "metadata": "",
            "commit_timestamp": 17,
            "expire_timestamp": -1,
            "topic_id": "AAAAAAAAAAAAAAAAAAAAAA",
        },
    }


def test_a_metadata_snapshot_is_decoded(tmp_path: Path) -> None:
    record = TopicRecord(name="orders", topic_id=bytes(range(16)))
    value = bytes([1, record.TYPE_KEY, 0]) + codec.encode(record, 0)
    path = tmp_path / "00000000000000000005-0000000001.checkpoint"
    path.write_bytes(build_batch([Record(0, 17, None, value)]))
    assert rows(path)[1]["decoded"] == {"type": "topic", "version": 0, "name": "orders", "topic_id": "AAECAwQFBgcICQoLDA0ODw"}


def test_a_file_that_is_no_log_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    result = dump(tmp_path / "notes.txt")
    assert result.exit_code == 1
    assert "notes.txt is no file of a log" in result.stdout
