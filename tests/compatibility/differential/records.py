"""Batches for scenarios: the same bytes every time, with old timestamps, so that two systems can be compared."""

from __future__ import annotations

from typing import Any

from ottla.records.builder import build_batch
from ottla.records.record import Record
from tests.compatibility.differential.talk import Talk

T0 = 1_700_000_000_000  # a fixed moment, long ago


def batch(*values: bytes | None, key: bytes | None = b"key", at: int = T0, step: int = 1000, **options: Any) -> bytes:
    records = [Record(index, at + index * step, key, value, (("h", b"1"),)) for index, value in enumerate(values)]
    return build_batch(records, **options)


def produce(talk: Talk, topic: str, records: bytes, partition: int = 0, acks: int = -1) -> Any:
    """Have records, without a note."""
    data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    answer = talk.quietly("Produce", 8, acks=acks, timeout_ms=30000, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code == 0, answer
    return answer
