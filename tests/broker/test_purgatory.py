"""When parked requests look, and when their time is up."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

from ottla.broker.purgatory import MOST_LEFT, Agenda, Parked, Watchers

LONG_MS = 600_000.0


def parked(agenda: Agenda, watched: Watchers, found: Callable[[bool], str | None], timeout_ms: float = LONG_MS) -> Parked[str]:
    return Parked(agenda, found, timeout_ms, [watched])


async def test_who_was_woken_looks_once_before_the_next_turn_of_the_loop() -> None:
    agenda, watched, looks = Agenda(), Watchers(), []
    parked(agenda, watched, lambda final: looks.append(final))  # type: ignore[func-returns-value]
    watched.wake()
    watched.wake()
    assert looks == []
    await asyncio.sleep(0)
    assert looks == [False]


async def test_an_agenda_that_is_attended_to_is_left_to_who_attends() -> None:
    agenda, watched, looks = Agenda(), Watchers(), []
    parked(agenda, watched, lambda final: looks.append(final))  # type: ignore[func-returns-value]
    agenda.attend()
    watched.wake()
    await asyncio.sleep(0)
    assert looks == []
    agenda.run()
    assert looks == [False]


async def test_what_was_left_on_an_agenda_is_looked_at_in_the_next_turn() -> None:
    agenda, watched, looks = Agenda(), Watchers(), []
    parked(agenda, watched, lambda final: looks.append(final))  # type: ignore[func-returns-value]
    agenda.attend()
    watched.wake()
    agenda.leave()
    await asyncio.sleep(0)
    assert looks == [False]


async def test_time_is_up_in_the_order_of_deadlines_whatever_was_added_first() -> None:
    agenda, watched, told = Agenda(), Watchers(), []
    done = asyncio.Event()

    def ending(name: str) -> Callable[[bool], str | None]:
        return lambda final: name if final else None

    def tell(name: str, _: Exception | None) -> None:
        told.append(name)
        if len(told) == 3:
            done.set()

    for name, timeout_ms in (("last", 60.0), ("first", 5.0), ("second", 30.0)):
        parked(agenda, watched, ending(name), timeout_ms).deliver_to(tell)
    await done.wait()
    assert told == ["first", "second", "last"]
    assert not len(watched)


async def test_who_was_answered_is_not_told_that_the_time_is_up() -> None:
    agenda, watched, told = Agenda(), Watchers(), []
    answered = parked(agenda, watched, lambda final: "late" if final else "in time", 5.0)
    answered.deliver_to(lambda result, _: told.append(result))
    watched.wake()
    agenda.run()
    last = parked(agenda, watched, lambda final: "late" if final else None, 20.0)
    assert await last.future == "late"
    assert told == ["in time"]


async def test_who_left_is_not_kept() -> None:
    agenda, watched, gone = Agenda(), Watchers(), []

    def come_and_go() -> None:
        def attempt(final: bool) -> None:
            return None

        gone.append(weakref.ref(attempt))
        parked(agenda, watched, attempt).leave()

    for _ in range(10 * MOST_LEFT):
        come_and_go()
    assert sum(each() is not None for each in gone) <= MOST_LEFT


async def test_many_deadlines_pass_one_by_one() -> None:
    """As many looks as there are requests, not as many for each of them."""
    agenda, watched, told = Agenda(), Watchers(), []
    done = asyncio.Event()
    count = 500

    def tell(number: int) -> Callable[[int, Exception | None], None]:
        def heard(_: int, __: Exception | None) -> None:
            told.append(number)
            if len(told) == count:
                done.set()

        return heard

    for number in range(count):
        parked(agenda, watched, lambda final: "up" if final else None, 1 + number / 50).deliver_to(tell(number))
    await done.wait()
    assert told == list(range(count))
