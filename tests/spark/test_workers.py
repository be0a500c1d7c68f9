"""What is done to a worker process of Spark's, and to no other."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import textwrap

from ottla.spark.workers import settle


def test_a_process_that_is_no_worker_of_spark_is_left_alone() -> None:
    before = gc.get_freeze_count()
    settle()
    assert gc.get_freeze_count() == before


def test_a_worker_has_its_modules_out_of_the_collector_s_sight_and_keeps_freed_memory() -> None:
    program = """
        import gc, resource, sys, types
        sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.daemon")
        from ottla.spark.workers import settle
        settle()
        frozen = gc.get_freeze_count()
        settle()
        assert gc.get_freeze_count() == frozen > 1000
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
