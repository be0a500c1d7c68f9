"""A node killed without warning, again and again, under load: what it acknowledged it still has, whole and in order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ottla.model.errors import ErrorCode
from tests.compatibility.load import Writer, create_topic, read_all
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import wait_until

PARTITIONS = 3


class Witness:
    """What was acknowledged in all lives of the node, and how much of it has been seen again."""

    def __init__(self, node: OttlaNode, seed: int) -> None:
        self.node = node
        self.random = random.Random(seed)
        self.next_number = [0] * PARTITIONS
        self.verified = [0] * PARTITIONS  # offsets below were read back and compared
        self.known: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]

    def load_and_kill(self) -> None:
        writers = [Writer(self.node.address, "load", index, self.next_number[index]) for index in range(PARTITIONS)]
        for writer in writers:
            writer.start()
        wanted = self.random.randrange(1, 120)
        wait_until("acknowledgements", lambda: sum(len(writer.acknowledged) for writer in writers) >= wanted)
        self.node.kill()
        for writer in writers:
            writer.join(10)
            assert not writer.is_alive()
            assert writer.failure is None
            self.next_number[writer.partition] = writer.number
            for batch in writer.acknowledged:
                for index, value in enumerate(batch.values):
                    self.known[writer.partition][batch.base_offset + index] = value

    def check(self) -> None:
        for partition in range(PARTITIONS):
            first = self.verified[partition]
            records = {record.offset: record.value for record in read_all(self.node.address, "load", partition, first)}
            lost = {offset: value for offset, value in self.known[partition].items() if records.get(offset) != value}
            assert not lost, f"partition {partition} lost {len(lost)} acknowledged records, first {min(lost)}"
            self.verified[partition] = first + len(records)
            self.known[partition] = {}


def _loop(folder: Path, times: int, seed: int) -> None:
    node = OttlaNode(folder, settings={"log.segment.bytes": "1048576", "log.index.interval.bytes": "1000"}).start()
    try:
        witness = Witness(node, seed)
        assert create_topic(node.address, "load", PARTITIONS) == ErrorCode.NONE
        for life in range(times):
            assert create_topic(node.address, f"made-in-life-{life}") == ErrorCode.NONE
            witness.load_and_kill()
            node.start()
            assert create_topic(node.address, f"made-in-life-{life}") == ErrorCode.TOPIC_ALREADY_EXISTS
            witness.check()
        for partition in range(PARTITIONS):
            assert len(read_all(node.address, "load", partition)) == witness.verified[partition]
        assert not node.tracebacks(), node.tracebacks()[0]
    finally:
        node.stop()


def test_five_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    _loop(tmp_path, 5, seed=1)


@pytest.mark.slow
def test_fifty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    _loop(tmp_path, 50, seed=2)
