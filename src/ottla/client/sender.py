"""Sends what the accumulator has ready and tells it what became of it. Runs in callbacks of the loop, without a task of its own.

`wake` asks for a round; a round gives up what is too old, finds a leader and an open connection for every ready partition, and
sends one request per broker and free place (`max_in_flight_requests_per_connection`). What a round cannot do (no leader, no
connection, no producer id) it starts in the background and is woken when that is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ottla.client.accumulator import NO_IDENTITY, SEQUENCE_MASK, Accumulator, Batch, Identity
from ottla.client.cluster import Cluster
from ottla.client.connection import Connection
from ottla.client.delivery import call_back, wake
from ottla.client.encoding import decoded_rows, encode_batch
from ottla.client.errors import ClientClosed, NetworkError, WaitTimedOut
from ottla.client.metadata import Broker, code_of
from ottla.client.rounds import Rounds
from ottla.client.settings import ProducerSettings
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.offsets import ListOffsetsRequest
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.messages.transactions import DescribeProducersRequest, InitProducerIdRequest

log = logging.getLogger("ottla.producer")

LAST_VERSION_WITH_NAMES = 12
LAST_VERSION_OF_TRANSACTIONS_1 = 11  # from 12 on a produce request adds its partitions to the transaction by itself (KIP-890)
LAST_EPOCH = 32_766
WRITTEN_AHEAD = 1 << 30  # sequences wrap: what is less than half the circle ahead is ahead
# Who asks and for what, as ListOffsets numbers them. A producer need not load the whole of `Admin` to know that.
CONSUMER, LATEST = -1, -1
# Answers after which the batch may be in the log all the same.
_DOUBTFUL = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,  # it was the leader when it wrote it, and no longer when it should have said so
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_LOST_COUNT = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


class Sender:
    def __init__(self, cluster: Cluster, accumulator: Accumulator, settings: ProducerSettings, codec: int) -> None:
        self.identity: Identity = NO_IDENTITY
        self.transactional_id = settings["transactional_id"]
        self.may_send: Callable[[TopicPartition], bool] | None = None  # a transaction's say
        self.on_batch_error: Callable[[Batch, Exception], None] | None = None
        self.on_room: Callable[[], None] = lambda: None
        self.on_idle: Callable[[], None] = lambda: None
        self.produce_at_most = LAST_VERSION_WITH_NAMES + 1
        self._cluster = cluster
        self._accumulator = accumulator
        self._settings = settings
        self._codec = codec
        self._acks = int(settings["acks"])
        self._under_way: dict[int, int] = {}  # by connection: produce requests without an answer
        self._rounds = Rounds(cluster, self._round, "producer", allow_create=True)

    # Rounds ------------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._rounds.wake()

    def wake_by(self, at_ms: float) -> None:
        """See that there is a round by then."""
        self._rounds.wake_by(at_ms)

    def close(self) -> None:
        self._rounds.close()

    def _round(self) -> None:
        now = self._cluster.now_ms()
        for batch in self._accumulator.expire(now, self._too_late):
            self._finished(batch)
        if self._settings["enable_idempotence"] and not self._has_identity():
            return
        shares, homeless = self._by_leader(now)
        if homeless:
            self._rounds.find_leaders(homeless)
        for leader, partitions in shares.items():
            self._send_share(leader, partitions, now)
        at = self._accumulator.next_event_ms(now)
        if at is not None:
            self.wake_by(at)

    def _has_identity(self) -> bool:
        """Whether batches can be numbered; starts what is missing."""
        if self.transactional_id is not None:
            if self._accumulator.needs_new_epoch() and self.on_batch_error is not None:
                self.on_batch_error(Batch(TopicPartition("", -1), 0), ApiError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
            return self.identity != NO_IDENTITY
        if self._accumulator.needs_new_epoch():
            self._bump()
        if self.identity == NO_IDENTITY:
            self._rounds.start("identity", self._get_identity())
            return False
        return True

    def _bump(self) -> None:
        """An idempotent producer takes its next epoch itself (KIP-360); when they are used up it gets a new id."""
        identity = self.identity
        log.warning("new_epoch producer_id=%s epoch=%s reason=lost_sequence", identity.producer_id, identity.epoch + 1)
        self.identity = Identity(identity.producer_id, identity.epoch + 1) if identity.epoch < LAST_EPOCH else NO_IDENTITY
        self._accumulator.new_epoch()

    async def _get_identity(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2_147_483_647)

        async def attempt() -> Identity:
            reply = await self._cluster.ask_anyone(request)
            if reply.error_code:
                raise ApiError(code_of(reply.error_code))
            return Identity(reply.producer_id, reply.producer_epoch)

        try:
            self.identity = await self._cluster.persist(attempt, timeout_ms=self._settings["delivery_timeout_ms"])
        except ApiError as error:
            if not error.retriable:
                self.fail_waiting(error)

    def _by_leader(self, now: float) -> tuple[dict[int, list[TopicPartition]], set[str]]:
        shares: dict[int, list[TopicPartition]] = {}
        homeless: set[str] = set()
        topics, brokers = self._cluster.view.topics, self._cluster.view.brokers
        for key in self._accumulator.ready(self.identity, now):
            if self.may_send is not None and not self.may_send(key):
                continue
            topic = topics.get(key.topic)
            info = topic.partition(key.partition) if topic is not None else None
            if info is None or info.leader not in brokers:
                homeless.add(key.topic)
            else:
                shares.setdefault(info.leader, []).append(key)
        if self._cluster.metadata_age_ms > self._settings["metadata_max_age_ms"]:
            homeless.update(topics)
        return shares, homeless

    # Sending -----------------------------------------------------------------------------------------------------------

    def _send_share(self, leader: int, partitions: list[TopicPartition], now: float) -> None:
        connection = self._cluster.ready_connection(leader)
        if connection is None:
            self._rounds.connect(leader, "", lambda: self._cluster.view.topics)
            return
        if (wait_ms := self._cluster.throttle_ms(connection)) > 0:
            self.wake_by(now + wait_ms)
            return
        limit = self._settings["max_in_flight_requests_per_connection"]
        while self._under_way.get(id(connection), 0) < limit and connection.is_open:
            batches = self._accumulator.drain(partitions, self.identity, now, route=connection)
            if not batches:
                return
            # The first partition of the next request is another, so that none starves when requests are full.
            partitions = partitions[len(batches) :] + partitions[: len(batches)]
            self._send(leader, connection, batches)

    def _send(self, leader: int, connection: Connection, batches: list[Batch]) -> None:
        version = connection.version_of(ProduceRequest, self.produce_at_most)
        if version > LAST_VERSION_WITH_NAMES and not all(self._topic_id(batch) for batch in batches):
            version = LAST_VERSION_WITH_NAMES
        request = self._request(batches)
        if self._acks == 0:
            connection.send_unanswered(request, version=version)
            for batch in batches:
                self._accumulator.acknowledge(batch, -1, -1)
                self._finished(batch)
            return
        future = connection.send(request, version=version, timeout_ms=self._settings["request_timeout_ms"])
        key = id(connection)
        self._under_way[key] = self._under_way.get(key, 0) + 1
        future.add_done_callback(lambda done: self._answered(connection, batches, done))
        self._rounds.watch(leader, connection, [batch.partition for batch in batches], future)

    def _topic_id(self, batch: Batch) -> bytes | None:
        topic = self._cluster.view.topics.get(batch.partition.topic)
        return topic.id if topic is not None and any(topic.id) else None

    def _request(self, batches: list[Batch]) -> ProduceRequest:
        kind = ProduceRequest.TopicProduceData
        topics: dict[str, Any] = {}
        for batch in batches:
            name, number = batch.partition
            if name not in topics:
                topics[name] = kind(name=name, topic_id=self._topic_id(batch) or bytes(16))
            encoded = encode_batch(batch, self._codec, self._settings["compression_level"], self.transactional_id is not None)
            topics[name].partition_data.append(kind.PartitionProduceData(index=number, records=encoded))
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=self._acks,
            timeout_ms=int(self._settings["request_timeout_ms"]),
            topic_data=list(topics.values()),
        )

    # Answers -----------------------------------------------------------------------------------------------------------

    def _answered(self, connection: Connection, batches: list[Batch], done: asyncio.Future[ProduceResponse]) -> None:
        key = id(connection)
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]
        error = done.exception() if not done.cancelled() else ClientClosed("the producer is closed")
        if error is not None:
            for batch in batches:
                batch.doubtful = True
                self._refused(batch, error if isinstance(error, Exception) else ClientClosed(str(error)), retriable=True)
            self._rounds.find_leaders({batch.partition.topic for batch in batches})
        else:
            self._sort_answers(batches, done.result())
        self.wake()

    def _sort_answers(self, batches: list[Batch], reply: ProduceResponse) -> None:
        waiting = {batch.partition: batch for batch in batches}
        endpoints = [Broker(row.node_id, row.host, row.port, row.rack) for row in reply.node_endpoints]
        names = self._cluster.view.names
        for topic in reply.responses:
            name = topic.name or names.get(topic.topic_id, "")
            for part in topic.partition_responses:
                batch = waiting.pop(TopicPartition(name, part.index), None)
                if batch is None:
                    continue
                if part.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self._accumulator.acknowledge(batch, part.base_offset, part.log_append_time_ms)
                    self._finished(batch)
                    continue
                leader = part.current_leader
                hinted = self._cluster.view.hint(name, part.index, leader.leader_id, leader.leader_epoch, endpoints)
                self._failed(batch, ApiError(code_of(part.error_code), _message(part)), hinted)
        for batch in waiting.values():
            self._refused(
                batch, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's answer left this batch out"), retriable=False
            )

    def _failed(self, batch: Batch, error: ApiError, hinted: bool) -> None:
        code = error.code
        batch.doubtful |= code in _DOUBTFUL
        if code == ErrorCode.MESSAGE_TOO_LARGE and self._split(batch):
            return
        if code.retriable and not hinted:  # whatever it is, the leader may be another by now; one that is cut off does not say so
            self._rounds.find_leaders({batch.partition.topic})
        passing = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._accumulator.is_out_of_order_passing(batch)
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.doubtful and not passing:
            self._rounds.start(("settle", batch.partition), self._settle(batch, error))
            return
        self._refused(batch, error, retriable=code.retriable or passing)

    async def _settle(self, batch: Batch, error: ApiError) -> None:
        """Find out whether a batch whose answer was lost is in the log after all.

        A broker that was restarted remembers only the last batch of a producer, and refuses a repetition of the one before it as
        out of order. Sequences have no gaps: if the partition's last one is not before ours, ours was written.
        """
        try:
            written = await self._is_written(batch)
        except (NetworkError, ApiError) as failure:
            log.info("settle_failed partition=%s error=%s", batch.partition, failure)
            # If that passes: it is sent, refused and asked about again, until its time is up.
            self._refused(batch, error, retriable=failure.retriable)
            return
        if written:
            self._accumulator.acknowledge(batch, -1, -1)
            self._finished(batch)
        else:
            self._refused(batch, error, retriable=False)

    async def _is_written(self, batch: Batch) -> bool:
        """For good: what a leader has may still be lost with it. One that does not recognise a batch got it before it began to lead, and
        tells nobody where its log ends before all that it had then is committed (KIP-207)."""
        topic, number = batch.partition
        leader = await self._cluster.leader(topic, number)
        epoch = (await self._cluster.partition(topic, number)).leader_epoch
        question = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[number])
        reply = await self._cluster.ask(leader, DescribeProducersRequest(topics=[question]))
        last = (batch.sequence + batch.count - 1) & SEQUENCE_MASK
        states = [state for part in _answered_parts(reply) for state in part.active_producers]
        if not any(
            (state.producer_id, state.producer_epoch) == batch.identity
            and (state.last_sequence - last) & SEQUENCE_MASK < WRITTEN_AHEAD
            for state in states
        ):
            return False
        end = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(number, epoch, LATEST)
        topics = [ListOffsetsRequest.ListOffsetsTopic(topic, [end])]
        _answered_parts(await self._cluster.ask(leader, ListOffsetsRequest(replica_id=CONSUMER, topics=topics)))
        return True

    def _split(self, batch: Batch) -> bool:
        """A batch that compresses worse than thought, or is larger than its topic takes, is cut in pieces and sent again."""
        if batch.encoded is not None:
            batch.rows, batch.encoded = decoded_rows(batch.encoded), None
        pieces = self._accumulator.split(batch, self._settings["batch_size"])
        if pieces is None:
            return False
        left = len(pieces)

        def one_done(_: Any, __: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                batch.is_done = True
                wake(batch)
                call_back(batch, _complain)

        for piece in pieces:
            piece.callbacks = [(0, one_done)]
        return True

    def _refused(self, batch: Batch, error: Exception, *, retriable: bool) -> None:
        now = self._cluster.now_ms()
        too_late = batch.created_ms + self._settings["delivery_timeout_ms"] <= now
        if retriable and not too_late and batch.attempts <= self._settings["retries"] and not self._rounds.closed:
            self._accumulator.retry(batch, now + self._cluster.backoff_ms(batch.attempts - 1))
            return
        if retriable and too_late:
            error = self._too_late(batch, error)
        lost_count = isinstance(error, ApiError) and error.code in _LOST_COUNT
        self._accumulator.fail(batch, error, was_not_written=isinstance(error, ApiError) and not lost_count)
        self._finished(batch)

    def _too_late(self, batch: Batch, cause: Exception | None = None) -> WaitTimedOut:
        topic, partition = batch.partition
        what = f"{batch.count} record(s) for {topic}-{partition} were not delivered within {self._settings['delivery_timeout_ms']:g} ms"
        error = WaitTimedOut(f"{what} ({batch.attempts} attempts" + (f"; the last problem: {cause})" if cause else ")"))
        error.__cause__ = cause
        return error

    def _finished(self, batch: Batch) -> None:
        if batch.error is not None and self.on_batch_error is not None:
            self.on_batch_error(batch, batch.error)
        wake(batch)
        if batch.callbacks:
            call_back(batch, _complain)
        self.on_room()
        if not self._accumulator.has_incomplete:
            self.on_idle()

    def fail_waiting(self, error: Exception) -> None:
        """Give up everything that is not under way."""
        for batch in self._accumulator.abort_waiting(lambda _: error):
            self._finished(batch)


def _answered_parts(reply: Any) -> list[Any]:
    """The partitions of an answer; the first that has an error raises it."""
    parts = [part for topic in reply.topics for part in topic.partitions]
    for part in parts:
        if part.error_code:
            raise ApiError(code_of(part.error_code))
    return parts


def _message(part: Any) -> str | None:
    reasons = [
        f"record {row.batch_index}: {row.batch_index_error_message}"
        for row in part.record_errors
        if row.batch_index_error_message
    ]
    return "; ".join(([part.error_message] if part.error_message else []) + reasons) or None


def _complain(error: BaseException) -> None:
    log.error("callback_raised error=%r", error, exc_info=error)
