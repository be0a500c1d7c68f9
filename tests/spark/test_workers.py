"""What is done to a worker process of Spark's, and to no other."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.spark import session
from ottla.spark.workers import settle


def test_a_process_that_is_no_worker_of_spark_is_left_alone() -> None:
    before = gc.get_freeze_count()
    settle()
    assert gc.get_freeze_count() == before


def test_a_worker_has_its_modules_out_of_the_collector_s_sight_and_keeps_freed_memory() -> None:
    program = """
        import gc, resource, sys, types
        sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.daemon")
        from ottla.spark.workers import SETTLINGS, settle
        settle()
        at_first = gc.get_freeze_count()
        loaded = [[] for _ in range(1000)]
        for _ in range(SETTLINGS - 1):
            settle()
        frozen = gc.get_freeze_count()
        assert frozen >= at_first + 1000 > 2000, "what the first task loads is among it"
        leaks = [[] for _ in range(1000)]
        settle()
        assert gc.get_freeze_count() == frozen, "what comes later is not"
        size = 8 << 20
        bytes(bytearray(size))  # what is needed is there now
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            bytearray(size)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() < size)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=60
    )
    if "glibc" in platform.libc_ver():
        assert done.stdout.strip() == "True"


def test_a_worker_that_spark_has_left_ends_without_a_word_and_other_failures_are_told() -> None:
    program = """
        import sys, types
        main = sys.modules["__main__"]
        main.__spec__ = types.SimpleNamespace(name="pyspark.daemon")
        def worker(failure, authenticated):
            raise failure
        from ottla.spark import workers
        try:
            main.worker(KeyError("told"), True)
        except KeyError as error:
            print(error)
        main.worker(BrokenPipeError("not told"), True)
    """
    done = subprocess.run(
        [sys.executable, "-u", "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("'told'", "")


def test_the_python_of_workers_has_all_of_its_path_but_what_is_spark_s_own() -> None:
    path = [
        "/site/pyspark/python/lib/pyspark.zip",
        "/mine",
        "/site/pyspark/jars/core.jar",
        "/site/pyspark_mine",
        "/site/pyspark/python/lib/pyspark.zip",
        "with a space",
    ]
    environment = {"OTTLA_PYSPARK": "/site/pyspark", "OTTLA_WORKER_PYTHON": sys.executable, "PYTHONPATH": ":".join(path)}
    told = ["-c", "import os, sys; print(os.environ['PYTHONPATH']); print(*sys.argv[1:], sep='|')", "an argument", "*"]
    command = os.path.join(os.path.dirname(session.__file__), "worker-python")
    done = subprocess.run([command, *told], env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["/mine:/site/pyspark_mine:with a space", "an argument|*"]


@pytest.mark.spark
def test_a_local_session_s_workers_do_not_compile_pyspark_each_time(spark: Any) -> None:
    def places(_: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        import pyspark

        yield pa.RecordBatch.from_pydict({"place": [pyspark.__spec__.cached]})

    (row,) = spark.range(1, numPartitions=1).mapInArrow(places, "place string").collect()
    assert os.path.exists(row.place or ""), "what comes from an archive has no compiled file"


@pytest.mark.spark
def test_executors_elsewhere_have_a_python_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    session.prepare_environment(is_local=True)
    local = os.environ["PYSPARK_PYTHON"]
    session.prepare_environment(is_local=False)
    assert local != os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "chosen")
    session.prepare_environment(is_local=True)
    assert os.environ["PYSPARK_PYTHON"] == "chosen"
