"""A page that uses Spark makes a session as its reader would, and leaves nothing of it to the tests of Spark in this process: they want
one with other settings, and a session that is there already, or a JVM, keeps its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

JVM_LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def _a_jvm_of_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if request.node.get_closest_marker("spark") is None:
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkSession._instantiatedSession is not None:
        SparkSession._instantiatedSession.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(JVM_LIMIT_S)
        SparkContext._gateway = SparkContext._jvm = None
