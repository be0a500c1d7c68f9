"""The dead-letter topic: records that do not parse, as they were, with the reason and where they came from in headers.

Sent by the executor that met them, and acknowledged before the rows beside them are handed to Spark. It is at least once: a task
that is tried again, or a frame that is read twice, sends them again, and the origin in the headers tells that they are the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ottla.spark import connections, planning, topics
from ottla.spark.options import OptionError, Options

REASON, TOPIC, PARTITION, OFFSET, TIME = "ottla.reason", "ottla.topic", "ottla.partition", "ottla.offset", "ottla.timestamp"


def check(options: Options) -> None:
    """On the driver, when a query is planned: the topic must be there, and must not be read itself. Raises OptionError."""
    topic = options.text("deadLetterTopic")
    if topic is None:
        return
    read = options.topics + tuple(name for name, _ in options.partitions)
    if options.pattern is not None:
        read += tuple(topics.matching(options.pattern, [topic]))
    if topic in read:
        raise OptionError(f"option deadLetterTopic names {topic}, which is read: a bad record would come back for ever")
    if topic not in planning.ask(options, lambda admin: admin.list_topics(internal=True)):
        raise OptionError(f"option deadLetterTopic: there is no topic {topic} at {options.bootstrap_servers}")


def send(options: Options, topic: str, batch: Any, bad: Mapping[int, str]) -> None:
    """All of them acknowledged, or an error."""
    asyncio.run(_send(options, topic, batch, bad))


async def _send(options: Options, topic: str, batch: Any, bad: Mapping[int, str]) -> None:
    from ottla.client.producer import Producer  # a third of a second, which who only plans need not pay

    async with Producer(**connections.common_settings(options), acks="all") as producer:
        deliveries = []
        for row, reason in sorted(bad.items()):
            found = {
                name: batch.column(name)[row].as_py() for name in ("key", "value", "topic", "partition", "offset", "timestamp")
            }
            kept = batch.column("headers")[row].as_py() if "headers" in batch.schema.names else None
            headers = [(each["key"], each["value"]) for each in kept or ()]
            origin = {
                REASON: reason,
                TOPIC: found["topic"],
                PARTITION: found["partition"],
                OFFSET: found["offset"],
                TIME: int(found["timestamp"].timestamp() * 1000),
            }
            headers += [(name, str(value).encode()) for name, value in origin.items()]
            deliveries.append(await producer.send(topic, found["value"], key=found["key"], headers=headers))
        for each in deliveries:
            await each
