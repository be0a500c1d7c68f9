"""Followers: one fetcher per leader copies every partition that it leads and we follow, with Kafka's own Fetch.

A fetcher runs one request at a time over an incremental session. What a partition's answer means is decided by its
`PartitionFollower`; here it is only carried out: append, truncate, move the high watermark. A partition that was answered with
an error rests for a moment; one whose leader changed while its answer was on its way ignores it.

Mostly one partition of many has changed, so only those that something happened to are compared with what the session knows; all of
them are every now and then, because retention moves the start of a log without asking anybody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.sessions import PartitionData, next_epoch
from ottla.client.connection import SOFTWARE_NAME, SOFTWARE_VERSION, Connection, ConnectionOptions, connect
from ottla.client.errors import ConnectionLost, NetworkError
from ottla.metadata.image import NO_LEADER
from ottla.model.errors import ApiError, ErrorCode, ProtocolError
from ottla.model.ids import TopicPartition
from ottla.protocol.codec import encode
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.offsets import ListOffsetsRequest
from ottla.protocol.messages.versions import ApiVersionsRequest
from ottla.protocol.single_fetch import VERSION, SingleAnswer, SingleFetch, read_answer, write_request
from ottla.replication.follower import FetchPosition, Restart, Truncate
from ottla.replication.state import EpochEnd

if TYPE_CHECKING:
    from ottla.broker.node import Node
    from ottla.broker.replicas import Replica

log = logging.getLogger("ottla.fetchers")
REST_MS, MAX_REST_MS = 10, 500  # after an error of one partition; doubled with each in a row
IDLE_MS = 100  # between looks when there is nothing to fetch
WHOLE_MS = 100  # between looks at all partitions
RECONNECT_MS = 50  # doubled up to replica.fetch.backoff.ms
LATEST, EARLIEST = -1, -2
_SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


class Asked(NamedTuple):
    """What a session remembers of a partition of ours."""

    topic_id: bytes
    position: FetchPosition
    log_start_offset: int


class Fetchers:
    """Which fetcher follows what. `assign` and `drop` follow the roles of replicas."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._by_leader: dict[int, Fetcher] = {}
        self._leader_of: dict[TopicPartition, int] = {}

    def assign(self, replica: Replica) -> None:
        leader = replica.state.leader
        if self._leader_of.get(replica.topic_partition) not in (None, leader):
            self.drop(replica)
        if leader == NO_LEADER:
            return
        self._leader_of[replica.topic_partition] = leader
        fetcher = self._by_leader.get(leader)
        if fetcher is None:
            fetcher = self._by_leader[leader] = Fetcher(self._node, leader)
        fetcher.add(replica)

    def drop(self, replica: Replica) -> None:
        leader = self._leader_of.pop(replica.topic_partition, None)
        if leader is None:
            return
        fetcher = self._by_leader[leader]
        if not fetcher.remove(replica.topic_partition):
            fetcher.stop()
            del self._by_leader[leader]

    def stop(self) -> None:
        for fetcher in self._by_leader.values():
            fetcher.stop()
        self._by_leader.clear()
        self._leader_of.clear()


class Fetcher:
    def __init__(self, node: Node, leader_id: int) -> None:
        self._node = node
        self._leader_id = leader_id
        self._replicas: dict[TopicPartition, Replica] = {}
        self._resting: dict[TopicPartition, float] = {}  # until when
        self._rest_ms: dict[TopicPartition, int] = {}  # how long the next rest is, of those with errors lately
        self._sent: dict[TopicPartition, Asked] = {}  # what the session knows
        self._touched: dict[TopicPartition, None] = {}  # where that may have changed
        self._whole_ms = -float(WHOLE_MS)  # when all were last looked at
        self._session_id = 0
        self._session_epoch = 0
        self._connection: Connection | None = None
        self._is_polling = False  # a fetch is under way that nobody has hurried
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def add(self, replica: Replica) -> None:
        self._replicas[replica.topic_partition] = replica
        self._resting.pop(replica.topic_partition, None)
        self._touched[replica.topic_partition] = None
        self._changed.set()
        self._hurry()

    def _hurry(self) -> None:
        """End the fetch under way, if it is still without the partition that was added: producers may already wait for this replica.

        Any request will do: a leader of our kind ends a long poll when the next request comes in behind it. To Kafka's it does no harm.
        """
        if self._is_polling and self._connection is not None and self._connection.is_open:
            self._is_polling = False
            self._connection.send(
                ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
            )

    def remove(self, topic_partition: TopicPartition) -> bool:
        """Whether any partition is left."""
        self._replicas.pop(topic_partition, None)
        self._resting.pop(topic_partition, None)
        self._rest_ms.pop(topic_partition, None)
        self._touched[topic_partition] = None
        return bool(self._replicas)

    def stop(self) -> None:
        self._task.cancel()
        self._disconnect()

    async def _run(self) -> None:
        backoff_ms = RECONNECT_MS
        while True:
            try:
                await self._fetch_once()
                backoff_ms = RECONNECT_MS
            except (NetworkError, ProtocolError, ApiError) as error:
                log.info("fetch failed node=%d leader=%d error=%s", self._node.node_id, self._leader_id, error)
                self._disconnect()
                await asyncio.sleep(self._node.world.random.uniform(0.5, 1) * backoff_ms / 1000)
                backoff_ms = min(2 * backoff_ms, self._node.settings["replica.fetch.backoff.ms"])

    async def _fetch_once(self) -> None:
        if self._connection is None:
            self._connection = await self._connect()
        request = self._request()
        if not request.topics and not request.forgotten_topics_data and not self._sent:
            await self._until_something_changes()
            return
        response = await self._poll(self._connection, request)
        if response.error_code:
            if response.error_code in _SESSION_ERRORS:
                self._forget_session()
                return
            raise ApiError(ErrorCode(response.error_code))
        self._session_id = response.session_id
        if response.session_id:
            self._session_epoch = next_epoch(self._session_epoch)
        await self._handle(response)
        if not response.session_id:
            self._forget_session()

    async def _poll(self, connection: Connection, request: FetchRequest) -> FetchResponse:
        self._is_polling = True
        again = self._heard_single if connection.version_of(FetchRequest) == VERSION else None
        try:
            response: FetchResponse = await connection.send(request, again=again)
            return response
        except ConnectionLost:
            self._node.doubts.connection_lost(self._leader_id)
            raise
        finally:
            self._is_polling = False

    async def _connect(self) -> Connection:
        broker = self._node.image.brokers.get(self._leader_id)
        found = None if broker is None else broker.listener(self._node.config.inter_broker_listener)
        if found is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {self._leader_id} has no listener for brokers")
        settings = self._node.settings
        options = ConnectionOptions(
            client_id=f"broker-{self._node.node_id}-fetcher",
            setup_timeout_ms=2_000,
            request_timeout_ms=settings["replica.socket.timeout.ms"],
        )
        return await connect(self._node.world.network, found.host, found.port, options)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._forget_session()

    def _forget_session(self) -> None:
        self._session_id = self._session_epoch = 0
        self._sent = {}
        self._whole_ms = -float(WHOLE_MS)

    async def _until_something_changes(self) -> None:
        self._changed.clear()
        timeout_ms = min(IDLE_MS, self._node.settings["replica.fetch.wait.max.ms"])
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_ms / 1000)
        except TimeoutError:
            pass

    # Asking ---------------------------------------------------------------------------------------------------------------

    def _request(self) -> FetchRequest:
        """Only what changed since the last request of the session."""
        settings = self._node.settings
        now_ms = self._node.world.clock.monotonic_ms()
        for key in [key for key, until_ms in self._resting.items() if until_ms <= now_ms]:
            del self._resting[key]
            self._touched[key] = None
        topics: dict[bytes, FetchRequest.FetchTopic] = {}
        forgotten: dict[bytes, FetchRequest.ForgottenTopic] = {}
        for key in self._looked_at(now_ms):
            replica = self._replicas.get(key)
            before, asked = self._sent.get(key), None
            if replica is not None and replica.follower is not None and key not in self._resting:
                asked = self._sent[key] = Asked(replica.topic_id, replica.follower.position, replica.log.log_start_offset)
                if asked != before:
                    topic = topics.setdefault(asked.topic_id, FetchRequest.FetchTopic(topic=key.topic, topic_id=asked.topic_id))
                    topic.partitions.append(self._partition(key, asked))
            if before is not None and (asked is None or asked.topic_id != before.topic_id):
                row = forgotten.setdefault(
                    before.topic_id, FetchRequest.ForgottenTopic(topic=key.topic, topic_id=before.topic_id)
                )
                row.partitions.append(key.partition)
                if asked is None:
                    del self._sent[key]
        return FetchRequest(
            replica_state=FetchRequest.ReplicaState(
                replica_id=self._node.node_id, replica_epoch=self._node.lifecycle.broker_epoch
            ),
            max_wait_ms=self._max_wait_ms(now_ms),
            min_bytes=settings["replica.fetch.min.bytes"],
            max_bytes=settings["replica.fetch.response.max.bytes"],
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )

    def _looked_at(self, now_ms: float) -> Iterable[TopicPartition]:
        touched, self._touched = self._touched, {}
        if now_ms - self._whole_ms < WHOLE_MS:
            return touched
        self._whole_ms = now_ms
        return [*self._replicas, *(key for key in self._sent if key not in self._replicas)]

    def _max_wait_ms(self, now_ms: float) -> int:
        """No longer than until the next partition has rested: the poll is without it."""
        limit_ms: int = self._node.settings["replica.fetch.wait.max.ms"]
        return min(limit_ms, 1 + int(min(self._resting.values()) - now_ms)) if self._resting else limit_ms

    def _partition(self, key: TopicPartition, asked: Asked) -> FetchRequest.FetchTopic.FetchPartition:
        position = asked.position
        return FetchRequest.FetchTopic.FetchPartition(
            partition=key.partition,
            current_leader_epoch=position.current_leader_epoch,
            fetch_offset=position.offset,
            last_fetched_epoch=position.last_fetched_epoch,
            log_start_offset=asked.log_start_offset,
            partition_max_bytes=self._node.settings["replica.fetch.max.bytes"],
        )

    def _request_single(self, key: TopicPartition, replica: Replica, now_ms: float) -> bytes:
        """The same when nothing has happened but to this partition; its form is always the same."""
        assert replica.follower is not None
        settings, position = self._node.settings, replica.follower.position
        log_start_offset = replica.log.log_start_offset
        self._sent[key] = Asked(replica.topic_id, position, log_start_offset)
        return write_request(
            SingleFetch(
                self._max_wait_ms(now_ms),
                settings["replica.fetch.min.bytes"],
                settings["replica.fetch.response.max.bytes"],
                self._session_id,
                self._session_epoch,
                replica.topic_id,
                key.partition,
                position.current_leader_epoch,
                position.offset,
                position.last_fetched_epoch,
                log_start_offset,
                settings["replica.fetch.max.bytes"],
                self._node.node_id,
                self._node.lifecycle.broker_epoch,
            )
        )

    # Hearing --------------------------------------------------------------------------------------------------------------

    async def _handle(self, response: FetchResponse) -> None:
        for topic in response.responses:
            name = topic.topic or self._node.topic_name(topic.topic_id)
            for data in topic.partitions:
                key = TopicPartition(name or "", data.partition_index)
                replica, then = self._replicas.get(key), self._sent.get(key)
                self._touched[key] = None
                if replica is None or replica.follower is None or then is None or replica.follower.position != then.position:
                    continue  # its role or position changed while the answer was on its way
                try:
                    await self._heard(replica, data)
                    self._rest_ms.pop(key, None)
                except ApiError as error:
                    self._rest(key, error)

    def _heard_single(self, frame: bytearray, position: int) -> bytes | None:
        """An answer with the records of one partition, the commonest, without a message made of it and without waking the task: a
        producer waits for the request that follows, whose body is returned. None leaves the answer to the task."""
        data = read_answer(frame, position)
        if data is None or data.session_id != self._session_id or not data.session_id:
            return None
        key = TopicPartition(self._node.topic_name(data.topic_id) or "", data.partition)
        replica, then = self._replicas.get(key), self._sent.get(key)
        if replica is None or replica.follower is None or then is None or replica.follower.position != then.position:
            return None
        try:
            self._append(replica, data)
        except ApiError:
            return None  # nothing was appended: the task finds the same, and lets the partition rest
        self._rest_ms.pop(key, None)
        self._session_epoch = next_epoch(self._session_epoch)
        self._is_polling = True
        now_ms = self._node.world.clock.monotonic_ms()
        if self._touched or self._resting or now_ms - self._whole_ms >= WHOLE_MS:
            self._touched[key] = None
            return encode(self._request(), VERSION)
        return self._request_single(key, replica, now_ms)

    async def _heard(self, replica: Replica, data: PartitionData) -> None:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._out_of_range(replica)
        elif data.error_code:
            raise ApiError(ErrorCode(data.error_code))
        elif data.diverging_epoch.epoch >= 0:
            self._diverged(replica, EpochEnd(data.diverging_epoch.epoch, data.diverging_epoch.end_offset))
        else:
            self._append(replica, data)

    def _append(self, replica: Replica, data: PartitionData | SingleAnswer) -> None:
        follower, log_ = replica.follower, replica.log
        assert follower is not None
        if data.records:
            replica.append_fetched(data.records)
            follower.appended(log_.log_end_offset, log_.latest_epoch)
        moved = follower.heard(data.high_watermark)
        if moved:
            log_.set_high_watermark(follower.high_watermark)
        started = log_.advance_log_start_offset(data.log_start_offset)
        if moved or started or data.records:
            replica.watchers.wake()

    def _diverged(self, replica: Replica, leader: EpochEnd) -> None:
        assert replica.follower is not None
        found = replica.log.end_offset_for_epoch(leader.epoch)
        local = None if found.epoch < 0 else EpochEnd(found.epoch, found.offset)
        self._carry_out(replica, replica.follower.diverged(leader, local))

    def _carry_out(self, replica: Replica, decided: Truncate | Restart | None) -> None:
        if decided is None or replica.follower is None:
            return
        now_ms = self._node.world.clock.wall_ms()
        log.info(
            "truncated topic=%s partition=%d offset=%d node=%d", *replica.topic_partition, decided.offset, self._node.node_id
        )
        if isinstance(decided, Truncate):
            replica.log.truncate_to(decided.offset, now_ms)
        else:
            replica.log.truncate_fully_and_start_at(decided.offset, now_ms)
        replica.follower.truncated(replica.log.log_end_offset, replica.log.latest_epoch)

    async def _out_of_range(self, replica: Replica) -> None:
        assert replica.follower is not None
        position = replica.follower.position
        start = await self._ask_offset(replica, EARLIEST)
        end = await self._ask_offset(replica, LATEST)
        if replica.follower is not None and replica.follower.position == position:
            self._carry_out(replica, replica.follower.out_of_range(start, end))

    async def _ask_offset(self, replica: Replica, timestamp: int) -> int:
        assert self._connection is not None
        topic, partition = replica.topic_partition
        row = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=replica.leader_epoch, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=self._node.node_id, topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])]
        )
        response: Any = await self._connection.request(request)
        found = response.topics[0].partitions[0]
        if found.error_code:
            raise ApiError(ErrorCode(found.error_code))
        return int(found.offset)

    def _rest(self, key: TopicPartition, error: ApiError) -> None:
        log.info("partition rests topic=%s partition=%d leader=%d error=%s", *key, self._leader_id, error)
        rest_ms = self._rest_ms.get(key, REST_MS)
        self._rest_ms[key] = min(2 * rest_ms, MAX_REST_MS)
        self._resting[key] = self._node.world.clock.monotonic_ms() + rest_ms
