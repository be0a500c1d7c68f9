"""The clients without asyncio: the same objects on a loop in the background.

    from ottla.sync import Producer, Consumer, Admin

    with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
        producer.send("orders", b"value").result()

    with Consumer(bootstrap_servers="127.0.0.1:9092", group_id="billing") as consumer:
        consumer.subscribe(["orders"])
        for record in consumer:
            ...

Every coroutine method of the asynchronous object is a plain method here that waits for its result; what is a plain method there
is one here, run on the loop. One loop and one thread serve all objects of the process, started with the first and ended with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ottla.background import background_loop, run
from ottla.client import admin as _admin
from ottla.client import consumer as _consumer
from ottla.client import producer as _producer
from ottla.client.delivery import Callback, RecordMetadata
from ottla.handover import Handover, Sent

if TYPE_CHECKING:
    import pyarrow

    from ottla.client.positions import ConsumerRecord

T = TypeVar("T")
ITERATION_WAIT_MS = 500.0  # an iteration looks up this often, so that Ctrl-C is heard


async def _call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    result = function(*arguments, **options)
    return await result if inspect.isawaitable(result) else result


class _Face:
    """A synchronous face of an asynchronous object. Attributes that are functions wait; others are read."""

    _kind: type[Any]

    def __init__(self, **settings: Any) -> None:
        self._object: Any = run(_call(self._kind, **settings))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return run(work)

    def start(self) -> Self:
        self._run(self._object.start())
        return self

    def close(self) -> None:
        self._run(self._object.close())

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._object, name)
        if not callable(value):
            return value

        @wraps(value)
        def waiting(*arguments: Any, **options: Any) -> Any:
            return self._run(_call(value, *arguments, **options))

        return waiting

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(self._object) if not name.startswith("_"))})


class Producer(_Face):
    """`ottla.Producer`, waiting; several threads may share one. Callbacks run on the background thread, serializers on yours."""

    _kind = _producer.Producer

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._handover = Handover(self._object, background_loop())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return run(self._behind_what_was_sent(work))

    async def _behind_what_was_sent(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            await self._handover.done()
        except BaseException:
            work.close()
            raise
        return await work

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: _producer.Headers = (),
        on_delivery: Callback | None = None,
    ) -> Sent:
        """As `ottla.Producer.send`. Does not wait for the background thread, unless that is far behind: what goes wrong there
        (`buffer_memory` stays full) is raised by `result`, and told to the callback."""
        producer: _producer.Producer = self._object
        row, size = producer._checked(topic, key, value, timestamp_ms, headers)
        if not producer._knows(topic, partition):
            run(producer._learn(topic, partition))
        return self._handover.put(topic, row, size, partition, on_delivery)

    def send_and_wait(self, topic: str, value: Any = None, **options: Any) -> RecordMetadata:
        return self.send(topic, value, **options).result()

    def send_arrow(self, topic: str, batch: pyarrow.RecordBatch, **options: Any) -> list[Sent]:
        deliveries = self._run(self._object.send_arrow(topic, batch, **options))
        return [Sent(self._handover, delivery) for delivery in deliveries]

    def flush(self) -> None:
        self._run(self._object.flush())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        context = self._object.transaction()
        self._run(_call(context.__aenter__))
        try:
            yield
        except BaseException as error:
            if not self._run(_call(context.__aexit__, type(error), error, error.__traceback__)):
                raise
        else:
            self._run(_call(context.__aexit__, None, None, None))


class Consumer(_Face):
    """`ottla.Consumer`, waiting. Rebalance listeners run on the background thread, while a poll waits."""

    _kind = _consumer.Consumer

    def poll(self, timeout_ms: float = 0, *, max_records: int | None = None) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] = run(self._object.poll(timeout_ms, max_records=max_records))
        return records

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """One record at a time, for ever; the position is behind those that were handed out."""
        while True:
            records = self.poll(ITERATION_WAIT_MS)
            for index, record in enumerate(records):
                try:
                    yield record
                except GeneratorExit:  # the loop was left: what was fetched but not handed out comes again
                    self._rewind(records[index + 1 :])
                    raise

    def _rewind(self, records: list[ConsumerRecord]) -> None:
        assigned = self._object.assignment()
        for record in reversed(records):
            if (record.topic, record.partition) in assigned:
                self.seek((record.topic, record.partition), record.offset)

    def arrow(self, *, headers: bool = False) -> Iterator[pyarrow.RecordBatch]:
        batches = self._object.arrow(headers=headers)
        while True:
            yield run(_call(batches.__anext__))


class Admin(_Face):
    """`ottla.Admin`, waiting."""

    _kind = _admin.Admin
