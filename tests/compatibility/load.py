"""Producers that keep a node busy from threads and remember what it acknowledged, and a reader that finds out what it kept."""

from __future__ import annotations

import struct
import threading
import time
from typing import NamedTuple

from ottla.model.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.topics import CreateTopicsRequest
from ottla.records.batch import check_batches
from ottla.records.builder import build_batch
from ottla.records.record import Record, decode_batch
from tests.compatibility.wire import Closed, Wire, ask

MAX_READ = 1 << 20


class Acknowledged(NamedTuple):
    base_offset: int
    values: tuple[bytes, ...]


class Writer(threading.Thread):
    """Appends numbered records to one partition, acks=all, one batch after the other, until the node is gone or it is told to stop."""

    def __init__(self, address: tuple[str, int], topic: str, partition: int, first_number: int, batch_size: int = 20) -> None:
        super().__init__(daemon=True)
        self.address, self.topic, self.partition = address, topic, partition
        self.acknowledged: list[Acknowledged] = []
        self.number = first_number
        self.batch_size = batch_size
        self.failure: str | None = None
        self._told_to_stop = threading.Event()

    def stop(self) -> None:
        self._told_to_stop.set()

    def run(self) -> None:
        try:
            with Wire(self.address) as wire:
                while not self._told_to_stop.is_set():
                    self._send(wire)
        except (Closed, OSError):
            return  # the node was killed

    def _send(self, wire: Wire) -> None:
        values = tuple(b"%d-%d" % (self.partition, self.number + index) * 100 for index in range(self.batch_size))
        self.number += self.batch_size
        answer = wire.ask(produce_request(self.topic, self.partition, values), 8).responses[0].partition_responses[0]
        if answer.error_code != ErrorCode.NONE:
            self.failure = ErrorCode(answer.error_code).name
            self._told_to_stop.set()
            return
        self.acknowledged.append(Acknowledged(answer.base_offset, values))


def produce_request(topic: str, partition: int, values: tuple[bytes, ...], acks: int = -1) -> ProduceRequest:
    now_ms = int(time.time() * 1000)
    batch = build_batch([Record(index, now_ms, b"key", value) for index, value in enumerate(values)])
    data = ProduceRequest.TopicProduceData
    row = data.PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(acks=acks, timeout_ms=10000, topic_data=[data(name=topic, partition_data=[row])])


def create_topic(address: tuple[str, int], topic: str, partitions: int = 1, **configs: str) -> int:
    """The error code of the answer."""
    row = CreateTopicsRequest.CreatableTopic
    settings = [row.CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()]
    request = CreateTopicsRequest(topics=[row(name=topic, num_partitions=partitions, replication_factor=1, configs=settings)])
    return int(ask(address, request, 5).topics[0].error_code)


def read_all(address: tuple[str, int], topic: str, partition: int, offset: int = 0) -> list[Record]:
    """Every record from an offset to the end. Offsets must be contiguous, and every batch whole and with a right checksum."""
    found: list[Record] = []
    with Wire(address) as wire:
        while True:
            data = fetch(wire, topic, partition, offset)
            assert data.error_code == ErrorCode.NONE, ErrorCode(data.error_code).name
            if not data.records:
                assert offset == data.high_watermark, "the end of what can be read is not the end of what is committed"
                return found
            for position, header in check_batches(_whole(data.records)):
                for record in decode_batch(data.records, position):
                    if record.offset >= offset:
                        assert record.offset == offset, f"offset {record.offset} follows {offset - 1}"
                        found.append(record)
                        offset += 1
                assert header.record_count == header.last_offset_delta + 1


def _whole(records: memoryview) -> memoryview:
    """A fetch may end within a batch; a reader leaves that for the next one."""
    position = 0
    while len(records) - position >= 12:
        size = struct.unpack_from(">i", records, position + 8)[0] + 12
        if position + size > len(records):
            break
        position += size
    return records[:position]


def fetch(wire: Wire, topic: str, partition: int, offset: int, max_wait_ms: int = 0) -> FetchRequest:
    row = FetchRequest.FetchTopic.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=MAX_READ)
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=[row])]
    answer = wire.ask(FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=topics), 11)
    data: FetchRequest = answer.responses[0].partitions[0]
    return data
