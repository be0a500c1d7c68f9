"""A history: the sends, transactions and polls of many clients, put together from what each wrote down."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .recorder import Event, Recorder

Partition = tuple[str, int]


class Seen(NamedTuple):
    """One record of a poll."""

    partition: Partition
    offset: int
    value: Any


@dataclass
class Transaction:
    process: str
    began: int
    ending: int | None = None  # when the client asked for the end
    asked_commit: bool | None = None
    outcome: str = "unknown"  # or "committed", "aborted"
    sends: list[Send] = field(default_factory=list)


@dataclass
class Send:
    process: str
    time: int
    topic: str
    partition: int | None
    value: Any
    transaction: Transaction | None = None
    outcome: str = "unknown"  # or "acknowledged", "failed"
    offset: int | None = None

    @property
    def committed(self) -> bool:
        """Whether the client was told that this record is there to stay."""
        if self.transaction is not None and self.transaction.outcome != "committed":
            return False
        return self.outcome == "acknowledged"

    @property
    def discarded(self) -> bool:
        """Whether the client was told that nobody will ever see this record."""
        return self.outcome == "failed" or (self.transaction is not None and self.transaction.outcome == "aborted")

    @property
    def place(self) -> Partition | None:
        return None if self.partition is None else (self.topic, self.partition)


@dataclass
class Poll:
    process: str
    time: int
    records: list[Seen]
    read_committed: bool = True
    after_reassignment: bool = False  # the positions of earlier polls say nothing about this one


@dataclass
class History:
    """Everything in the order of time. `complete`: at the end somebody read every partition to its end."""

    sends: list[Send] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    complete: bool = True

    @classmethod
    def of(cls, *recorders: Recorder, complete: bool = True) -> History:
        return cls._from_events([event for recorder in recorders for event in recorder.events], complete)

    @classmethod
    def read(cls, paths: Iterable[Path | str], complete: bool = True) -> History:
        """From the files of any number of processes. A last line that a kill cut short is left out."""
        events: list[Event] = []
        for path in paths:
            lines = Path(path).read_text().splitlines(keepends=True)
            events += [json.loads(line) for line in lines if line.endswith("\n")]
        return cls._from_events(events, complete)

    @classmethod
    def _from_events(cls, events: list[Event], complete: bool) -> History:
        history = cls(complete=complete)
        open_things: dict[tuple[str, int], Any] = {}
        moved: set[str] = set()
        for event in sorted(events, key=lambda event: event["time"]):  # stable: a process's own order is kept
            history._take(event, open_things, moved)
        return history

    def _take(self, event: Event, open_things: dict[tuple[str, int], Any], moved: set[str]) -> None:
        process, time, kind = event["process"], event["time"], event["kind"]
        thing = open_things.get((process, event.get("id", -1)))
        if kind == "sending":
            transaction = open_things.get((process, event["transaction"])) if event["transaction"] is not None else None
            send = Send(process, time, event["topic"], event["partition"], event["value"], transaction)
            if transaction is not None:
                transaction.sends.append(send)
            self.sends.append(send)
            open_things[process, event["id"]] = send
        elif kind == "sent":
            thing.outcome, thing.offset = "acknowledged", event["offset"]
            if event["partition"] is not None:
                thing.partition = event["partition"]
        elif kind == "failed":
            thing.outcome = "failed"
        elif kind == "beginning":
            self.transactions.append(Transaction(process, time))
            open_things[process, event["id"]] = self.transactions[-1]
        elif kind == "ending":
            thing.ending, thing.asked_commit = time, event["commit"]
        elif kind == "ended":
            thing.outcome = "committed" if event["committed"] else "aborted"
        elif kind == "reassigned":
            moved.add(process)
        elif kind == "polled":
            records = [Seen((topic, partition), offset, value) for topic, partition, offset, value in event["records"]]
            self.polls.append(Poll(process, time, records, event["read_committed"], process in moved))
            moved.discard(process)
