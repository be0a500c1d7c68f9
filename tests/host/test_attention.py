"""Looking for the next request: as long as it pays, and not while others want the processor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ottla.host import attention
from ottla.host.attention import MAX_SCORE, PROBE_EVERY, WINDOW_S, Attention


class Loop:
    """Counts passes: one call each, in which `spent` seconds go by."""

    def __init__(self) -> None:
        self.now = 0.0
        self.spent = 2e-6
        self.calls: list[Callable[[], None]] = []
        self.passes = 0

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def run(self) -> int:
        """Until nothing is left to do: how many passes it took."""
        first = self.passes
        while self.calls:
            self.now += self.spent
            self.passes += 1
            self.calls.pop()()
        return self.passes - first


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    monkeypatch.setattr(attention, "perf_counter", lambda: loop.now)
    return loop


def test_after_a_reply_the_loop_stays_awake_for_the_window(loop: Loop) -> None:
    Attention().answered()
    assert loop.run() == pytest.approx(WINDOW_S / loop.spent, abs=1)


def test_looking_that_never_pays_ends_and_is_tried_again_now_and_then(loop: Loop) -> None:
    watched = Attention()
    looked = []
    for _ in range(MAX_SCORE + 2 * PROBE_EVERY + 2):
        watched.answered()
        looked.append(loop.run() > 0)
    assert looked == [True] * MAX_SCORE + [False] * PROBE_EVERY + [True] + [False] * PROBE_EVERY + [True]


def test_a_request_within_the_window_keeps_it_looking(loop: Loop) -> None:
    watched = Attention()
    for _ in range(10 * MAX_SCORE):
        watched.answered()
        for _ in range(3):
            loop.now += loop.spent
            loop.calls.pop()()
    assert len(loop.calls) == 1


def test_who_was_answered_last_is_asked_first_in_every_pass(loop: Loop) -> None:
    asked = []

    def look() -> bool:
        asked.append(loop.passes)
        return False

    Attention().answered(look)
    passes = loop.run()
    assert asked == list(range(1, passes + 1))
    assert passes == pytest.approx(WINDOW_S / loop.spent, abs=1)


def test_the_time_of_a_request_that_is_served_meanwhile_is_not_taken_for_anothers(loop: Loop) -> None:
    left = [True, True, False, True]
    watched = Attention()

    def look() -> bool:
        if not left or not left.pop():
            return False
        loop.now += attention.CONTENDED_S * 2
        watched.answered(look)
        return True

    watched.answered(look)
    assert loop.run() > len(left)
    assert not left
    watched.answered()  # of nobody who could be asked
    left.append(True)
    assert loop.run() > 1
    assert left == [True]


def test_it_gives_way_when_another_thread_wants_the_core(loop: Loop) -> None:
    loop.spent = attention.CONTENDED_S * 2
    Attention().answered()
    assert loop.run() == 1
