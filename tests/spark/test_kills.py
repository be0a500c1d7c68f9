"""Exactly once under kill −9: at random moments (`OTTLA_SPARK_KILLS=30` makes it the long form, see `kills`), and at a chosen one, where
a control without `exactlyOnce` has duplicates."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("pyspark")

from ottla import sync
from tests.compatibility.node import OttlaNode
from tests.spark.copying import copy
from tests.spark.kills import BATCH, PARTITIONS, QUICK_TIMEOUTS, SMALL_PORTIONS, TARGETS, Driver, Run, finish, kill, play, strike

pytestmark = [pytest.mark.slow, pytest.mark.spark]

RUNS = int(os.environ.get("OTTLA_SPARK_KILLS", "1"))
FEW = 2_000
LAST = FEW // BATCH - 1


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    with OttlaNode(tmp_path_factory.mktemp("node"), settings=QUICK_TIMEOUTS) as running:
        yield running


def test_the_output_is_the_input_whoever_is_killed_and_however_long_the_driver_is_away(node: OttlaNode, tmp_path: Path) -> None:
    """The last of these queries has transactions that live for three seconds, and its driver stays away for longer."""
    runs = [Run(node, tmp_path, number, records=FEW, held_from=LAST) for number in range(RUNS)]
    impatient = Run(node, tmp_path, 1000, records=FEW, sink={"kafka.transaction.timeout.ms": "3000"}, held_from=LAST)
    for run in (*runs, impatient):
        run.prepare()
    with Driver(tmp_path, [*runs, impatient]) as driver:
        for run in runs:
            events = play(driver, run, random.Random(run.number), TARGETS)
            assert [event.split()[0] for event in events] == list(TARGETS)
            assert run.verdict() == "", events
        assert play(driver, impatient, random.Random(3), ["driver"], down_s=5)
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


CHOSEN = [  # who dies, and whether exactlyOnce is set; a broker that comes back takes what producers repeat for a repetition
    ("worker", False),
    ("worker", True),
    ("driver", False),
    ("driver", True),
    ("broker", True),
]


def test_the_same_kill_shows_duplicates_without_exactly_once_and_none_with_it(node: OttlaNode, tmp_path: Path) -> None:
    """It comes when rows of a batch are in the topic and the batch has not ended."""
    runs = [Run(node, tmp_path, 3000 + number, is_once, FEW, held_from=1) for number, (_, is_once) in enumerate(CHOSEN)]
    for run in runs:
        run.prepare()
    with Driver(tmp_path, runs, spark=SMALL_PORTIONS) as driver:
        for run, (target, _) in zip(runs, CHOSEN, strict=True):
            task, values = run.caught()
            if target == "worker":
                kill(psutil.Process(task))
            else:
                assert strike(target, driver, run, random.Random(run.number))
            finish(driver, run)
            run.judge(values)
