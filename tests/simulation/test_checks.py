"""Every promise can be broken: each check finds the history made for it, and none complains of a sound one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.model.ids import TopicPartition
from tests.simulation import checks
from tests.simulation.history import History

PLACE = TopicPartition("t", 0)


def sound() -> History:
    history = History()
    for number, value in enumerate((b"a", b"b", b"c")):
        history.send("p", number, PLACE, value).offset = number
    history.send("p", 3, PLACE, b"never acknowledged")
    history.send("q", 0, PLACE, b"acknowledged to nobody, but there")
    session = history.session("r", PLACE, 0)
    session.seen = [(0, b"a"), (1, b"b")]
    history.final[PLACE] = [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"acknowledged to nobody, but there")]
    return history


def lose(history: History) -> None:
    history.final[PLACE][2] = (2, b"acknowledged to nobody, but there")
    del history.final[PLACE][3]


def repeat(history: History) -> None:
    history.final[PLACE].append((4, b"acknowledged to nobody, but there"))


def invent(history: History) -> None:
    history.final[PLACE].append((4, b"who sent this?"))


def write_refused(history: History) -> None:
    history.sent[4].refused = True


def reorder(history: History) -> None:
    history.final[PLACE] += [(4, b"never acknowledged")]
    history.sent[3].sequence = -1


def show_another(history: History) -> None:
    history.sessions[0].seen[1] = (1, b"not b")


def skip(history: History) -> None:
    history.sessions[0].seen[1] = (2, b"c")


def go_back(history: History) -> None:
    history.sessions[0].seen.append((0, b"a"))


def test_a_sound_history_breaks_no_promise() -> None:
    checks.judge(sound())


@pytest.mark.parametrize(
    ("spoil", "promise"),
    [
        (lose, "no_acknowledged_record_lost"),
        (repeat, "no_duplicate_of_an_idempotent_producer"),
        (invent, "no_record_from_nowhere"),
        (write_refused, "no_record_from_nowhere"),
        (reorder, "each_producer_s_records_in_order"),
        (show_another, "readers_agree_with_the_log"),
        (skip, "reading_is_monotonic_without_skips"),
        (go_back, "reading_is_monotonic_without_skips"),
    ],
)
def test_a_broken_promise_is_named(spoil: Callable[[History], None], promise: str) -> None:
    history = sound()
    spoil(history)
    with pytest.raises(checks.Violation) as caught:
        checks.judge(history)
    assert caught.value.promise == promise
