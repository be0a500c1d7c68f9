"""`Producer`: records in, deliveries out.

    async with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
        delivery = await producer.send("orders", b"value", key=b"customer-7")   # in the buffer; waits only when that is full
        metadata = await delivery                                                # acknowledged: topic, partition, offset

Three styles: ignore the delivery (fire and forget), await it (synchronous), or give `on_delivery` (callback). Retries are on by
themselves, without duplicates and without reordering, until `delivery_timeout_ms`. One record's way: serializer → partitioner →
`accumulator` → `sender` → `connection`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack

from ottla.client.accumulator import BATCH_OVERHEAD, Accumulator, Batch, Limits, Row
from ottla.client.cluster import Cluster
from ottla.client.delivery import Callback, Delivery, RecordMetadata
from ottla.client.encoding import row_size
from ottla.client.errors import ClientClosed, IllegalState, SerializationFailed, UnknownPartition, WaitTimedOut
from ottla.client.life import Client
from ottla.client.metadata import TopicInfo
from ottla.client.open_transaction import OpenTransaction
from ottla.client.partitioner import RoundRobin, UniformSticky, partition_of
from ottla.client.sender import Sender
from ottla.client.settings import Partitioner, ProducerSettings, resolve
from ottla.client.transactions import GroupMetadata, State, Transactions
from ottla.host import World
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition
from ottla.records.compression import codec_id

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger("ottla.producer")

Headers = Mapping[str, "bytes | None"] | Sequence[tuple[str, "bytes | None"]]
Offsets = Mapping[tuple[str, int], "int | tuple[int, int, str]"]
ROWS_BETWEEN_YIELDS = 500


class _Known:
    """A topic as `send` needs it; made anew whenever its metadata changes."""

    __slots__ = ("info", "targets")

    def __init__(self, info: TopicInfo) -> None:
        self.info = info
        self.targets = [TopicPartition(info.name, part.partition) for part in info.partitions]


class Producer(Client):
    def __init__(self, *, world: World | None = None, **settings: Unpack[ProducerSettings]) -> None:
        self._settings = resolve(ProducerSettings, settings)
        self._cluster = Cluster(self._settings, world)
        self._codec = codec_id(self._settings["compression_type"])
        self._accumulator = Accumulator(_limits(self._settings))
        self._sticky = UniformSticky(self._settings["batch_size"], self._cluster.world.random.below)
        self._round_robin = RoundRobin()
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._known: dict[str, _Known] = {}
        # Read for every record, so not looked up for every record.
        self._key_serializer = self._settings["key_serializer"]
        self._value_serializer = self._settings["value_serializer"]
        self._wall_ms = self._cluster.world.clock.wall_ms
        self._largest = min(self._settings["max_request_size"], self._settings["buffer_memory"])
        self._nearly_full = self._settings["batch_size"] - BATCH_OVERHEAD
        self._since_yield = 0
        self._sender: Sender | None = None
        self._transactions: Transactions | None = None

    # Life --------------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._sender = Sender(self._cluster, self._accumulator, self._settings, self._codec)
        self._sender.on_room = self._room_freed
        self._sender.on_idle = self._became_idle
        if self._settings["transactional_id"] is not None:
            self._transactions = Transactions(self._cluster, self._accumulator, self._sender, self._settings)

    async def close(self, timeout_ms: float | None = None) -> None:
        """Deliver what is buffered, for at most `timeout_ms` (None: until it is delivered or given up), then disconnect.

        An open transaction is aborted.
        """
        if self._closed:
            return
        self._closed = True
        if self._started and self._sender is not None:
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    if self._transactions is not None and self._transactions.state in (State.OPEN, State.BROKEN):
                        await self._abort(self._transactions)
                    else:
                        await self._wait_until_idle()
            except (TimeoutError, ApiError) as error:
                log.warning("close_incomplete error=%s", error)
            self._sender.fail_waiting(ClientClosed("the producer was closed before this record was delivered"))
            self._sender.close()
        self._room_freed()
        await self._cluster.close()

    def _running(self) -> Sender:
        self._check_running()
        assert self._sender is not None
        return self._sender

    # Sending -----------------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
        on_delivery: Callback | None = None,
    ) -> Delivery:
        """Put a record into the buffer. Waits, at most `max_block_ms`, for the topic's metadata or for room in `buffer_memory`.

        A record that can never be sent (too large, unknown partition, a serializer that raises) raises here; what goes wrong
        later is raised by the delivery.
        """
        # `_checked` and `_add_now` written out: this is done for every record, and calls would cost more than what they do.
        if self._closed or self._sender is None:
            self._running()
        if self._transactions is not None:
            self._transactions.check_open()
        row = self._row(key, value, timestamp_ms, headers)
        size = row_size(row)
        if size > self._largest:
            raise _too_large(topic, size, self._settings)
        known = self._known.get(topic)
        if known is None or known.info is not self._cluster.view.topics.get(topic):
            known = await self._know(topic)
        number = self._choose(known.info, row) if partition is None else partition
        if not 0 <= number < len(known.targets):
            known = await self._know_partition(topic, number)
        target = known.targets[number]
        batch = self._accumulator.add(target, row, size)
        if batch is None:
            batch = await self._append_when_room(target, row, size)
        index = len(batch.rows) - 1
        is_full = batch.size >= self._nearly_full
        if partition is None and row[1] is None:
            self._sticky.produced(topic, number, size, is_full)
        if not index or is_full or on_delivery is not None:
            self._attend(batch, index, on_delivery)
        self._since_yield += 1
        if self._since_yield >= ROWS_BETWEEN_YIELDS:  # a tight loop of sends must let the loop send, too
            self._since_yield = 0
            await asyncio.sleep(0)
        return Delivery(batch, index)

    def _checked(self, topic: str, key: Any, value: Any, timestamp_ms: int | None, headers: Headers) -> tuple[Row, int]:
        """For `ottla.sync`, on any thread: the record as it is kept, and its size; raises if it can never be sent."""
        if self._closed or self._sender is None:
            self._running()
        if self._transactions is not None:
            self._transactions.check_open()
        row = self._row(key, value, timestamp_ms, headers)
        size = row_size(row)
        if size > self._largest:
            raise _too_large(topic, size, self._settings)
        return row, size

    def _add_now(self, topic: str, row: Row, size: int, partition: int | None, on_delivery: Callback | None) -> Delivery | None:
        """For `ottla.sync`, on the loop: a checked record into the buffer. None: its topic must be asked for, or there is no room."""
        known = self._known.get(topic)
        if known is None or known.info is not self._cluster.view.topics.get(topic):
            return None
        number = self._choose(known.info, row) if partition is None else partition
        if not 0 <= number < len(known.targets):
            return None
        batch = self._accumulator.append(known.targets[number], row, size, self._cluster.now_ms())
        return None if batch is None else self._added(batch, known.targets[number], row, size, partition, on_delivery)

    async def _add_later(self, topic: str, row: Row, size: int, partition: int | None, on_delivery: Callback | None) -> Delivery:
        known = await self._learn(topic, partition)
        target = known.targets[self._choose(known.info, row) if partition is None else partition]
        batch = await self._append_when_room(target, row, size)
        return self._added(batch, target, row, size, partition, on_delivery)

    def _added(
        self, batch: Batch, target: TopicPartition, row: Row, size: int, partition: int | None, on_delivery: Callback | None
    ) -> Delivery:
        index = len(batch.rows) - 1
        if partition is None and row[1] is None:
            self._sticky.produced(target.topic, target.partition, size, batch.size >= self._nearly_full)
        self._attend(batch, index, on_delivery)
        return Delivery(batch, index)

    def _attend(self, batch: Batch, index: int, on_delivery: Callback | None) -> None:
        """To what not every record needs: a callback, a sender that knows of a new batch or of a full one."""
        if on_delivery is not None:
            if batch.callbacks is None:
                batch.callbacks = []
            batch.callbacks.append((index, on_delivery))
        assert self._sender is not None
        if index == 0:
            self._sender.wake_by(batch.created_ms + self._settings["linger_ms"])
        if batch.size >= self._nearly_full:
            self._sender.wake()

    async def send_and_wait(self, topic: str, value: Any = None, **options: Any) -> RecordMetadata:
        """Send one record and wait until it is acknowledged."""
        return await (await self.send(topic, value, **options))

    async def flush(self) -> None:
        """Send everything that is buffered now, and wait until each record is delivered or given up."""
        sender = self._running()
        self._accumulator.flushing += 1
        try:
            sender.wake()
            for batch in self._accumulator.incomplete():
                await _fate(batch)
        finally:
            self._accumulator.flushing -= 1

    async def partitions_for(self, topic: str, *, timeout_ms: float | None = None) -> TopicInfo:
        """A topic's partitions and their leaders. Waits for a topic that is missing, at most `timeout_ms` (`max_block_ms`)."""
        self._running()
        return await self._topic(topic, timeout_ms)

    async def _topic(self, topic: str, timeout_ms: float | None = None) -> TopicInfo:
        limit = self._settings["max_block_ms"] if timeout_ms is None else timeout_ms
        return await self._cluster.topic(topic, allow_create=True, timeout_ms=limit)

    def _row(self, key: Any, value: Any, timestamp_ms: int | None, headers: Headers) -> Row:
        if self._key_serializer is not None:
            key = _serialize("key", self._key_serializer, key)
        if self._value_serializer is not None:
            value = _serialize("value", self._value_serializer, value)
        if (key is not None and type(key) is not bytes) or (value is not None and type(value) is not bytes):
            key, value = _as_bytes("key", key), _as_bytes("value", value)
        if timestamp_ms is None:
            timestamp_ms = self._wall_ms()
        elif timestamp_ms < 0:
            raise SerializationFailed(f"a timestamp must not be negative, and {timestamp_ms} is")
        return (timestamp_ms, key, value, _headers(headers) if headers else ())

    def _knows(self, topic: str, partition: int | None) -> bool:
        known = self._known.get(topic)
        return known is not None and (partition is None or 0 <= partition < len(known.targets))

    async def _learn(self, topic: str, partition: int | None) -> _Known:
        """Raises if there is no such topic, or no such partition of it."""
        known = await self._know(topic)
        if partition is not None and not 0 <= partition < len(known.targets):
            known = await self._know_partition(topic, partition)
        return known

    async def _know(self, topic: str) -> _Known:
        info = await self._topic(topic)
        known = self._known[topic] = _Known(info)
        return known

    async def _know_partition(self, topic: str, partition: int) -> _Known:
        """A partition that the metadata at hand does not have: the topic may have grown since. Raises if it has not."""
        await self._cluster.partition(topic, partition)
        return await self._know(topic)

    def _choose(self, info: TopicInfo, row: Row) -> int:
        partitioner = self._settings["partitioner"]
        key = row[1]
        if partitioner == "default":
            if key is not None and not self._settings["partitioner_ignore_keys"]:
                return partition_of(key, len(info.partitions))
            current = self._sticky.current(info.name)
            return self._choose_sticky(info) if current is None else current
        if partitioner == "round_robin":
            return self._round_robin.choose(info.name, len(info.partitions))
        return _call_partitioner(partitioner, info.name, row, len(info.partitions))

    def _choose_sticky(self, info: TopicInfo) -> int:
        """Another partition for records without a key: one that has a leader, rather one whose queue is short."""
        queues = None
        if self._settings["partitioner_adaptive_partitioning_enable"]:
            queues = self._accumulator.queue_sizes(info.name)
        available = [part.partition for part in info.partitions if part.leader >= 0] or list(range(len(info.partitions)))
        return self._sticky.choose(info.name, available, queues)

    # Room --------------------------------------------------------------------------------------------------------------

    async def _append_when_room(self, target: TopicPartition, row: Row, size: int) -> Batch:
        def append() -> Batch | None:
            return self._accumulator.append(target, row, size, self._cluster.now_ms())

        return append() or await self._when_room(append)

    async def _when_room(self, append: Callable[[], Batch | None]) -> Batch:
        """Wait in line until an acknowledged batch has freed memory."""
        deadline = asyncio.get_running_loop().time() + self._settings["max_block_ms"] / 1000
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiting_for_room.append(waiter)
                    self._accumulator.pressed = True
                    self._running().wake()
                    await waiter
                    self._running()
                    batch = append()
                    if batch is not None:
                        return batch
        except TimeoutError:
            raise WaitTimedOut(
                f"buffer_memory ({self._settings['buffer_memory']} bytes) stayed full for max_block_ms ({self._settings['max_block_ms']:g}); "
                "the brokers take records more slowly than they are sent"
            ) from None

    def _room_freed(self) -> None:
        waiting = self._waiting_for_room
        self._waiting_for_room = deque()
        self._accumulator.pressed = False
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _became_idle(self) -> None:
        idle, self._idle = self._idle, []
        for waiter in idle:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait_until_idle(self) -> None:
        assert self._sender is not None
        self._accumulator.flushing += 1
        self._sender.wake()
        while self._accumulator.has_incomplete:
            waiter = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter
        self._accumulator.flushing -= 1

    # Transactions ------------------------------------------------------------------------------------------------------

    def _transactional(self) -> Transactions:
        self._running()
        if self._transactions is None:
            raise IllegalState("this Producer has no transactional_id")
        return self._transactions

    async def init_transactions(self) -> None:
        """Once, before the first transaction: fences earlier producers of the same transactional_id."""
        await self._transactional().init()

    async def begin_transaction(self) -> None:
        self._transactional().begin()

    async def commit_transaction(self) -> None:
        """Deliver everything that was sent, then make it visible to read_committed consumers, all or nothing."""
        transactions = self._transactional()
        if transactions.state is State.OPEN:
            await self.flush()
        await transactions.commit()

    async def abort_transaction(self) -> None:
        await self._abort(self._transactional())

    async def _abort(self, transactions: Transactions) -> None:
        assert self._sender is not None
        transactions.begin_abort()
        self._sender.fail_waiting(
            ApiError(ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted before this record was sent")
        )
        await self._wait_until_idle()
        await transactions.abort()

    async def detach_transaction(self) -> OpenTransaction:
        """Deliver everything that was sent, and leave the transaction open for somebody else to end: one who decides over
        several producers (`Admin.end_transaction`). This producer is of no further use."""
        transactions = self._transactional()
        await self.flush()
        return transactions.detach()

    async def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        """Commit a consumer's offsets with this transaction. An offset is that of the next record to read."""
        transactions = self._transactional()
        rows = {TopicPartition(*key): value if isinstance(value, tuple) else (value, -1, "") for key, value in offsets.items()}
        await transactions.send_offsets(rows, GroupMetadata(group) if isinstance(group, str) else group)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """`async with producer.transaction():` commits at the end, or aborts if the block raises."""
        transactions = self._transactional()
        if transactions.state is State.UNINITIALIZED:
            await self.init_transactions()
        await self.begin_transaction()
        try:
            yield
        except BaseException:
            if transactions.state is not State.FATAL:
                await self._abort(transactions)
            raise
        try:
            await self.commit_transaction()
        except ApiError:
            if transactions.state is State.BROKEN:
                await self._abort(transactions)
            raise

    # Arrow -------------------------------------------------------------------------------------------------------------

    async def send_arrow(self, topic: str, batch: pyarrow.RecordBatch, *, partition: int | None = None) -> list[Delivery]:
        """Send a `pyarrow.RecordBatch` by columns: `value`, and if there are such columns `key`, `timestamp`, `headers`.

        Rows with a `partition` column or a key go where `send` would put them; the others go together. One delivery per batch
        that was made; each stands for all rows of its batch.
        """
        from ottla.client.arrow import encode_arrow

        sender = self._running()
        if self._transactions is not None:
            self._transactions.check_open()
        info = await self._topic(topic)
        if partition is not None and not 0 <= partition < len(info.partitions):
            await self._know_partition(topic, partition)
        sticky = self._choose_sticky(info)
        deliveries = []
        now_ms = self._cluster.world.clock.wall_ms()
        for made in encode_arrow(batch, len(info.partitions), partition, sticky, now_ms, self._settings, self._codec):
            for number, encoded, count in made:
                deliveries.append(await self._append_encoded(TopicPartition(topic, number), encoded, count))
                sender.wake()
            await asyncio.sleep(0)  # once for them all, so that a request takes those of several partitions
        return deliveries

    async def _append_encoded(self, target: TopicPartition, encoded: bytearray | memoryview, count: int) -> Delivery:
        if len(encoded) > self._largest:
            raise _too_large(target.topic, len(encoded), self._settings)

        def append() -> Batch | None:
            return self._accumulator.append_encoded(target, encoded, count, self._cluster.now_ms())

        made = append() or await self._when_room(append)
        self._sticky.produced(target.topic, target.partition, len(encoded), True)
        return Delivery(made, 0)


def _limits(settings: ProducerSettings) -> Limits:
    return Limits(
        batch_size=settings["batch_size"],
        linger_ms=settings["linger_ms"],
        buffer_memory=settings["buffer_memory"],
        delivery_timeout_ms=settings["delivery_timeout_ms"],
        max_request_size=settings["max_request_size"],
        idempotent=bool(settings["enable_idempotence"]),
        mute=not settings["enable_idempotence"] and settings["max_in_flight_requests_per_connection"] == 1,
    )


async def _fate(batch: Batch) -> None:
    """Wait until a batch is done, whatever became of it."""
    if not batch.is_done:
        waiter = asyncio.get_running_loop().create_future()
        if batch.waiters is None:
            batch.waiters = []
        batch.waiters.append(waiter)
        await waiter


def _serialize(what: str, serializer: Callable[[Any], Any], value: Any) -> Any:
    try:
        return serializer(value)
    except Exception as error:
        raise SerializationFailed(f"the {what}_serializer raised {type(error).__name__}: {error}") from error


def _as_bytes(what: str, value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise SerializationFailed(
        f"a {what} must be bytes or None, not {type(value).__name__}; give a {what}_serializer, such as str.encode"
    )


def _headers(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    pairs: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    made = []
    for name, value in pairs:
        if not isinstance(name, str):
            raise SerializationFailed(f"a header's name must be text, not {name!r}")
        made.append((name, _as_bytes("header", value)))
    return tuple(made)


def _call_partitioner(partitioner: str | Partitioner, topic: str, row: Row, count: int) -> int:
    assert callable(partitioner)
    try:
        number = partitioner(topic, row[1], row[2], count)
    except Exception as error:
        raise SerializationFailed(f"the partitioner raised {type(error).__name__}: {error}") from error
    if not isinstance(number, int) or not 0 <= number < count:
        raise UnknownPartition(f"the partitioner chose {number!r}; {topic} has partitions 0 to {count - 1}")
    return number


def _too_large(topic: str, size: int, settings: ProducerSettings) -> ApiError:
    return ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a record of {size} bytes for {topic} is larger than max_request_size ({settings['max_request_size']}) "
        f"or buffer_memory ({settings['buffer_memory']})",
    )
