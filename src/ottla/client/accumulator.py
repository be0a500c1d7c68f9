"""Records that wait to be sent, and batches whose fate is not known yet. Pure: no I/O, no clock, no chance.

In: records with their partition; what became of each batch. Out: batches to send, in order; which are ready and when the next
will be. The producer's shell (`sender`) does the sending.

    open ──full, linger, flush──▶ ready ──drain──▶ in flight ──acknowledged──▶ done
                                    ▲                 │ └─────refused for good──▶ done (with an error)
                                    └──── retry ──────┘
    open or ready, older than delivery_timeout ──expire──▶ done (with an error)

Invariants
- Memory: the sizes of all batches not yet done never exceed `buffer_memory`; `append` answers None instead.
- Order: the batches of a partition are drained in the order of their records. A retry goes before whatever was appended later.
- Sequences (idempotence): a batch gets its sequence when first drained and keeps it through retries, so the broker can tell a
  repetition. At most five batches of a partition are unresolved, because the broker remembers five (KIP-185).
- No gaps: the first batch of an identity goes alone until it is acknowledged. A leader takes any first sequence from a producer of
  which it knows nothing (Kafka's does before 4.5, KAFKA-15591), so one that refuses the first batch for a moment would take a later
  one, and nobody could tell any more whether the first was written. Once one is acknowledged, every leader to come knows the producer.
- A batch that was sent and then given up leaves the sequence *unresolved*: nothing new is drained for that partition until all
  that was sent has ended; then either nothing was lost, or the producer needs a new epoch (KIP-360).
- Without idempotence order holds only with one batch in flight, and then `mute` sees to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.model.ids import TopicPartition

MAX_UNRESOLVED_BATCHES = 5
SEQUENCE_MASK = 0x7FFFFFFF
BATCH_OVERHEAD = 61

Row = tuple[int, "bytes | None", "bytes | None", "tuple[tuple[str, bytes | None], ...]"]


class Identity(NamedTuple):
    """What makes a producer idempotent."""

    producer_id: int
    epoch: int


NO_IDENTITY = Identity(-1, -1)


class Batch:
    """Records of one partition that travel together. `outcome` is the shell's to set once, through `Accumulator`."""

    __slots__ = (
        "attempts",
        "callbacks",
        "created_ms",
        "doubtful",
        "encoded",
        "encoded_count",
        "error",
        "identity",
        "is_closed",
        "is_done",
        "not_before_ms",
        "offset",
        "partition",
        "pieces",
        "resequenced",
        "rows",
        "sequence",
        "size",
        "timestamp",
        "waiters",
    )

    def __init__(self, partition: TopicPartition, now_ms: float) -> None:
        self.partition = partition
        self.created_ms = now_ms
        self.rows: list[Row] = []
        self.encoded: bytearray | memoryview | None = (
            None  # a batch that was encoded by columns and lacks only its producer; then `rows` is empty
        )
        self.encoded_count = 0
        self.size = BATCH_OVERHEAD
        self.is_closed = False
        self.attempts = 0
        self.not_before_ms = 0.0
        self.identity = NO_IDENTITY
        self.sequence = -1
        self.resequenced = False  # its number changed while it was under way, so the broker will refuse it once
        self.doubtful = False  # an attempt ended without an answer: it may be in the log
        self.pieces: list[tuple[int, Batch]] | None = None
        self.is_done = False
        self.offset = -1
        self.timestamp = -1  # the broker's, if the topic has LogAppendTime
        self.error: Exception | None = None
        self.callbacks: list[tuple[int, Any]] | None = None
        self.waiters: list[Any] | None = None

    @property
    def count(self) -> int:
        return len(self.rows) or self.encoded_count

    @property
    def has_sequence(self) -> bool:
        return self.sequence >= 0


class _Queue:
    """One partition."""

    __slots__ = ("identity", "in_flight", "last_acked", "next_sequence", "partition", "route", "sent", "unresolved", "waiting")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.waiting: deque[Batch] = deque()
        self.in_flight: list[Batch] = []  # drained at least once and not done: under way, or waiting again for a retry
        self.sent = 0  # of these, how many are under way
        self.identity = NO_IDENTITY
        self.next_sequence = 0
        self.route: object = None  # the connection over which the last one went
        self.last_acked = -1
        self.unresolved = False


@dataclass(frozen=True, slots=True)
class Limits:
    batch_size: int
    linger_ms: float
    buffer_memory: int
    delivery_timeout_ms: float
    max_request_size: int
    idempotent: bool
    mute: bool  # one batch in flight per partition: order without idempotence


class Accumulator:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queues: dict[TopicPartition, _Queue] = {}
        self._active: dict[TopicPartition, _Queue] = {}  # those with a batch waiting
        self._incomplete: dict[int, Batch] = {}
        self.used = 0
        self.flushing = 0  # flushes under way: everything is ready
        self.pressed = False  # someone waits for memory: everything is ready

    # Appending ---------------------------------------------------------------------------------------------------------

    def add(self, partition: TopicPartition, row: Row, size: int) -> Batch | None:
        """Into the open batch, if there is one with room: what most records need. None leaves it to `append`."""
        queue = self._active.get(partition)
        if queue is None:
            return None
        batch = queue.waiting[-1]
        used = self.used + size
        if batch.is_closed or batch.size + size > self._limits.batch_size or used > self._limits.buffer_memory:
            return None
        batch.rows.append(row)
        batch.size += size
        self.used = used
        return batch

    def append(self, partition: TopicPartition, row: Row, size: int, now_ms: float) -> Batch | None:
        """Put a record that needs at most `size` bytes into the open batch. None when there is no room for it."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = _Queue(partition)
        waiting = queue.waiting
        batch = waiting[-1] if waiting else None
        if batch is None or batch.is_closed or batch.size + size > self._limits.batch_size:
            if self.used + size + BATCH_OVERHEAD > self._limits.buffer_memory and self._incomplete:
                return None
            if batch is not None:
                batch.is_closed = True
            batch = self._open(queue, now_ms)
        elif self.used + size > self._limits.buffer_memory:
            return None
        batch.rows.append(row)
        batch.size += size
        self.used += size
        return batch

    def _open(self, queue: _Queue, now_ms: float) -> Batch:
        batch = Batch(queue.partition, now_ms)
        queue.waiting.append(batch)
        self._active[queue.partition] = queue
        self._incomplete[id(batch)] = batch
        self.used += BATCH_OVERHEAD
        return batch

    def append_encoded(
        self, partition: TopicPartition, encoded: bytearray | memoryview, count: int, now_ms: float
    ) -> Batch | None:
        """Put a batch that was encoded elsewhere behind what waits already. None when there is no room for it."""
        if self.used + len(encoded) > self._limits.buffer_memory and self._incomplete:
            return None
        queue = self._queues.setdefault(partition, _Queue(partition))
        if queue.waiting:
            queue.waiting[-1].is_closed = True
        batch = self._open(queue, now_ms)
        batch.encoded, batch.encoded_count = encoded, count
        batch.size += len(encoded) - BATCH_OVERHEAD
        self.used += len(encoded) - BATCH_OVERHEAD
        batch.is_closed = True
        return batch

    def queue_sizes(self, topic: str) -> dict[int, int]:
        return {key.partition: len(queue.waiting) for key, queue in self._active.items() if key.topic == topic}

    # Draining ----------------------------------------------------------------------------------------------------------

    def next_event_ms(self, now_ms: float) -> float | None:
        """When to look again: a linger or a back-off ends, or a batch gets too old. None when nothing waits."""
        soonest: float | None = None
        for queue in self._active.values():
            batch = queue.waiting[0]
            ready = max(batch.not_before_ms, 0.0 if self._is_full(queue) else batch.created_ms + self._limits.linger_ms)
            too_old = batch.created_ms + self._limits.delivery_timeout_ms
            at = min(ready, too_old) if ready > now_ms else too_old
            if soonest is None or at < soonest:
                soonest = at
        return soonest

    def _is_full(self, queue: _Queue) -> bool:
        batch = queue.waiting[0]
        return (
            batch.attempts > 0
            or batch.is_closed
            or len(queue.waiting) > 1
            or batch.size >= self._limits.batch_size
            or self.flushing > 0
            or self.pressed
        )

    def _may_drain(self, queue: _Queue, identity: Identity, now_ms: float) -> bool:
        if not queue.waiting:
            return False
        batch = queue.waiting[0]
        if batch.not_before_ms > now_ms or not (self._is_full(queue) or batch.created_ms + self._limits.linger_ms <= now_ms):
            return False
        if self._limits.mute and queue.in_flight and batch.attempts == 0:
            return False
        if self._limits.mute and queue.sent:
            return False
        if not self._limits.idempotent:
            return True
        if identity is NO_IDENTITY or identity == NO_IDENTITY:
            return False
        if batch.has_sequence:
            return queue.in_flight[0] is batch  # retries go one at a time, so that a second failure cannot reorder them
        if queue.unresolved or len(queue.in_flight) >= MAX_UNRESOLVED_BATCHES or len(queue.in_flight) > queue.sent:
            return False
        return not queue.in_flight or (queue.identity == identity and queue.last_acked >= 0)

    def ready(self, identity: Identity, now_ms: float) -> Iterator[TopicPartition]:
        """Partitions with a batch that may be sent now."""
        return (key for key, queue in self._active.items() if self._may_drain(queue, identity, now_ms))

    def drain(
        self,
        partitions: list[TopicPartition],
        identity: Identity,
        now_ms: float,
        room: int | None = None,
        route: object = None,
    ) -> list[Batch]:
        """One batch of each of these (ready) partitions, as many as fit into one request of `room` bytes; at least one.

        `route` is the connection. What was never sent waits until all that went over another one is answered: a new leader that has
        nothing of this producer yet takes any first sequence, and would refuse those before it as if they were old (Kafka's does, too).
        """
        room = self._limits.max_request_size if room is None else room
        drained: list[Batch] = []
        for key in partitions:
            queue = self._queues[key]
            if not self._may_drain(queue, identity, now_ms):
                continue
            batch = queue.waiting[0]
            if queue.in_flight and queue.route is not route and not batch.has_sequence and identity.producer_id >= 0:
                continue
            if drained and batch.size > room:
                break
            room -= batch.size
            queue.waiting.popleft()
            if not queue.waiting:
                self._active.pop(key, None)
            queue.route = route
            self._send(queue, batch, identity)
            drained.append(batch)
        return drained

    def _send(self, queue: _Queue, batch: Batch, identity: Identity) -> None:
        batch.is_closed = True
        batch.attempts += 1
        queue.sent += 1
        batch.resequenced = False
        if batch.attempts > 1:
            return
        queue.in_flight.append(batch)
        if not self._limits.idempotent:
            return
        if queue.identity != identity:
            queue.identity, queue.next_sequence, queue.last_acked = identity, 0, -1
        batch.identity = identity
        batch.sequence = queue.next_sequence
        queue.next_sequence = (queue.next_sequence + batch.count) & SEQUENCE_MASK

    # Outcomes ----------------------------------------------------------------------------------------------------------

    def acknowledge(self, batch: Batch, offset: int, timestamp: int) -> None:
        queue = self._queues[batch.partition]
        queue.sent -= 1
        batch.offset, batch.timestamp = offset, timestamp
        if batch.has_sequence and batch.identity == queue.identity:
            queue.last_acked = (batch.sequence + batch.count - 1) & SEQUENCE_MASK
        self._finish(queue, batch, None)

    def retry(self, batch: Batch, not_before_ms: float) -> None:
        """Send it again later, before anything that was appended after it."""
        queue = self._queues[batch.partition]
        queue.sent -= 1
        batch.not_before_ms = not_before_ms
        self._put_back(queue, batch)

    def _put_back(self, queue: _Queue, batch: Batch) -> None:
        """Retries stand at the front, in the order in which they were first sent."""
        order = {id(each): place for place, each in enumerate(queue.in_flight)}
        place = order[id(batch)]
        index = 0
        while index < len(queue.waiting) and order.get(id(queue.waiting[index]), len(order)) < place:
            index += 1
        queue.waiting.insert(index, batch)
        self._active[queue.partition] = queue

    def fail(self, batch: Batch, error: Exception, *, was_not_written: bool = False) -> None:
        """Give a batch up that was under way. `was_not_written`: the broker said for certain that it is not in the log."""
        queue = self._queues[batch.partition]
        queue.sent -= 1
        if batch.has_sequence:
            if was_not_written and not batch.doubtful and batch.identity == queue.identity:
                self._close_gap(queue, batch)
            else:
                queue.unresolved = True
        self._finish(queue, batch, error)

    def _close_gap(self, queue: _Queue, failed: Batch) -> None:
        """The sequence numbers of a batch that was refused are used again by those behind it."""
        queue.next_sequence = (queue.next_sequence - failed.count) & SEQUENCE_MASK
        for batch in queue.in_flight[queue.in_flight.index(failed) + 1 :]:
            batch.sequence = (batch.sequence - failed.count) & SEQUENCE_MASK
            batch.resequenced = True

    def expire(self, now_ms: float, error: Callable[[Batch], Exception]) -> list[Batch]:
        """Give up what has waited longer than `delivery_timeout_ms`; returns it."""
        expired: list[Batch] = []
        for queue in list(self._active.values()):
            while queue.waiting and queue.waiting[0].created_ms + self._limits.delivery_timeout_ms <= now_ms:
                expired.append(self._give_up(queue, queue.waiting.popleft(), error))
            if not queue.waiting:
                self._active.pop(queue.partition, None)
        return expired

    def abort_waiting(self, error: Callable[[Batch], Exception]) -> list[Batch]:
        """Give up everything that is not under way: a transaction is being aborted, or the producer closed."""
        dropped: list[Batch] = []
        for queue in list(self._active.values()):
            while queue.waiting:
                dropped.append(self._give_up(queue, queue.waiting.popleft(), error))
        self._active.clear()
        return dropped

    def _give_up(self, queue: _Queue, batch: Batch, error: Callable[[Batch], Exception]) -> Batch:
        queue.unresolved |= batch.has_sequence
        self._finish(queue, batch, error(batch))
        return batch

    def _finish(self, queue: _Queue, batch: Batch, error: Exception | None) -> None:
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        if self._incomplete.pop(id(batch), None) is not None:
            self.used -= batch.size
        batch.is_done = True
        batch.error = error

    def split(self, batch: Batch, target_size: int) -> list[Batch] | None:
        """Cut a batch that was too large for the broker into smaller ones; None if it holds a single record."""
        if len(batch.rows) < 2:
            return None
        queue = self._queues[batch.partition]
        queue.sent -= 1
        place = queue.in_flight.index(batch)
        pieces = self._cut(batch, target_size)
        queue.in_flight[place : place + 1] = pieces
        self._incomplete.pop(id(batch), None)
        self.used += sum(piece.size for piece in pieces) - batch.size
        batch.pieces = []
        first = 0
        for piece in pieces:
            self._incomplete[id(piece)] = piece
            batch.pieces.append((first, piece))
            first += piece.count
            self._put_back(queue, piece)
        return pieces

    @staticmethod
    def _cut(batch: Batch, target_size: int) -> list[Batch]:
        pieces: list[Batch] = []
        average = max(1, (batch.size - BATCH_OVERHEAD) // batch.count)
        per_piece = max(1, min(batch.count // 2, (target_size - BATCH_OVERHEAD) // average))
        for start in range(0, batch.count, per_piece):
            piece = Batch(batch.partition, batch.created_ms)
            piece.rows = batch.rows[start : start + per_piece]
            piece.size = BATCH_OVERHEAD + average * piece.count
            piece.is_closed = True
            piece.attempts = batch.attempts
            piece.identity = batch.identity
            if batch.has_sequence:
                piece.sequence = (batch.sequence + start) & SEQUENCE_MASK
            pieces.append(piece)
        return pieces

    # Sequences ---------------------------------------------------------------------------------------------------------

    def is_out_of_order_passing(self, batch: Batch) -> bool:
        """Whether OUT_OF_ORDER_SEQUENCE_NUMBER will mend itself: a batch before this one has not ended yet, or its number changed."""
        queue = self._queues[batch.partition]
        return batch.resequenced or bool(queue.in_flight and queue.in_flight[0] is not batch)

    def needs_new_epoch(self) -> bool:
        """Whether a partition has lost count for good. Partitions whose doubts have gone are cleared on the way."""
        needed = False
        for queue in self._queues.values():
            if not queue.unresolved or queue.in_flight:
                continue
            if queue.next_sequence == (queue.last_acked + 1) & SEQUENCE_MASK:
                queue.unresolved = False
            else:
                needed = True
        return needed

    def has_unresolved(self) -> bool:
        return any(queue.unresolved for queue in self._queues.values())

    def new_epoch(self) -> None:
        """The producer has a new identity: every partition counts from 0 once what is under way has ended."""
        for queue in self._queues.values():
            if not queue.in_flight:
                queue.unresolved = False

    # Looking -----------------------------------------------------------------------------------------------------------

    def incomplete(self) -> list[Batch]:
        return list(self._incomplete.values())

    @property
    def has_incomplete(self) -> bool:
        return bool(self._incomplete)
