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

import asyncio
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ottla.background import background_loop, run
from ottla.client import admin as _admin
from ottla.client import consumer as _consumer
from ottla.client import producer as _producer
from ottla.client.delivery import Delivery, RecordMetadata

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

    def start(self) -> Self:
        run(self._object.start())
        return self

    def close(self) -> None:
        run(self._object.close())

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
            return run(_call(value, *arguments, **options))

        return waiting

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(self._object) if not name.startswith("_"))})


class Sent:
    """The fate of one record: `result()` waits for it."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    @property
    def done(self) -> bool:
        return self._delivery.done

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        if self._delivery.done:
            return self._delivery.result()
        return _await(self._delivery).result(timeout_s)


def _await(delivery: Delivery) -> Future[RecordMetadata]:
    async def wait() -> RecordMetadata:
        return await delivery

    return asyncio.run_coroutine_threadsafe(wait(), background_loop())


class Producer(_Face):
    """`ottla.Producer`, waiting. Callbacks run on the background thread."""

    _kind = _producer.Producer

    def send(self, topic: str, value: Any = None, **options: Any) -> Sent:
        return Sent(run(self._object.send(topic, value, **options)))

    def send_and_wait(self, topic: str, value: Any = None, **options: Any) -> RecordMetadata:
        metadata: RecordMetadata = run(self._object.send_and_wait(topic, value, **options))
        return metadata

    def send_arrow(self, topic: str, batch: pyarrow.RecordBatch, **options: Any) -> list[Sent]:
        return [Sent(delivery) for delivery in run(self._object.send_arrow(topic, batch, **options))]

    def flush(self) -> None:
        run(self._object.flush())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        context = self._object.transaction()
        run(_call(context.__aenter__))
        try:
            yield
        except BaseException as error:
            if not run(_call(context.__aexit__, type(error), error, error.__traceback__)):
                raise
        else:
            run(_call(context.__aexit__, None, None, None))


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
