"""The checker finds each anomaly, alone and by its name, in a history that is made to contain it, and nothing in a clean one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import ANOMALIES, History, Recorder, check


class Story:
    """Two producers and two consumers on an imaginary clock; the log behaves as the test says."""

    def __init__(self) -> None:
        ticks = itertools.count(1)
        self.clock = lambda: next(ticks)
        self.one, self.two = self._client("producer-1"), self._client("producer-2")
        self.reader, self.other = self._client("consumer-1"), self._client("consumer-2")
        self.loose = self._client("consumer-3", read_committed=False)

    def _client(self, name: str, read_committed: bool = True) -> Recorder:
        return Recorder(name, read_committed=read_committed, clock=self.clock)

    def send(
        self, value: Any, offset: int, producer: Recorder | None = None, transaction: int | None = None, partition: int = 0
    ) -> None:
        producer = producer or self.one
        producer.sent(producer.sending("t", partition, value, transaction), offset)

    def read(self, *places: tuple[int, Any], reader: Recorder | None = None, partition: int = 0) -> None:
        (reader or self.reader).polled([("t", partition, offset, value) for offset, value in places])

    def found(self, complete: bool = True) -> set[str]:
        report = check(History.of(self.one, self.two, self.reader, self.other, self.loose, complete=complete))
        assert set(report.counts) == set(report.anomalies)
        return set(report.anomalies)


def clean(story: Story) -> None:
    story.send("a", 0)
    story.send("b", 1)
    transaction = story.two.beginning()
    story.send("c", 2, story.two, transaction)
    story.send("d", 0, story.two, transaction, partition=1)
    story.two.ending(transaction, commit=True)
    story.two.ended(transaction, committed=True)
    aborted = story.two.beginning()
    story.send("gone", 4, story.two, aborted)
    story.two.ending(aborted, commit=False)
    story.two.ended(aborted, committed=False)
    story.one.failed(story.one.sending("t", 0, "refused"))
    story.one.sending("t", 0, "nobody knows")
    story.send("e", 6)
    story.read((0, "a"), (1, "b"))
    story.read((2, "c"), (6, "e"))
    story.read((0, "d"), partition=1)
    story.reader.reassigned()
    story.read((1, "b"), (2, "c"))
    story.loose.polled([("t", 0, 2, "c"), ("t", 0, 4, "gone"), ("t", 0, 6, "e")])


def lost_write(story: Story) -> None:
    for offset, value in enumerate("abc"):
        story.send(value, offset)
    story.read((0, "a"))
    story.other.polled([("t", 0, 2, "c")])


def unseen(story: Story) -> None:
    story.send("a", 0)
    story.send("b", 1)
    story.read((0, "a"))


def duplicate(story: Story) -> None:
    story.send("a", 0)
    story.read((0, "a"), (1, "a"))


def inconsistent_offset(story: Story) -> None:
    story.send("a", 0)
    story.one.sending("t", 0, "b")
    story.read((0, "a"))
    story.read((0, "b"), reader=story.other)


def aborted_read(story: Story) -> None:
    transaction = story.one.beginning()
    story.send("a", 0, transaction=transaction)
    story.one.ending(transaction, commit=False)
    story.one.ended(transaction, committed=False)
    story.read((0, "a"))


def refused_read(story: Story) -> None:
    story.one.failed(story.one.sending("t", 0, "a"))
    story.read((0, "a"), reader=story.loose)


def precommitted_read(story: Story) -> None:
    transaction = story.one.beginning()
    story.send("a", 0, transaction=transaction)
    story.read((0, "a"))
    story.one.ending(transaction, commit=True)
    story.one.ended(transaction, committed=True)


def torn_transaction(story: Story) -> None:
    transaction = story.one.beginning()
    story.send("a", 0, transaction=transaction)
    story.one.sending("t", 1, "b", transaction)
    story.one.ending(transaction, commit=True)
    story.read((0, "a"))


def phantom(story: Story) -> None:
    story.read((0, "from nowhere"))


def int_nonmonotonic_poll(story: Story) -> None:
    story.send("a", 0)
    story.send("b", 1)
    story.read((1, "b"), (0, "a"))


def nonmonotonic_poll(story: Story) -> None:
    story.send("a", 0)
    story.send("b", 1)
    story.read((1, "b"))
    story.read((0, "a"))


def int_poll_skip(story: Story) -> None:
    for offset, value in enumerate("abc"):
        story.send(value, offset)
    story.read((0, "a"), (2, "c"))
    story.read((0, "a"), (1, "b"), (2, "c"), reader=story.other)


def external_poll_skip(story: Story) -> None:
    for offset, value in enumerate("abc"):
        story.send(value, offset)
    story.read((0, "a"))
    story.read((2, "c"))
    story.read((0, "a"), (1, "b"), (2, "c"), reader=story.other)


def int_nonmonotonic_send(story: Story) -> None:
    transaction = story.one.beginning()
    story.send("a", 1, transaction=transaction)
    story.send("b", 0, transaction=transaction)
    story.one.ending(transaction, commit=True)
    story.one.ended(transaction, committed=True)
    story.read((0, "b"), (1, "a"))


def nonmonotonic_send(story: Story) -> None:
    story.send("a", 1)
    story.send("b", 0)
    story.read((0, "b"), (1, "a"))


CASES: list[tuple[Callable[[Story], None], str]] = [
    (lost_write, "lost-write"),
    (unseen, "unseen"),
    (duplicate, "duplicate"),
    (inconsistent_offset, "inconsistent-offset"),
    (aborted_read, "aborted-read"),
    (refused_read, "aborted-read"),
    (precommitted_read, "precommitted-read"),
    (torn_transaction, "torn-transaction"),
    (phantom, "phantom"),
    (int_nonmonotonic_poll, "int-nonmonotonic-poll"),
    (nonmonotonic_poll, "nonmonotonic-poll"),
    (int_poll_skip, "int-poll-skip"),
    (external_poll_skip, "external-poll-skip"),
    (int_nonmonotonic_send, "int-nonmonotonic-send"),
    (nonmonotonic_send, "nonmonotonic-send"),
]


def test_a_clean_history_is_clean() -> None:
    story = Story()
    clean(story)
    assert story.found() == set()


@pytest.mark.parametrize(("tell", "name"), CASES, ids=[tell.__name__ for tell, _ in CASES])
def test_each_anomaly_is_found_alone_and_by_name(tell: Callable[[Story], None], name: str) -> None:
    story = Story()
    tell(story)
    assert story.found() == {name}


@pytest.mark.parametrize(("tell", "name"), CASES, ids=[tell.__name__ for tell, _ in CASES])
def test_each_anomaly_is_found_among_much_that_is_right(tell: Callable[[Story], None], name: str) -> None:
    """The same, with a busy partition of another topic beside it."""
    story = Story()
    for number in range(50):
        story.two.sent(story.two.sending("busy", 0, number), number)
        if number % 7 == 6:
            story.other.polled([("busy", 0, each, each) for each in range(number - 6, number + 1)])
    story.other.polled([("busy", 0, 49, 49)])
    tell(story)
    assert story.found() == {name}


def test_every_name_has_its_case() -> None:
    assert {name for _, name in CASES} == set(ANOMALIES)


def test_the_end_of_a_history_that_was_cut_short_is_not_held_against_it() -> None:
    for tell in (unseen, torn_transaction):
        story = Story()
        tell(story)
        assert story.found(complete=False) == set()


def test_a_transaction_of_unknown_outcome_may_be_seen_whole_or_not_at_all() -> None:
    for seen in (True, False):
        story = Story()
        transaction = story.one.beginning()
        story.send("a", 0, transaction=transaction)
        story.send("b", 1, transaction=transaction)
        story.one.ending(transaction, commit=True)
        if seen:
            story.read((0, "a"), (1, "b"))
        assert story.found() == set()


def test_what_a_killed_client_wrote_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    recorder = Recorder("one", path)
    recorder.sent(recorder.sending("t", 0, "a"), 0)
    recorder.sending("t", 0, "b")
    recorder.polled([("t", 0, 0, "a")])
    with path.open("a") as file:
        file.write('{"time": 1, "proc')
    history = History.read([path])
    assert [(send.value, send.outcome) for send in history.sends] == [("a", "acknowledged"), ("b", "unknown")]
    assert check(history).clean
    recorder.close()


def test_a_right_log_passes_whatever_its_clients_do() -> None:
    """A log that is a list, random clients: nothing is found. The same with a record dropped, doubled or swapped: something is."""
    for seed in range(30):
        dice = random.Random(seed)
        assert not _random_run(dice, spoil=None)
        for spoil in ("drop", "double", "swap"):
            assert _random_run(random.Random(seed), spoil), f"seed {seed}: {spoil} was not found"


def _random_run(dice: random.Random, spoil: str | None) -> set[str]:
    story = Story()
    log: list[str] = []
    for number in range(40):
        producer = dice.choice([story.one, story.two])
        value = f"v{number}"
        send = producer.sending("t", 0, value)
        log.append(value)
        if dice.random() < 0.7 or number in (3, 10, 20):
            producer.sent(send, len(log) - 1)
    if spoil == "drop":
        log[3] = ""
    elif spoil == "double":
        log.append(log[3])
    elif spoil == "swap":
        log[10], log[20] = log[20], log[10]
    position = 0
    while position < len(log):
        count = dice.randint(1, 5)
        batch = [("t", 0, offset, log[offset]) for offset in range(position, min(position + count, len(log))) if log[offset]]
        if batch:
            story.reader.polled(batch)
        position += count
    return story.found()
