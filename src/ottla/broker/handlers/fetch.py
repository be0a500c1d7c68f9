"""Fetch 4-18: records out, to consumers and followers, as a long poll.

Versions: 5 log start offset; 7 sessions; 9 leader epochs; 10 zstd; 11 rack and closest replica; 12 flexible, divergence;
13 topic ids; 15 replica state with broker epoch; 16 leader hints; 17 directory ids; 18 a follower's high watermark.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ottla.broker.dispatch import RequestContext, handles
from ottla.broker.purgatory import Parked, Watchers
from ottla.broker.replicas import Replica
from ottla.broker.sessions import INITIAL_EPOCH, NO_SESSION, PartitionData, Session, Wanted, to_the_end
from ottla.model.errors import ApiError, ErrorCode
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.replication.closest import closest_replica
from ottla.replication.leader import divergence
from ottla.replication.state import NO_EPOCH, EpochEnd
from ottla.storage.log import Log
from ottla.storage.types import LogSlice

TopicReply = FetchResponse.FetchableTopicResponse
READ_COMMITTED = 1
WHOLE_MS = 100  # how often all partitions of a follower's session are looked at
# Errors that are found before a log is looked at. Kafka leaves the aborted transactions empty then, and null after others.
_BEFORE_THE_LOG = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


@handles("Fetch")
def fetch(request: FetchRequest, context: RequestContext) -> Any:
    node = context.node
    try:
        session, wanted = node.fetch_sessions.begin(request, context.version, node.world.clock.monotonic_ms())
    except ApiError as error:
        return FetchResponse(error_code=error.code)
    turn = _Turn(request, context, session, list(wanted))
    follower = follower_id(request, context.version)
    if follower >= 0 and context.connection.on_lost is None:
        context.connection.on_lost = partial(node.doubts.connection_lost, follower)
    response = turn.attempt(final=request.max_wait_ms <= 0)
    if response is not None:
        return response
    parked = Parked(turn.attempt, request.max_wait_ms, turn.watched())
    if follower >= 0:  # a consumer that always had two polls under way would end each with the next, and never rest
        context.connection.interrupt = parked.hurry
    return parked


def follower_id(request: FetchRequest, version: int) -> int:
    """-1 for a consumer."""
    return request.replica_id if version < 15 else request.replica_state.replica_id


class _Turn:
    """One fetch request: read, and answer when there is enough, an error, or no more time."""

    __slots__ = (
        "_committed_only",
        "_context",
        "_follower",
        "_max_bytes",
        "_min_bytes",
        "_noted",
        "_request",
        "_session",
        "_wanted",
        "_whole",
    )

    def __init__(self, request: FetchRequest, context: RequestContext, session: Session | None, wanted: list[Wanted]) -> None:
        self._request = request
        self._context = context
        self._session = session
        self._wanted = wanted
        self._follower = follower_id(request, context.version)
        self._committed_only = request.isolation_level == READ_COMMITTED and self._follower < 0
        self._noted = False  # a follower's position counts once per request
        self._max_bytes = min(request.max_bytes, context.node.settings["fetch.max.bytes"])
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._whole = self._looks_at_all()

    def _looks_at_all(self) -> bool:
        """A follower fetches thousands of times a second, mostly because of one partition of many: only those to which something
        has happened are looked at. That it keeps up with the idle ones is noted every now and then."""
        session, now_ms = self._session, self._context.node.world.clock.monotonic_ms()
        if session is None or self._follower < 0:
            return True
        if now_ms - session.last_whole_ms < WHOLE_MS:
            return False
        session.last_whole_ms = now_ms
        return True

    def watched(self) -> set[Watchers]:
        found = set()
        for row in self._wanted:
            if row.watchers is not None:
                found.add(row.watchers)
            elif (replica := self._context.node.replicas.get(self._name(row) or "", row.partition)) is not None:
                found.add(replica.watchers)
        return found

    def _name(self, wanted: Wanted) -> str | None:
        return wanted.topic if self._context.version < 13 else self._context.node.topic_name(wanted.topic_id)

    def attempt(self, final: bool) -> FetchResponse | None:
        looked_at = self._wanted if self._whole else [wanted for wanted in self._wanted if not wanted.is_unchanged]
        resting = [self._resting(wanted) for wanted in looked_at]
        if not final and self._min_bytes > 0 and self._wanted and None not in resting:
            self._looked()
            return None
        remaining, total, urgent = self._max_bytes, 0, final or not self._wanted
        results = []
        for wanted, idle in zip(looked_at, resting, strict=True):
            if idle is not None and self._session is not None and wanted.was_told(idle.log):
                continue
            data = self._read(wanted, remaining, first=total == 0)
            results.append((wanted, data))
            total += len(data.records)
            remaining = max(0, remaining - len(data.records))
            urgent = urgent or data.error_code != 0 or data.diverging_epoch.epoch >= 0 or data.preferred_read_replica >= 0
        self._looked()
        if total < self._min_bytes and not urgent:
            return None
        return self._answer(results)

    def _looked(self) -> None:
        self._noted = True
        self._whole = self._session is None or self._follower < 0

    def _resting(self, wanted: Wanted) -> Replica | None:
        """The replica, if its reader has all there is and nothing else is to be said: what most looks find, seen without
        building the answer that would say so. A follower's position is noted all the same. In doubt None."""
        wanted.watchers = None
        replica = self._context.node.replicas.get(self._name(wanted) or "", wanted.partition)
        if replica is None or replica.leader is None or self._request.rack_id:
            return None
        log = replica.log
        if wanted.offset != self._upper(log) or wanted.last_fetched_epoch not in (NO_EPOCH, log.latest_epoch):
            return None
        try:
            if self._follower >= 0:
                self._note(replica, wanted)
            else:
                replica.check_epoch(wanted.current_leader_epoch)
        except ApiError:
            return None
        if wanted.was_told(log):
            wanted.watchers, wanted.seen_version = replica.watchers, replica.watchers.version
        return replica

    def _read(self, wanted: Wanted, max_bytes: int, first: bool) -> PartitionData:
        data = PartitionData(partition_index=wanted.partition, records=b"")
        try:
            name = self._name(wanted)
            if name is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
            replica = self._replica(name, wanted.partition)
            if self._follower >= 0:
                if self._diverges(data, replica, wanted):
                    return data
            else:
                replica.check_epoch(wanted.current_leader_epoch)
                if wanted.last_fetched_epoch >= 0 and self._parts(data, replica, wanted):
                    return data
                data.preferred_read_replica = self._closest(replica, wanted)
                if data.preferred_read_replica >= 0:
                    return data
            self._fill(data, replica, wanted, min(max_bytes, wanted.max_bytes), first)
        except ApiError as error:
            data.error_code = error.code
            data.high_watermark = -1
            if error.code not in _BEFORE_THE_LOG:
                data.aborted_transactions = None
        return data

    def _replica(self, topic: str, partition: int) -> Replica:
        """Consumers may read from any replica since version 11 (KIP-392)."""
        replicas = self._context.node.replicas
        if self._follower < 0 and self._context.version >= 11:
            replica = replicas.get(topic, partition)
            if replica is not None:
                return replica
        return replicas.leader(topic, partition)

    def _diverges(self, data: PartitionData, replica: Replica, wanted: Wanted) -> bool:
        """A follower's log may part from ours (KIP-595): it is told where to look. If not, we note how far it is."""
        leader, log = replica.leader, replica.log
        assert leader is not None
        leader.check_follower(self._follower, self._request.replica_state.replica_epoch, wanted.current_leader_epoch)
        if wanted.last_fetched_epoch >= 0 and self._parts(data, replica, wanted):
            return True
        if log.log_start_offset <= wanted.offset <= log.log_end_offset:
            self._note(replica, wanted)
        return False

    def _note(self, replica: Replica, wanted: Wanted) -> None:
        """How far a follower is, which may move the high watermark. Raises what the follower is to be told."""
        leader, broker_epoch = replica.leader, self._request.replica_state.replica_epoch
        assert leader is not None
        leader.check_follower(self._follower, broker_epoch, wanted.current_leader_epoch)
        if not self._noted:
            now_ms = int(self._context.node.world.clock.monotonic_ms())
            replica.progress(leader.fetched(self._follower, wanted.offset, wanted.log_start_offset, broker_epoch, now_ms))

    def _parts(self, data: PartitionData, replica: Replica, wanted: Wanted) -> bool:
        """Whether what the reader has before its offset is not what is here, and if so says where the logs part."""
        log = replica.log
        found = log.end_offset_for_epoch(wanted.last_fetched_epoch)
        local = None if found.epoch < 0 else EpochEnd(found.epoch, found.offset)
        end = divergence(wanted.last_fetched_epoch, wanted.offset, local, log.log_start_offset)
        if end is None:
            return False
        data.diverging_epoch = PartitionData.EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)
        data.high_watermark, data.log_start_offset = log.high_watermark, log.log_start_offset
        data.last_stable_offset, data.aborted_transactions = log.last_stable_offset, None
        return True

    def _closest(self, replica: Replica, wanted: Wanted) -> int:
        node = self._context.node
        if replica.leader is None or not self._request.rack_id or not node.settings["replica.selector.class"]:
            return -1
        racks = {broker_id: rack for broker_id, _, rack in node.endpoints(self._context.listener, replica.state.replicas)}
        return closest_replica(replica.leader, self._request.rack_id, wanted.offset, racks)

    def _fill(self, data: PartitionData, replica: Replica, wanted: Wanted, max_bytes: int, first: bool) -> None:
        log = replica.log
        if self._follower < 0 and replica.leader is None and wanted.offset > log.high_watermark:
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)  # the leader has committed what has not reached us yet
        found = log.read(wanted.offset, max_bytes, self._upper(log), first)
        data.high_watermark = log.high_watermark
        data.last_stable_offset = log.last_stable_offset
        data.log_start_offset = log.log_start_offset
        data.records = _part(found)
        data.aborted_transactions = None
        if self._committed_only:
            data.aborted_transactions = [
                PartitionData.AbortedTransaction(producer_id=row.producer_id, first_offset=row.first_offset)
                for row in log.aborted_transactions(wanted.offset, found.end_offset)
            ]

    def _upper(self, log: Log) -> int:
        """Where reading ends: for a follower with the log."""
        if self._follower >= 0:
            return log.log_end_offset
        return log.last_stable_offset if self._committed_only else log.high_watermark

    def _answer(self, results: list[tuple[Wanted, PartitionData]]) -> FetchResponse:
        session = self._session
        response = FetchResponse(session_id=session.session_id if session else self._new_session())
        topic: FetchResponse.FetchableTopicResponse | None = None
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
        self._hint_leaders(response)
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

    def _hint_leaders(self, response: FetchResponse) -> None:
        """Tell a reader with stale metadata where to go (KIP-951)."""
        node, version = self._context.node, self._context.version
        if version < 16:
            return
        leaders = set()
        for topic in response.responses:
            for data in topic.partitions:
                if data.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
                    state = node.partition_state(topic.topic or node.topic_name(topic.topic_id), data.partition_index)
                    if state is not None:
                        data.current_leader = PartitionData.LeaderIdAndEpoch(
                            leader_id=state.leader, leader_epoch=state.leader_epoch
                        )
                        leaders.add(state.leader)
        if leaders and self._follower < 0:
            response.node_endpoints = [
                FetchResponse.NodeEndpoint(node_id=node_id, host=endpoint.host, port=endpoint.port, rack=rack)
                for node_id, endpoint, rack in node.endpoints(self._context.listener, leaders)
            ]


def _part(found: LogSlice) -> Any:
    """A slice never spans segments, so it is one range of one file."""
    if found.empty:
        return b""
    [part] = found.parts
    return part
