"""Exactly once under kill −9. The short form; `OTTLA_SPARK_KILLS=30` makes it the long one (see `kills`)."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ottla import sync
from tests.compatibility.node import OttlaNode
from tests.spark.copying import copy
from tests.spark.kills import PARTITIONS, QUICK_TIMEOUTS, TARGETS, Driver, Run, play

pytestmark = [pytest.mark.slow, pytest.mark.spark]

RUNS = int(os.environ.get("OTTLA_SPARK_KILLS", "1"))
FEW = 2_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    with OttlaNode(tmp_path_factory.mktemp("node"), settings=QUICK_TIMEOUTS) as running:
        yield running


def test_the_output_is_the_input_whoever_is_killed_and_however_long_the_driver_is_away(node: OttlaNode, tmp_path: Path) -> None:
    """The last of these queries has transactions that live for three seconds, and its driver stays away for longer."""
    runs = [Run(node, tmp_path, number, records=FEW) for number in range(RUNS)]
    impatient = Run(node, tmp_path, 1000, records=FEW, sink={"kafka.transaction.timeout.ms": "3000"})
    for run in (*runs, impatient):
        run.prepare()
    with Driver(tmp_path, [*runs, impatient]) as driver:
        for run in runs:
            events = play(driver, run, random.Random(run.number), list(TARGETS))
            assert run.verdict() == "", events
        play(driver, impatient, random.Random(3), ["driver"], down_s=5)
        assert impatient.verdict() == ""
        assert driver.wait() == 0


def test_a_new_query_over_a_deleted_checkpoint_is_a_new_query(node: OttlaNode, tmp_path: Path, spark: Any) -> None:
    """It counts its batches from 0 again, and starts where it is told to: none of them counts as written already."""
    run = Run(node, tmp_path, 2000, records=FEW)
    run.prepare()
    copy(spark, run.query(), None)
    shutil.rmtree(run.checkpoint)
    with sync.Admin(bootstrap_servers=node.bootstrap) as admin:
        ends = admin.latest_offsets([(run.topic, number) for number in range(PARTITIONS)])
    run.produce(run.records, run.records + FEW)
    run.records += FEW
    run.source["startingOffsets"] = json.dumps({run.topic: {str(key.partition): end for key, end in ends.items()}})
    copy(spark, run.query(), None)
    assert run.verdict() == ""


@pytest.mark.skipif(RUNS == 1, reason="the control, for the long form: it may take several kills")
def test_without_exactly_once_kills_cause_duplicates(node: OttlaNode, tmp_path: Path) -> None:
    runs = [Run(node, tmp_path, number, exactly_once=False, records=FEW) for number in range(3000, 3010)]
    for run in runs:
        run.prepare()
    with Driver(tmp_path, runs) as driver:
        for run in runs:
            play(driver, run, random.Random(run.number), ["driver", "worker", "driver"])
            verdict = run.verdict()
            assert verdict == "" or verdict.startswith("0 lost")  # at least once it is, all the same
            if verdict:
                return
    pytest.fail("thirty kills, and no duplicate: they come at the wrong moments")
