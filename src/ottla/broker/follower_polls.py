"""A follower's fetches at its leader: one long poll after the other, in one session.

A follower fetches thousands of times a second, mostly because of one partition of many. So what a session names stays watched from
one request to the next, and only partitions to which something has happened (`marked`) are looked at; all of them are when a poll
ends with nothing to tell, and every WHOLE_MS: that is how a follower that keeps up with idle partitions stays in sync.

Who waits for an acknowledgement waits for two such polls. Therefore the commonest request and its answer have a short way
(`single_fetch`), which makes no message of them: it does what `ask` does with the same request, and leaves it to `ask` whenever
there is anything else to see.

| woken by | what happens |
|---|---|
| an append, a change of role or of the log's start | the partition is marked, and looked at before the turn of the loop ends |
| the high watermark alone | it is marked: told with the next answer |
| the end of the time, or a next request behind this one | everything is looked at, and the answer is what there is |
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ottla.broker.purgatory import Parked
from ottla.broker.reading import Reading, part
from ottla.broker.replicas import Replica
from ottla.broker.server import Answer, Connection, Exchange, Later
from ottla.broker.sessions import Key, Session, Wanted, answer
from ottla.host.sending import READ_INSTEAD_OF_SENDFILE
from ottla.model.errors import ApiError, ProtocolError
from ottla.protocol.framing import response_frame
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.single_fetch import VERSION, SingleFetch, read_request, write_answer
from ottla.replication.state import NO_EPOCH
from ottla.storage.log import Log

if TYPE_CHECKING:
    from ottla.broker.dispatch import RequestContext
    from ottla.broker.node import Node

log = logging.getLogger("ottla.fetch")
WHOLE_MS = 100  # how often all partitions of a session are looked at
_POLL = "poll"  # what a connection remembers its poll by


class Followed:
    """A partition of a session, and the replica that is read for it."""

    __slots__ = ("_poll", "replica", "wanted")

    def __init__(self, poll: FollowerPoll, wanted: Wanted) -> None:
        self._poll = poll
        self.wanted = wanted
        self.replica: Replica | None = None

    def mark(self) -> None:
        self._poll.marked[self] = None

    def wake(self) -> None:
        self._poll.marked[self] = None
        self._poll.wake()

    @property
    def is_at_the_end(self) -> bool:
        return self.replica is not None and self.replica.log.log_end_offset == self.wanted.offset

    def read_from(self, replica: Replica | None) -> None:
        """It changes when the topic is deleted and made anew."""
        if replica is not self.replica:
            if self.replica is not None:
                self.replica.watchers.unfollow(self)
            if replica is not None:
                replica.watchers.follow(self)
            self.replica = replica


class FollowerPoll(Parked[Any]):
    """Parked again and again; made with the second request of a session, ended with the session or the connection."""

    __slots__ = (
        "_correlation_id", "_followed", "_later", "_max_bytes", "_min_bytes", "_most_bytes", "_node", "_reading", "_session", "_whole_ms",
        "connection", "marked",
    )  # fmt: skip

    def __init__(self, session: Session, node: Node) -> None:
        self._deliver = None
        self._is_done, self._scheduled = True, False
        self._agenda = node.replicas.agenda
        self._node = node
        self._session = session
        self._reading = Reading(node, "", VERSION)
        self._followed: dict[Key, Followed] = {}
        self._whole_ms = -float(WHOLE_MS)
        self._max_bytes = self._min_bytes = 0
        self._most_bytes: int = node.settings["fetch.max.bytes"]
        self.connection: Connection | None = None  # that of the last request
        self._later: Later | None = None  # of a request that came the short way
        self._correlation_id = 0
        self.marked: dict[Followed, None] = {}

    @classmethod
    def of(cls, session: Session, node: Node) -> FollowerPoll:
        if session.poll is None:
            session.poll = cls(session, node)
        assert isinstance(session.poll, FollowerPoll)
        return session.poll

    # Asking ---------------------------------------------------------------------------------------------------------------

    def ask(self, request: FetchRequest, context: RequestContext, follower: int) -> FetchResponse | FollowerPoll:
        self._finish()
        self._reading = Reading(
            self._node, context.listener, context.version, follower=follower, broker_epoch=request.replica_state.replica_epoch
        )
        self._later = None
        self._limits(request.max_bytes, request.min_bytes)
        for key in self._session.changed if self._followed else self._session.wanted:
            self._follow(key)
        now_ms = self._node.world.clock.monotonic_ms()
        noted = [self._followed[key] for key in self._session.changed if key in self._followed]
        found = self._begin(noted, now_ms, final=request.max_wait_ms <= 0 or not self._followed)
        if found is None:
            self._wait(request.max_wait_ms, context.connection)
            return self
        assert isinstance(found, FetchResponse)
        return found

    def ask_single(
        self, fetch: SingleFetch, followed: Followed, correlation_id: int, connection: Connection
    ) -> Answer | Exchange:
        """The same for a request that named one partition, which the session knows."""
        self._finish()
        wanted = followed.wanted
        wanted.offset, wanted.max_bytes = fetch.fetch_offset, fetch.partition_max_bytes
        wanted.current_leader_epoch, wanted.last_fetched_epoch = fetch.current_leader_epoch, fetch.last_fetched_epoch
        wanted.log_start_offset = fetch.log_start_offset
        self._reading.broker_epoch = fetch.replica_epoch
        self._reading.notes = True
        self.marked[followed] = None
        now_ms = self._node.world.clock.monotonic_ms()
        self._agenda.attend()
        try:
            noted = self._note(followed, int(now_ms))
            self._agenda.run()  # a producer may have waited for just this, and the rest can wait
        finally:
            self._agenda.leave()
        self._later = later = Later()
        self._correlation_id = correlation_id
        self._limits(fetch.max_bytes, fetch.min_bytes)
        self._node.fetch_sessions.go_on(self._session, now_ms)
        final = fetch.max_wait_ms <= 0
        # Where only the named partition is marked, and has nothing more, there is nothing to look at.
        rests = noted and len(self.marked) == 1 and followed.is_at_the_end and now_ms - self._whole_ms < WHOLE_MS
        found = None if rests and not final and self._min_bytes > 0 else self._begin([], now_ms, final)
        self._reading.notes = False
        if found is not None:
            return self._parts(found)
        later.abandon = self.leave
        self._deliver = self._give
        self._wait(fetch.max_wait_ms, connection)
        if self._node.follower_attention is not None:
            self._node.follower_attention.answered()
        return Exchange(None, later)

    def single(self, fetch: SingleFetch) -> Followed | None:
        """The partition that such a request is about, if the short way is enough for it."""
        reading = self._reading
        if reading.follower != fetch.replica_id or reading.version != VERSION:
            return None
        return self._followed.get(("", fetch.topic_id, fetch.partition))

    def _finish(self) -> None:
        """Should a poll still be under way, for which another connection waits, it ends with what there is."""
        if not self._is_done:
            self._look(True)

    def _limits(self, max_bytes: int, min_bytes: int) -> None:
        self._max_bytes = max_bytes if max_bytes < self._most_bytes else self._most_bytes
        self._min_bytes = min_bytes if min_bytes < self._max_bytes else self._max_bytes

    def _follow(self, key: Key) -> None:
        followed, wanted = self._followed.get(key), self._session.wanted.get(key)
        if wanted is None:
            if followed is not None:
                self._unfollow(followed)
                del self._followed[key]
            return
        if followed is None or followed.wanted is not wanted:
            if followed is not None:
                self._unfollow(followed)
            followed = self._followed[key] = Followed(self, wanted)
        self.marked[followed] = None

    def _unfollow(self, followed: Followed) -> None:
        followed.read_from(None)
        self.marked.pop(followed, None)

    def _begin(self, named: list[Followed], now_ms: float, final: bool) -> FetchResponse | list[Any] | None:
        """Note how far the follower is, and look whether there is anything for it."""
        whole = now_ms - self._whole_ms >= WHOLE_MS
        if whole:
            self._whole_ms = now_ms
            named = list(self._followed.values())
            self.marked.update(dict.fromkeys(named))
        for followed in named:
            self._note(followed, int(now_ms))
        self._agenda.run()  # producers may have waited for just this
        found = self._attempt(final)
        self._reading.notes = False
        return found

    def _note(self, followed: Followed, now_ms: int) -> bool:
        """Whether it counts. Whatever speaks against it is found, and told, by the reading."""
        wanted, replica = followed.wanted, followed.replica
        if replica is None or replica.leader is None:
            replica = self._reading.replica(wanted)
            followed.read_from(replica)
            if replica is None or replica.leader is None:
                return False
        held = replica.log
        if wanted.last_fetched_epoch not in (NO_EPOCH, held.latest_epoch):
            return False
        if not held.log_start_offset <= wanted.offset <= held.log_end_offset:
            return False
        try:
            self._reading.note(replica, wanted, now_ms)
        except ApiError:
            return False
        return True

    # Waiting --------------------------------------------------------------------------------------------------------------

    def _wait(self, max_wait_ms: int, connection: Connection) -> None:
        self._is_done = False
        self._agenda.deadlines.add(self, max_wait_ms)
        connection.interrupt = self.hurry
        if self.connection is not connection:
            end_poll(connection)
            self.connection = connection
            connection.session[_POLL] = self
            if self._node.follower_attention is not None:
                connection.on_answer = self._node.follower_attention.expect

    def wake(self) -> None:
        if not self._is_done and not self._scheduled:
            self._scheduled = True
            self._agenda.add(self)

    def leave(self) -> None:
        self._is_done = True
        self._agenda.deadlines.discard(self)

    def end(self) -> None:
        """Watch nothing any more. Should the session go on over another connection, `ask` begins anew."""
        self._finish()
        self.connection = None
        for followed in self._followed.values():
            followed.read_from(None)
        self._followed.clear()
        self.marked.clear()
        self._whole_ms = -float(WHOLE_MS)

    # Answering ------------------------------------------------------------------------------------------------------------

    def _give(self, found: FetchResponse | list[Any] | None, error: Exception | None) -> None:
        assert self._later is not None
        if found is None:
            log.error("fetch failed follower=%d", self._reading.follower, exc_info=error)
            self._later.give(None, ProtocolError(f"its fetch failed: {error}"))
        else:
            self._later.give(self._parts(found))

    def _parts(self, found: FetchResponse | list[Any]) -> list[Any]:
        return found if isinstance(found, list) else response_frame(found, VERSION, self._correlation_id)

    def _attempt(self, final: bool) -> FetchResponse | list[Any] | None:
        if len(self.marked) == 1 and self._later is not None and not final and self._min_bytes <= 1:
            [followed] = self.marked
            parts = self._single_answer(followed)
            if parts is not None:
                return parts
        rows = [self._followed[key] for key in self._session.wanted if key in self._followed] if final else list(self.marked)
        ready = [followed for followed in rows if not self._rests(followed)]
        if not ready and not final and self._min_bytes > 0:
            return None
        return self._whole_answer(rows, set(ready), final)

    def _rests(self, followed: Followed) -> bool:
        """Whether the follower has all there is; if it also knows all there is to know, the partition is marked no longer."""
        wanted, replica = followed.wanted, followed.replica
        if replica is None or replica.leader is None:
            return False
        held = replica.log
        if wanted.offset != held.log_end_offset or wanted.last_fetched_epoch not in (NO_EPOCH, held.latest_epoch):
            return False
        try:
            replica.leader.check_follower(self._reading.follower, self._reading.broker_epoch, wanted.current_leader_epoch)
        except ApiError:
            return False
        if wanted.was_told(held):
            self.marked.pop(followed, None)
        return True

    def _single_answer(self, followed: Followed) -> list[Any] | None:
        """None when the whole way must be gone."""
        wanted, replica = followed.wanted, followed.replica
        if replica is None or replica.leader is None:
            return None
        held = replica.log
        if wanted.last_fetched_epoch != held.latest_epoch or not held.log_start_offset <= wanted.offset < held.log_end_offset:
            return None
        try:
            replica.leader.check_follower(self._reading.follower, self._reading.broker_epoch, wanted.current_leader_epoch)
            records = self._records(wanted, held)
        except (ApiError, OSError):
            return None
        if not records:
            return None
        del self.marked[followed]
        wanted.told_high_watermark, wanted.told_log_start_offset = held.high_watermark, held.log_start_offset
        return write_answer(
            self._correlation_id,
            self._session.session_id,
            wanted.topic_id,
            wanted.partition,
            held.high_watermark,
            held.last_stable_offset,
            held.log_start_offset,
            records,
        )

    def _records(self, wanted: Wanted, held: Log) -> Any:
        limit = min(self._max_bytes, wanted.max_bytes)
        fresh = self._node.replicas.fresh
        if fresh is not None and fresh.log is held and fresh.offset == wanted.offset and len(fresh.records) <= limit:
            return fresh.records
        found = held.read(wanted.offset, limit, held.log_end_offset)
        records = part(found)
        return records.read() if 0 < found.size < READ_INSTEAD_OF_SENDFILE else records

    def _whole_answer(self, rows: list[Followed], ready: set[Followed], final: bool) -> FetchResponse | None:
        untold = [row.wanted for row in rows if row in ready or row.replica is None or not row.wanted.was_told(row.replica.log)]
        found = self._reading.read_all(untold, self._max_bytes)
        if found.size < self._min_bytes and not (final or found.is_urgent):
            return None
        response = answer(self._session, found.results, self._session.session_id)
        self._reading.hint_leaders(response)
        told = {id(wanted) for wanted, data in found.results if len(data.records)}
        for followed in rows:
            if id(followed.wanted) in told or self._rests(followed):
                self.marked.pop(followed, None)
        return response


def end_poll(connection: Connection) -> None:
    """When the connection is lost, or goes on with another session."""
    poll = connection.session.get(_POLL)
    if poll is not None and poll.connection is connection:
        poll.end()


def single_fetch(frame: bytearray, position: int, correlation_id: int, context: RequestContext) -> Answer | Exchange:
    """The short way of a Fetch, if it is such a one."""
    if context.version != VERSION:
        return None
    fetch = read_request(frame, position)
    if fetch is None:
        return None
    session = context.node.fetch_sessions.at(fetch.session_id, fetch.session_epoch)
    if session is None or session.poll is None:
        return None
    assert isinstance(session.poll, FollowerPoll)
    followed = session.poll.single(fetch)
    return None if followed is None else session.poll.ask_single(fetch, followed, correlation_id, context.connection)
