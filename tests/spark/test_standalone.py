"""A real Spark standalone cluster, master and two workers from the PySpark package: ottla is shipped by one call, and exactly once is
kept when Spark runs a straggler a second time beside the first (speculation), when an executor dies, and when brokers do."""

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import psutil
import pyarrow.parquet as pq
import pyspark

from ottla import sync
from ottla.spark.examples import write_out
from tests.cli.processes import environment
from tests.compatibility.cluster import OttlaCluster
from tests.compatibility.node import OttlaNode
from tests.compatibility.process import start, stop
from tests.compatibility.wire import free_port, wait_until
from tests.spark.kills import BATCH, SMALL_PORTIONS, Driver, Run, finish, kill, play

pytestmark = [pytest.mark.slow, pytest.mark.spark]

HOME = Path(pyspark.__file__).parent
FEW = 2_000
START_LIMIT_S = 90
RUN_LIMIT_S = 300


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a master that has two workers of one core each."""
    folder = tmp_path_factory.mktemp("standalone")
    # Nothing of this process's way to ottla reaches the executors: they must use what is shipped.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    script = str(HOME / "bin" / "spark-class")

    def launch(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [script, f"org.apache.spark.deploy.{name.split('-')[0]}", *arguments]
        return start(command, folder / f"{name}.log", env=environment, cwd=folder)

    running = [launch("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")]
    log = folder / "master.Master.log"
    try:
        wait_until("the master", lambda: "ALIVE" in log.read_text(), limit_s=START_LIMIT_S)
        for number, host in enumerate(("127.0.0.1", "localhost")):  # two hosts to Spark, which speculates only on another one
            arguments = ("--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0", url)
            running.append(launch(f"worker.Worker-{number}", *arguments))
        wait_until("two workers", lambda: log.read_text().count("Registering worker") == 2, limit_s=START_LIMIT_S)
        yield url
    finally:
        for process in reversed(running):
            stop(process)


EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.pyspark.python": sys.executable,
    "spark.executorEnv.PYTHONPATH": "",
}
# A function of the user's, run by executors, that tells in a table which ottla they have.
ASKING = """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

spark = SparkSession.active()


@udf("string")
def where(_: int) -> str:
    import ottla
    return ottla.__file__


@dp.materialized_view
def places() -> DataFrame:
    return spark.range(4).select(where("id").alias("place"))
"""


def test_a_declared_pipeline_runs_on_a_cluster_and_takes_ottla_with_it(master: str, tmp_path: Path) -> None:
    project = tmp_path / "route"
    write_out("route", project)
    (project / "transformations" / "places.py").write_text(ASKING)
    conf = [word for name, text in EXECUTORS.items() for word in ("--conf", f"{name}={text}")]
    with OttlaNode(tmp_path / "node") as node:
        feed = [sys.executable, str(project / "feed.py"), node.bootstrap]
        subprocess.run(feed, check=True, env=environment(), timeout=RUN_LIMIT_S, capture_output=True)
        for _ in range(2):
            run = [sys.executable, "-m", "ottla", "pipeline", "run", str(project), "--master", master, *conf]
            done = subprocess.run(
                [*run, "--bootstrap", node.bootstrap], env=environment(), timeout=RUN_LIMIT_S, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout + done.stderr
    files = list((project / "tables" / "places").glob("*.parquet"))
    places = set(pq.read_table(files).column("place").to_pylist())
    assert places, "nobody told"
    assert all(place.endswith("ottla.zip/ottla/__init__.py") for place in places), places


def test_a_pipeline_runs_on_a_cluster_with_ottla_shipped_and_speculation_writes_nothing_twice(
    master: str, tmp_path: Path
) -> None:
    settings = EXECUTORS | {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.minTaskRuntime": "50ms",
    }
    with OttlaNode(tmp_path / "node") as node:
        run = Run(node, tmp_path, 0, records=4_000, source={"maxOffsetsPerTrigger": "2000"})
        run.prepare()
        with Driver(tmp_path, [run], master, spark=settings, ship=True, straggler=4.0) as driver:
            assert driver.wait() == 0, driver.said()[-5000:]
        said = driver.said()
        assert re.search(r"executors use \S*ottla\.zip/ottla/__init__\.py", said), said[-2000:]
        with sync.Admin(bootstrap_servers=node.bootstrap) as admin:
            names = [each.id for each in admin.list_transactions()]
        assert any(re.search(r"-0\.\d+$", name) for name in names), f"no second attempt wrote anything: {names}"
        assert run.verdict() == ""


def test_an_executor_that_is_killed_in_the_middle_of_a_batch_writes_nothing_twice(master: str, tmp_path: Path) -> None:
    """And without `exactlyOnce` the same kill does."""
    with OttlaNode(tmp_path / "node") as node:
        runs = [Run(node, tmp_path, number, is_once, FEW, held_from=1) for number, is_once in enumerate((False, True))]
        for run in runs:
            run.prepare()
        with Driver(tmp_path, runs, master, spark=EXECUTORS | SMALL_PORTIONS, ship=True) as driver:
            for run in runs:
                task, values = run.caught()
                kill(executor_of(task))
                assert not driver.has_copied(run)
                finish(driver, run)
                run.judge(values)
                assert run.lives == 1, "the driver was to go on with another executor"
            assert driver.wait() == 0


def executor_of(task: int) -> psutil.Process:
    """The JVM that has started this Python process."""
    found = [each for each in psutil.Process(task).parents() if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline())]
    assert len(found) == 1, psutil.Process(task).parents()
    return found[0]


class InTurn:
    """The brokers of a cluster, of which each kill takes the next one."""

    def __init__(self, cluster: OttlaCluster) -> None:
        self._cluster = cluster
        self._others = itertools.cycle(cluster.plans)
        self._next = next(self._others)

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    @property
    def pid(self) -> int:
        return self._cluster.processes[self._next].pid

    def kill(self) -> None:
        self._cluster.kill_node(self._next)

    def start(self) -> None:
        self._cluster.start_node(self._next)
        self._cluster.wait_ready()
        self._next = next(self._others)


def test_three_brokers_of_which_each_is_killed_once_have_every_record_once(master: str, tmp_path: Path) -> None:
    with OttlaCluster(tmp_path / "brokers") as cluster:
        run = Run(InTurn(cluster), tmp_path, 0, records=FEW, copies=3, held_from=FEW // BATCH - 1)
        run.prepare()
        with Driver(tmp_path, [run], master, spark=EXECUTORS, ship=True) as driver:
            events = play(driver, run, random.Random(4), ["broker"] * len(cluster.plans))
            assert len(events) == len(cluster.plans)
            assert driver.wait() == 0, driver.said()[-5000:]
        assert run.verdict() == "", events
        assert cluster.tracebacks() == []
