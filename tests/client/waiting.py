"""Brokers learn of changes a moment after the controller made them: ask until it is so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ottla import Consumer, OttlaError

T = TypeVar("T")
LIMIT_S = 15.0


async def eventually(ask: Callable[[], Awaitable[T]], is_so: Callable[[T], bool] = bool, limit_s: float = LIMIT_S) -> T:
    """The first answer that is as wanted. The last answer, or error, is what a failure shows."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while True:
        try:
            answer = await ask()
            if is_so(answer):
                return answer
            failure: BaseException = AssertionError(f"still {answer!r}")
        except OttlaError as error:
            failure = error
        if loop.time() > deadline:
            raise failure
        await asyncio.sleep(0.02)


async def poll_forever(consumer: Consumer) -> None:
    """Polls until it raises, or until that takes too long."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            await consumer.poll(500)
