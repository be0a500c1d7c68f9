"""Which topics a pattern means: those in whose name it is found, as Spark's connector has it (`findFirstIn`, so not anchored).

Left out is what no user wrote: the topics that Kafka calls internal, and our own ledger, which a query that reads all topics and
writes exactly once would feed with every batch. Who names one of them with `subscribe` or `assign` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ottla.model.ids import INTERNAL_TOPICS, METADATA_TOPIC

LEDGER = "ottla-spark-ledger"
# A broker tells which topics are internal; a log directory does not, and has the metadata's log beside those of topics.
_NOT_OF_USERS = INTERNAL_TOPICS | {"__share_group_state", METADATA_TOPIC, LEDGER}


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name not in _NOT_OF_USERS and re.search(pattern, name))
