"""Transactions as real clients and Kafka's own tools know them: the same scripts against Apache Kafka 4.3 and ottla."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compatibility.kafka import KafkaPeer, run_tool
from tests.compatibility.node import OttlaNode
from tests.compatibility.transactions import Conversation, random_conversation
from tests.compatibility.wire import wait_until

System = KafkaPeer | OttlaNode
LIMIT_S = 30.0


@pytest.fixture
def talk(system: System, topic: str) -> Iterator[Conversation]:
    conversation = Conversation(system.address, topic, f"id-of-{topic}")
    yield conversation
    conversation.close()


PASSING = ("NOT_LEADER_OR_FOLLOWER", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE")


def create(system: System, topic: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": system.bootstrap})
    for made in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        made.result()


def producer(system: System, transactional_id: str, **settings: Any) -> Producer:
    made = Producer({"bootstrap.servers": system.bootstrap, "transactional.id": transactional_id, **settings})
    made.init_transactions(LIMIT_S)
    return made


def read_all(system: System, topic: str, partitions: int = 2, isolation: str = "read_committed") -> list[str]:
    """Every partition to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": system.bootstrap,
            "group.id": "reader-without-a-group",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    values, ends, deadline = [], 0, time.monotonic() + LIMIT_S
    while ends < partitions:
        assert time.monotonic() < deadline, f"the end was not reached; read {len(values)} records"
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            ends += 1
        else:
            values.append(message.value().decode())
    consumer.close()
    return sorted(values)


# Bare requests -----------------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_random_conversations_get_the_answers_of_kafka(kafka_peer: KafkaPeer, ottla_node: OttlaNode) -> None:
    """Late, early, wrong and right requests in all versions: state, epochs, error codes and visible records agree."""
    for seed in range(15):
        name = f"random-{seed}"
        expected = settled_conversation(kafka_peer.address, name, seed)
        assert random_conversation(ottla_node.address, name, name, seed, 30) == expected, f"seed {seed}"


def settled_conversation(address: tuple[str, int], name: str, seed: int) -> list[str]:
    """A busy Kafka says for a moment that it cannot reach its own coordinator; such a conversation is held again."""
    for attempt in range(5):
        lines = random_conversation(address, f"{name}-{attempt}", f"{name}-{attempt}", seed, 30)
        if not any(word in line for line in lines for word in PASSING):
            break
    return lines


def test_a_transaction_by_hand_in_version_1(talk: Conversation) -> None:
    assert talk.init() == ("NONE", 0, 0)
    assert talk.produce("too early") == "TRANSACTION_ABORTABLE"
    assert talk.add(0) == ["NONE"]
    assert talk.produce("one") == "NONE"
    assert talk.read() == []
    assert talk.read(committed=False) == ["one"]
    assert talk.producers() == [(0, 0, 0, 0)]
    assert talk.describe()[:4] == ("NONE", "Ongoing", 0, 0)
    assert talk.end(commit=True) == ("NONE",)
    assert talk.read() == ["one"]
    assert talk.listed("CompleteCommit") == ["CompleteCommit"]
    assert talk.add(0) == ["NONE"]
    assert talk.produce("two") == "NONE"
    assert talk.end(commit=False) == ("NONE",)
    assert talk.read() == ["one"]
    assert talk.read(committed=False) == ["one", "two"]


def test_a_transaction_by_hand_in_version_2(talk: Conversation) -> None:
    assert talk.init() == ("NONE", 0, 0)
    for epoch in range(3):
        assert talk.produce(f"value-{epoch}", version=12) == "NONE", "the leader adds the partition"
        assert talk.end(commit=epoch != 1, version=5) == ("NONE", 0, epoch + 1)
    assert talk.read() == ["value-0", "value-2"]
    old = (talk.identity[0], talk.identity[1] - 1)
    assert talk.produce("late", identity=old, version=12) == "INVALID_PRODUCER_EPOCH"


def test_a_late_record_of_an_ended_transaction_starts_no_new_one(talk: Conversation) -> None:
    """KIP-890: such a record would hold readers back for ever."""
    talk.init()
    talk.add(0)
    assert talk.produce("in time", version=11) == "NONE"
    talk.end(commit=True)
    assert talk.produce("late", version=11) == "TRANSACTION_ABORTABLE"
    assert talk.produce("late", version=9) == "INVALID_TXN_STATE"
    assert talk.read() == ["in time"]


def test_an_older_client_hears_of_its_fencing_in_words_it_knows(talk: Conversation) -> None:
    talk.init()
    zombie = talk.identity
    talk.init()
    assert talk.end(commit=True, identity=zombie, version=1) == ("INVALID_PRODUCER_EPOCH",)
    assert talk.end(commit=True, identity=zombie, version=2) == ("PRODUCER_FENCED",)
    assert talk.add(0, identity=zombie, version=1) == ["INVALID_PRODUCER_EPOCH"]
    assert talk.add(0, identity=zombie, version=2) == ["PRODUCER_FENCED"]
    assert talk.init(expected=zombie, version=3)[0] == "INVALID_PRODUCER_EPOCH"
    assert talk.init(expected=zombie, version=4)[0] == "PRODUCER_FENCED"


def test_offsets_become_visible_with_their_transaction(talk: Conversation) -> None:
    group = f"group-of-{talk.topic}"
    talk.init()
    assert talk.commit_offset(5, group=group, version=3) == "INVALID_TXN_STATE"
    assert talk.add_offsets(group=group) == "NONE"
    assert talk.commit_offset(5, group=group, version=3) == "NONE"
    talk.end(commit=False)
    assert talk.commit_offset(7, group=group, version=5) == "NONE"
    assert talk.end(commit=True, version=5)[0] == "NONE"


def test_refusals_leave_a_transaction_as_it_was(talk: Conversation) -> None:
    group = f"group-of-{talk.topic}"
    talk.init()
    zombie = talk.identity
    talk.init()
    stranger = (talk.identity[0] + 1_000_000, 0)
    assert talk.produce("one", version=12) == "NONE"
    assert talk.commit_offset(5, group=group, version=5) == "NONE"
    before = talk.describe(), talk.producers(), talk.read(committed=False)

    def wrong_sequence(sequence: int) -> str:
        key = (*talk.identity, 0)
        right = talk.sequences[key]
        try:
            talk.sequences[key] = sequence
            return talk.produce("out of order", version=12)
        finally:
            talk.sequences[key] = right

    refusals: list[tuple[Callable[[], Any], Any]] = [
        (lambda: talk.produce("late", identity=zombie, version=12), "INVALID_PRODUCER_EPOCH"),
        (lambda: talk.produce("late", identity=zombie, version=11), "INVALID_PRODUCER_EPOCH"),
        (lambda: talk.produce("late", 1, identity=zombie, version=12), "INVALID_PRODUCER_EPOCH"),
        (lambda: talk.produce("strange", identity=stranger, version=12), "INVALID_PRODUCER_ID_MAPPING"),
        (lambda: wrong_sequence(7), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (lambda: talk.commit_offset(9, identity=zombie, group=group, version=5), "INVALID_PRODUCER_EPOCH"),
        (lambda: talk.commit_offset(9, identity=zombie, group=group, version=3), "INVALID_PRODUCER_EPOCH"),
        (lambda: talk.commit_offset(9, identity=stranger, group=group, version=5), "INVALID_PRODUCER_ID_MAPPING"),
        (lambda: talk.add(1, identity=zombie), ["PRODUCER_FENCED"]),
        (lambda: talk.add(9), ["UNKNOWN_TOPIC_OR_PARTITION"]),
        (lambda: talk.add_offsets(identity=zombie, group=group), "PRODUCER_FENCED"),
        (lambda: talk.end(commit=True, identity=zombie, version=5)[0], "PRODUCER_FENCED"),
        (lambda: talk.end(commit=False, identity=stranger, version=5)[0], "INVALID_PRODUCER_ID_MAPPING"),
    ]
    answers = [ask() for ask, _ in refusals]
    assert answers == [code for _, code in refusals]
    assert (talk.describe(), talk.producers(), talk.read(committed=False)) == before
    assert talk.end(commit=True, version=5)[0] == "NONE"
    assert talk.read() == ["one"]


# librdkafka and aiokafka --------------------------------------------------------------------------------------------------


def test_librdkafka_commits_and_aborts(system: System, topic: str) -> None:
    create(system, topic)
    writer = producer(system, f"rdkafka-{topic}")
    for number in range(10):
        writer.begin_transaction()
        for part in "ab":
            writer.produce(topic, f"{number}{part}", partition=number % 2)
        writer.abort_transaction(LIMIT_S) if number % 3 == 2 else writer.commit_transaction(LIMIT_S)
    expected = [f"{number}{part}" for number in range(10) for part in "ab" if number % 3 != 2]
    assert read_all(system, topic) == sorted(expected)


def test_aiokafka_copies_with_offsets(system: System, topic: str) -> None:
    create(system, topic, 1)
    create(system, f"{topic}-copy", 1)

    async def copy() -> int:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
        from aiokafka import TopicPartition as Place

        place = Place(topic, 0)
        async with AIOKafkaProducer(bootstrap_servers=system.bootstrap) as source:
            for number in range(10):
                await source.send_and_wait(topic, str(number).encode())
        consumer = AIOKafkaConsumer(
            bootstrap_servers=system.bootstrap, group_id=topic, enable_auto_commit=False, isolation_level="read_committed"
        )
        writer = AIOKafkaProducer(bootstrap_servers=system.bootstrap, transactional_id=f"aio-{topic}")
        await consumer.start()
        await writer.start()
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        try:
            for number in range(10):
                message = await asyncio.wait_for(consumer.getone(), LIMIT_S)
                async with writer.transaction():
                    await writer.send_and_wait(f"{topic}-copy", message.value)
                    await writer.send_offsets_to_transaction({place: message.offset + 1}, topic)
                assert message.offset == number
            # The offset shows once the coordinator of the group has heard of the last commit.
            async with asyncio.timeout(LIMIT_S):
                while (committed := await consumer.committed(place)) != 10:  # noqa: ASYNC110 - the answer comes from the cluster
                    await asyncio.sleep(0.05)
            return int(committed)
        finally:
            await consumer.stop()
            await writer.stop()

    assert asyncio.run(copy()) == 10
    assert read_all(system, f"{topic}-copy", 1) == sorted(map(str, range(10)))


def test_a_transaction_that_takes_too_long_is_aborted(tmp_path: Path) -> None:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with OttlaNode(tmp_path, settings=settings) as node:
        talk = Conversation(node.address, "slow", "slow")
        talk.init(timeout_ms=300)
        talk.add(0)
        talk.produce("too slow")
        wait_until("the abort", lambda: talk.describe()[1] == "CompleteAbort", limit_s=LIMIT_S)
        assert talk.read() == []
        assert talk.produce("still there?") == "INVALID_PRODUCER_EPOCH"
        assert talk.end(commit=True) == ("PRODUCER_FENCED",)
        talk.close()
        assert not node.tracebacks()


def test_a_node_that_was_killed_remembers_what_was_open_and_what_was_decided(tmp_path: Path) -> None:
    with OttlaNode(tmp_path) as node:
        talk = Conversation(node.address, "kept", "kept")
        talk.init()
        talk.produce("decided", version=12)
        talk.end(commit=True, version=5)
        talk.produce("open", version=12)
        identity, ids, sequences = talk.identity, talk.known_ids, talk.sequences
        talk.close()
        node.kill()
        node.start()
        talk = Conversation(node.address, "kept", "kept")
        talk.identity, talk.known_ids, talk.sequences = identity, ids, sequences
        assert talk.describe()[1:4] == ("Ongoing", 0, 1)
        assert talk.read() == ["decided"]
        assert talk.produce("more", version=12) == "NONE"
        assert talk.end(commit=True, version=5) == ("NONE", 0, 2)
        assert talk.read() == ["decided", "open", "more"]
        assert talk.init() == ("NONE", 0, 3)
        talk.close()


# Kafka's own tools --------------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_kafkas_tool_lists_describes_and_aborts(system: System, talk: Conversation, topic: str) -> None:
    talk.init()
    talk.produce("hangs", version=12)

    def tool(*arguments: str) -> str:
        done = run_tool("TransactionsCommand", "--bootstrap-server", system.bootstrap, *arguments)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    assert "Ongoing" in next(line for line in tool("list").splitlines() if talk.transactional_id in line)
    described = tool("describe", "--transactional-id", talk.transactional_id)
    assert f"{topic}-0" in described
    producers = tool("describe-producers", "--topic", topic, "--partition", "0").splitlines()
    assert producers[1].split()[0] == str(talk.identity[0])
    tool("abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    assert talk.producers()[0][3] == -1, "nothing holds readers back any more"
    assert talk.read() == []
    assert talk.produce("again", partition=1, version=12) == "NONE"
    tool("forceTerminateTransaction", "--transactionalId", talk.transactional_id)
    assert talk.describe()[1] == "Empty"
    assert talk.end(commit=True, version=5)[0] == "PRODUCER_FENCED"
    assert talk.read(1) == []


@pytest.mark.kafka
def test_kafkas_dump_reads_our_transaction_log(tmp_path: Path) -> None:
    with OttlaNode(tmp_path) as node:
        talk = Conversation(node.address, "dumped", "dumped")
        talk.init()
        talk.produce("value", version=12)
        talk.end(commit=True, version=5)
        talk.close()
        [log] = [path for path in node.data.rglob("__transaction_state-*/*.log") if path.stat().st_size]
        done = run_tool("DumpLogSegments", "--files", str(log), "--transaction-log-decoder")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line.split("payload: ", 1)[1])["data"] for line in done.stdout.splitlines() if "payload: " in line]
    assert [row["transactionStatus"] for row in rows] == [0, 1, 2, 4], "Empty, Ongoing, PrepareCommit, CompleteCommit"
    assert [row["producerEpoch"] for row in rows] == [0, 0, 1, 1]
    assert rows[1]["transactionPartitions"] == [{"topic": "dumped", "partitionIds": [0]}]


@pytest.mark.kafka
def test_the_java_producer_writes_in_transactions(system: System, topic: str) -> None:
    """Java 4.3 speaks version 2: epochs bumped at each end, partitions added by their leaders."""
    create(system, topic)
    done = run_tool(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", "2000", "--record-size", "10", "--throughput", "2000"),
        *("--transactional-id", f"java-{topic}", "--transaction-duration-ms", "50"),
        *("--producer-props", f"bootstrap.servers={system.bootstrap}"),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "2000 records sent" in done.stdout
    assert len(read_all(system, topic)) == 2000
    talk = Conversation(system.address, topic, f"java-{topic}")
    state = talk.describe()
    assert state[1] == "CompleteCommit"
    assert state[3] > 5, "one epoch for each transaction"
    talk.close()
