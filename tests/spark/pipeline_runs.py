"""Runs pipelines for `test_pipelines`, all in one session: `python -m tests.spark.pipeline_runs FOLDER BOOTSTRAP`.

A session of Spark Connect cannot live in the process that has the tests' other session, and a start of Spark for each run of each
example would take minutes. In and out: lines of JSON. Asked with `project`: one run of it, `dry` or with `full_refresh` (names of
tables) or `full_refresh_all`; asked with `sql`: the rows of a statement.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ottla.model.errors import OttlaError
from ottla.spark.pipelines import execute, open_project, opened


def main(folder: str, bootstrap: str) -> None:
    home = open_project(Path(folder))
    with opened(home, bootstrap, "local[2]", {}) as spark:
        for line in sys.stdin:
            print(json.dumps(_answer(spark, json.loads(line))), flush=True)


def _answer(spark: Any, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        if "sql" in asked:
            return {"rows": [row.asDict() for row in spark.sql(asked["sql"]).collect()]}
        project = open_project(Path(asked.pop("project")))
        outcome = execute(spark, project, lambda flow: None, **asked)
        return {"tables": outcome.tables, "flows": {flow.name: flow.state for flow in outcome.flows}}
    except OttlaError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    main(*sys.argv[1:])
