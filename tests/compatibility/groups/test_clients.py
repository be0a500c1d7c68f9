"""Groups of real clients, the same story with each library and strategy, on ottla and on Apache Kafka 4.3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.compatibility.groups.members import Members
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import wait_until

System = KafkaPeer | OttlaNode
java = pytest.mark.kafka
CLIENTS = [
    ("librdkafka", "range"),
    ("librdkafka", "roundrobin"),
    ("librdkafka", "cooperative-sticky"),
    ("librdkafka", "consumer"),
    ("aiokafka", "range"),
    ("aiokafka", "roundrobin"),
    ("aiokafka", "sticky"),
    ("kafka-python", "range"),
    ("kafka-python", "roundrobin"),
    ("kafka-python", "sticky"),
    ("kafka-python", "cooperative-sticky"),
    pytest.param("java", "range", marks=java),
    pytest.param("java", "roundrobin", marks=java),
    pytest.param("java", "sticky", marks=java),
    pytest.param("java", "cooperative-sticky", marks=java),
    pytest.param("java", "consumer", marks=java),
]
# One of each library is enough where the strategy plays no part.
LIBRARIES = [("librdkafka", "range"), ("librdkafka", "consumer"), ("aiokafka", "range"), ("kafka-python", "range")]
LIBRARIES += [pytest.param("java", "range", marks=java), pytest.param("java", "consumer", marks=java)]
pytestmark = pytest.mark.slow


def make_topic(system: System, topic: str, partitions: int = 4) -> None:
    admin = AdminClient({"bootstrap.servers": system.bootstrap})  # must outlive its futures
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()


def produce(system: System, topic: str, partitions: range, count: int) -> set[tuple[int, int]]:
    """Returns where the records are."""
    producer = Producer({"bootstrap.servers": system.bootstrap})
    places: set[tuple[int, int]] = set()
    for number in range(count):
        for partition in partitions:
            producer.produce(
                topic,
                str(number),
                partition=partition,
                callback=lambda error, m: places.add((m.partition(), m.offset())) or error,
            )
    producer.flush(30)
    assert len(places) == count * len(partitions)
    return places


@pytest.fixture
def members(quick_system: System, topic: str, library: str, strategy: str) -> Iterator[Members]:
    make_topic(quick_system, topic)
    with Members(library, strategy, quick_system.bootstrap, f"group-of-{topic}", topic) as group:
        yield group


@pytest.mark.parametrize(("library", "strategy"), CLIENTS)
def test_a_group_of_one_two_four_and_five(quick_system: System, topic: str, members: Members) -> None:
    """The fifth idles; one that is killed and one that leaves are replaced; nothing is left unread."""
    written = produce(quick_system, topic, range(4), 10)
    first = members.add()
    members.settle([4])
    second = members.add()
    members.settle([2, 2])
    members.add(), members.add()
    members.settle([1, 1, 1, 1])
    members.add()
    members.settle([0, 1, 1, 1, 1])
    seen = members.read()
    members.remove(first).kill()
    members.settle([1, 1, 1, 1])
    members.remove(second).close()
    members.settle([1, 1, 2])
    written |= produce(quick_system, topic, range(4), 10)
    wait_until("every record read", lambda: seen | members.read() >= written)


@pytest.mark.parametrize(("library", "strategy"), LIBRARIES)
def test_a_topic_that_grows_under_a_subscription_is_shared_anew(quick_system: System, topic: str, members: Members) -> None:
    members.add(), members.add()
    members.settle([2, 2])
    admin = AdminClient({"bootstrap.servers": quick_system.bootstrap})
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result()
    members.settle([3, 3])
    written = produce(quick_system, topic, range(6), 5)
    wait_until("every record read", lambda: members.read() >= written)


@pytest.mark.parametrize(("library", "strategy"), LIBRARIES)
def test_a_member_that_stops_polling_loses_its_partitions_and_gets_some_back(
    quick_system: System, topic: str, members: Members
) -> None:
    lazy, busy = members.add(max_poll_interval_ms=7_000), members.add()
    members.settle([2, 2])
    lazy.order("pause")
    written = produce(quick_system, topic, range(4), 500)
    members.settle([4], among=[busy])
    lazy.order("resume")
    members.settle([2, 2])
    wait_until("every record read", lambda: members.read() >= written)


@pytest.mark.parametrize(("library", "strategy"), LIBRARIES)
def test_a_group_goes_on_where_it_left_off(quick_system: System, topic: str, members: Members) -> None:
    before = produce(quick_system, topic, range(4), 10)
    first = members.add()
    wait_until("every record read", lambda: set(first.read) >= before)
    members.remove(first).close()
    after = produce(quick_system, topic, range(4), 10)
    second = members.add()
    wait_until("the new records read", lambda: set(second.read) >= after)
    assert set(second.read) == after, "what was committed is not read again"


@pytest.mark.parametrize(("library", "strategy"), [row for row in LIBRARIES if "aiokafka" not in str(row)])
def test_a_static_member_that_restarts_gets_its_partitions_back(members: Members) -> None:
    first, second = members.add(instance="one"), members.add(instance="two")
    members.settle([2, 2])
    had, others = set(second.partitions), set(first.partitions)
    members.remove(second).close()  # without leaving: a killed one would have to wait for its own session in a consumer group
    again = members.add(instance="two")
    wait_until("its partitions back", lambda: again.partitions == had)
    assert first.partitions == others


@pytest.mark.parametrize(
    ("library", "strategy"),
    [("librdkafka", "range"), pytest.param("java", "range", marks=java), pytest.param("java", "cooperative-sticky", marks=java)],
)
def test_a_group_changes_its_protocol_member_by_member(quick_system: System, topic: str, members: Members) -> None:
    """Upgrade and downgrade without a pause, as an application that is restarted bit by bit.

    Not librdkafka's cooperative-sticky: its assignments carry data of its own, so both systems refuse to upgrade such a group.
    """
    written = produce(quick_system, topic, range(4), 10)
    old = [members.add(), members.add()]
    members.settle([2, 2])
    new = [members.add("consumer")]
    members.settle([1, 1, 2])
    seen = members.read()
    members.remove(old.pop()).close()
    new.append(members.add("consumer"))
    members.settle([1, 1, 2])
    seen |= members.read()
    members.remove(old.pop()).close()
    members.settle([2, 2])
    written |= produce(quick_system, topic, range(4), 10)
    old.append(members.add())
    members.settle([1, 1, 2])
    for leaving in new:
        seen |= members.read()
        members.remove(leaving).close()
    members.settle([4])
    written |= produce(quick_system, topic, range(4), 10)
    wait_until("every record read", lambda: seen | members.read() >= written)
