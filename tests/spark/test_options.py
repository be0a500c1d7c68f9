"""Options are the connector's, and a wrong one is named together with the nearest right one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ottla.model.ids import TopicPartition
from ottla.spark.client_settings import check_name
from ottla.spark.options import EARLIEST, LATEST, OptionError, parse, parse_offsets
from ottla.spark.planning import from_json, grouped, limited, split, to_json
from ottla.spark.ranges import OffsetRange
from tests.compatibility.connector import NoConnector, connector_jars
from tests.compatibility.jars import NoKafka, class_path

NAMES_OF_JAVA = """
    import org.apache.kafka.clients.admin.AdminClientConfig;
    import org.apache.kafka.clients.consumer.ConsumerConfig;
    import org.apache.kafka.clients.producer.ProducerConfig;

    public class Names {
        public static void main(String[] arguments) {
            ConsumerConfig.configNames().forEach(System.out::println);
            ProducerConfig.configNames().forEach(System.out::println);
            AdminClientConfig.configNames().forEach(System.out::println);
        }
    }
"""
SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def test_names_are_those_of_the_connector_whatever_their_case() -> None:
    options = parse(SERVERS | {"SUBSCRIBE": "a, b", "startingoffsets": "latest", "kafka.security.protocol": "SSL"}, reading=True)
    assert options.topics == ("a", "b")
    assert options.text("startingOffsets") == "latest"
    assert options.client == {"security_protocol": "SSL"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"subscribe": "a"}, "kafka.bootstrap.servers"),
        (SERVERS, "subscribe"),
        (SERVERS | {"subscribe": "a", "assign": "{}"}, "assign and subscribe"),
        (SERVERS | {"subscribe": "a", "startingOffset": "latest"}, "did you mean startingOffsets"),
        (SERVERS | {"subscribe": "a", "kafka.auto.offset.reset": "latest"}, "set by the source"),
        (SERVERS | {"subscribe": "a", "isolation.level": "some"}, "isolation.level"),
        (SERVERS | {"subscribePattern": "("}, "subscribePattern"),
        (SERVERS | {"subscribePattern": " "}, "subscribePattern is empty"),
        (SERVERS | {"assign": "[1]"}, "assign"),
        (
            SERVERS | {"subscribe": "a", "kafka.Fetch.Max.Bites": "1"},
            "unknown option kafka.Fetch.Max.Bites; did you mean kafka.fetch.max.b",
        ),
        (SERVERS | {"subscribe": "a", "kafka.ssl.truststore.locaton": "x"}, "did you mean kafka.ssl.truststore.location"),
        (SERVERS | {"subscribe": "a", "kafka.xyzzy": "1"}, "unknown option kafka.xyzzy; no client of Kafka has such a setting"),
        (SERVERS | {"subscribe": "a", "startingOffsetsByTimestampStrategy": "lastest"}, "must be error or latest, not 'lastest'"),
        (SERVERS | {"subscribe": " ,"}, "names no topic"),
        (SERVERS | {"subscribe": "a", "startingOffsets": "{"}, "startingOffsets must be earliest, latest or JSON like"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        parse(given, reading=True)


@pytest.mark.kafka
@pytest.mark.parametrize("version", ["3.9", "4.3"])
def test_every_setting_of_kafkas_own_clients_is_known(tmp_path: Path, version: str) -> None:
    try:
        jars = [] if version == "4.3" else [str(jar) for jar in connector_jars()]
        jars += [class_path()]
    except (NoKafka, NoConnector) as error:
        pytest.skip(str(error))
    program = tmp_path / "Names.java"
    program.write_text(NAMES_OF_JAVA)
    done = subprocess.run(
        ["java", "-cp", os.pathsep.join(jars), str(program)], capture_output=True, text=True, check=False, timeout=60
    )
    names = set(done.stdout.split())
    assert len(names) > 100, done.stderr
    assert ("auto.include.jmx.reporter" in names) is (version == "3.9")
    for name in names:
        check_name(f"kafka.{name}", name)
    parse(
        SERVERS | {"subscribe": "a", "kafka.partition.assignment.strategy": "a.b.C", "kafka.config.providers.x.class": "y"},
        reading=True,
    )


def test_numbers_and_flags_are_checked_when_they_are_used() -> None:
    options = parse(SERVERS | {"subscribe": "a", "minPartitions": "many", "failOnDataLoss": "perhaps"}, reading=True)
    with pytest.raises(OptionError, match="minPartitions"):
        options.number("minPartitions")
    with pytest.raises(OptionError, match="failOnDataLoss"):
        options.flag("failOnDataLoss", True)


def test_what_tunes_the_connectors_own_asking_is_taken_in_its_terms() -> None:
    given = SERVERS | {"subscribe": "a"}
    assert (parse(given, reading=True).offset_attempts, parse(given, reading=True).stalled_s) == ((1, 1.0), 120.0)
    tuned = {"kafkaConsumer.pollTimeoutMs": "500", "FETCHOFFSET.numretries": "7", "fetchOffset.retryIntervalMs": "0"}
    tuned |= {"partition.metadata.cache.ttl.ms": "-1"}
    assert (parse(given | tuned, reading=True).offset_attempts, parse(given | tuned, reading=True).stalled_s) == ((7, 0.0), 0.5)
    assert parse(given | {"fetchOffset.retryIntervalMs": "10"}, reading=True).offset_attempts == (3, 0.01)
    for name, wrong in (
        ("kafkaConsumer.pollTimeoutMs", "soon"),
        ("fetchOffset.numRetries", "0"),
        ("fetchOffset.retryIntervalMs", "-1"),
    ):
        with pytest.raises(OptionError, match=f"option {name} must be a whole number"):
            parse(given | {name: wrong}, reading=True)


def test_durations_are_written_as_spark_writes_them() -> None:
    options = parse(SERVERS | {"subscribe": "a", "maxTriggerDelay": "15m"}, reading=True)
    assert options.duration_s("maxTriggerDelay", 1.0) == 900
    with pytest.raises(OptionError, match="maxTriggerDelay"):
        parse(SERVERS | {"subscribe": "a", "maxTriggerDelay": "soon"}, reading=True).duration_s("maxTriggerDelay", 1.0)


def test_offsets_are_words_or_json() -> None:
    assert parse_offsets("startingOffsets", "earliest") == EARLIEST
    assert parse_offsets("startingOffsets", " Latest ") == LATEST
    assert parse_offsets("startingOffsets", '{"a":{"0":5,"1":-2}}') == {"a": {0: 5, 1: EARLIEST}}
    with pytest.raises(OptionError, match="startingOffsets"):
        parse_offsets("startingOffsets", '{"a":5}')


def test_offsets_survive_the_checkpoint() -> None:
    positions = {TopicPartition("a", 10): 7, TopicPartition("a", 2): 3, TopicPartition("b", 0): 0}
    assert from_json(to_json(positions)) == positions
    assert to_json(positions) == {"a": {"2": 3, "10": 7}, "b": {"0": 0}}


def test_ranges_are_cut_without_gap_or_overlap() -> None:
    whole = [OffsetRange("a", 0, 10, 1010), OffsetRange("a", 1, 5, 5), OffsetRange("b", 0, 0, 10)]
    cut = split(whole, 8, 300)
    for row in whole:
        pieces = [piece for piece in cut if (piece.topic, piece.partition) == (row.topic, row.partition)]
        offsets = [offset for piece in pieces for offset in range(piece.start, piece.end)]
        assert offsets == list(range(row.start, row.end))
        assert all(piece.end - piece.start <= 300 for piece in pieces)
    assert len(cut) >= 8


def test_small_neighbours_share_a_task_and_large_ranges_have_their_own() -> None:
    sizes = [3_000, 7_000, 1, 500_000, 9_999, 1, 1]
    ranges = [OffsetRange("a", number, 0, size) for number, size in enumerate(sizes)]
    groups = grouped(ranges, None)
    assert [[row.end for row in group] for group in groups] == [[3_000, 7_000], [1], [500_000], [9_999, 1], [1]]
    assert [row for group in groups for row in group] == ranges
    assert all(len(group) == 1 or sum(row.end for row in group) <= 2_000 for group in grouped(ranges, 2_000))
    assert grouped([], None) == []


def test_a_limited_batch_starves_no_partition() -> None:
    start = {TopicPartition("a", 0): 0, TopicPartition("a", 1): 100}
    end = {TopicPartition("a", 0): 1_000_000, TopicPartition("a", 1): 103}
    got = limited(start, end, 1000)
    assert got[TopicPartition("a", 1)] > 100
    assert 900 <= sum(got[key] - start[key] for key in got) <= 1001
    behind = {TopicPartition("a", 0): 1_000_000, TopicPartition("a", 1): 40}
    assert limited(start, behind, 1000)[TopicPartition("a", 1)] == 40, "a topic made anew ends where it ends"
    assert limited(start, {TopicPartition("a", 0): 5, TopicPartition("a", 1): 103}, 1000)[TopicPartition("a", 0)] == 5
