"""kill -9 under load, again and again: every acknowledged record is there, once, in its place, and nothing torn is served."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from tests.compatibility.node import OttlaNode

KILLS = 50
PARTITIONS = 2
SETTINGS = {
    "log.segment.bytes": "1048576",
    "log.flush.offset.checkpoint.interval.ms": "200",
    "log.flush.scheduler.interval.ms": "200",
}


class Load:
    """An idempotent producer that never stops; what was acknowledged, by partition and offset."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failed = 0
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "log_level": 0,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 100,
                "queue.buffering.max.messages": 2000,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = b"%d-" % number + bytes(number % 300)
            try:
                self._producer.produce("orders", value, partition=number % PARTITIONS, callback=self._done)
                number += 1
            except BufferError:
                self._producer.poll(0.01)
            self._producer.poll(0)

    def _done(self, error: object, message: object) -> None:
        if error is not None:
            self.failed += 1
        else:
            self.acknowledged[message.partition(), message.offset()] = message.value()  # type: ignore[attr-defined]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


def read_back(bootstrap: str) -> dict[tuple[int, int], bytes]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", "enable.partition.eof": True, "log_level": 0})
    consumer.assign([TopicPartition("orders", partition, 0) for partition in range(PARTITIONS)])
    found, ends = {}, 0
    while ends < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            ends += 1
        else:
            found[message.partition(), message.offset()] = message.value()
    consumer.close()
    return found


@pytest.mark.slow
def test_a_node_killed_fifty_times_under_load_keeps_every_acknowledged_record(tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    dice = random.Random(7)
    with OttlaNode(tmp_path, settings=SETTINGS) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic("orders", PARTITIONS, 1)]).values():
            made.result()
        load = Load(node.bootstrap)
        for _ in range(KILLS):
            time.sleep(dice.uniform(0.05, 0.5))  # not to wait for anything: the moment of the kill is what is random
            node.kill()
            node.start()
        load.stop()
        found = read_back(node.bootstrap)
        assert node.tracebacks() == []
    assert load.failed == 0
    assert len(load.acknowledged) > KILLS
    assert {place: found.get(place) for place in load.acknowledged} == load.acknowledged
    for partition in range(PARTITIONS):
        offsets = [offset for where, offset in found if where == partition]
        assert offsets == list(range(len(offsets))), "offsets are contiguous"
    assert len(set(found.values())) == len(found), "nothing is there twice"
