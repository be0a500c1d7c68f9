"""What the clients of a run did and saw. Written while it runs, judged afterwards (`checks.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.model.ids import TopicPartition
from tests.histories import History as CheckedHistory
from tests.histories import Poll, Seen, Send


@dataclass(slots=True)
class Sent:
    """One record that a producer tried to write. `offset` is None until it is acknowledged; then it must stay there for ever."""

    producer: str
    sequence: int  # of this producer in this partition
    topic_partition: TopicPartition
    value: bytes
    offset: int | None = None
    refused: bool = False  # an error that is final: it must not be in the log


@dataclass(slots=True)
class Session:
    """One uninterrupted stretch of reading a partition, in the order in which records came."""

    reader: str
    topic_partition: TopicPartition
    start: int
    seen: list[tuple[int, bytes | None]] = field(default_factory=list)
    committed: bool = False  # read_committed: gaps (markers, aborted records) are allowed


@dataclass(slots=True)
class History:
    sent: list[Sent] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    final: dict[TopicPartition, list[tuple[int, bytes | None]]] = field(default_factory=dict)  # read when all was quiet

    @property
    def acknowledged(self) -> int:
        return sum(sent.offset is not None for sent in self.sent)

    def send(self, producer: str, sequence: int, topic_partition: TopicPartition, value: bytes) -> Sent:
        sent = Sent(producer, sequence, topic_partition, value)
        self.sent.append(sent)
        return sent

    def session(self, reader: str, topic_partition: TopicPartition, start: int, *, committed: bool = False) -> Session:
        session = Session(reader, topic_partition, start, committed=committed)
        self.sessions.append(session)
        return session

    def for_the_checker(self, others: CheckedHistory) -> CheckedHistory:
        """What plain clients did, added to what the real ones wrote down, as the history checker reads it."""
        for sent in self.sent:
            outcome = "failed" if sent.refused else "unknown" if sent.offset is None else "acknowledged"
            place = sent.topic_partition
            others.sends.append(
                Send(sent.producer, 0, place.topic, place.partition, sent.value, outcome=outcome, offset=sent.offset)
            )
        finals = [Session("at the end", place, 0, seen) for place, seen in self.final.items()]
        for session in [*self.sessions, *finals]:
            records = [Seen(tuple(session.topic_partition), offset, value) for offset, value in session.seen]
            others.polls.append(Poll(f"{session.reader} {session.topic_partition}", 0, records, session.committed))
        return others
