"""Who writes: the query, batch, slot and attempt of the task that runs here, as Spark's local properties tell it.

Spark 4.3 gives a writer of a Python data source no batch id, and a deleted checkpoint begins at batch 0 again; the query's id, which
is in the checkpoint, tells the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ottla.spark.options import OptionError


@dataclass(frozen=True, slots=True)
class Task:
    query_id: str
    batch_id: int
    slot: int
    attempt: int

    @classmethod
    def current(cls, option: str) -> Task:
        """Raises OptionError, which names the option that needs to know."""
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        if query_id is None or batch_id is None:
            raise OptionError(f"option {option} needs a streaming query of Spark 4.3: it does not say which batch this is")
        return cls(query_id, int(batch_id), context.partitionId(), context.attemptNumber())
