"""Spark looks through modules named `pyspark_*` for data sources: this is how `format("ottla")` is found without registration."""

from __future__ import annotations

from ottla.spark.source import OttlaSource as DefaultSource

__all__ = ["DefaultSource"]
