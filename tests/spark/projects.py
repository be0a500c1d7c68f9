"""Projects of pipelines for tests."""

from __future__ import annotations

from pathlib import Path

from ottla.spark.examples import write_out


def of_one_file(folder: Path, code: str) -> str:
    """A project that has only these definitions."""
    write_out("cdc", folder)
    for path in (folder / "transformations").iterdir():
        path.unlink()
    start = "from pyspark import pipelines as dp\nfrom pyspark.sql import SparkSession\nspark = SparkSession.active()\n"
    (folder / "transformations" / "x.py").write_text(start + code)
    return str(folder)
