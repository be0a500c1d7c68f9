"""The readers as Spark calls them, against a real broker and without a Spark session: planning, reading, losing, waiting."""

from __future__ import annotations

import datetime
import json
import os
import socket
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from ottla import sync
from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.errors import OttlaError
from ottla.spark import dead_letters
from ottla.spark.arrow import PORTION_BYTES
from ottla.spark.options import OptionError, Options, parse
from ottla.spark.ranges import DataLost, OffsetRange
from ottla.spark.sink import StreamWriter
from ottla.spark.source import BatchReader, OttlaSource, PushingReader, RangePartition, StreamReader
from ottla.spark.topics import LEDGER
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import wait_until
from tests.storage.test_kafka_files import FIXTURE

pytestmark = pytest.mark.spark  # so that .ci/run, which has PySpark, runs what ./test leaves out
T0 = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # our errors set it, for a worker that ends with them


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1) as running:
        yield running


def fill(broker: EmbeddedCluster, topic: str, count: int, partitions: int = 1, **configs: str) -> None:
    with sync.Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions, 1, configs=configs)
    with sync.Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % partitions, timestamp_ms=T0 + 1000 * number)
        producer.flush()


def options(broker: EmbeddedCluster, topic: str, **more: str) -> Options:
    return parse({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic} | more, reading=True)


def rows(reader: Any) -> list[dict[str, Any]]:
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_records_deleted_before_they_were_read_are_a_loss_unless_told_otherwise(broker: EmbeddedCluster) -> None:
    fill(broker, "lost", 20)
    with sync.Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({("lost", 0): 12})
    asked = {"startingOffsets": '{"lost":{"0":5}}'}
    with pytest.raises(DataLost, match=r"lost-0: offset 5 is gone, the log now starts at 12"):
        rows(BatchReader(options(broker, "lost", **asked)))
    left = rows(BatchReader(options(broker, "lost", **asked, failOnDataLoss="false")))
    assert [row["offset"] for row in left] == list(range(12, 20))


def test_a_pattern_is_found_anywhere_in_a_name_and_never_means_internal_topics_or_the_ledger(broker: EmbeddedCluster) -> None:
    names = ["my-pattern-1", "my-pattern-2", "pattern"]
    with sync.Admin(bootstrap_servers=broker.bootstrap) as admin:
        for name in [*names, LEDGER]:
            admin.create_topic(name, 1, 1)
        admin.alter_group_offsets("of-somebody", {("pattern", 0): 0})  # which makes Kafka's own topic
        assert "__consumer_offsets" in admin.list_topics(internal=True)

    def found(pattern: str) -> set[str]:
        asked = parse({"kafka.bootstrap.servers": broker.bootstrap, "subscribePattern": pattern}, reading=True)
        return {key.topic for key in BatchReader(asked).bounds()[1]}

    assert found("pattern") == found(" pat+ern ") == {*names}
    assert found("^pattern$") == {"pattern"}
    assert found("n-[2-9]") == {"my-pattern-2"}
    assert {*names} < found(".*")
    assert not {LEDGER, "__consumer_offsets"} & found(".*")
    assert found("offsets|ledger") == set()
    named = options(broker, "__consumer_offsets")
    assert {key.topic for key in BatchReader(named).bounds()[1]} == {"__consumer_offsets"}


@pytest.mark.parametrize(
    "chosen", [{"subscribe": "a,fed"}, {"topic": "fed"}, {"subscribePattern": "f.d"}, {"assign": '{"a":[0],"fed":[1]}'}]
)
def test_a_topic_that_is_read_cannot_be_that_of_dead_letters(broker: EmbeddedCluster, chosen: dict[str, str]) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "value.format": "string", "deadLetterTopic": "fed"}
    with pytest.raises(OptionError, match="deadLetterTopic names fed, which is read"):
        dead_letters.check(parse(given | chosen, reading=True))
    with pytest.raises(OptionError, match="deadLetterTopic: there is no topic feed"):
        dead_letters.check(parse(given | chosen | {"deadLetterTopic": "feed"}, reading=True))


def test_a_checkpoint_ahead_of_the_topic_is_a_loss(broker: EmbeddedCluster) -> None:
    fill(broker, "anew", 3)
    with pytest.raises(DataLost, match="the checkpoint is ahead of anew-0"):
        StreamReader(options(broker, "anew")).latestOffset({"anew": {"0": 50}}, ReadAllAvailable())


def test_a_stream_that_may_lose_goes_on_from_the_end_of_a_topic_made_anew(broker: EmbeddedCluster) -> None:
    """As the connector does: the batch of the loss is empty, and what comes next is read."""
    fill(broker, "again", 6, partitions=2)
    reader = StreamReader(options(broker, "again", failOnDataLoss="false", maxOffsetsPerTrigger="2"))
    ahead = {"again": {"0": 50, "1": 0}}
    end = reader.latestOffset(ahead, ReadMaxRows(2))
    assert end == {"again": {"0": 3, "1": 2}}
    [part] = reader.partitions(ahead, end)
    assert [row["value"] for row in rows_of(reader, part)] == [b"1", b"3"]
    assert reader.latestOffset(end, ReadMaxRows(2)) == {"again": {"0": 3, "1": 3}}


def test_the_brokers_time_is_type_1(broker: EmbeddedCluster) -> None:
    fill(broker, "appended", 4, **{"message.timestamp.type": "LogAppendTime"})
    found = rows(BatchReader(options(broker, "appended")))
    assert [row["timestampType"] for row in found] == [1] * 4
    assert all(row["timestamp"].timestamp() * 1000 > T0 + 1_000_000 for row in found)
    fill(broker, "created", 4)
    assert [row["timestampType"] for row in rows(BatchReader(options(broker, "created")))] == [0] * 4


def test_filters_on_partition_offset_and_time_narrow_what_is_read(broker: EmbeddedCluster) -> None:
    fill(broker, "narrow", 100, partitions=2)
    reader = PushingReader(options(broker, "narrow"))
    late = datetime.datetime.fromtimestamp((T0 + 60_000) / 1000, datetime.UTC)
    filters = [EqualTo(("partition",), 1), GreaterThanOrEqual(("offset",), 20), GreaterThanOrEqual(("timestamp",), late)]
    assert list(reader.pushFilters(filters)) == [filters[2]]
    assert [row["offset"] for row in rows(reader)] == list(range(30, 50))


def test_an_end_beyond_the_log_is_refused_and_not_waited_for(broker: EmbeddedCluster) -> None:
    fill(broker, "short", 3)
    with pytest.raises(OptionError, match="short-0 ends at 3, not 9"):
        BatchReader(options(broker, "short", endingOffsets='{"short":{"0":9}}')).partitions()


def test_a_batch_waits_for_enough_records_but_not_for_ever(broker: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(broker, "few", 30)
    asked = options(broker, "few", minOffsetsPerTrigger="20", maxOffsetsPerTrigger="25", maxTriggerDelay="1m")
    reader = StreamReader(asked)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(20)
    now = 1000.0
    monkeypatch.setattr("ottla.spark.source.time.monotonic", lambda: now)
    assert reader.latestOffset({"few": {"0": 0}}, limit) == {"few": {"0": 25}}
    now += 1
    assert reader.latestOffset({"few": {"0": 25}}, limit) == {"few": {"0": 25}}  # 5 are too few
    now += 60
    assert reader.latestOffset({"few": {"0": 25}}, limit) == {"few": {"0": 30}}  # but they have waited long enough
    reader.prepareForTriggerAvailableNow()
    now += 1
    assert reader.latestOffset({"few": {"0": 25}}, limit) == {"few": {"0": 30}}  # nothing will follow
    assert StreamReader(options(broker, "few", maxOffsetsPerTrigger="7")).latestOffset({"few": {"0": 0}}, ReadMaxRows(7)) == {
        "few": {"0": 7}
    }


def test_our_errors_ask_for_no_traceback(broker: EmbeddedCluster) -> None:
    with pytest.raises(OptionError, match="there is no topic nowhere at"):
        BatchReader(options(broker, "nowhere")).partitions()
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"


@pytest.mark.parametrize("name", ["segments", "latestPerKey"])
def test_what_is_for_batches_is_refused_in_a_stream(name: str) -> None:
    source = OttlaSource({"kafka.bootstrap.servers": "localhost:1", "subscribe": "a", name: "true"})
    with pytest.raises(OptionError, match=f"option {name} is for batch queries"):
        source.streamReader(StructType())


def test_a_partition_that_appears_in_mid_stream_is_read_from_the_start_of_its_log(broker: EmbeddedCluster) -> None:
    fill(broker, "grown", 3)
    reader = StreamReader(options(broker, "grown"))
    begin = {"grown": {"0": 3}}
    with sync.Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_partitions("grown", 2)
    with sync.Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(10):
            producer.send("grown", b"%d" % number, partition=1)
        producer.flush()
    with sync.Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({("grown", 1): 4})
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert end == {"grown": {"0": 3, "1": 10}}
    assert [part.ranges for part in reader.partitions(begin, end)] == [(("grown", 1, 4, 10),)]  # type: ignore[attr-defined]


def test_small_partitions_of_a_stream_are_read_by_one_task_unless_more_are_asked_for(broker: EmbeddedCluster) -> None:
    fill(broker, "small", 30, 3)
    begin, end = ({"small": {str(number): offset for number in range(3)}} for offset in (2, 10))
    reader = StreamReader(options(broker, "small"))
    [part] = reader.partitions(begin, end)
    found = [(row["partition"], row["offset"]) for batch in reader.read(part) for row in batch.to_pylist()]
    assert found == [(number, offset) for number in range(3) for offset in range(2, 10)]
    assert len(StreamReader(options(broker, "small", minPartitions="3")).partitions(begin, end)) == 3
    assert len(BatchReader(options(broker, "small")).partitions()) == 3


def test_records_that_were_packed_well_are_unpacked_bit_by_bit(broker: EmbeddedCluster) -> None:
    """A fetch of a few kilobytes may hold a hundred megabytes: what is handed on at once stays small."""
    with sync.Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("packed", 1, 1)
    settings: Any = {"compression_type": "zstd", "batch_size": 1 << 20, "linger_ms": 1000}
    with sync.Producer(bootstrap_servers=broker.bootstrap, **settings) as producer:
        for _ in range(120):
            producer.send("packed", bytes(900_000))
        producer.flush()
    reader = BatchReader(options(broker, "packed"))
    sizes = [batch.nbytes for part in reader.partitions() for batch in reader.read(part)]
    assert sum(sizes) > 100e6
    assert max(sizes) < 2 * PORTION_BYTES


def test_a_later_transaction_of_a_producer_that_aborted_is_read_in_whatever_portions(
    broker: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sync.Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("aborted", 1, 1)
    with sync.Producer(bootstrap_servers=broker.bootstrap, transactional_id="aborting", compression_type="gzip") as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            producer.send("aborted", b"%d" % number)
            producer.flush()
            (producer.abort_transaction if number % 2 else producer.commit_transaction)()
    monkeypatch.setattr("ottla.spark.arrow.PORTION_BYTES", 1)
    found = rows(BatchReader(options(broker, "aborted", **{"isolation.level": "read_committed"})))
    assert [row["value"] for row in found] == [b"0", b"2", b"4"]
    assert len(rows(BatchReader(options(broker, "aborted")))) == 6


def test_a_checkpoint_of_another_topic_is_named(broker: EmbeddedCluster) -> None:
    fill(broker, "this", 3)
    with pytest.raises(DataLost, match=r"the checkpoint has read that-0, which this query does not read"):
        StreamReader(options(broker, "this")).latestOffset({"that": {"0": 2}}, ReadAllAvailable())


def test_a_start_beyond_the_log_is_refused_and_does_not_read_nothing(broker: EmbeddedCluster) -> None:
    fill(broker, "brief", 3)
    asked = options(broker, "brief", startingOffsets='{"brief":{"0":9}}')
    with pytest.raises(OptionError, match="option startingOffsets goes beyond what is there: brief-0 ends at 3, not 9"):
        BatchReader(asked).partitions()
    with pytest.raises(OptionError, match="option startingOffsets goes beyond what is there: brief-0 ends at 3, not 9"):
        StreamReader(asked).initialOffset()


def test_a_start_by_time_that_is_too_late_for_a_partition_fails_or_begins_at_its_end(broker: EmbeddedCluster) -> None:
    fill(broker, "timely", 4, partitions=2)  # at T0 and T0 + 2000, T0 + 1000 and T0 + 3000
    strategy = "startingOffsetsByTimestampStrategy"
    late = {"startingOffsetsByTimestamp": json.dumps({"timely": {"0": T0 + 2001, "1": T0 + 1001}})}
    for words in ({}, {strategy: "ERROR"}, {strategy: "Error"}):
        with pytest.raises(OptionError, match="no record of timely-0 is as late as the starting timestamp"):
            BatchReader(options(broker, "timely", **late, **words)).partitions()
    for word in ("latest", "LATEST"):
        found = rows(BatchReader(options(broker, "timely", **late, **{strategy: word})))
        assert [row["value"] for row in found] == [b"3"]
        assert StreamReader(options(broker, "timely", **late, **{strategy: word})).initialOffset() == {"timely": {"0": 2, "1": 1}}


@pytest.mark.parametrize(
    ("name", "text"), [("endingOffsets", "latest"), ("endingTimestamp", "5"), ("endingOffsetsByTimestamp", '{"a":{"0":5}}')]
)
def test_a_stream_has_no_end(name: str, text: str) -> None:
    source = OttlaSource({"kafka.bootstrap.servers": "localhost:1", "subscribe": "a", name: text})
    with pytest.raises(OptionError, match=f"option {name} is for batch queries: spark.read, not spark.readStream"):
        source.streamReader(source.schema())
    source.reader(source.schema())


def test_a_batch_cannot_start_beyond_its_end(broker: EmbeddedCluster) -> None:
    fill(broker, "backwards", 8, partitions=2)

    def at(first: int) -> str:
        return json.dumps({"backwards": {"0": first, "1": 2}})

    def planned(**chosen: str) -> list[Any]:
        return list(BatchReader(options(broker, "backwards", **chosen)).partitions())

    for wrong, sentence in (
        ({"startingOffsets": at(3), "endingOffsets": at(2)}, "backwards-0 starts at offset 3 and ends at 2"),
        ({"startingTimestamp": str(T0 + 2500), "endingOffsets": at(1)}, "backwards-0 starts at offset 2 and ends at 1"),
        ({"startingOffsets": at(2), "endingTimestamp": str(T0 + 1000)}, "backwards-0 starts at offset 2 and ends at 1"),
        ({"startingOffsetsByTimestamp": at(3), "endingOffsetsByTimestamp": at(2)}, "starts at timestamp 3 and ends at 2"),
    ):
        with pytest.raises(OptionError, match=f"a batch query cannot start beyond its end: .*{sentence}"):
            planned(**wrong)
    assert planned(startingOffsets=at(2), endingOffsets=at(2)) == []
    with sync.Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({("backwards", 0): 3, ("backwards", 1): 3})
    assert planned(endingOffsets=at(2)) == []  # what was there is gone, and asked for was what is there


def test_times_by_partition_bound_what_is_read_on_both_sides(broker: EmbeddedCluster) -> None:
    fill(broker, "bounded", 12, partitions=2)  # number n lies in partition n % 2, at T0 + 1000 n
    starts = {"startingOffsetsByTimestamp": json.dumps({"bounded": {"0": T0 + 3999, "1": T0 + 7000}})}
    ends = {"endingOffsetsByTimestamp": json.dumps({"bounded": {"0": T0 + 8000, "1": T0 + 99_000}})}
    assert sorted(int(row["value"]) for row in rows(BatchReader(options(broker, "bounded", **starts, **ends)))) == [
        4,
        6,
        7,
        9,
        11,
    ]
    assert sorted(int(row["value"]) for row in rows(BatchReader(options(broker, "bounded", **ends)))) == [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        9,
        11,
    ]
    assert StreamReader(options(broker, "bounded", **starts)).initialOffset() == {"bounded": {"0": 2, "1": 3}}
    for text, sentence in (
        ('{"bounded":{"0":5}}', "option startingOffsetsByTimestamp lacks bounded-1"),
        ('{"bounded":{"0":5,"1":5,"2":5}}', "option startingOffsetsByTimestamp names bounded-2, which are not read"),
        ("5", "option startingOffsetsByTimestamp must give milliseconds since 1970, not '5'"),
        ('{"bounded":{"0":"noon"}}', "option startingOffsetsByTimestamp must give milliseconds since 1970"),
    ):
        with pytest.raises(OptionError, match=sentence):
            BatchReader(options(broker, "bounded", startingOffsetsByTimestamp=text)).partitions()


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("piece", ["1000", "7"])
def test_the_segments_of_apache_kafka_give_what_its_own_consumer_was_given(tmp_path: Path, isolation: str, piece: str) -> None:
    with zipfile.ZipFile(FIXTURE) as packed:
        packed.extractall(tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())
    given = {"segments": str(tmp_path), "isolation.level": isolation, "maxRecordsPerPartition": piece, "includeHeaders": "true"}
    source = OttlaSource(given)
    found: dict[str, list[list[Any]]] = {}
    for row in rows(source.reader(source.schema())):
        text = [None if row[name] is None else row[name].decode("latin-1") for name in ("key", "value")]
        found.setdefault(row["topic"], []).append([row["offset"], round(row["timestamp"].timestamp() * 1000), *text])
        assert (row["headers"] or []) == ([{"key": "h", "value": b"x"}] if row["topic"] == "plain" else [])
    assert {topic: sorted(each) for topic, each in found.items()} == {
        topic: levels[isolation] for topic, levels in expected.items()
    }


@pytest.mark.parametrize("text", ['{"a":{"0":-3}}', '{"a":{"0":"x"}}', '{"a":5}', "[1]", '{"a":{"b":1}}', "late", "{"])
def test_offsets_that_are_none_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(OptionError, match="option startingOffsets must be earliest, latest or JSON like"):
        parse({"kafka.bootstrap.servers": "localhost:1", "subscribe": "a", "startingOffsets": text}, reading=True)


def test_a_broker_that_is_down_is_one_sentence_at_once_when_a_query_is_planned() -> None:
    nowhere = parse({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "a"}, reading=True)
    for plan in (BatchReader(nowhere).partitions, StreamReader(nowhere).initialOffset):
        with pytest.raises(OttlaError, match=r"^127.0.0.1:1: nothing listens there; is the broker running"):
            plan()


def test_a_broker_that_comes_back_in_mid_query_is_waited_for(tmp_path: Path) -> None:
    """A task that begins while the broker restarts reads, and writes, when it is back."""
    with OttlaNode(tmp_path) as node:
        with sync.Admin(bootstrap_servers=node.bootstrap) as admin:
            admin.create_topic("restarted", 1, 1)
        given = {"kafka.bootstrap.servers": node.bootstrap}
        writer = StreamWriter(parse(given | {"topic": "restarted"}, reading=False), StructType())
        reader = StreamReader(parse(given | {"subscribe": "restarted", "startingOffsets": "earliest"}, reading=True))
        values = pa.record_batch([pa.array(["a", "b"])], names=["value"])
        assert reader.initialOffset() == {"restarted": {"0": 0}}
        node.kill()
        with ThreadPoolExecutor() as threads:
            written = threads.submit(writer.write, iter([values]))
            node.start()
            written.result(timeout=60)
            node.kill()
            found = threads.submit(rows_of, reader, RangePartition(OffsetRange("restarted", 0, 0, 2)))
            node.start()
            assert [row["value"] for row in found.result(timeout=60)] == [b"a", b"b"]
        assert reader.latestOffset({"restarted": {"0": 0}}, ReadAllAvailable()) == {"restarted": {"0": 2}}


def test_a_cluster_that_cannot_be_reached_is_asked_as_often_as_the_connectors_option_says() -> None:
    def connections_made(**tuned: str) -> int:
        made = 0
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:

            def hang_up() -> None:
                nonlocal made
                with suppress(OSError):
                    while True:
                        listener.accept()[0].close()
                        made += 1

            threads.submit(hang_up)
            given = {"kafka.bootstrap.servers": f"127.0.0.1:{listener.getsockname()[1]}", "subscribe": "a"}
            with pytest.raises(OttlaError):
                BatchReader(parse(given | tuned, reading=True)).partitions()
            listener.shutdown(socket.SHUT_RDWR)
        return made

    once = connections_made()
    assert once > 0
    assert connections_made(**{"fetchOffset.numRetries": "4", "fetchOffset.retryIntervalMs": "1"}) == 4 * once


def test_records_that_do_not_come_are_waited_for_as_long_as_the_connectors_option_says(broker: EmbeddedCluster) -> None:
    fill(broker, "stalled", 3)
    reader = BatchReader(options(broker, "stalled", **{"kafkaConsumer.pollTimeoutMs": "20"}))
    with pytest.raises(
        DataLost, match=r"stalled-0 \[0, 5\): nothing came from offset 3 on for 0.02 s \(kafkaConsumer.pollTimeoutMs\)"
    ):
        rows_of(reader, RangePartition(OffsetRange("stalled", 0, 0, 5)))


def test_an_executor_that_has_read_a_topic_finds_where_it_lies_now() -> None:
    """The connections of a worker are kept, and what they know of a topic grows old: who leads it, and which topic has its name."""
    with EmbeddedCluster(2) as cluster, sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        brokers = sorted(broker.id for broker in admin.describe_cluster().brokers)
        admin.create_topic("moving", assignments={0: brokers})
        with sync.Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send_and_wait("moving", b"old")
        asked = options(cluster, "moving", **{"kafka.default.api.timeout.ms": "20000"})
        reader, part = BatchReader(asked), RangePartition(OffsetRange("moving", 0, 0, 1))
        assert [row["value"] for row in rows_of(reader, part)] == [b"old"]
        admin.alter_partition_reassignments({("moving", 0): brokers[1:]})
        wait_until("the move", lambda: admin.describe_topic("moving").partitions[0].leader == brokers[1])
        assert [row["value"] for row in rows_of(reader, part)] == [b"old"]
        admin.delete_topic("moving")
        admin.create_topic("moving", assignments={0: brokers[1:]})
        with sync.Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send_and_wait("moving", b"new")
        assert [row["value"] for row in rows_of(reader, part)] == [b"new"]


def rows_of(reader: Any, part: RangePartition) -> list[dict[str, Any]]:
    return [row for batch in reader.read(part) for row in batch.to_pylist()]
