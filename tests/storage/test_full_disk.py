"""A running node whose disk takes no more: an error code, not a dead node; and it serves again once there is space.

The disk is "full" by the kernel's limit on file sizes, which can be set on a running process without being root.
"""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.compatibility.node import OttlaNode

LIMIT = 300_000
UNLIMITED = resource.RLIM_INFINITY


def produce(bootstrap: str, count: int) -> dict[str, int]:
    """How many were answered with what."""
    from confluent_kafka import Producer

    answers: dict[str, int] = {}

    def done(error: object, _: object) -> None:
        name = error.name() if error is not None else "NONE"  # type: ignore[attr-defined]
        answers[name] = answers.get(name, 0) + 1

    producer = Producer({"bootstrap.servers": bootstrap, "retries": 0, "linger.ms": 0, "log_level": 0, "batch.num.messages": 20})
    for number in range(count):
        producer.produce("orders", b"%d-" % number + bytes(1000), callback=done)
        producer.poll(0)
    assert producer.flush(30) == 0
    return answers


@pytest.mark.slow
def test_a_full_disk_answers_an_error_and_the_node_serves_again_once_there_is_space(tmp_path: Path) -> None:
    with OttlaNode(tmp_path) as node:
        before = produce(node.bootstrap, 10)
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (LIMIT, UNLIMITED))
        during = produce(node.bootstrap, 1000)
        assert set(during) == {"NONE", "KAFKA_STORAGE_ERROR"}
        assert set(produce(node.bootstrap, 50)) == {"KAFKA_STORAGE_ERROR"}
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
        assert produce(node.bootstrap, 500) == {"NONE": 500}
        taken = before["NONE"] + during["NONE"] + 500
        assert read_count(node.bootstrap) == taken
        node.kill()
        node.start()
        assert read_count(node.bootstrap) == taken
        assert node.tracebacks() == []


def read_count(bootstrap: str) -> int:
    """Records from offset 0 on, which must follow each other."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", "enable.partition.eof": True, "log_level": 0})
    consumer.assign([TopicPartition("orders", 0, 0)])
    count = 0
    while True:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            consumer.close()
            return count
        assert message.offset() == count
        count += 1
