"""Prints record batches as librdkafka writes them: the content of librdkafka.txt (see GoldenBatches.java for the form).

Run by hand: python -m tests.records.golden.librdkafka > tests/records/golden/librdkafka.txt. It starts librdkafka's own mock
cluster, produces to it and fetches the stored bytes back over the wire.
"""

from __future__ import annotations

import socket

from confluent_kafka import Producer

from ottla.protocol import codec, framing
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse

FETCH_VERSION = 11
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADERS = [("trace", b"\x01\x02\x03"), ("größe", None), ("", b"")]


def produce(producer: Producer, topic: str) -> None:
    for index in range(50):
        headers = HEADERS if index % 10 == 0 else []
        value = None if index == 7 else b"x" * index
        producer.produce(
            topic,
            partition=0,
            key=None if index == 3 else b"key-%d" % index,
            value=value,
            headers=headers,
            timestamp=1700000000000 + index,
        )
    producer.flush(10)


def fetch(host: str, port: int, topic: str) -> bytes:
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=-1
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=1000,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
    )
    with socket.create_connection((host, port)) as connection:
        connection.sendall(b"".join(framing.request_frame(request, FETCH_VERSION, 1, "golden")))
        frames = framing.Frames(1 << 24)
        while True:
            if found := frames.feed(connection.recv(1 << 16)):
                response = codec.decode(FetchResponse, FETCH_VERSION, found[0][4:])
                return bytes(response.responses[0].partitions[0].records)


def main() -> None:
    for name in CODECS:
        for idempotent in (False, True):
            settings = {"test.mock.num.brokers": 1, "compression.type": name, "linger.ms": 500, "enable.idempotence": idempotent}
            producer = Producer(settings)
            topic = f"golden-{name}"
            produce(producer, topic)
            broker = next(iter(producer.list_topics(timeout=5).brokers.values()))
            print(f"{'idempotent-' if idempotent else ''}{name} {fetch(broker.host, broker.port, topic).hex()}")


if __name__ == "__main__":
    main()
