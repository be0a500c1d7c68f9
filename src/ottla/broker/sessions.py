"""Incremental fetch sessions (KIP-227): what a consumer or follower fetches, remembered, so that each request names only changes.

A session has an id and an epoch. Epoch 0 asks for a new session, -1 for none (and ends the one named), any other must be the
next one. The reply of an incremental fetch leaves out partitions of which there is nothing new to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ottla.model.errors import ApiError, ErrorCode
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.storage.log import Log

TopicReply = FetchResponse.FetchableTopicResponse
PartitionData = TopicReply.PartitionData
FetchPartition = FetchRequest.FetchTopic.FetchPartition
NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 2**31 - 1
EVICTION_MS = 120_000  # a session unused for this long makes room for another
Key = tuple[str, bytes, int]  # topic name (below version 13), topic id (from there), partition


@dataclass(slots=True)
class Wanted:
    """One partition of a fetch, and what its reader was last told of it."""

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    told_high_watermark: int = -1
    told_log_start_offset: int = -1

    def ask(self, row: FetchPartition) -> None:
        """What its reader wants of it now."""
        self.offset = row.fetch_offset
        self.max_bytes = row.partition_max_bytes
        self.current_leader_epoch = row.current_leader_epoch
        self.last_fetched_epoch = row.last_fetched_epoch
        self.log_start_offset = row.log_start_offset

    def was_told(self, log: Log) -> bool:
        """Whether its reader knows where the log starts and what is committed."""
        return log.high_watermark == self.told_high_watermark and log.log_start_offset == self.told_log_start_offset

    def is_news(self, data: PartitionData) -> bool:
        """Whether an incremental reply must mention it; remembers what it then says."""
        news = (
            len(data.records) > 0
            or data.high_watermark != self.told_high_watermark
            or data.log_start_offset != self.told_log_start_offset
            or data.preferred_read_replica >= 0
            or data.diverging_epoch.epoch >= 0
            or data.error_code != 0
        )
        self.told_high_watermark = -1 if data.error_code else data.high_watermark
        self.told_log_start_offset = data.log_start_offset
        return news


def next_epoch(epoch: int) -> int:
    """A follower gets through all of them in a week."""
    return 1 if epoch == MAX_EPOCH else epoch + 1


class Ends(Protocol):
    def end(self) -> None:
        """The session is over."""


@dataclass(slots=True)
class Session:
    session_id: int
    uses_topic_ids: bool
    epoch: int = 1
    last_used_ms: float = 0.0
    wanted: dict[Key, Wanted] = field(default_factory=dict)
    changed: list[Key] = field(default_factory=list)  # named or forgotten by the request that is being served
    poll: Ends | None = None  # what waits on behalf of a follower from one request to the next


class FetchSessions:
    """The sessions of a node, at most as many as it has slots for."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, version: int, now_ms: float) -> tuple[Session | None, Iterable[Wanted]]:
        """The session, if the request goes on with one, and the partitions to fetch. Raises ApiError."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._end(request.session_id)
            return None, _wanted(request).values()
        session = self._sessions.get(request.session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != session.epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != (version >= 13):
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self._update(session, request)
        self.go_on(session, now_ms)
        return session, session.wanted.values()

    def at(self, session_id: int, epoch: int) -> Session | None:
        """The session with topic ids that a request of this epoch goes on with."""
        session = self._sessions.get(session_id)
        return session if session is not None and session.epoch == epoch and session.uses_topic_ids else None

    def go_on(self, session: Session, now_ms: float) -> None:
        session.epoch = next_epoch(session.epoch)
        session.last_used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None and session.poll is not None:
            session.poll.end()

    def _update(self, session: Session, request: FetchRequest) -> None:
        session.changed = []
        for topic in request.topics:
            for row in topic.partitions:
                key = (topic.topic, topic.topic_id, row.partition)
                known = session.wanted.get(key)
                if known is None:
                    session.wanted[key] = _made(topic, row)
                else:
                    known.ask(row)
                session.changed.append(key)
        for forgotten in request.forgotten_topics_data:
            for partition in forgotten.partitions:
                key = (forgotten.topic, forgotten.topic_id, partition)
                session.wanted.pop(key, None)
                session.changed.append(key)

    def create(self, wanted: Iterable[Wanted], version: int, session_id: int, slots: int, now_ms: float) -> Session | None:
        """A new session, unless all slots are taken by sessions in use."""
        if len(self._sessions) >= slots:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.last_used_ms < EVICTION_MS:
                return None
            self._end(oldest.session_id)
        session = Session(session_id, version >= 13, last_used_ms=now_ms)
        session.wanted = {(row.topic, row.topic_id, row.partition): row for row in wanted}
        self._sessions[session_id] = session
        return session

    def has(self, session_id: int) -> bool:
        return session_id in self._sessions


def answer(session: Session | None, results: list[tuple[Wanted, PartitionData]], session_id: int) -> FetchResponse:
    """Without a session all of it, else what is news."""
    response = FetchResponse(session_id=session_id)
    topic: TopicReply | None = None
    for wanted, data in results:
        news = wanted.is_news(data)  # also of a new session, which remembers what it was told first
        if session is not None and not news:
            continue
        if topic is None or (topic.topic, topic.topic_id) != (wanted.topic, wanted.topic_id):
            topic = TopicReply(topic=wanted.topic, topic_id=wanted.topic_id)
            response.responses.append(topic)
        topic.partitions.append(data)
        if session is not None and len(data.records):
            to_the_end(session, wanted)
    return response


def to_the_end(session: Session, wanted: Wanted) -> None:
    """What just got data waits its turn behind the others, so that one busy partition starves none."""
    key = (wanted.topic, wanted.topic_id, wanted.partition)
    session.wanted[key] = session.wanted.pop(key)


def _wanted(request: FetchRequest) -> dict[Key, Wanted]:
    return {
        (topic.topic, topic.topic_id, row.partition): _made(topic, row) for topic in request.topics for row in topic.partitions
    }


def _made(topic: FetchRequest.FetchTopic, row: FetchPartition) -> Wanted:
    return Wanted(
        topic.topic,
        topic.topic_id,
        row.partition,
        row.fetch_offset,
        row.partition_max_bytes,
        row.current_leader_epoch,
        row.last_fetched_epoch,
        row.log_start_offset,
    )
