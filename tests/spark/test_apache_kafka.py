"""Exactly once into Apache Kafka: the program is the one for ottla, with another address. Kafka's own consumer is the judge beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.compatibility.jars import NoKafka
from tests.compatibility.kafka import KafkaPeer, run_tool
from tests.spark.kills import SMALL_PORTIONS, Driver, Run, finish, kill_driver

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.spark]

FEW = 2_000


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaPeer]:
    try:
        peer = KafkaPeer(tmp_path / "kafka")
    except NoKafka as error:
        pytest.skip(str(error))
    with peer:
        yield peer


def test_the_output_is_the_input_on_apache_kafka_though_the_driver_dies_in_the_middle_of_a_batch(
    kafka: KafkaPeer, tmp_path: Path
) -> None:
    run = Run(kafka, tmp_path, 0, records=FEW, held_from=1)
    run.prepare()
    with Driver(tmp_path, [run], spark=SMALL_PORTIONS) as driver:
        _, values = run.caught()
        kill_driver(driver)
        assert not driver.has_copied(run)
        finish(driver, run)
        assert driver.wait() == 0
    assert run.verdict() == ""
    assert set(consumed(kafka, run.target, "read_committed").values()) == {1}
    assert len(consumed(kafka, run.target, "read_committed")) == FEW
    everything = consumed(kafka, run.target, "read_uncommitted")
    assert any(everything[value.decode()] > 1 for value in values), "the rows of the batch that died are there, and aborted"


def consumed(kafka: KafkaPeer, topic: str, isolation: str) -> Counter[str]:
    """By Kafka's own tool, until nothing comes any more."""
    where = ("--bootstrap-server", kafka.bootstrap, "--topic", topic, "--from-beginning", "--timeout-ms", "5000")
    done = run_tool("ConsoleConsumer", *where, "--command-property", f"isolation.level={isolation}")
    return Counter(done.stdout.split())
