"""A broker that is down in the middle of a query: it is waited for, and if it stays away the user reads one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import wait_until
from tests.spark.kills import Run

pytestmark = [pytest.mark.slow, pytest.mark.spark]

FEW = 300
IMPATIENT = {"kafka.default.api.timeout.ms": "1000", "kafka.request.timeout.ms": "1000"}
LIMIT_S = 240


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
