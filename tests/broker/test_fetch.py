"""When a fetch is answered."""

from __future__ import annotations

from ottla.embedded.cluster import EmbeddedCluster
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.metadata import MetadataRequest
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
