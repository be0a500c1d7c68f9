"""What `send` gives back: a `Delivery` to await, and the `RecordMetadata` it turns into.

A delivery is two references; the fate is its batch's. Only who awaits one pays for a future.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from ottla.client.accumulator import Batch


class RecordMetadata(NamedTuple):
    """Where a record lies. The offset is -1 when the broker did not tell (acks=0, or a repetition it had already)."""

    topic: str
    partition: int
    offset: int
    timestamp: int


Callback = Callable[["RecordMetadata | None", "Exception | None"], Any]


class Delivery:
    """The fate of one record. `await delivery` gives its metadata or raises; ignoring it is fine (fire and forget)."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    @property
    def done(self) -> bool:
        return self._batch.is_done

    def result(self) -> RecordMetadata:
        """Its metadata, or its error raised; RuntimeError while neither is known."""
        return resolve(self._batch, self._index)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        batch = self._batch
        if not batch.is_done:
            waiter = asyncio.get_running_loop().create_future()
            if batch.waiters is None:
                batch.waiters = []
            batch.waiters.append(waiter)
            yield from waiter
        return resolve(batch, self._index)


def resolve(batch: Batch, index: int) -> RecordMetadata:
    if not batch.is_done:
        raise RuntimeError("the record is not delivered yet; await the delivery")
    if batch.pieces is not None:
        first, piece = next(pair for pair in reversed(batch.pieces) if pair[0] <= index)
        return resolve(piece, index - first)
    if batch.error is not None:
        raise batch.error
    topic, partition = batch.partition
    timestamp = batch.timestamp if batch.timestamp >= 0 or not batch.rows else batch.rows[index][0]
    return RecordMetadata(topic, partition, batch.offset + index if batch.offset >= 0 else -1, timestamp)


def wake(batch: Batch) -> None:
    """Tell whoever waits that a batch is done."""
    for waiter in batch.waiters or ():
        if not waiter.done():
            waiter.set_result(None)
    batch.waiters = None


def call_back(batch: Batch, complain: Callable[[BaseException], None]) -> None:
    """Run the callbacks of a batch that is done. One that raises is the caller's fault and must not stop the others."""
    callbacks, batch.callbacks = batch.callbacks, None
    for index, callback in callbacks or ():
        try:
            try:
                metadata = resolve(batch, index)
            except Exception as error:
                callback(None, error)
            else:
                callback(metadata, None)
        except Exception as error:
            complain(error)
