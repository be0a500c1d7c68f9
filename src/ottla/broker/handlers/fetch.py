"""Fetch 4-18: records out, to consumers and followers, as a long poll.

Versions: 5 log start offset; 7 sessions; 9 leader epochs; 10 zstd; 11 rack and closest replica; 12 flexible, divergence;
13 topic ids; 15 replica state with broker epoch; 16 leader hints; 17 directory ids; 18 a follower's high watermark.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ottla.broker.dispatch import RequestContext, handles
from ottla.broker.follower_polls import FollowerPoll, end_poll, single_fetch
from ottla.broker.purgatory import Parked, Watchers
from ottla.broker.reading import Reading
from ottla.broker.replicas import Replica
from ottla.broker.sessions import INITIAL_EPOCH, NO_SESSION, PartitionData, Session, Wanted, answer
from ottla.model.errors import ApiError
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.replication.state import NO_EPOCH

READ_COMMITTED = 1


@handles("Fetch", shortcut=single_fetch)
def fetch(request: FetchRequest, context: RequestContext) -> Any:
    node = context.node
    try:
        session, wanted = node.fetch_sessions.begin(request, context.version, node.world.clock.monotonic_ms())
    except ApiError as error:
        return FetchResponse(error_code=error.code)
    follower = follower_id(request, context.version)
    if follower >= 0 and context.connection.on_lost is None:
        context.connection.on_lost = partial(_follower_lost, context, follower)
    if follower >= 0 and session is not None:
        return FollowerPoll.of(session, node).ask(request, context, follower)
    turn = _Turn(request, context, session, list(wanted), follower)
    response = turn.attempt(final=request.max_wait_ms <= 0)
    if response is not None:
        return response
    parked = Parked(node.replicas.agenda, turn.attempt, request.max_wait_ms, turn.watched())
    if follower >= 0:  # a consumer that always had two polls under way would end each with the next, and never rest
        context.connection.interrupt = parked.hurry
    return parked


def _follower_lost(context: RequestContext, follower: int) -> None:
    end_poll(context.connection)
    context.node.doubts.connection_lost(follower)


def follower_id(request: FetchRequest, version: int) -> int:
    """-1 for a consumer."""
    return request.replica_id if version < 15 else request.replica_state.replica_id


class _Turn:
    """One fetch request: read, and answer when there is enough, an error, or no more time. Followers come here without a session."""

    __slots__ = ("_context", "_max_bytes", "_min_bytes", "_reading", "_request", "_session", "_wanted")

    def __init__(
        self, request: FetchRequest, context: RequestContext, session: Session | None, wanted: list[Wanted], follower: int
    ) -> None:
        self._request = request
        self._context = context
        self._session = session
        self._wanted = wanted
        self._reading = Reading(
            context.node,
            context.listener,
            context.version,
            follower=follower,
            broker_epoch=request.replica_state.replica_epoch,
            rack_id=request.rack_id,
            committed_only=request.isolation_level == READ_COMMITTED,
        )
        self._max_bytes = min(request.max_bytes, context.node.settings["fetch.max.bytes"])
        self._min_bytes = min(request.min_bytes, self._max_bytes)

    def watched(self) -> set[Watchers]:
        found = (self._reading.replica(wanted) for wanted in self._wanted)
        return {replica.watchers for replica in found if replica is not None}

    def attempt(self, final: bool) -> FetchResponse | None:
        resting = [self._resting(wanted) for wanted in self._wanted]
        if not final and self._min_bytes > 0 and self._wanted and None not in resting:
            self._reading.notes = False
            return None
        found = self._reading.read_all(
            [
                wanted
                for wanted, idle in zip(self._wanted, resting, strict=True)
                if idle is None or self._session is None or not wanted.was_told(idle.log)
            ],
            self._max_bytes,
        )
        self._reading.notes = False
        if found.size < self._min_bytes and not (final or found.is_urgent or not self._wanted):
            return None
        return self._answer(found.results)

    def _resting(self, wanted: Wanted) -> Replica | None:
        """The replica, if its reader has all there is and nothing else is to be said: what most looks find, seen without
        building the answer that would say so. A follower's position is noted all the same. In doubt None."""
        replica = self._reading.replica(wanted)
        if replica is None or replica.leader is None or self._request.rack_id:
            return None
        log = replica.log
        if wanted.offset != self._reading.upper(log) or wanted.last_fetched_epoch not in (NO_EPOCH, log.latest_epoch):
            return None
        try:
            if self._reading.follower >= 0:
                self._reading.note(replica, wanted, self._reading.now_ms())
            else:
                replica.check_epoch(wanted.current_leader_epoch)
        except ApiError:
            return None
        return replica

    def _answer(self, results: list[tuple[Wanted, PartitionData]]) -> FetchResponse:
        session = self._session
        response = answer(session, results, session.session_id if session else self._new_session())
        self._reading.hint_leaders(response)
        return response

    def _new_session(self) -> int:
        node = self._context.node
        if self._context.version < 7 or self._request.session_epoch != INITIAL_EPOCH or not self._wanted:
            return NO_SESSION
        session_id = 1 + node.world.random.below(2**31 - 1)
        slots = node.settings["max.incremental.fetch.session.cache.slots"]
        now_ms = node.world.clock.monotonic_ms()
        if node.fetch_sessions.has(session_id):
            return NO_SESSION
        made = node.fetch_sessions.create(self._wanted, self._context.version, session_id, slots, now_ms)
        return NO_SESSION if made is None else session_id
