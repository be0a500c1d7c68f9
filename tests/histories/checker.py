"""Judges a history by the anomalies of Jepsen's Kafka tests, under their names.

Every value must be sent once and be unlike all others. The order of a partition is that of its offsets, as told by
acknowledgements and polls; gaps are allowed (control records, aborted records), a record that somebody could see is not one.

    lost-write              acknowledged, read past by somebody, read by nobody
    unseen                  acknowledged, and never read although everything was read to its end
    duplicate               one value at two offsets, or in two partitions
    inconsistent-offset     one offset with two values
    aborted-read            a read_committed poll returned what was aborted or refused
    precommitted-read       a read_committed poll returned what nobody had yet asked to commit
    torn-transaction        of one transaction some records are seen and others never will be
    phantom                 a value that nobody sent
    int-nonmonotonic-poll   within one poll offsets went back
    nonmonotonic-poll       from one poll to the next of the same client, without a rebalance, offsets went back
    int-poll-skip           within one poll a record was left out that others saw
    external-poll-skip      between two polls of the same client a record was left out that others saw
    int-nonmonotonic-send   within one transaction a later send got an earlier offset
    nonmonotonic-send       from one send to the next of the same client a later send got an earlier offset
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .history import History, Partition, Poll, Seen, Send

ANOMALIES = (
    "lost-write", "unseen", "duplicate", "inconsistent-offset", "aborted-read", "precommitted-read", "torn-transaction", "phantom",
    "int-nonmonotonic-poll", "nonmonotonic-poll", "int-poll-skip", "external-poll-skip", "int-nonmonotonic-send", "nonmonotonic-send",
)  # fmt: skip
MAX_EXAMPLES = 20

Finding = tuple[str, str]


@dataclass
class Report:
    """Anomalies by name, each with up to 20 sentences; and how much was looked at, because an empty history proves nothing."""

    anomalies: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    sends: int = 0
    acknowledged: int = 0
    seen: int = 0

    @property
    def clean(self) -> bool:
        return not self.anomalies

    def __str__(self) -> str:
        lines = [f"{self.sends} sends, {self.acknowledged} acknowledged, {self.seen} values seen"]
        for name, examples in self.anomalies.items():
            lines += [f"{name}: {self.counts[name]}", *(f"  {example}" for example in examples)]
        return "\n".join(lines)


def check(history: History) -> Report:
    index = _Index(history)
    acknowledged = sum(send.committed for send in history.sends)
    report = Report(sends=len(history.sends), acknowledged=acknowledged, seen=len(index.places))
    for find in (_places, _losses, _forbidden_reads, _torn, _polls, _sends):
        for name, sentence in find(history, index):
            report.counts[name] = report.counts.get(name, 0) + 1
            examples = report.anomalies.setdefault(name, [])
            if len(examples) < MAX_EXAMPLES:
                examples.append(sentence)
    return report


class _Index:
    """What the judges look up: where values were seen, by whom they were sent, and which offsets can be seen."""

    def __init__(self, history: History) -> None:
        self.send_of: dict[Any, Send] = {send.value: send for send in history.sends}
        self.places: dict[Any, set[tuple[Partition, int]]] = defaultdict(set)  # of values that were polled
        self.highest: dict[Partition, int] = {}  # the last offset that anybody polled
        # What a read_committed client could see, and what others could see besides.
        committed: dict[Partition, set[int]] = defaultdict(set)
        anything: dict[Partition, set[int]] = defaultdict(set)
        for poll in history.polls:
            for partition, offset, value in poll.records:
                self.places[value].add((partition, offset))
                self.highest[partition] = max(offset, self.highest.get(partition, -1))
                anything[partition].add(offset)
                if poll.read_committed:
                    committed[partition].add(offset)
        for send in history.sends:
            if send.committed and send.place is not None and send.offset is not None:
                committed[send.place].add(send.offset)
                anything[send.place].add(send.offset)
        self._visible = {
            True: {partition: sorted(offsets) for partition, offsets in committed.items()},
            False: {partition: sorted(offsets) for partition, offsets in anything.items()},
        }

    def between(self, read_committed: bool, partition: Partition, low: int, high: int) -> list[int]:
        """Visible offsets strictly between two."""
        offsets = self._visible[read_committed].get(partition, [])
        return offsets[bisect_right(offsets, low) : bisect_left(offsets, high)]


def _places(history: History, index: _Index) -> Iterator[Finding]:
    """Each value at one place, each place with one value."""
    told: dict[tuple[Partition, int], set[Any]] = defaultdict(set)
    for value, places in index.places.items():
        for place in places:
            told[place].add(value)
    for send in history.sends:
        if send.outcome == "acknowledged" and send.place is not None and send.offset is not None and send.offset >= 0:
            told[send.place, send.offset].add(send.value)
    where: dict[Any, set[tuple[Partition, int]]] = defaultdict(set)
    for place, values in told.items():
        if len(values) > 1:
            yield "inconsistent-offset", f"{_at(*place)} has the values {sorted(map(str, values))}"
        for value in values:
            where[value].add(place)
    for value, places in where.items():
        if len(places) > 1:
            yield "duplicate", f"{value!r} is at {', '.join(sorted(_at(*place) for place in places))}"


def _losses(history: History, index: _Index) -> Iterator[Finding]:
    for send in history.sends:
        if not send.committed or send.value in index.places or send.place is None:
            continue
        if send.offset is not None and 0 <= send.offset < index.highest.get(send.place, -1):
            yield "lost-write", f"{send.value!r} was acknowledged at {_at(send.place, send.offset)}; others read past it"
        elif history.complete:
            yield "unseen", f"{send.value!r} was acknowledged at {_at(send.place, send.offset)} and never read"


def _forbidden_reads(history: History, index: _Index) -> Iterator[Finding]:
    for poll in history.polls:
        for partition, offset, value in poll.records:
            send = index.send_of.get(value)
            if send is None:
                yield "phantom", f"{poll.process} read {value!r} at {_at(partition, offset)}, which nobody sent"
            elif send.discarded and (poll.read_committed or send.outcome == "failed"):
                yield (
                    "aborted-read",
                    f"{poll.process} read {value!r} at {_at(partition, offset)}, which {send.process} had undone",
                )
            elif poll.read_committed and send.transaction is not None:
                asked = send.transaction.ending
                if asked is None or poll.time < asked:
                    yield "precommitted-read", f"{poll.process} read {value!r} at {_at(partition, offset)} before its commit"


def _torn(history: History, index: _Index) -> Iterator[Finding]:
    committed_reads = {seen.value for poll in history.polls if poll.read_committed for seen in poll.records}
    for transaction in history.transactions:
        sends = [send for send in transaction.sends if send.outcome != "failed"]
        missing = [send for send in sends if send.value not in committed_reads]
        if not missing or len(missing) == len(sends):
            continue
        if gone := [send for send in missing if history.complete or _read_past(send, index)]:
            seen = [send.value for send in sends if send.value in committed_reads]
            yield "torn-transaction", f"{transaction.process}: {seen} were seen, {[send.value for send in gone]} were not"


def _read_past(send: Send, index: _Index) -> bool:
    return send.place is not None and send.offset is not None and send.offset < index.highest.get(send.place, -1)


def _polls(history: History, index: _Index) -> Iterator[Finding]:
    positions: dict[tuple[str, Partition], int] = {}
    for poll in history.polls:
        if poll.after_reassignment:
            positions = {key: offset for key, offset in positions.items() if key[0] != poll.process}
        for partition, records in _by_partition(poll).items():
            before = positions.get((poll.process, partition))
            if before is not None:
                yield from _step(poll, index, before, records[0], "nonmonotonic-poll", "external-poll-skip")
            for earlier, later in pairwise(records):
                yield from _step(poll, index, earlier.offset, later, "int-nonmonotonic-poll", "int-poll-skip")
            positions[poll.process, partition] = records[-1].offset


def _step(poll: Poll, index: _Index, before: int, seen: Seen, backwards: str, skip: str) -> Iterator[Finding]:
    if seen.offset <= before:
        yield backwards, f"{poll.process} read {_at(seen.partition, seen.offset)} after {before}"
    elif skipped := index.between(poll.read_committed, seen.partition, before, seen.offset):
        yield skip, f"{poll.process} went from {before} to {_at(seen.partition, seen.offset)} past {skipped[:5]}"


def _by_partition(poll: Poll) -> dict[Partition, list[Seen]]:
    grouped: dict[Partition, list[Seen]] = {}
    for seen in poll.records:
        grouped.setdefault(seen.partition, []).append(seen)
    return grouped


def _sends(history: History, index: _Index) -> Iterator[Finding]:
    last: dict[tuple[str, Partition], Send] = {}
    for send in history.sends:
        if send.outcome != "acknowledged" or send.place is None or send.offset is None or send.offset < 0:
            continue
        before = last.get((send.process, send.place))
        if before is not None and before.offset is not None and send.offset <= before.offset:
            within = send.transaction is not None and send.transaction is before.transaction
            name = "int-nonmonotonic-send" if within else "nonmonotonic-send"
            yield name, f"{send.process} sent {send.value!r} to {_at(send.place, send.offset)} after {before.offset}"
        last[send.process, send.place] = send


def _at(partition: Partition, offset: int | None) -> str:
    return f"{partition[0]}-{partition[1]}@{offset}"
