"""Members of one group that were written by different people: ours, librdkafka's, kafka-python's and Java's."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from pathlib import Path

import pytest

from tests.client.waiting import eventually

RECORDS = 60
FOREIGN_LIMIT_S = 60.0  # a Java virtual machine is started from source, beside whatever else runs


class Foreign:
    """A foreign consumer in a thread: what it owns and what it was given."""

    def __init__(self) -> None:
        self.owned: set[tuple[str, int]] = set()
        self.records: list[bytes] = []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(FOREIGN_LIMIT_S)


class Librdkafka(Foreign):
    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str) -> None:
        from confluent_kafka import Consumer

        settings: dict[str, str | int] = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        if strategy == "consumer":
            settings["group.protocol"] = "consumer"
        else:
            settings |= {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 100, "session.timeout.ms": 6000}
        self._consumer = Consumer(settings)
        self._topic = topic
        super().__init__()

    def run(self) -> None:
        self._consumer.subscribe([self._topic])
        while not self.stopping.is_set():
            message = self._consumer.poll(0.05)
            self.owned = {(part.topic, part.partition) for part in self._consumer.assignment()}
            if message is not None and not message.error():
                self.records.append(message.value())
        self._consumer.close()


class KafkaPython(Foreign):
    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str) -> None:
        from kafka import KafkaConsumer
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        assignor = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}[strategy]
        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[assignor],
            heartbeat_interval_ms=100,
            session_timeout_ms=6000,
        )
        # kafka-python 3.0.12 that leads a group before it knows the topic joins again when it hears of it, and if a poll ends between
        # the answers to that JoinGroup and SyncGroup, it never looks at what it was given (`tests/compatibility/groups/member.py`).
        # So it is told of the topic first.
        assert self._consumer.partitions_for_topic(topic)
        super().__init__()

    def run(self) -> None:
        while not self.stopping.is_set():
            for batch in self._consumer.poll(timeout_ms=50).values():
                self.records += [record.value for record in batch]
            self.owned = {(part.topic, part.partition) for part in self._consumer.assignment()}
        self._consumer.close()


JAVA = r"""
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.serialization.*;

public class Member {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[1]);
        properties.put("auto.offset.reset", "earliest");
        if (arguments[3].equals("consumer")) properties.put("group.protocol", "consumer");
        else {
            properties.put("partition.assignment.strategy", arguments[3]);
            properties.put("heartbeat.interval.ms", "100");
            properties.put("session.timeout.ms", "6000");
        }
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[2]));
            Set<?> last = null;
            while (System.in.available() == 0) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) System.out.println("record " + record.value());
                if (!consumer.assignment().equals(last)) {
                    last = new HashSet<>(consumer.assignment());
                    StringBuilder line = new StringBuilder("owned");
                    consumer.assignment().forEach(p -> line.append(' ').append(p.partition()));
                    System.out.println(line);
                }
                System.out.flush();
            }
        }
    }
}
"""


class Java(Foreign):
    """Kafka's own client, in a process of its own; it stops when it is written to."""

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str, folder: Path) -> None:
        from tests.compatibility.jars import class_path

        source = folder / "Member.java"
        source.write_text(JAVA)
        self._topic = topic
        command = ["java", "-Xmx128m", "-cp", class_path(), str(source), bootstrap, group, topic, strategy]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        super().__init__()

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, *rest = line.split()
            if word == "owned":
                self.owned = {(self._topic, int(number)) for number in rest}
            elif word == "record":
                self.records.append(rest[0].encode())

    def stop(self) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return
        self._process.stdin.write("x")
        self._process.stdin.close()
        self._process.wait(FOREIGN_LIMIT_S)
        super().stop()


async def share(consumer, producer, topic, foreigners, partitions=3, **settings):
    """We and they share the partitions; every record reaches exactly one; when they go, everything is ours."""
    ours = await consumer(**settings)
    ours.subscribe([topic])
    records: list[bytes] = []
    everything = {(topic, number) for number in range(partitions)}

    async def poll() -> None:
        while True:
            records.extend(record.value for record in await ours.poll(50))

    polling = asyncio.create_task(poll())

    async def settled() -> bool:
        if polling.done():
            polling.result()
        shares = [set(ours.assignment()), *(each.owned for each in foreigners)]
        return all(shares) and sum(map(len, shares)) == partitions and set().union(*shares) == everything

    try:
        await eventually(settled, limit_s=FOREIGN_LIMIT_S)
        sender = await producer()
        for number in range(RECORDS):
            await sender.send(topic, b"%d" % number, partition=number % partitions)
        await sender.flush()

        async def all_heard() -> bool:
            return len(records) + sum(len(each.records) for each in foreigners) >= RECORDS

        await eventually(all_heard, limit_s=FOREIGN_LIMIT_S)
        heard = [*records, *(value for each in foreigners for value in each.records)]
        assert sorted(map(int, heard)) == list(range(RECORDS))
        for each in foreigners:
            await asyncio.to_thread(each.stop)

        async def ours_alone() -> bool:
            return set(ours.assignment()) == everything

        await eventually(ours_alone, limit_s=FOREIGN_LIMIT_S)
    finally:
        polling.cancel()
        await asyncio.wait([polling])
        for each in foreigners:
            await asyncio.to_thread(each.stop)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
async def test_with_librdkafka(bootstrap, consumer, producer, topic, name, strategy):
    foreigners = [Librdkafka(bootstrap, name, topic, strategy)]
    await share(
        consumer, producer, topic, foreigners, group_id=name, partition_assignment_strategy=[strategy], heartbeat_interval_ms=100
    )


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
async def test_with_kafka_python_and_librdkafka(bootstrap, consumer, producer, topic, name, strategy):
    foreigners = [KafkaPython(bootstrap, name, topic, strategy), Librdkafka(bootstrap, name, topic, strategy)]
    await share(
        consumer, producer, topic, foreigners, group_id=name, partition_assignment_strategy=[strategy], heartbeat_interval_ms=100
    )


ASSIGNORS = "org.apache.kafka.clients.consumer."


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"partition_assignment_strategy": ["sticky"], "heartbeat_interval_ms": 100}, ASSIGNORS + "StickyAssignor"),
        (
            {"partition_assignment_strategy": ["cooperative-sticky"], "heartbeat_interval_ms": 100},
            ASSIGNORS + "CooperativeStickyAssignor",
        ),
        ({"group_protocol": "consumer"}, "consumer"),
    ],
    ids=["sticky", "cooperative-sticky", "consumer"],
)
async def test_with_java(bootstrap, consumer, producer, topic, name, tmp_path, ours, theirs):
    await share(consumer, producer, topic, [Java(bootstrap, name, topic, theirs, tmp_path)], group_id=name, **ours)


@pytest.fixture
async def wide_topic(admin, name) -> str:
    """With more partitions than a group here has members."""
    await admin.create_topic(f"wide-{name}", 8)
    await eventually(lambda: admin.latest_offsets((f"wide-{name}", number) for number in range(8)))
    return f"wide-{name}"


@pytest.mark.kafka
@pytest.mark.parametrize(("strategy", "of_java"), [("range", "RangeAssignor"), ("roundrobin", "RoundRobinAssignor")])
async def test_four_members_by_four_authors_are_one_group(
    bootstrap, consumer, producer, wide_topic, name, tmp_path, strategy, of_java
):
    foreigners = [
        Java(bootstrap, name, wide_topic, ASSIGNORS + of_java, tmp_path),
        KafkaPython(bootstrap, name, wide_topic, strategy),
        Librdkafka(bootstrap, name, wide_topic, strategy),
    ]
    ours = {"group_id": name, "partition_assignment_strategy": [strategy], "heartbeat_interval_ms": 100}
    await share(consumer, producer, wide_topic, foreigners, 8, **ours)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("ours", "of_java", "of_librdkafka"),
    [
        (
            {"partition_assignment_strategy": ["cooperative-sticky"], "heartbeat_interval_ms": 100},
            ASSIGNORS + "CooperativeStickyAssignor",
            "cooperative-sticky",
        ),
        ({"group_protocol": "consumer"}, "consumer", "consumer"),
    ],
    ids=["cooperative-sticky", "consumer"],
)
async def test_with_java_and_librdkafka(bootstrap, consumer, producer, wide_topic, name, tmp_path, ours, of_java, of_librdkafka):
    """kafka-python speaks no KIP-848, and its cooperative assignor is a case of its own in `tests/compatibility/groups`."""
    foreigners = [
        Java(bootstrap, name, wide_topic, of_java, tmp_path),
        Librdkafka(bootstrap, name, wide_topic, of_librdkafka),
    ]
    await share(consumer, producer, wide_topic, foreigners, 8, group_id=name, **ours)


@pytest.mark.kafka
async def test_members_of_the_old_protocol_live_on_in_a_group_of_the_new(bootstrap, consumer, producer, topic, name):
    """Ours with KIP-848, librdkafka with the classic protocol: the group is upgraded under its members."""
    await share(
        consumer, producer, topic, [Librdkafka(bootstrap, name, topic, "range")], group_id=name, group_protocol="consumer"
    )
