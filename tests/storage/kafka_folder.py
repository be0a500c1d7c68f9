"""A data folder written by Apache Kafka, and what Kafka's own consumer reads from it.

`python -m tests.storage.kafka_folder FILE.zip` makes the fixture that the fast tests open.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.compatibility.kafka import KafkaPeer

SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "log.initial.task.delay.ms": "500",
    "log.cleaner.io.max.bytes.per.second": "100000000",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
}
SMALL = {"internal.segment.bytes": "3000", "index.interval.bytes": "200", "retention.ms": "-1"}
TOPICS = {
    "plain": SMALL,
    "transactions": SMALL,
    "compacted": SMALL | {"cleanup.policy": "compact", "internal.segment.bytes": "1500", "min.cleanable.dirty.ratio": "0.01"},
}
BASE_TIME = 1_700_000_000_000
CLEANING_LIMIT_S = 60


def fill(bootstrap: str, settings: Mapping[str, Mapping[str, str]] = TOPICS) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topics = [NewTopic(name, 1, 1, config=dict(config)) for name, config in settings.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(topics).values():
        made.result()

    def producer(**options: Any) -> Producer:
        return Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 1, "log_level": 0}
            | {k.replace("_", "."): v for k, v in options.items()}
        )

    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        sender = producer(compression_type=codec, enable_idempotence=True)
        for number in range(8):
            for more in range(3):
                value, moment = f"{codec}-{number}-{more}".encode(), BASE_TIME + number * 1000 + more
                sender.produce("plain", value, key=b"k%d" % more, timestamp=moment, headers={"h": b"x"})
            sender.flush()
    for which in range(4):
        sender = producer(transactional_id=f"tx-{which}")
        sender.init_transactions()
        for number in range(4):
            sender.begin_transaction()
            for more in range(3):
                sender.produce("transactions", f"{which}-{number}-{more}".encode(), timestamp=BASE_TIME + number)
                sender.flush()
            if (number + which) % 2:
                sender.abort_transaction()
            else:
                sender.commit_transaction()
    left_open = producer(transactional_id="open")
    left_open.init_transactions()
    left_open.begin_transaction()
    left_open.produce("transactions", b"open", timestamp=BASE_TIME)
    left_open.flush()
    sender = producer(enable_idempotence=True)
    for number in range(60):
        value = None if number % 6 == 5 and number > 50 else b"v%d" % number
        sender.produce("compacted", value, key=b"key-%d" % (number % 6), timestamp=BASE_TIME + number)
        sender.flush()
    for number in range(6):
        sender.produce("compacted", bytes(400), key=b"tail-%d" % number, timestamp=BASE_TIME + 100 + number)
        sender.flush()


def consume(bootstrap: str, topic: str, isolation: str) -> list[list[Any]]:
    """Offset, timestamp, key, value of everything Kafka serves."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "x", "isolation.level": isolation, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[list[Any]] = []
    while True:
        message = consumer.poll(20)
        assert message is not None, f"no end of {topic}"
        if message.error():
            consumer.close()
            return found
        found.append([message.offset(), message.timestamp()[1], _text(message.key()), _text(message.value())])


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("latin-1")


def wait_until_compacted(folder: Path) -> None:
    """Until the cleaner's checkpoint has passed the repeated keys."""
    deadline = time.monotonic() + CLEANING_LIMIT_S
    checkpoint = folder / "cleaner-offset-checkpoint"
    while not (checkpoint.exists() and any(line.startswith("compacted 0 6") for line in checkpoint.read_text().splitlines())):
        assert time.monotonic() < deadline, "Kafka did not compact"
        time.sleep(0.2)


def write(folder: Path, *, kill: bool = False) -> tuple[Path, dict[str, Any]]:
    """Runs a broker for a moment. The data folder, and what it held: topic → isolation level → records."""
    with KafkaPeer(folder, settings=SETTINGS) as kafka:
        fill(kafka.bootstrap)
        wait_until_compacted(kafka.log_directory())
        expected = {
            topic: {level: consume(kafka.bootstrap, topic, level) for level in ("read_uncommitted", "read_committed")}
            for topic in TOPICS
        }
        if kill:
            kafka.kill_node(0)
    return kafka.log_directory(), expected


def archive(folder: Path, expected: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != ".lock" and "__cluster_metadata" not in str(path):
                packed.writestr(str(path.relative_to(folder)), path.read_bytes())
        packed.writestr("expected.json", json.dumps(expected))
    return content.getvalue()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        Path(sys.argv[1]).write_bytes(archive(*write(Path(temporary))))
