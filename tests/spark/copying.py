"""Streaming queries that copy topics, one after the other, as a program that can be killed: `python -m tests.spark.copying JSON`.

The JSON has `master`, `spark` (settings of the session), `queries` (each with a name and the options of its `source` and `sink`), and
if wanted `ship` (send ottla to the executors), `straggler` (the first attempt of task 0 sleeps so many seconds before its rows,
which makes Spark speculate). A query may be `held` (see `holding`). One that fails is started again from its checkpoint, as who runs
one would. It prints `started NAME`, `failed NAME: …` and `copied NAME`.
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
HELD_LIMIT_S = 300.0
LOOK_AGAIN_S = 0.02
LET_GO = "let-go"


def straggling(seconds: float) -> Any:
    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            time.sleep(seconds)
        yield from batches

    return rows


def holding(folder: str, batch: int) -> Any:
    """From this batch on, task 0 hands on its rows, writes their values to a file of `folder` that has its process's id for a name,
    and does not end before `let-go` is there. So whoever kills something meanwhile kills it in the middle of a batch."""
    let_go = os.path.join(folder, LET_GO)

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        number = context.getLocalProperty("streaming.sql.batchId")
        is_held = context.partitionId() == 0 and number is not None and int(number) >= batch
        values: list[str] = []
        for each in batches:
            values += [value.decode() for value in each.column("value").to_pylist()]
            yield each
        if not is_held or os.path.exists(let_go):
            return
        told = os.path.join(folder, str(os.getpid()))
        with open(f"{told}.part", "w") as file:
            json.dump(values, file)
        os.replace(f"{told}.part", told)
        deadline = time.monotonic() + HELD_LIMIT_S
        while not os.path.exists(let_go):
            assert time.monotonic() < deadline, "nobody let this task go"
            time.sleep(LOOK_AGAIN_S)

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
    if "held" in query:
        frame = frame.mapInArrow(holding(**query["held"]), frame.schema)
    frame.writeStream.format("ottla").options(**query["sink"]).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
