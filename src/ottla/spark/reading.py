"""Reading a range of offsets as Arrow batches: what an executor does with one Spark partition.

Two threads: the process's loop fetches (its time is spent in the kernel), Spark's thread decodes by columns and hands batches on.
At most `QUEUED_FETCHES` fetches wait between them, so memory is bounded whatever the topic's size.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from ottla.background import background_loop
from ottla.client.cluster import Cluster
from ottla.model.errors import ApiError, ErrorCode
from ottla.protocol.messages.fetch import FetchRequest
from ottla.records.batch import headers as batch_headers
from ottla.records.control import AbortedTransaction
from ottla.spark import connections
from ottla.spark.ranges import DataLost, OffsetRange

FETCH_BYTES = 6 << 20
FETCH_WAIT_MS = 500
QUEUED_FETCHES = 2
SESSIONLESS = -1
_DONE = object()


class Fetched(NamedTuple):
    data: Any
    aborted: tuple[AbortedTransaction, ...]
    start: int


def fetched(
    settings: Mapping[str, Any], wanted: OffsetRange, committed_only: bool, fail_on_data_loss: bool, stalled_s: float
) -> Iterator[Fetched]:
    """The fetches of a range, ahead of the reader. `settings` are those of any client."""
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
    room = asyncio.Semaphore(QUEUED_FETCHES)

    async def work() -> None:
        try:
            async with connections.using(connections.cluster, settings, connections.PATIENCE_S) as cluster:
                async for item in _fetches(cluster, settings, wanted, committed_only, fail_on_data_loss, stalled_s):
                    await room.acquire()
                    ready.put(item)
            ready.put(_DONE)
        except BaseException as error:
            ready.put(error)
            raise

    loop = background_loop()
    task = asyncio.run_coroutine_threadsafe(work(), loop)
    try:
        while (item := ready.get()) is not _DONE:
            if isinstance(item, BaseException):
                raise item
            loop.call_soon_threadsafe(room.release)
            yield item
    finally:
        task.cancel()


async def _fetches(
    cluster: Cluster, settings: Mapping[str, Any], wanted: OffsetRange, committed_only: bool, fail: bool, stalled_s: float
) -> AsyncIterator[Fetched]:
    offset, deadline = wanted.start, time.monotonic() + stalled_s
    while offset < wanted.end:
        attempt = partial(fetch, cluster, wanted.topic, wanted.partition, offset, committed_only)
        data, aborted = await cluster.persist(attempt, topics=(wanted.topic,))
        if data is None:
            offset = await _skip_lost(settings, wanted, offset, fail)
            continue
        last = None
        for _, header in batch_headers(data):
            last = header
        if last is None:
            # Nothing yet below the end: records of an open transaction, or an earlier leader's on their way.
            if time.monotonic() > deadline:
                raise DataLost(
                    f"{wanted}: nothing came from offset {offset} on for {stalled_s:g} s (kafkaConsumer.pollTimeoutMs). Is the end beyond what is stable, or was the topic made anew?"
                )
            continue
        deadline = time.monotonic() + stalled_s
        yield Fetched(data, aborted, offset)
        offset = last.next_offset


async def fetch(
    cluster: Cluster, topic: str, partition: int, offset: int, committed_only: bool, size: int = FETCH_BYTES
) -> tuple[Any, tuple[AbortedTransaction, ...]]:
    """One attempt; None for data when the offset is out of range."""
    leader = await cluster.leader(topic, partition)
    topic_id = (await cluster.topic(topic)).id
    row = FetchRequest.FetchTopic.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=size)
    request = FetchRequest(
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=size,
        isolation_level=int(committed_only),
        session_epoch=SESSIONLESS,
        topics=[FetchRequest.FetchTopic(topic=topic, topic_id=topic_id, partitions=[row])],
    )
    response = await cluster.ask(leader, request)
    if response.error_code:
        raise ApiError(ErrorCode(response.error_code))
    part = response.responses[0].partitions[0]
    if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return None, ()
    if part.error_code:
        raise ApiError(ErrorCode(part.error_code), f"{topic}-{partition} at offset {offset}")
    aborted = tuple(AbortedTransaction(each.producer_id, each.first_offset) for each in part.aborted_transactions or ())
    return part.records, aborted


async def _skip_lost(settings: Mapping[str, Any], wanted: OffsetRange, offset: int, fail: bool) -> int:
    async with connections.using(connections.admin, settings) as admin:
        starts = await admin.earliest_offsets([(wanted.topic, wanted.partition)])
    start = next(iter(starts.values()))
    if fail:
        raise DataLost(
            f"{wanted.topic}-{wanted.partition}: offset {offset} is gone, the log now starts at {start}. Records were deleted "
            "before they were read (retention, or a topic made anew). Set failOnDataLoss=false to go on with what is left."
        )
    # A log that starts before the offset and does not have it ends before it: a topic made anew.
    return min(start, wanted.end) if start > offset else wanted.end
