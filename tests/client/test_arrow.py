"""Rows of Arrow's on their way into batches: each partition has its own, in their order."""

from __future__ import annotations

from itertools import chain, groupby
from typing import Any

import pytest

from ottla.client.partitioner import partition_of
from ottla.client.settings import ProducerSettings, resolve
from ottla.records.batch import stamp_producer
from ottla.records.record import decode_batch

pa = pytest.importorskip("pyarrow")

from ottla.client import arrow  # noqa: E402

STICKY = 2


def sent(batch: Any, partitions: int = 5, **settings: Any) -> dict[int, list[Any]]:
    """The records by partition."""
    resolved = resolve(ProducerSettings, {"bootstrap_servers": "nowhere:1"} | settings)
    found: dict[int, list[Any]] = {}
    for number, encoded, count in chain.from_iterable(arrow.encode_arrow(batch, partitions, None, STICKY, 7, resolved, 0)):
        stamp_producer(encoded, 1, 0, 0, False)
        records = decode_batch(encoded)
        assert len(records) == count
        found.setdefault(number, []).extend(records)
    return found


def keys_and_values(count: int, **more: Any) -> Any:
    keys = [b"key-%d" % (number % 37) if number % 11 else None for number in range(count)]
    values = [b"%06d" % number * (number % 50) for number in range(count)]
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary()), **more})


@pytest.mark.parametrize("at_once", [arrow.ENCODED_AT_ONCE, 20_000])
def test_rows_go_to_the_partition_of_their_key_and_keep_their_order(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "ENCODED_AT_ONCE", at_once)
    batch = keys_and_values(3000, timestamp=pa.array(range(3000), pa.int64()))
    expected: dict[int, list[Any]] = {}
    for row in batch.to_pylist():
        number = STICKY if row["key"] is None else partition_of(row["key"], 5)
        expected.setdefault(number, []).append((row["timestamp"], row["key"], row["value"]))
    found = {
        number: [(record.timestamp, record.key, record.value) for record in records] for number, records in sent(batch).items()
    }
    assert found == expected


@pytest.mark.parametrize("at_once", [arrow.ENCODED_AT_ONCE, 20_000])
def test_rows_that_may_go_anywhere_stay_together(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "ENCODED_AT_ONCE", at_once)
    batch = keys_and_values(3000)
    found = sent(batch, partitioner_ignore_keys=True)
    assert [record.value for record in found.pop(STICKY)] == batch.column("value").to_pylist()
    assert not found


def test_rows_of_one_partition_make_one_batch_unless_it_would_be_too_large() -> None:
    batch = keys_and_values(3000)
    settings = resolve(ProducerSettings, {"bootstrap_servers": "nowhere:1"})
    [made_at_once] = arrow.encode_arrow(batch, 5, None, STICKY, 7, settings, 0)
    made = [number for number, _, _ in made_at_once]
    assert made == [number for number, _ in groupby(made)]
