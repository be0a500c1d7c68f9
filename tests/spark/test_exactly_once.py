"""The exactly-once sink without Spark: what its tasks and its driver do to each other, step by step, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from ottla import sync
from ottla.client.open_transaction import OpenTransaction
from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.ids import TopicPartition
from ottla.spark.exactly_once import ExactlyOnceWriter, TransactionLost, WrittenOnce
from ottla.spark.options import OptionError, parse
from ottla.spark.sink import BatchWriter, StreamWriter
from ottla.spark.task import Task
from tests.compatibility.jars import NoKafka
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.wire import wait_until

VALUES = StructType().add("value", StringType())


@pytest.fixture(scope="module", params=["ottla", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "ottla":
        with EmbeddedCluster(1) as running:
            yield running.bootstrap
        return
    try:
        with KafkaPeer(tmp_path_factory.mktemp("kafka")) as kafka:
            yield kafka.bootstrap
    except NoKafka as error:
        pytest.skip(str(error))


class Query:
    """One streaming query over one output topic, as Spark would run it."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.topic, self.id = bootstrap, f"out-{name}", f"query-{name}"
        with sync.Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(self.topic, 2, 1)
        self.writer = ExactlyOnceWriter(parse({"kafka.bootstrap.servers": bootstrap, "topic": self.topic}, reading=False), VALUES)

    def task(self, batch_id: int, slot: int, values: list[str], attempt: int = 0) -> WrittenOnce:
        rows = iter([pa.record_batch([pa.array(values)], names=["value"])])
        return sync.run(self.writer._write(rows, Task(self.id, batch_id, slot, attempt)))

    def fence(self, message: WrittenOnce) -> None:
        """What the coordinator does when a transaction times out: abort it and give its producer a new epoch."""
        assert message.transaction is not None
        with sync.Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.fence_producers([message.transaction.transactional_id])

    def stable_ends(self) -> dict[TopicPartition, int] | None:
        """Where the topic ends, or None while a transaction is open."""
        keys = [TopicPartition(self.topic, number) for number in range(2)]
        with sync.Admin(bootstrap_servers=self.bootstrap) as admin:
            stable = admin.latest_offsets(keys, isolation_level="read_committed")
            return stable if stable == admin.latest_offsets(keys) else None

    def committed(self) -> list[str]:
        """What read_committed consumers see, once all transactions are ended: Kafka answers before its markers are written."""
        ends = wait_until("the end of all transactions", self.stable_ends)
        out = []
        settings: dict[str, Any] = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
        with sync.Consumer(bootstrap_servers=self.bootstrap, **settings) as consumer:
            consumer.assign(list(ends))
            while any(consumer.position(key) < end for key, end in ends.items()):
                out += [record.value.decode() for record in consumer.poll(1000)]
        return sorted(out)


@pytest.fixture
def query(broker: str, request: pytest.FixtureRequest) -> Query:
    return Query(broker, request.node.name.split("[")[0].removeprefix("test_")[:40])


def test_a_batch_is_visible_only_when_it_is_committed(query: Query) -> None:
    messages = [query.task(0, 0, ["a", "b"]), query.task(0, 1, ["c"])]
    assert query.stable_ends() is None
    query.writer.commit(list(messages), 0)
    assert query.committed() == ["a", "b", "c"]
    query.writer.commit(list(messages), 0)  # asked again
    assert query.committed() == ["a", "b", "c"]


def test_a_replay_of_a_finished_batch_writes_nothing(query: Query) -> None:
    query.writer.commit([query.task(0, 0, ["a"])], 0)
    again = query.task(0, 0, ["a"])
    assert again.transaction is None
    query.writer.commit([again], 0)
    query.writer.commit([query.task(1, 0, ["b"])], 1)
    assert query.committed() == ["a", "b"]


def test_what_an_earlier_life_left_undecided_is_written_anew(query: Query) -> None:
    query.task(0, 0, ["a"])
    query.task(0, 1, ["b"], attempt=1)  # an attempt that the next life will not have
    query.writer.commit([query.task(0, 0, ["a"]), query.task(0, 1, ["b"])], 0)
    assert query.committed() == ["a", "b"]


def test_of_two_attempts_of_a_task_the_one_that_counts_stays_whichever_is_first(query: Query) -> None:
    first = query.task(0, 0, ["a"])
    query.task(0, 0, ["a"], attempt=1)  # speculation: begun after the first was done, and killed
    query.writer.commit([first], 0)
    query.task(1, 0, ["b"])
    second = query.task(1, 0, ["b"], attempt=1)
    query.writer.commit([second], 1)
    assert query.committed() == ["a", "b"]


def test_a_decided_batch_is_not_aborted_when_its_commit_fails_half_way(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark calls `abort` with all messages when `commit` raises."""
    messages = [query.task(0, 0, ["a"]), query.task(0, 1, ["b"])]
    with monkeypatch.context() as patch:
        patch.setattr("ottla.spark.exactly_once._committed", _broken_for(messages[1]))
        with pytest.raises(ConnectionError):
            query.writer.commit(list(messages), 0)
    query.writer.abort(list(messages), 0)
    replay = [query.task(0, 0, ["a"]), query.task(0, 1, ["b"])]
    assert [message.transaction for message in replay] == [None, None]
    query.writer.commit(list(replay), 0)
    assert query.committed() == ["a", "b"]


def _broken_for(message: WrittenOnce) -> Any:
    from ottla.spark import exactly_once

    real = exactly_once._committed

    async def committed(admin: Any, transaction: Any, batch_id: int) -> bool:
        if transaction == message.transaction:
            raise ConnectionError("the broker is gone")
        return await real(admin, transaction, batch_id)

    return committed


def test_an_undecided_batch_is_aborted_when_a_task_fails(query: Query) -> None:
    query.writer.abort([query.task(0, 0, ["a"]), None], 0)
    assert query.committed() == []


def test_a_broker_that_cannot_be_asked_to_abort_does_not_hide_what_failed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `abort` raises Spark would tell instead of the cause."""
    monkeypatch.setattr("ottla.spark.exactly_once.ABORT_LIMIT_S", 0.1)
    writer = ExactlyOnceWriter(parse({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "a"}, reading=False), VALUES)
    writer.abort([WrittenOnce(1, "query", 0, OpenTransaction("id", 1, 0, False)), None], 0)


def test_what_timed_out_after_the_decision_is_written_again_and_nothing_twice(query: Query) -> None:
    """The driver died between its decision and the ends, and came back after the transaction time-out."""
    from ottla.spark.exactly_once import _decision

    messages = [query.task(0, slot, [f"{slot}-a", f"{slot}-b"]) for slot in range(3)]
    sync.run(query.writer.ledger.write(query.id, 0, _decision(messages, None, 0)))
    with sync.Admin(bootstrap_servers=query.bootstrap) as admin:
        assert messages[0].transaction is not None
        admin.end_transaction(messages[0].transaction, commit=True)  # one was ended in time
    query.fence(messages[1])
    replay = [query.task(0, slot, [f"{slot}-a", f"{slot}-b"]) for slot in range(3)]
    assert [message.transaction is not None for message in replay] == [False, True, False]
    query.writer.commit(list(replay), 0)
    assert query.committed() == [f"{slot}-{letter}" for slot in range(3) for letter in "ab"]


def test_a_transaction_that_timed_out_before_its_end_fails_the_batch_and_the_restart_mends_it(query: Query) -> None:
    messages = [query.task(0, 0, ["a"]), query.task(0, 1, ["b"])]
    query.fence(messages[0])
    with pytest.raises(TransactionLost, match="Start the query again"):
        query.writer.commit(list(messages), 0)
    query.writer.abort(list(messages), 0)
    query.writer.commit([query.task(0, 0, ["a"]), query.task(0, 1, ["b"])], 0)
    assert query.committed() == ["a", "b"]


def test_what_timed_out_is_not_replaced_by_something_else(query: Query) -> None:
    message = query.task(0, 0, ["a", "b"])
    query.fence(message)
    with pytest.raises(TransactionLost):
        query.writer.commit([message], 0)
    with pytest.raises(TransactionLost, match="wrote 2 rows, a time-out aborted them, and now there are 3"):
        query.task(0, 0, ["a", "b", "c"])
    with pytest.raises(TransactionLost, match="when it had 1 tasks"):
        query.writer.commit([query.task(0, 0, ["a", "b"]), query.task(0, 1, ["c"])], 0)


def test_another_query_with_the_same_batch_ids_is_another_query(query: Query) -> None:
    """As after a deleted checkpoint: batch 0 is there already, but of a query that is no more."""
    query.writer.commit([query.task(0, 0, ["a"])], 0)
    query.id += "-anew"
    query.writer.commit([query.task(0, 0, ["b"])], 0)
    assert query.committed() == ["a", "b"]


def test_the_ledger_is_found_far_back_among_other_queries(query: Query) -> None:
    from ottla.client.partitioner import partition_of
    from ottla.spark.ledger import PARTITIONS, Entry

    ledger = query.writer.ledger
    query.writer.commit([query.task(0, 0, ["a"])], 0)
    home = partition_of(query.id.encode(), PARTITIONS)
    others = [name for name in map(str, range(40)) if partition_of(name.encode(), PARTITIONS) == home]
    for number in range(60):
        for name in others:
            sync.run(ledger.write(name, number, Entry(True, 1, ())))
    assert sync.run(ledger.find(query.id, 0)).is_done
    assert sync.run(ledger.find(query.id, 1)) is None
    assert sync.run(ledger.find(others[0], 59)).is_done


def test_records_that_the_broker_refuses_fail_the_task(broker: str) -> None:
    with sync.Admin(bootstrap_servers=broker) as admin:
        admin.create_topic("small", 1, 1, configs={"max.message.bytes": "100"})
    options = parse({"kafka.bootstrap.servers": broker, "topic": "small"}, reading=False)
    for writer in (BatchWriter(options, VALUES), StreamWriter(options, VALUES)):
        with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
            writer.write(iter([pa.record_batch([pa.array(["x" * 1000])], names=["value"])]))


def test_exactly_once_is_refused_for_a_batch_query() -> None:
    with pytest.raises(OptionError, match="option exactlyOnce is for streaming queries"):
        BatchWriter(parse({"kafka.bootstrap.servers": "localhost:1", "topic": "a", "exactlyOnce": "true"}, reading=False), VALUES)


def test_batches_larger_than_a_topic_takes_are_cut(broker: str) -> None:
    with sync.Admin(bootstrap_servers=broker) as admin:
        admin.create_topic("narrow", 1, 1, configs={"max.message.bytes": "2000"})
    writer = StreamWriter(parse({"kafka.bootstrap.servers": broker, "topic": "narrow"}, reading=False), VALUES)
    values = [f"{number}" * 20 for number in range(500)]
    writer.write(iter([pa.record_batch([pa.array(values)], names=["value"])]))
    with sync.Consumer(bootstrap_servers=broker, auto_offset_reset="earliest") as consumer:
        consumer.assign([("narrow", 0)])
        found: list[str] = []
        while len(found) < len(values):
            found += [record.value.decode() for record in consumer.poll(1000)]
    assert found == values
