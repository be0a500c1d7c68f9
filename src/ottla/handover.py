"""Records on their way from a thread that is not asyncio's to a `Producer` on its loop: many at a time.

A `send` that waited for the loop would cost two switches between threads for each record. So records are checked by the thread that
sends them, put in line, and carried over together. Order is kept; whatever else the producer is asked for waits for the line before.

Invariants
- `_line` and `_busy` are touched under the lock only. `_busy` says that a carrier is on the loop, or on its way there.
- A line holds at most `MAX_RECORDS` records or `MAX_BYTES`; who sends more waits. One more line may be under way to the producer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

from ottla.client.accumulator import Row
from ottla.client.delivery import Callback, Delivery, RecordMetadata
from ottla.client.errors import WaitTimedOut

if TYPE_CHECKING:
    from ottla.client.producer import Producer

log = logging.getLogger("ottla.producer")

MAX_RECORDS = 1_000
MAX_BYTES = 1 << 20


class Sent:
    """The fate of one record: `result()` waits for it."""

    __slots__ = ("_handover", "delivery", "error")

    def __init__(self, handover: Handover, delivery: Delivery | None = None) -> None:
        self._handover = handover
        self.delivery = delivery  # None: still in line, or not taken
        self.error: Exception | None = None  # why it was not taken

    @property
    def done(self) -> bool:
        return self.error is not None or (self.delivery is not None and self.delivery.done)

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        if self.delivery is not None and self.delivery.done:
            return self.delivery.result()
        return asyncio.run_coroutine_threadsafe(self._wait(), self._handover.loop).result(timeout_s)

    async def _wait(self) -> RecordMetadata:
        if self.delivery is None:
            await self._handover.done()
        if self.error is not None:
            raise self.error
        assert self.delivery is not None
        return await self.delivery


Item = tuple[Sent, str, Row, int, "int | None", "Callback | None"]


class Handover:
    def __init__(self, producer: Producer, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._producer = producer
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._line: list[Item | asyncio.Future[None]] = []
        self._size = 0
        self._busy = False
        self._carrying: asyncio.Task[None] | None = None

    # From any thread -----------------------------------------------------------------------------------------------------

    def put(self, topic: str, row: Row, size: int, partition: int | None, on_delivery: Callback | None) -> Sent:
        sent = Sent(self)
        with self._lock:
            while self._is_full() and not self._on_loop():
                self._room.wait()
            self._line.append((sent, topic, row, size, partition, on_delivery))
            self._size += size
            wakes, self._busy = not self._busy, True
        if wakes:
            self.loop.call_soon_threadsafe(self._start)
        return sent

    def _is_full(self) -> bool:
        return len(self._line) >= MAX_RECORDS or self._size >= MAX_BYTES

    def _on_loop(self) -> bool:
        """A callback may send, too; waiting there would be waiting for itself."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    # On the loop -----------------------------------------------------------------------------------------------------------

    async def done(self) -> None:
        """Everything that was put in line before this is with the producer, or was refused."""
        with self._lock:
            if not self._busy:
                return
            turn = self.loop.create_future()
            self._line.append(turn)
        await turn

    def _start(self) -> None:
        self._carrying = self.loop.create_task(self._carry())

    async def _carry(self) -> None:
        while line := self._next_line():
            blocked: WaitTimedOut | None = None  # once one has waited for `max_block_ms`, so have those that stood behind it
            for item in line:
                if not isinstance(item, tuple):
                    if not item.done():
                        item.set_result(None)
                    continue
                sent, topic, row, size, partition, on_delivery = item
                try:
                    sent.delivery = self._producer._add_now(topic, row, size, partition, on_delivery)
                    if sent.delivery is None:
                        if blocked is not None:
                            raise blocked
                        sent.delivery = await self._producer._add_later(topic, row, size, partition, on_delivery)
                except Exception as error:
                    blocked = error if isinstance(error, WaitTimedOut) else blocked
                    sent.error = error
                    _tell(error, on_delivery)
            await asyncio.sleep(0)  # let the producer send

    def _next_line(self) -> list[Any]:
        with self._lock:
            line, self._line, self._size = self._line, [], 0
            self._busy = bool(line)
            self._room.notify_all()
        return line


def _tell(error: Exception, on_delivery: Callback | None) -> None:
    """`Sent.result` raises it, too, but perhaps nobody asks."""
    if on_delivery is None:
        log.warning("record_not_taken error=%s", error)
        return
    try:
        on_delivery(None, error)
    except Exception:
        log.exception("callback_failed")
