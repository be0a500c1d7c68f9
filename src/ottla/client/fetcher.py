"""Fetches ahead of the consumer: one request per broker under way, long polls, sessions, the closest replica.

`poke` looks at every position and asks for what is wanted and has room; answers go into the positions and wake the consumer.
Like the sender it runs in callbacks of the loop, without a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientClosed, NetworkError
from ottla.client.metadata import Broker, code_of
from ottla.client.positions import POLICY, Chunk, Position
from ottla.client.rounds import Rounds
from ottla.client.settings import ConsumerSettings
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.records.batch import HEADER_SIZE, headers, read_header
from ottla.records.control import AbortedTransaction

log = logging.getLogger("ottla.consumer")

PURPOSE = "fetch"  # long polls have connections of their own
# The longest a broker waits for partitions that have nothing new, while others of its have more than we can take now: as soon as
# these have room again they are to be asked for, and a broker looks at a connection's next request only after the one before.
SHARED_WAIT_MS = 20
LAST_VERSION_WITH_NAMES = 12
FULL_SESSION = 0
NO_SESSION_EPOCH = -1
LAST_SESSION_EPOCH = 0x7FFFFFFF
_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)

Wanted = tuple[int, int, int, int]  # fetch offset, leader epoch, epoch of the record before it, most bytes


class _Session:
    """What a broker remembers of our last fetch (KIP-227)."""

    __slots__ = ("epoch", "id", "partitions", "uses_ids")

    def __init__(self) -> None:
        self.id = 0
        self.epoch = FULL_SESSION
        self.partitions: dict[TopicPartition, Wanted] = {}
        self.uses_ids = False


def _not_one_batch(position: Position, data: Any) -> tuple[ErrorCode, str]:
    where = f"{position.key} offset {position.fetch_offset}"
    if len(data) >= HEADER_SIZE and read_header(data).size < HEADER_SIZE:
        return ErrorCode.CORRUPT_MESSAGE, f"{where}: a record batch with an impossible length; if it stays so, seek past it"
    return ErrorCode.MESSAGE_TOO_LARGE, f"{where}: the batch there is larger than fetch_max_bytes; raise it or seek past it"


class Fetcher:
    def __init__(
        self, cluster: Cluster, positions: dict[TopicPartition, Position], settings: ConsumerSettings, notify: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._settings = settings
        self._notify = notify
        self._under_way: set[int] = set()  # brokers with a fetch under way
        self._sessions: dict[int, _Session] = {}
        self._rounds = Rounds(cluster, self._round, "consumer")
        self.error: Exception | None = None

    def close(self) -> None:
        self._rounds.close()

    def poke(self) -> None:
        self._rounds.wake()

    # Asking ------------------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        now = self._cluster.now_ms()
        shares: dict[int, list[Position]] = {}
        crowded: set[int | None] = set()  # brokers with more for us than we have room for
        homeless: set[str] = set()
        soonest: float | None = None
        for position in self._positions.values():
            if position.offset is None or position.paused or position.fetching:
                continue
            if not position.has_room:
                crowded.add(self._node_for(position, now))
                continue
            if position.retry_at_ms > now:
                soonest = position.retry_at_ms if soonest is None else min(soonest, position.retry_at_ms)
                continue
            node = self._node_for(position, now)
            if node is None:
                homeless.add(position.key.topic)
            elif node not in self._under_way:
                shares.setdefault(node, []).append(position)
        if self._cluster.metadata_age_ms > self._settings["metadata_max_age_ms"]:
            homeless.update(key.topic for key in self._positions)
        if homeless:
            self._rounds.find_leaders(homeless)
        longest = self._settings["fetch_max_wait_ms"]
        for node, share in shares.items():
            self._fetch(node, share, min(SHARED_WAIT_MS, longest) if node in crowded else longest)
        if soonest is not None:
            self._rounds.wake_by(soonest)

    def _node_for(self, position: Position, now: float) -> int | None:
        if position.preferred >= 0:
            if now < position.preferred_until_ms and position.preferred in self._cluster.view.brokers:
                return position.preferred
            position.preferred = -1
        topic = self._cluster.view.topics.get(position.key.topic)
        info = topic.partition(position.key.partition) if topic is not None else None
        return info.leader if info is not None and info.leader in self._cluster.view.brokers else None

    def _fetch(self, node: int, share: list[Position], max_wait_ms: int) -> None:
        connection = self._cluster.ready_connection(node, PURPOSE)
        if connection is None:
            self._rounds.connect(node, PURPOSE, lambda: {key.topic for key in self._positions}, lambda: self._avoid(node))
            return
        if (wait_ms := self._cluster.throttle_ms(connection)) > 0:
            self._rounds.wake_by(self._cluster.now_ms() + wait_ms)
            return
        session = self._sessions.setdefault(node, _Session())
        uses_ids = all(self._topic_id(position.key.topic) for position in share)
        version = connection.version_of(FetchRequest, None if uses_ids else LAST_VERSION_WITH_NAMES)
        uses_ids = uses_ids and version > LAST_VERSION_WITH_NAMES
        if session.id and session.uses_ids != uses_ids:
            session = self._sessions[node] = _Session()
        session.uses_ids = uses_ids
        wanted = {position.key: self._wanted(position) for position in share}
        request = self._request(session, wanted, max_wait_ms)
        timeout = max_wait_ms + self._settings["request_timeout_ms"]
        try:
            future = connection.send(request, version=version, timeout_ms=timeout)
        except NetworkError:
            self.poke()
            return
        asked = {}
        for position in share:
            position.fetching = True
            asked[position.key] = (position, position.fetch_offset)
        self._under_way.add(node)
        future.add_done_callback(lambda done: self._answered(node, session, wanted, asked, done))
        if all(position.preferred < 0 for position in share):
            self._rounds.watch(node, connection, list(asked), future, max_wait_ms)

    def _avoid(self, node: int) -> None:
        """A replica that was close but cannot be reached."""
        for position in self._positions.values():
            if position.preferred == node:
                position.preferred = -1

    def _topic_id(self, name: str) -> bytes | None:
        topic = self._cluster.view.topics.get(name)
        return topic.id if topic is not None and any(topic.id) else None

    def _wanted(self, position: Position) -> Wanted:
        topic = self._cluster.view.topics.get(position.key.topic)
        info = topic.partition(position.key.partition) if topic is not None else None
        epoch = info.leader_epoch if info is not None else -1
        return (position.fetch_offset, epoch, position.fetch_epoch, self._settings["max_partition_fetch_bytes"])

    def _request(self, session: _Session, wanted: dict[TopicPartition, Wanted], max_wait_ms: int) -> FetchRequest:
        sessions = self._settings["enable_fetch_sessions"]
        changed = wanted
        forgotten: list[TopicPartition] = []
        if session.id:
            changed = {key: value for key, value in wanted.items() if session.partitions.get(key) != value}
            forgotten = [key for key in session.partitions if key not in wanted]
        kind = FetchRequest.FetchTopic
        topics: dict[str, Any] = {}
        for (name, number), (offset, epoch, last_epoch, size) in changed.items():
            if name not in topics:
                topics[name] = kind(topic=name, topic_id=self._topic_id(name) or bytes(16))
            topics[name].partitions.append(
                kind.FetchPartition(
                    partition=number,
                    current_leader_epoch=epoch,
                    fetch_offset=offset,
                    last_fetched_epoch=last_epoch,
                    partition_max_bytes=size,
                )
            )
        gone: dict[str, Any] = {}
        for name, number in forgotten:
            if name not in gone:
                gone[name] = FetchRequest.ForgottenTopic(topic=name, topic_id=self._topic_id(name) or bytes(16))
            gone[name].partitions.append(number)
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=self._settings["fetch_min_bytes"],
            max_bytes=self._settings["fetch_max_bytes"],
            isolation_level=self._settings["isolation_level"] == "read_committed",
            session_id=session.id,
            session_epoch=session.epoch if sessions else NO_SESSION_EPOCH,
            topics=list(topics.values()),
            forgotten_topics_data=list(gone.values()),
            rack_id=self._settings["client_rack"],
        )

    # Answers -----------------------------------------------------------------------------------------------------------

    def _answered(
        self,
        node: int,
        session: _Session,
        wanted: dict[TopicPartition, Wanted],
        asked: dict[TopicPartition, tuple[Position, int]],
        done: asyncio.Future[FetchResponse],
    ) -> None:
        self._under_way.discard(node)
        for position, _ in asked.values():
            position.fetching = False
        if self._rounds.closed:
            if not done.cancelled():
                done.exception()
            return
        error = done.exception() if not done.cancelled() else ClientClosed("closed")
        if error is not None:
            self._broken(node, asked, error)
        elif done.result().error_code:
            self._sessions.pop(node, None)
            code = code_of(done.result().error_code)
            if code not in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
                self._wait(asked, code)
        else:
            self._keep_session(node, session, wanted, done.result())
            self._sort(node, asked, done.result())
        self.poke()
        self._notify()

    def _broken(self, node: int, asked: dict[TopicPartition, tuple[Position, int]], error: BaseException) -> None:
        log.info("fetch_failed broker=%s error=%s", node, error)
        self._sessions.pop(node, None)
        for position, _ in asked.values():
            position.preferred = -1
        self._wait(asked, ErrorCode.NETWORK_EXCEPTION)

    def _wait(self, asked: dict[TopicPartition, tuple[Position, int]], code: ErrorCode) -> None:
        """Try these again a little later, with fresh metadata."""
        at = self._cluster.now_ms() + self._cluster.backoff_ms(0)
        for position, _ in asked.values():
            position.retry_at_ms = at
        self._rounds.find_leaders({key.topic for key in asked})

    def _keep_session(self, node: int, session: _Session, wanted: dict[TopicPartition, Wanted], reply: FetchResponse) -> None:
        if not self._settings["enable_fetch_sessions"] or self._sessions.get(node) is not session:
            return
        if not reply.session_id:
            self._sessions[node] = _Session()
            return
        session.id = reply.session_id
        session.epoch = 1 if session.epoch == LAST_SESSION_EPOCH else session.epoch + 1
        session.partitions = wanted

    def _sort(self, node: int, asked: dict[TopicPartition, tuple[Position, int]], reply: FetchResponse) -> None:
        endpoints = [Broker(row.node_id, row.host, row.port, row.rack) for row in reply.node_endpoints]
        names = self._cluster.view.names
        for topic in reply.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for part in topic.partitions:
                found = asked.get(TopicPartition(name, part.partition_index))
                if found is None:
                    continue
                position, offset = found
                if (
                    self._positions.get(position.key) is not position
                    or position.offset is None
                    or position.fetch_offset != offset
                ):
                    continue  # revoked or moved elsewhere meanwhile
                if part.error_code:
                    self._refused(position, part, endpoints)
                else:
                    self._take(position, part)

    def _take(self, position: Position, part: FetchResponse.FetchableTopicResponse.PartitionData) -> None:
        position.high_watermark = part.high_watermark
        position.last_stable_offset = part.last_stable_offset
        position.log_start_offset = part.log_start_offset
        if part.preferred_read_replica >= 0:
            position.preferred = part.preferred_read_replica
            position.preferred_until_ms = self._cluster.now_ms() + self._settings["metadata_max_age_ms"]
        if part.diverging_epoch.end_offset >= 0:
            self._truncated(position, part.diverging_epoch.end_offset)
            return
        data = part.records
        if not data:
            return
        batches = deque(headers(data), 1)
        if not batches:
            self._fail(position, *_not_one_batch(position, data))
            return
        aborted = tuple(AbortedTransaction(row.producer_id, row.first_offset) for row in part.aborted_transactions or ())
        if self._settings["isolation_level"] != "read_committed":
            aborted = ()
        position.add(Chunk(data, aborted, batches[0][1].next_offset), batches[0][1].leader_epoch)

    def _truncated(self, position: Position, offset: int) -> None:
        """The log was cut below what was read (an unclean election, KIP-320): go on where it still agrees, or say so."""
        if self._settings["auto_offset_reset"] == "none":
            self._fail(
                position,
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{position.key} was truncated to offset {offset}, below {position.fetch_offset}; records that were read are gone. Seek to go on",
            )
            return
        log.warning("truncated partition=%s from=%s to=%s", position.key, position.fetch_offset, offset)
        position.seek(offset)

    def _refused(self, position: Position, part: Any, endpoints: list[Broker]) -> None:
        code = code_of(part.error_code)
        key = position.key
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and position.preferred >= 0:
            position.preferred = -1  # a follower may be behind; the leader knows better
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if self._settings["auto_offset_reset"] == "none":
                self._fail(
                    position, code, f"{key} has no offset {position.fetch_offset}, and auto_offset_reset is none; seek elsewhere"
                )
            else:
                log.info("offset_out_of_range partition=%s offset=%s", key, position.fetch_offset)
                position.reset_to(POLICY)
        elif code in _MOVED or code.retriable:
            position.preferred = -1
            leader = part.current_leader
            if not self._cluster.view.hint(key.topic, key.partition, leader.leader_id, leader.leader_epoch, endpoints):
                self._wait({key: (position, 0)}, code)
        else:
            self._fail(position, code, f"{key}: {code.meaning}")

    def _fail(self, position: Position, code: ErrorCode, message: str) -> None:
        """The application is told at its next poll, which may come late: until then the broker is not asked without pause."""
        self.error = ApiError(code, message)
        position.retry_at_ms = self._cluster.now_ms() + self._cluster.backoff_ms(0)
