"""One program, four pairings: `kafka` (Spark's own connector) and `ottla`, each against ottla and against Apache Kafka.

The same rows must come out in all of them, to the last column, from batch and from streaming reads; and what one format writes
the other must read as if it were its own.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla import sync
from ottla.embedded.cluster import EmbeddedCluster
from tests.compatibility.jars import NoKafka
from tests.compatibility.kafka import KafkaPeer, run_tool
from tests.compatibility.wire import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.spark]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
T0 = 1_700_000_000_000
PARTITIONS = 4  # the last one stays empty
QUICK_CLEANER = {"log.cleaner.backoff.ms": "100"}
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}
KEPT = {"retention.ms": "-1"}  # the records are of 2023
TOPICS = (*(f"codec-{codec}" for codec in CODECS), "transactions", "compacted", "nothing")
QUERY_LIMIT_S = 120
CLEANER_LIMIT_S = 240
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory, connector: None) -> Iterator[dict[str, str]]:
    try:
        peer = KafkaPeer(tmp_path_factory.mktemp("kafka"), settings=QUICK_CLEANER)
    except NoKafka as error:
        pytest.skip(str(error))
    with peer as kafka, EmbeddedCluster(1, settings=QUICK_CLEANER) as ours:
        found = {"ottla": ours.bootstrap, "kafka": kafka.bootstrap}
        for bootstrap in found.values():
            _fill(bootstrap)
        yield found


def _fill(bootstrap: str) -> None:
    with sync.Admin(bootstrap_servers=bootstrap) as admin:
        for topic in TOPICS:
            admin.create_topic(topic, PARTITIONS, 1, configs=COMPACTED if topic == "compacted" else KEPT)
    for codec in CODECS:
        with sync.Producer(bootstrap_servers=bootstrap, compression_type=codec) as producer:
            for number in range(60):
                _send(producer, f"codec-{codec}", number)
            producer.flush()
    _transactions(bootstrap)
    _compact(bootstrap)


def _send(producer: Any, topic: str, number: int, **more: Any) -> None:
    producer.send(
        topic,
        None if number % 7 == 0 else b"" if number % 11 == 0 else f"value {number}".encode() * (number % 5 + 1),
        key=None if number % 5 == 0 else f"k{number % 17}".encode(),
        headers=[("one", b"%d" % number), ("one", b""), ("ü", None)] if number % 3 == 0 else [],
        partition=number % (PARTITIONS - 1),
        timestamp_ms=T0 + number,
        **more,
    )


def _transactions(bootstrap: str) -> None:
    """Committed and aborted ones of two producers, side by side."""
    producers = [sync.Producer(bootstrap_servers=bootstrap, transactional_id=f"pairing-{name}") for name in "ab"]
    for producer in producers:
        producer.__enter__()
        producer.init_transactions()
    for turn in range(6):
        for producer in producers:
            producer.begin_transaction()
        for number in range(20):
            _send(producers[number % 2], "transactions", 100 * turn + number)
        for index, producer in enumerate(producers):
            producer.flush()
            (producer.abort_transaction if (turn + index) % 3 == 0 else producer.commit_transaction)()
    for producer in producers:
        producer.__exit__(None, None, None)


def _compact(bootstrap: str) -> None:
    """Until the cleaner has been there: records are fewer than offsets."""
    with sync.Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(200):
            producer.send("compacted", b"%d" % number, key=b"%d" % (number % 3), partition=number % 2, timestamp_ms=T0 + number)
            if number % 20 == 19:
                producer.flush()
    key = ("compacted", 0)
    with sync.Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        end = consumer.end_offsets([key])[key]
        consumer.assign([key])

        def holes() -> bool:
            consumer.seek_to_beginning([key])
            seen = 0
            while consumer.position(key) < end:
                seen += len(consumer.poll(1000))
            return seen < end

        wait_until("compaction", holes, limit_s=CLEANER_LIMIT_S)


def _shown(rows: list[Any]) -> list[Row]:
    def plain(value: Any) -> Any:
        if isinstance(value, bytearray):
            return bytes(value)
        if isinstance(value, list):
            return [(each.key, plain(each.value)) for each in value]
        return value

    return sorted((tuple(plain(value) for value in row) for row in rows), key=lambda row: (row[2], row[3], row[4]))


COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def _batch(spark: Any, name: str, bootstrap: str, **options: str) -> list[Row]:
    reader = spark.read.format(name).option("kafka.bootstrap.servers", bootstrap)
    return _shown(reader.options(includeHeaders="true", **options).load().select(*COLUMNS).collect())


_numbers = itertools.count()


def _stream(spark: Any, name: str, bootstrap: str, folder: Path, **options: str) -> list[Row]:
    table = f"pairing_{next(_numbers)}"
    reader = spark.readStream.format(name).option("kafka.bootstrap.servers", bootstrap).option("startingOffsets", "earliest")
    frame = reader.options(includeHeaders="true", **options).load().select(*COLUMNS)
    writer = frame.writeStream.format("memory").queryName(table).option("checkpointLocation", str(folder / table))
    assert writer.trigger(availableNow=True).start().awaitTermination(QUERY_LIMIT_S)
    return _shown(spark.table(table).collect())


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_same_rows_come_out_in_all_pairings(spark: Any, brokers: dict[str, str], tmp_path: Path, isolation: str) -> None:
    wanted = {"subscribe": ",".join(TOPICS), "kafka.isolation.level": isolation}
    found: dict[str, list[Row]] = {}
    for broker, bootstrap in brokers.items():
        found[broker] = _batch(spark, "kafka", bootstrap, **wanted)
        assert _batch(spark, "ottla", bootstrap, **wanted) == found[broker]
        assert _batch(spark, "ottla", bootstrap, **wanted, minPartitions="20") == found[broker]
        assert _stream(spark, "kafka", bootstrap, tmp_path, **wanted) == found[broker]
        assert _stream(spark, "ottla", bootstrap, tmp_path, **wanted, maxOffsetsPerTrigger="250") == found[broker]
    # How far a cleaner has come, and where markers lie between records, are a broker's own affairs; all the rest is the same.
    ours, theirs = (
        sorted(((*row[:4], *row[5:]) for row in found[broker] if row[2] != "compacted"), key=repr)
        for broker in ("ottla", "kafka")
    )
    assert ours == theirs
    assert {row[2] for row in found["ottla"]} == set(TOPICS) - {"nothing"}
    seen = sum(row[2] == "transactions" for row in ours)
    assert seen == (120 if isolation == "read_uncommitted" else 80)


def test_offsets_times_patterns_and_assignments_mean_the_same(spark: Any, brokers: dict[str, str]) -> None:
    offsets = '{"codec-gzip":{"0":3,"1":-2,"2":-2,"3":-2}}'
    ends = '{"codec-gzip":{"0":9,"1":-1,"2":-1,"3":-1}}'
    for bootstrap in brokers.values():
        with sync.Admin(bootstrap_servers=bootstrap) as admin:
            assert "__transaction_state" in admin.list_topics(internal=True)  # which a pattern could find
        for options in (
            {"subscribe": "codec-gzip", "startingOffsets": offsets, "endingOffsets": ends},
            {"subscribePattern": "codec-.z.*|codec-s.*", "startingTimestamp": str(T0 + 12), "endingTimestamp": str(T0 + 30),
             "startingOffsetsByTimestampStrategy": "latest"},
            {"subscribe": "codec-gzip", "startingOffsetsByTimestamp": json.dumps({"codec-gzip": dict.fromkeys("0123", T0 + 12)}),
             "endingOffsetsByTimestamp": json.dumps({"codec-gzip": {"0": T0 + 15, "1": T0 + 99, "2": T0 + 12, "3": T0 + 12}}),
             "startingOffsetsByTimestampStrategy": "Latest"},
            {"subscribePattern": "gzi"},
            {"subscribePattern": " .* "},
            {"assign": '{"codec-lz4":[1],"transactions":[0,2]}'},
        ):  # fmt: skip
            expected = _batch(spark, "kafka", bootstrap, **options)
            assert expected
            assert _batch(spark, "ottla", bootstrap, **options) == expected


START = {"codec-gzip": {"0": 9, "1": -2, "2": -2, "3": -2}}
END = {"codec-gzip": {"0": 3, "1": -1, "2": -1, "3": -1}}


@pytest.mark.parametrize(
    ("options", "is_stream", "both_refuse"),
    [
        ({"startingOffsets": START, "endingOffsets": END}, False, True),
        ({"startingTimestamp": T0 + 30, "endingTimestamp": T0 + 12}, False, True),
        ({"startingOffsetsByTimestamp": {"codec-gzip": dict.fromkeys("0123", T0 + 2)},
          "endingOffsetsByTimestamp": {"codec-gzip": dict.fromkeys("0123", T0 + 1)},
          "startingOffsetsByTimestampStrategy": "latest"}, False, True),
        ({"startingTimestamp": T0 + 70, "endingTimestamp": T0 + 60, "startingOffsetsByTimestampStrategy": "latest"}, False, False),
        ({"startingOffsetsByTimestampStrategy": "lastest"}, False, True),
        ({"endingOffsets": "latest"}, True, True),
        ({"endingOffsetsByTimestamp": {"codec-gzip": dict.fromkeys("0123", T0)}}, True, True),
    ],
)  # fmt: skip
def test_what_the_connector_refuses_is_refused(
    spark: Any, brokers: dict[str, str], tmp_path: Path, options: dict[str, Any], is_stream: bool, both_refuse: bool
) -> None:
    given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    given |= {"subscribe": "codec-gzip"}
    run: Callable[..., Any] = partial(_stream, folder=tmp_path) if is_stream else _batch
    for name in ("kafka", "ottla"):
        with pytest.raises(Exception) if both_refuse else nullcontext():  # each has its own words, which other tests read
            run(spark, name, brokers["kafka"], **given)


def test_what_one_writes_the_other_reads(spark: Any, brokers: dict[str, str], tmp_path: Path) -> None:
    """Rows of one topic, through both sinks, batch and streaming, into topics of their own: equal but for the time."""
    for broker, bootstrap in brokers.items():
        source = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap)
        live = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
        options = {"subscribe": "codec-none,transactions", "includeHeaders": "true"}
        columns = ("key", "value", "partition", "headers")
        wrote: dict[str, list[Row]] = {}
        for name, mode in itertools.product(("kafka", "ottla"), ("batch", "stream")):
            topic = f"written-{name}-{mode}"
            with sync.Admin(bootstrap_servers=bootstrap) as admin:
                admin.create_topic(topic, PARTITIONS, 1, configs=KEPT)
            sink = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
            if mode == "batch":
                frame = source.options(**options).load().select(*columns).coalesce(1)
                frame.write.format(name).mode("append").options(**sink).save()
            else:
                frame = live.options(**options, startingOffsets="earliest").load()  # with columns that no sink writes
                writer = frame.writeStream.format(name).options(**sink, checkpointLocation=str(tmp_path / broker / topic))
                assert writer.trigger(availableNow=True).start().awaitTermination(QUERY_LIMIT_S)
            both = [_batch(spark, reader, bootstrap, subscribe=topic) for reader in ("kafka", "ottla")]
            assert both[0] == both[1]
            wrote[topic] = sorted(((row[0], row[1], row[3], row[7]) for row in both[0]), key=repr)
        assert len(set(map(repr, wrote.values()))) == 1, {topic: len(rows) for topic, rows in wrote.items()}


def test_a_query_is_a_group_whose_lag_all_tools_show(spark: Any, brokers: dict[str, str], tmp_path: Path) -> None:
    """Nought after AvailableNow, and then what was produced since."""
    for broker, bootstrap in brokers.items():
        with sync.Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic("lagging", 2, 1)

        def produce(bootstrap: str = bootstrap) -> None:
            with sync.Producer(bootstrap_servers=bootstrap) as producer:
                for number in range(10):
                    producer.send("lagging", b"%d" % number, partition=number % 2)
                producer.flush()

        produce()
        rows = _stream(spark, "ottla", bootstrap, tmp_path / broker, subscribe="lagging", **{"kafka.group.id": "a-query"})
        assert len(rows) == 10
        assert _lags(bootstrap) == (0, 0)
        produce()
        assert _lags(bootstrap) == (10, 10)


def _lags(bootstrap: str) -> tuple[int, int]:
    """As `ottla groups describe` and as Kafka's ConsumerGroupCommand show it."""
    command = [sys.executable, "-m", "ottla", "groups", "describe", "a-query", "--json", "--bootstrap", bootstrap]
    environment = os.environ | {"PYTHONPATH": str(Path(ottla.__file__).parents[1])}
    ours = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60).stdout
    text = run_tool("ConsumerGroupCommand", "--bootstrap-server", bootstrap, "--describe", "--group", "a-query").stdout
    lines = [line.split() for line in text.splitlines() if line.split()]
    header = next(line for line in lines if "LAG" in line)
    theirs = sum(int(line[header.index("LAG")]) for line in lines if line[0] == "a-query")
    return sum(int(number) for number in re.findall(r'"lag": ?(\d+)', ours)), theirs
