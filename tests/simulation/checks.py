"""The promises that a finished run is held to, each small and named. A broken one raises `Violation` with what a person needs."""

from __future__ import annotations

from collections.abc import Callable

from ottla.model.ids import TopicPartition
from tests.simulation.history import History


class Violation(Exception):
    """A promise was broken. Its first word is the promise's name."""

    def __init__(self, promise: str, text: str) -> None:
        super().__init__(f"{promise}: {text}")
        self.promise = promise


Check = Callable[[History], None]


def no_acknowledged_record_lost(history: History) -> None:
    contents = {topic_partition: dict(records) for topic_partition, records in history.final.items()}
    for sent in history.sent:
        if sent.offset is None:
            continue
        found = contents[sent.topic_partition].get(sent.offset)
        if found != sent.value:
            where = f"{sent.topic_partition} offset {sent.offset}"
            raise Violation(
                "no_acknowledged_record_lost",
                f"{sent.value[:24]!r} was acknowledged at {where}; there is {(found or b'')[:24]!r}",
            )


def no_duplicate_of_an_idempotent_producer(history: History) -> None:
    places: dict[bytes, tuple[TopicPartition, int]] = {}
    for topic_partition, records in sorted(history.final.items()):
        for offset, value in records:
            if value is None:
                continue
            if value in places:
                raise Violation(
                    "no_duplicate_of_an_idempotent_producer",
                    f"{value[:24]!r} is at {places[value][0]} offset {places[value][1]} and at {topic_partition} offset {offset}",
                )
            places[value] = topic_partition, offset


def no_record_from_nowhere(history: History) -> None:
    sent = {(sent.topic_partition, sent.value): sent for sent in history.sent}
    for topic_partition, records in sorted(history.final.items()):
        for offset, value in records:
            match = sent.get((topic_partition, value or b""))
            if match is None:
                raise Violation("no_record_from_nowhere", f"nobody sent {value!r}, which is at {topic_partition} offset {offset}")
            if match.refused:
                raise Violation(
                    "no_record_from_nowhere", f"{value!r} was refused for good, but is at {topic_partition} offset {offset}"
                )


def each_producer_s_records_in_order(history: History) -> None:
    sent = {(sent.topic_partition, sent.value): sent for sent in history.sent}
    for topic_partition, records in sorted(history.final.items()):
        last: dict[str, int] = {}
        for offset, value in records:
            match = sent.get((topic_partition, value or b""))
            if match is None:
                continue
            if last.get(match.producer, -1) >= match.sequence:
                raise Violation(
                    "each_producer_s_records_in_order",
                    f"{topic_partition} offset {offset}: number {match.sequence} of {match.producer} comes after {last[match.producer]}",
                )
            last[match.producer] = match.sequence


def readers_agree_with_the_log(history: History) -> None:
    """What anybody was ever shown is still there: only committed records are visible."""
    contents = {topic_partition: dict(records) for topic_partition, records in history.final.items()}
    for session in history.sessions:
        for offset, value in session.seen:
            found = contents[session.topic_partition].get(offset)
            if found != value:
                where = f"{session.topic_partition} offset {offset}"
                raise Violation(
                    "readers_agree_with_the_log",
                    f"{session.reader} read {(value or b'')[:24]!r} at {where}; there is {(found or b'')[:24]!r}",
                )


def reading_is_monotonic_without_skips(history: History) -> None:
    for session in history.sessions:
        expected = session.start
        for offset, _ in session.seen:
            if offset < expected or (offset > expected and not session.committed):
                raise Violation(
                    "reading_is_monotonic_without_skips",
                    f"{session.reader} in {session.topic_partition} got offset {offset} where {expected} was next",
                )
            expected = offset + 1


CHECKS: tuple[Check, ...] = (
    no_acknowledged_record_lost,
    no_duplicate_of_an_idempotent_producer,
    no_record_from_nowhere,
    each_producer_s_records_in_order,
    readers_agree_with_the_log,
    reading_is_monotonic_without_skips,
)


def judge(history: History) -> None:
    for check in CHECKS:
        check(history)
