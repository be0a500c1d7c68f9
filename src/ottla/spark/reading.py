"""Reading a range of offsets as Arrow batches: what an executor does with one Spark partition.

Two threads: one fetches (asyncio, its time is spent in the kernel), one decodes by columns and hands batches to Spark. At most
`QUEUED_FETCHES` fetches wait between them, so memory is bounded whatever the topic's size.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.settings import ConsumerSettings, resolve
from ottla.model.errors import ApiError, ErrorCode, OttlaError
from ottla.protocol.messages.fetch import FetchRequest
from ottla.records.batch import headers as batch_headers
from ottla.records.control import AbortedTransaction

FETCH_BYTES = 8 << 20
FETCH_WAIT_MS = 500
QUEUED_FETCHES = 2
STALLED_S = 120  # as long as the connector waits (kafkaConsumer.pollTimeoutMs)
SESSIONLESS = -1
_DONE = object()


class OffsetRange(NamedTuple):
    """Records from `start` up to but not including `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


class DataLost(OttlaError):
    """Offsets that were promised are no longer there."""


class Fetched(NamedTuple):
    data: Any
    aborted: tuple[AbortedTransaction, ...]
    start: int


def fetched(settings: Mapping[str, Any], wanted: OffsetRange, fail_on_data_loss: bool) -> Iterator[Fetched]:
    """The fetches of a range, one ahead of the reader."""
    ready: queue.Queue[Any] = queue.Queue(QUEUED_FETCHES)
    stop = threading.Event()

    def put(item: Any) -> None:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.2)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            asyncio.run(_fetch_all(settings, wanted, fail_on_data_loss, put, stop))
            put(_DONE)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, name=f"ottla-fetch-{wanted.topic}-{wanted.partition}", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not _DONE:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()


async def _fetch_all(settings: Mapping[str, Any], wanted: OffsetRange, fail: bool, put: Any, stop: threading.Event) -> None:
    cluster = Cluster(resolve(ConsumerSettings, settings))
    loop = asyncio.get_running_loop()
    try:
        await cluster.start()
        async for item in _fetches(cluster, wanted, settings.get("isolation_level") == "read_committed", fail):
            if stop.is_set():
                return
            await loop.run_in_executor(None, put, item)
    finally:
        await cluster.close()


async def _fetches(cluster: Cluster, wanted: OffsetRange, committed_only: bool, fail: bool) -> AsyncIterator[Fetched]:
    offset, deadline = wanted.start, time.monotonic() + STALLED_S
    while offset < wanted.end:
        data, aborted = await cluster.persist(partial(_fetch, cluster, wanted, offset, committed_only))
        if data is None:
            offset = await _skip_lost(cluster, wanted, offset, fail)
            continue
        last = None
        for _, header in batch_headers(data):
            last = header
        if last is None:
            # Nothing yet below the end: records of an open transaction, or an earlier leader's on their way.
            if time.monotonic() > deadline:
                raise DataLost(
                    f"{wanted}: nothing came from offset {offset} on for {STALLED_S} s. Is the end beyond what is stable, or was the topic made anew?"
                )
            continue
        deadline = time.monotonic() + STALLED_S
        yield Fetched(data, aborted, offset)
        offset = last.next_offset


async def _fetch(cluster: Cluster, wanted: OffsetRange, offset: int, committed_only: bool) -> tuple[Any, Any]:
    """One attempt; None for data when the offset is out of range."""
    leader = await cluster.leader(wanted.topic, wanted.partition)
    topic_id = (await cluster.topic(wanted.topic)).id
    row = FetchRequest.FetchTopic.FetchPartition(partition=wanted.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    request = FetchRequest(
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        isolation_level=int(committed_only),
        session_epoch=SESSIONLESS,
        topics=[FetchRequest.FetchTopic(topic=wanted.topic, topic_id=topic_id, partitions=[row])],
    )
    response = await cluster.ask(leader, request)
    if response.error_code:
        raise ApiError(ErrorCode(response.error_code))
    part = response.responses[0].partitions[0]
    if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return None, ()
    if part.error_code:
        raise ApiError(ErrorCode(part.error_code), f"{wanted.topic}-{wanted.partition} at offset {offset}")
    aborted = tuple(AbortedTransaction(each.producer_id, each.first_offset) for each in part.aborted_transactions or ())
    return part.records, aborted


async def _skip_lost(cluster: Cluster, wanted: OffsetRange, offset: int, fail: bool) -> int:
    from ottla.client.admin.topics import TopicsAdmin

    class Asker(TopicsAdmin):
        def __init__(self) -> None:
            self._cluster = cluster
            self._started = True

    key = (wanted.topic, wanted.partition)
    starts = await Asker().earliest_offsets([key])
    start = next(iter(starts.values()))
    if fail:
        raise DataLost(
            f"{wanted.topic}-{wanted.partition}: offset {offset} is gone, the log now starts at {start}. Records were deleted "
            "before they were read (retention, or a topic made anew). Set failOnDataLoss=false to go on with what is left."
        )
    # A log that starts before the offset and does not have it ends before it: a topic made anew.
    return min(start, wanted.end) if start > offset else wanted.end
