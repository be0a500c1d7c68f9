"""A broker that is down in the middle of a query: it is waited for, and if it stays away the user reads one sentence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ottla import sync
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import wait_until
from tests.spark.kills import Run

pytestmark = [pytest.mark.slow, pytest.mark.spark]

FEW = 300
IMPATIENT = {"kafka.default.api.timeout.ms": "1000", "kafka.request.timeout.ms": "1000"}
LIMIT_S = 240
MEGABYTES = 64  # more than a task has fetched when the first rows of it are handed on


def start(spark: Any, run: Run, **trigger: Any) -> Any:
    query = run.query()
    frame = spark.readStream.format("ottla").options(**query["source"]).load().select("key", "value")
    return frame.writeStream.format("ottla").options(**query["sink"]).trigger(**trigger).start()


def test_a_query_whose_broker_stays_away_ends_with_one_sentence_and_goes_on_from_there(spark: Any, tmp_path: Path) -> None:
    with OttlaNode(tmp_path / "node") as node:
        run = Run(node, tmp_path, 0, records=FEW, source=IMPATIENT, sink=IMPATIENT)
        run.prepare()
        query = start(spark, run, processingTime="0 seconds")
        query.processAllAvailable()
        node.kill()
        with pytest.raises(Exception, match=r"ottla\.\S+: \S*127\.0\.0\.1") as raised:
            assert not query.awaitTermination(LIMIT_S)
        text = str(raised.value)
        assert "Traceback" not in text
        assert node.bootstrap in text
        node.start()
        run.produce(FEW, 2 * FEW)
        run.records = 2 * FEW
        start(spark, run, availableNow=True).awaitTermination(LIMIT_S)
        assert run.verdict() == ""


def test_a_query_whose_broker_comes_back_goes_on_by_itself(spark: Any, tmp_path: Path) -> None:
    with OttlaNode(tmp_path / "node") as node:
        run = Run(node, tmp_path, 0, records=FEW)
        run.prepare()
        query = start(spark, run, processingTime="0 seconds")
        try:
            query.processAllAvailable()
            node.kill()
            node.start()
            run.produce(FEW, 2 * FEW)
            run.records = 2 * FEW
            wait_until("the rest", lambda: not query.isActive or run.copied() >= 2 * FEW, limit_s=LIMIT_S)
            assert query.isActive, query.exception()
            query.processAllAvailable()
        finally:
            query.stop()
        assert run.verdict() == ""


@pytest.fixture
def handed_on_at_once(spark: Any) -> Iterator[None]:
    """Spark otherwise collects ten thousand rows for a function before it has any."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, "1")
    yield
    spark.conf.unset(name)


def waiting(folder: Path) -> Any:
    """For mapInArrow: a task that has its first rows says so, and goes on when it is told to. It has nothing of ours: Spark's workers
    do not find the tests."""

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            (folder / "reading").touch()
            deadline = time.monotonic() + LIMIT_S
            while not (folder / "go").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            yield batch.select(["offset"])

    return rows


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_batch_query_whose_broker_is_killed_waits_for_it_and_otherwise_ends_with_one_sentence(
    spark: Any, handed_on_at_once: None, tmp_path: Path, comes_back: bool
) -> None:
    with OttlaNode(tmp_path / "node") as node, ThreadPoolExecutor() as threads:
        with sync.Admin(bootstrap_servers=node.bootstrap) as admin:
            admin.create_topic("large", 1, 1)
        with sync.Producer(bootstrap_servers=node.bootstrap) as producer:
            for _ in range(MEGABYTES):
                producer.send("large", bytes(1_000_000))
            producer.flush()
        given = {"kafka.bootstrap.servers": node.bootstrap, "subscribe": "large"}
        given |= {} if comes_back else IMPATIENT
        frame = spark.read.format("ottla").options(**given).load().mapInArrow(waiting(tmp_path), "offset long")
        counted = threads.submit(frame.count)
        wait_until("the first rows", (tmp_path / "reading").exists, alive=lambda: not counted.done(), limit_s=LIMIT_S)
        node.kill()
        (tmp_path / "go").touch()
        if comes_back:
            node.start()
            assert counted.result(timeout=LIMIT_S) == MEGABYTES
            return
        with pytest.raises(Exception, match=r"ottla\.\S+: \S*127\.0\.0\.1") as raised:
            counted.result(timeout=LIMIT_S)
        assert node.bootstrap in str(raised.value)
        assert "Traceback" not in str(raised.value)
