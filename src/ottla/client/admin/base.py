"""What the parts of `Admin` share: a cluster to ask, retries, and one way to report what failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from ottla.client.errors import PartialFailure
from ottla.client.life import Client
from ottla.client.metadata import code_of
from ottla.model.errors import ApiError
from ottla.protocol.schema import Message

K = TypeVar("K")
V = TypeVar("V")


# A topic that was just created is news that takes a moment to reach every broker. One that is still unknown after so long is missing.
TOPIC_PATIENCE_MS = 3_000.0


class AdminBase(Client):
    _topic_patience_ms = TOPIC_PATIENCE_MS

    async def _persist(self, attempt: Callable[[], Awaitable[V]]) -> V:
        self._check_running()
        return await self._cluster.persist(attempt)

    async def _ask_any(self, request: Message) -> Any:
        """Any broker can answer; one that fails is replaced by another."""
        return await self._persist(lambda: self._cluster.ask(None, request))

    async def _ask_controller(self, request: Message, codes: Callable[[Any], Iterable[int]]) -> Any:
        """Answers whose `codes` tell that this was not the controller are asked for again."""

        async def attempt() -> Any:
            reply = await self._cluster.ask_controller(request)
            for number in codes(reply):
                if number in (41, 7) and number:  # NOT_CONTROLLER, and REQUEST_TIMED_OUT while one is being elected
                    raise_code(number)
            return reply

        return await self._persist(attempt)

    async def _ask_coordinator(self, kind: int, key: str, request: Message, codes: Callable[[Any], Iterable[int]]) -> Any:
        async def attempt() -> Any:
            reply = await self._cluster.ask_coordinator(kind, key, request)
            for number in codes(reply):
                if number in (14, 15, 16):  # the coordinator loads, is missing, or has moved
                    raise_code(number)
            return reply

        return await self._persist(attempt)

    async def _ask_leaders(
        self, partitions: Iterable[tuple[str, int]], ask: Callable[[int, list[tuple[str, int]]], Awaitable[dict[Any, Any]]]
    ) -> dict[Any, Any]:
        """Ask each leader for its share; retriable errors retry only what is missing."""
        wanted = list(partitions)
        done: dict[Any, Any] = {}
        failed: dict[Any, ApiError] = {}
        believed_at = self._cluster.now_ms() + self._topic_patience_ms

        async def attempt() -> None:
            missing = [key for key in wanted if key not in done and key not in failed]
            unknown = await self._cluster.unknown_topics({topic for topic, _ in missing})
            if self._cluster.now_ms() >= believed_at:
                failed.update({key: unknown[key[0]] for key in missing if key[0] in unknown})
                unknown = {}
            shares = await self._cluster.leaders(key for key in missing if key[0] not in unknown and key not in failed)
            retry = next(iter(unknown.values()), None)
            for answers in await asyncio.gather(*(ask(leader, share) for leader, share in shares.items())):
                for key, value in answers.items():
                    if not isinstance(value, ApiError):
                        done[key] = value
                    elif value.retriable:
                        retry = value
                    else:
                        failed[key] = value
            if retry is not None:
                await self._cluster.refresh({topic for topic, _ in missing})
                raise retry

        await self._persist(attempt)
        return settle(done, failed)


def settle(results: dict[K, V], errors: Mapping[K, ApiError]) -> dict[K, V]:
    """The results, if nothing failed. One failed question raises its own error, several a `PartialFailure`."""
    if not errors:
        return results
    if len(errors) == 1 and not results:
        raise next(iter(errors.values()))
    raise PartialFailure(errors, results)


def error_of(number: int, message: str | None = None) -> ApiError | None:
    return ApiError(code_of(number), message) if number else None


def raise_code(number: int, message: str | None = None) -> None:
    if number:
        raise ApiError(code_of(number), message)


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped
