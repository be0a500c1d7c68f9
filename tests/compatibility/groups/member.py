"""A group member of a foreign client, as a process of its own that can be killed: `python member.py LIBRARY JSON`.

It prints a JSON line whenever what it owns changes, `{"has": [0, 1]}`, and one for what it read, `{"read": [[0, 17], …]}`. From
standard input it takes `pause` (stop polling, keep running), `resume` and `close`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from typing import Any

POLL_S = 0.1
# kafka-python 3.0.12 forgets its assignment when a poll times out between the answers to JoinGroup and to SyncGroup: it takes the
# group for joined and never looks at what it was given. So its polls last longer than any rebalance here.
KAFKA_PYTHON_POLL_S = 3.0


class Orders:
    """What the parent wants, read by a thread."""

    def __init__(self) -> None:
        self.paused = False
        self.running = True
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            word = line.strip()
            self.paused = word == "pause"
            if word == "close":
                self.running = False
        self.running = False


class Report:
    def __init__(self) -> None:
        self.last: list[int] | None = None

    def has(self, partitions: Any) -> None:
        now = sorted(partitions)
        if now != self.last:
            self.last = now
            self.say({"has": now})

    def read(self, rows: list[list[int]]) -> None:
        if rows:
            self.say({"read": rows})

    def say(self, what: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


def librdkafka(options: dict[str, Any], orders: Orders, report: Report) -> None:
    from confluent_kafka import Consumer

    strategy = options["strategy"]
    settings = {
        "bootstrap.servers": options["bootstrap"],
        "group.id": options["group"],
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "topic.metadata.refresh.interval.ms": 1000,
        "max.poll.interval.ms": options["max_poll_interval_ms"],
    }
    if strategy == "consumer":
        settings["group.protocol"] = "consumer"
    else:
        settings |= {"partition.assignment.strategy": strategy, "session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    if options.get("instance"):
        settings["group.instance.id"] = options["instance"]
    consumer = Consumer(settings)
    consumer.subscribe([options["topic"]])
    while orders.running:
        if orders.paused:
            time.sleep(POLL_S)
            continue
        messages = consumer.consume(100, POLL_S)
        report.read([[message.partition(), message.offset()] for message in messages if not message.error()])
        report.has(place.partition for place in consumer.assignment())
    consumer.close()
    report.has([])


def kafka_python(options: dict[str, Any], orders: Orders, report: Report) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    strategies = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        """Tells of changes while the poll goes on."""

        owned: set[int] = set()

        def on_partitions_assigned(self, assigned: Any) -> None:
            self.owned = self.owned | {place.partition for place in assigned}
            report.has(self.owned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            self.owned = self.owned - {place.partition for place in revoked}
            report.has(self.owned)

        on_partitions_lost = on_partitions_revoked

    consumer = KafkaConsumer(
        bootstrap_servers=options["bootstrap"],
        group_id=options["group"],
        group_instance_id=options.get("instance"),
        partition_assignment_strategy=[strategies[options["strategy"]]],
        auto_offset_reset="earliest",
        auto_commit_interval_ms=200,
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
        metadata_max_age_ms=1000,
        max_poll_interval_ms=options["max_poll_interval_ms"],
    )
    consumer.subscribe([options["topic"]], listener=Listener())
    while orders.running:
        if orders.paused:
            time.sleep(POLL_S)
            continue
        found = consumer.poll(timeout_ms=int(KAFKA_PYTHON_POLL_S * 1000))
        report.read([[record.partition, record.offset] for records in found.values() for record in records])
    consumer.close()
    report.has([])


def aiokafka(options: dict[str, Any], orders: Orders, report: Report) -> None:
    asyncio.run(_aiokafka(options, orders, report))


async def _aiokafka(options: dict[str, Any], orders: Orders, report: Report) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    strategies = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor, "sticky": StickyPartitionAssignor}
    consumer = AIOKafkaConsumer(
        options["topic"],
        bootstrap_servers=options["bootstrap"],
        group_id=options["group"],
        group_instance_id=options.get("instance"),
        partition_assignment_strategy=[strategies[options["strategy"]]],
        auto_offset_reset="earliest",
        auto_commit_interval_ms=200,
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
        metadata_max_age_ms=1000,
        max_poll_interval_ms=options["max_poll_interval_ms"],
    )
    await consumer.start()
    while orders.running:
        if orders.paused:
            await asyncio.sleep(POLL_S)
            continue
        found = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
        report.read([[record.partition, record.offset] for records in found.values() for record in records])
        report.has(place.partition for place in consumer.assignment())
    await consumer.stop()
    report.has([])


if __name__ == "__main__":
    if "MEMBER_LOG" in os.environ:  # a folder: what does the client think?
        logging.basicConfig(
            filename=f"{os.environ['MEMBER_LOG']}/{os.getpid()}.log", level="DEBUG", format="%(asctime)s %(name)s %(message)s"
        )
    {"librdkafka": librdkafka, "kafka-python": kafka_python, "aiokafka": aiokafka}[sys.argv[1]](
        json.loads(sys.argv[2]), Orders(), Report()
    )
