"""Streaming queries that copy topics, one after the other, as a program that can be killed: `python -m tests.spark.copying JSON`.

The JSON has `master`, `spark` (settings of the session), `queries` (each with a name and the options of its `source` and `sink`), and
if wanted `ship` (send ottla to the executors), `straggler` (the first attempt of task 0 sleeps so many seconds before its rows,
which makes Spark speculate). A query that fails is started again from its checkpoint, as who runs one would. It prints
`started NAME`, `failed NAME: …` and `copied NAME`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from ottla.spark.session import session, ship

ATTEMPTS = 20


def straggling(seconds: float) -> Any:
    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            time.sleep(seconds)
        yield from batches

    return rows


def where_ottla_is(_: Any) -> list[str]:
    import ottla

    return [str(ottla.__file__)]


def main(text: str) -> None:
    asked = json.loads(text)
    spark = session("copying", master=asked["master"], settings=asked.get("spark", {}))
    if asked.get("ship"):
        ship(spark)
        print("executors use", spark.sparkContext.parallelize([0], 1).mapPartitions(where_ottla_is).collect()[0], flush=True)
    for query in asked["queries"]:
        for attempt in range(ATTEMPTS):
            try:
                copy(spark, query, asked.get("straggler"))
                print("copied", query["name"], flush=True)
                break
            except Exception as error:
                if attempt == ATTEMPTS - 1:
                    raise
                print(f"failed {query['name']}:", str(error).splitlines()[0][:300], flush=True)
    sys.stdout.flush()
    os._exit(0)  # what a session does at its end takes seconds and changes nothing here


def copy(spark: Any, query: Any, straggler: float | None) -> None:
    print("started", query["name"], flush=True)
    several = {"minPartitions": "2"}  # tasks, however few records there are: a single one is never tried twice at a time
    frame = spark.readStream.format("ottla").options(**several | query["source"]).load().select("key", "value")
    if straggler:
        frame = frame.mapInArrow(straggling(straggler), frame.schema)
    frame.writeStream.format("ottla").options(**query["sink"]).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
