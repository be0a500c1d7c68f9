"""When a fetch is answered."""

from __future__ import annotations

from ottla.embedded.cluster import EmbeddedCluster
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.records.builder import build_batch
from ottla.records.record import Record
from tests.compatibility.wire import Wire, address_of, wait_until

TOO_LONG_MS = 600_000  # far past the patience of `Wire`


def test_a_fetch_that_asks_for_no_bytes_never_waits() -> None:
    row = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topics = [FetchRequest.FetchTopic(topic="empty", partitions=[row])]
    with EmbeddedCluster(1) as cluster, Wire(address_of(cluster.bootstrap)) as wire:
        created = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="empty")])
        wait_until("the topic has a leader", lambda: wire.ask(created, 8).topics[0].error_code == 0)
        answer = wire.ask(FetchRequest(max_wait_ms=TOO_LONG_MS, min_bytes=0, topics=topics), 11)
    [partition] = answer.responses[0].partitions
    assert (partition.error_code, bytes(partition.records or b"")) == (0, b"")


def test_a_consumers_poll_waits_for_enough_bytes_over_all_its_partitions() -> None:
    """Were it answered any sooner, there would be less in the answer."""
    record = build_batch([Record(0, 0, None, bytes(100), ())])
    row, data = FetchRequest.FetchTopic.FetchPartition, ProduceRequest.TopicProduceData
    rows = [row(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in (0, 1)]
    poll = FetchRequest(
        max_wait_ms=TOO_LONG_MS,
        min_bytes=3 * len(record),
        max_bytes=1 << 20,
        topics=[FetchRequest.FetchTopic(topic="polled", partitions=rows)],
    )
    with EmbeddedCluster(1, settings={"num.partitions": "2"}) as cluster:
        address = address_of(cluster.bootstrap)
        with Wire(address) as consumer, Wire(address) as producer:
            created = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="polled")])
            wait_until("the topic has leaders", lambda: producer.ask(created, 8).topics[0].error_code == 0)
            consumer.tell(poll, 11)
            for partition in (0, 1, 0):
                topic = data(name="polled", partition_data=[data.PartitionProduceData(index=partition, records=record)])
                answer = producer.ask(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), 9)
                assert answer.responses[0].partition_responses[0].error_code == 0
            found = consumer.read_response(poll.TYPE_KEY, 11).responses[0].partitions
    assert sorted((each.partition_index, len(each.records)) for each in found) == [(0, 2 * len(record)), (1, len(record))]
