"""The shell around coordinating machines: groups and transactions, one shard for each partition this node leads.

    decide → append → apply → set timers → (once committed) effects, replies          the rules of `model.machine`

`Kind` is what differs between the two: which topic, how records are written, what a decision may know. `Coordinator` is one
shard with its partition's replica. `Coordinators` finds the one that answers for a key, loads shards when this node begins to
lead a partition and drops them when it stops.

Deciding, appending and applying happen without an await in between, so a decision always sees everything before it. Replies
wait until all that was applied is committed, whether or not their own decision wrote anything. On a single node that is at
once, and `ask` returns the reply itself instead of a future.

Limits: a load reads `LOAD_BYTES` at a time and yields in between; parked requests are bounded by the connections, each of
which has one request in work.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.replicas import Replica
from ottla.metadata.delta import Changes
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ApiError, ErrorCode, ProtocolError
from ottla.model.machine import Decision, Reply, Ticket
from ottla.records.batch import NO_PRODUCER_ID, headers
from ottla.records.builder import build_pairs
from ottla.records.control import read_end_transaction
from ottla.records.record import decode_batches
from ottla.storage.log import VerificationGuard
from ottla.storage.types import Origin

if TYPE_CHECKING:
    from ottla.broker.dispatch import RequestContext
    from ottla.broker.node import Node

log = logging.getLogger("ottla.coordinators")
LOAD_BYTES = 1 << 16  # a few milliseconds' worth of records
LOAD_RETRY_MS = 1_000  # after a shard could not be read
LOAD_AT_ONCE_BYTES = 1 << 13  # a node may begin to lead fifty partitions in one moment
RETRY_MS = 500  # until a timer's decision that could not be written is tried again
ACKS_ALL = -1
DEFAULT_COMMIT_TIMEOUT_MS = 5_000
NO_PRODUCER = (NO_PRODUCER_ID, -1)

# What a client is told when the coordinator's own log refuses: it must not take the coordinator's trouble for its own.
_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


class Kind(ABC):
    """One kind of coordinator. Implemented once for groups and once for transactions."""

    topic: str

    @property
    def commit_timeout_ms(self) -> int:
        """How long a reply may wait for the replicas."""
        return DEFAULT_COMMIT_TIMEOUT_MS

    @abstractmethod
    def partition_for(self, key: str, partition_count: int) -> int:
        """Which partition of the topic, hence which shard, answers for this group or transactional id."""

    # The machine

    @abstractmethod
    def new_shard(self) -> Any: ...

    @abstractmethod
    def loaded(self, shard: Any, context: Any) -> Decision[Any, Any]: ...

    @abstractmethod
    def decide(self, shard: Any, request: Any, context: Any) -> Decision[Any, Any]: ...

    @abstractmethod
    def expire(self, shard: Any, key: Any, context: Any) -> Decision[Any, Any]: ...

    @abstractmethod
    def apply(self, shard: Any, record: Any, offset: int) -> None: ...

    def apply_change(self, shard: Any, change: Any) -> None:
        """For kinds whose decisions change what is not in the log: those of transactions do not."""
        raise AssertionError(f"decisions of {type(self).__name__} carry no changes")

    @abstractmethod
    def complete_transaction(self, shard: Any, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """A transaction that wrote into the shard's partition has ended."""

    def perform(self, coordinator: Coordinator, effect: Any) -> None:
        """What a committed decision asks the shell to do: those of groups ask nothing."""
        raise AssertionError(f"decisions of {type(self).__name__} have no effects")

    # What it knows and says

    @abstractmethod
    def context(self, ticket: Ticket, request: RequestContext | None) -> Any:
        """For a request of a client, or (None) for a timer or a load."""

    @abstractmethod
    def refusal(self, request: Any, error: ApiError, version: int) -> Any:
        """The reply that says only: no, and why."""

    def shape(self, reply: Any, version: int) -> Any:
        """The reply as the client's version reads it."""
        return reply

    # Records as bytes

    @abstractmethod
    def encode(self, record: Any) -> tuple[bytes, bytes | None]: ...

    @abstractmethod
    def decode(self, key: bytes, value: bytes | None, producer_id: int, producer_epoch: int) -> Any | None:
        """None for a record that is not ours to understand."""

    def producer_of(self, record: Any) -> tuple[int, int]:
        """The producer in whose transaction the record is written."""
        return NO_PRODUCER


class _Waiting(NamedTuple):
    future: asyncio.Future[Any]
    request: Any
    version: int


class Timers:
    """Named timers. Moving one into the future, which every heartbeat does, costs a dictionary entry and no system timer."""

    __slots__ = ("_armed", "_deadlines", "_fire", "_loop")

    def __init__(self, fire: Callable[[Any], None]) -> None:
        self._fire = fire
        self._loop = asyncio.get_running_loop()
        self._deadlines: dict[Any, float] = {}
        self._armed: dict[Any, tuple[float, asyncio.TimerHandle]] = {}

    def set(self, key: Any, delay_ms: int | None, if_absent: bool = False) -> None:
        if if_absent and key in self._deadlines:
            return
        armed = self._armed.get(key)
        if delay_ms is None:
            self._deadlines.pop(key, None)
            if armed is not None:
                del self._armed[key]
                armed[1].cancel()
            return
        deadline = self._loop.time() + delay_ms / 1000
        self._deadlines[key] = deadline
        if armed is None or armed[0] > deadline:
            if armed is not None:
                armed[1].cancel()
            self._arm(key, deadline)

    def cancel_all(self) -> None:
        self._deadlines.clear()
        for _, handle in self._armed.values():
            handle.cancel()
        self._armed.clear()

    def _arm(self, key: Any, deadline: float) -> None:
        self._armed[key] = (deadline, self._loop.call_at(deadline, self._due, key))

    def _due(self, key: Any) -> None:
        armed_for, _ = self._armed.pop(key)
        deadline = self._deadlines.get(key)
        if deadline is None:
            return
        if deadline > armed_for:
            self._arm(key, deadline)
        else:
            del self._deadlines[key]
            self._fire(key)


class Coordinator:
    """One shard, its log and those who wait for it. Lives for one leader epoch."""

    def __init__(self, kind: Kind, replica: Replica, now_ms: Callable[[], int]) -> None:
        self.kind = kind
        self.replica = replica
        self.epoch = replica.leader_epoch
        self.shard = kind.new_shard()
        self.is_active = False
        self._now_ms = now_ms
        self._timers = Timers(self._timer_fired)
        self._next_ticket: Ticket = 0
        self._waiting: dict[Ticket, _Waiting] = {}
        self._applied_to = 0  # offset after the last record applied
        self._uncommitted: deque[tuple[int, Decision[Any, Any]]] = deque()
        self._is_woken = False

    # Loading and closing -------------------------------------------------------------------------------------------------

    def load(self) -> Iterator[None]:
        """Apply the partition from its start to its end, a piece with each step; the last step makes the shard active."""
        offset = self.replica.log.log_start_offset
        while offset < self.replica.log.log_end_offset:
            found = self.replica.log.read(offset, LOAD_BYTES, self.replica.log.log_end_offset)
            if found.empty:
                break
            self._replay(b"".join(part.read() for part in found.parts), offset)
            offset = found.end_offset
            yield
        self._applied_to = self.replica.log.log_end_offset
        self.is_active = True
        self.replica.watchers.add(self)
        self.carry_out(self.kind.loaded(self.shard, self.kind.context(-1, None)))

    def _replay(self, content: bytes, from_offset: int) -> None:
        for header, records in decode_batches(content, from_offset=from_offset):
            for record in records:
                if header.is_control:
                    ended = read_end_transaction(record)
                    if ended is not None:
                        self.kind.complete_transaction(self.shard, header.producer_id, header.producer_epoch, ended.commit)
                elif record.key is not None:
                    producer = (header.producer_id, header.producer_epoch) if header.is_transactional else NO_PRODUCER
                    decoded = self.kind.decode(
                        bytes(record.key), None if record.value is None else bytes(record.value), *producer
                    )
                    if decoded is not None:
                        self.kind.apply(self.shard, decoded, record.offset)

    def close(self) -> None:
        """No longer ours: everybody who waits must look for the new coordinator."""
        self.is_active = False
        self._timers.cancel_all()
        self.replica.watchers.discard(self)
        self._uncommitted.clear()
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            self._answer(entry, self.kind.refusal(entry.request, ApiError(ErrorCode.NOT_COORDINATOR), entry.version))

    # Requests ------------------------------------------------------------------------------------------------------------

    def ask(
        self, request: Any, context: RequestContext, guard: VerificationGuard | None = None, transaction_version: int = 0
    ) -> Any | asyncio.Future[Any]:
        """The reply, or a future of it."""
        self._next_ticket = ticket = self._next_ticket + 1
        decision = self.kind.decide(self.shard, request, self.kind.context(ticket, context))
        try:
            self._write(decision, guard, transaction_version)
        except ApiError as error:
            code = _APPEND_ERRORS.get(error.code, error.code)
            return self.kind.shape(self.kind.refusal(request, ApiError(code, error.message), context.version), context.version)
        if self.replica.log.high_watermark >= self._applied_to and not self._uncommitted:
            return self._conclude_for(ticket, decision, request, context)
        self._uncommitted.append((self._applied_to, decision))
        asyncio.get_running_loop().call_later(self.kind.commit_timeout_ms / 1000, self._give_up, decision)
        return self._park(ticket, request, context)

    def carry_out(self, decision: Decision[Any, Any]) -> bool:
        """A decision nobody asked for: of a timer, a load, a deleted topic. False when it could not be written and was dropped."""
        try:
            self._write(decision, None, 0)
        except ApiError as error:
            log.warning("decision dropped partition=%s error=%s", self.replica.topic_partition, error)
            return False
        if decision.replies or decision.effects:
            self._uncommitted.append((self._applied_to, decision))
            self._release()
        return True

    def complete_transaction(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Its marker has just been appended to this partition. While the shard loads, it will come across the marker itself."""
        if self.is_active:
            self._applied_to = self.replica.log.log_end_offset
            self.kind.complete_transaction(self.shard, producer_id, producer_epoch, committed)

    def _write(self, decision: Decision[Any, Any], guard: VerificationGuard | None, transaction_version: int) -> None:
        if decision.records:
            offset = self._append(decision, guard, transaction_version)
            for position, record in enumerate(decision.records):
                self.kind.apply(self.shard, record, offset + position)
            self._applied_to = offset + len(decision.records)
        for change in decision.changes:
            self.kind.apply_change(self.shard, change)
        for timer in decision.timers:
            self._timers.set(timer.key, timer.delay_ms, timer.if_absent)

    def _append(self, decision: Decision[Any, Any], guard: VerificationGuard | None, transaction_version: int) -> int:
        if self.replica.leader is None or self.replica.leader_epoch != self.epoch:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.replica.leader.check_append(ACKS_ALL)
        now_ms = self._now_ms()
        producer_id, producer_epoch = self.kind.producer_of(decision.records[0])
        pairs = [self.kind.encode(record) for record in decision.records]
        buffer = bytearray(build_pairs(pairs, now_ms, producer_id=producer_id, producer_epoch=producer_epoch))
        return self.replica.append(
            buffer, list(headers(buffer)), now_ms, origin=Origin.COORDINATOR, guard=guard, transaction_version=transaction_version
        ).first_offset

    def _timer_fired(self, key: Any) -> None:
        if not self.carry_out(self.kind.expire(self.shard, key, self.kind.context(-1, None))) and self.is_active:
            self._timers.set(key, RETRY_MS)  # what is due stays due, however long the log cannot be written

    # Replies -------------------------------------------------------------------------------------------------------------

    def _park(self, ticket: Ticket, request: Any, context: RequestContext) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = _Waiting(future, request, context.version)
        return future

    def _conclude_for(self, ticket: Ticket, decision: Decision[Any, Any], request: Any, context: RequestContext) -> Any:
        """Conclude a committed decision whose own reply is wanted right here."""
        own, others = None, []
        for reply in decision.replies:
            if reply.ticket == ticket:
                own = reply
            else:
                others.append(reply)
        self._send(others, decision.effects)
        return self._park(ticket, request, context) if own is None else self.kind.shape(own.message, context.version)

    def _send(self, replies: list[Reply] | tuple[Reply, ...], effects: tuple[Any, ...]) -> None:
        for effect in effects:
            self.kind.perform(self, effect)
        for reply in replies:
            entry = self._waiting.pop(reply.ticket, None)
            if entry is not None:
                self._answer(entry, reply.message)

    def _answer(self, entry: _Waiting, message: Any) -> None:
        if not entry.future.done():  # whoever asked may have hung up
            entry.future.set_result(self.kind.shape(message, entry.version))

    def _give_up(self, decision: Decision[Any, Any]) -> None:
        """The replicas took too long. What was written stays, and may yet be committed; those who wait are told to try again."""
        for reply in decision.replies if any(decision is waiting for _, waiting in self._uncommitted) else ():
            entry = self._waiting.pop(reply.ticket, None)
            if entry is not None:
                self._answer(
                    entry, self.kind.refusal(entry.request, ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE), entry.version)
                )

    def wake(self) -> None:
        """The partition's high watermark may have moved. Looked at once per turn of the loop."""
        if self._uncommitted and not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._release)

    def _release(self) -> None:
        self._is_woken = False
        while self._uncommitted and self._uncommitted[0][0] <= self.replica.log.high_watermark and self.is_active:
            _, decision = self._uncommitted.popleft()
            self._send(decision.replies, decision.effects)


class Coordinators:
    """All shards of this node."""

    def __init__(self, node: Node, *kinds: Kind) -> None:
        self._node = node
        self.kinds = {kind.topic: kind for kind in kinds}
        self._shards: dict[tuple[str, int], Coordinator] = {}
        self._to_load: deque[tuple[Coordinator, Iterator[None]]] = deque()
        self._loading: asyncio.Task[None] | None = None
        self._stopped = False

    # Finding -------------------------------------------------------------------------------------------------------------

    def ask(
        self,
        kind: Kind,
        key: str,
        request: Any,
        context: RequestContext,
        guard: VerificationGuard | None = None,
        transaction_version: int = 0,
    ) -> Any | asyncio.Future[Any]:
        """The reply of the shard that answers for `key`, or a future of it; an error, too, is a reply."""
        try:
            return self.active(kind, key).ask(request, context, guard, transaction_version)
        except ApiError as error:
            return kind.shape(kind.refusal(request, error, context.version), context.version)

    def active(self, kind: Kind, key: str) -> Coordinator:
        """Raises NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE."""
        topic_id = self._node.image.topic_ids.get(kind.topic)
        if topic_id is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        return self.at(kind, kind.partition_for(key, len(self._node.image.topics[topic_id].partitions)))

    def at(self, kind: Kind, partition: int) -> Coordinator:
        coordinator = self._shards.get((kind.topic, partition))
        if coordinator is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        if not coordinator.is_active:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return coordinator

    def all_of(self, kind: Kind) -> list[Coordinator]:
        """Every shard of the kind on this node. Raises COORDINATOR_LOAD_IN_PROGRESS while one is not ready."""
        found = [coordinator for (topic, _), coordinator in self._shards.items() if topic == kind.topic]
        if not all(coordinator.is_active for coordinator in found):
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return found

    def loaded_of(self, kind: Kind) -> list[Coordinator]:
        return [c for (topic, _), c in self._shards.items() if topic == kind.topic and c.is_active]

    def transaction_ended(self, replica: Replica, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """A marker was appended to this partition: the shard that lives in it, if one does, must know."""
        coordinator = self._shards.get((replica.topic_partition.topic, replica.topic_partition.partition))
        if coordinator is not None:
            coordinator.complete_transaction(producer_id, producer_epoch, committed)

    # Following the metadata ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        for replica in list(self._node.replicas):
            self._follow_partition(replica.topic_partition.topic, replica.topic_partition.partition)

    def follow(self, image: ClusterImage, changes: Changes) -> None:
        """Called after the replicas have followed: shards appear and go with the leadership of their partitions."""
        for topic in changes.deleted_topics.values():
            for partition in topic.partitions if topic.name in self.kinds else ():
                self._close(topic.name, partition)
        for topic_id, partitions in changes.partitions.items():
            current = image.topics.get(topic_id)
            if current is not None and current.name in self.kinds:
                for partition in partitions:
                    self._follow_partition(current.name, partition)

    def stop(self) -> None:
        self._stopped = True
        for topic, partition in list(self._shards):
            self._close(topic, partition)
        if self._loading is not None:
            self._loading.cancel()

    def _follow_partition(self, topic: str, partition: int) -> None:
        kind = self.kinds.get(topic)
        if kind is None or self._stopped:
            return
        replica = self._node.replicas.get(topic, partition)
        held = self._shards.get((topic, partition))
        if held is not None and (replica is not held.replica or not replica.leads or replica.leader_epoch != held.epoch):
            self._close(topic, partition)
            held = None
        if held is None and replica is not None and replica.leads:
            self._load(kind, replica)

    def _load(self, kind: Kind, replica: Replica) -> None:
        """Small logs, and so the first start, are loaded on the spot; what takes longer goes on in turns with everything else."""
        place = (replica.topic_partition.topic, replica.topic_partition.partition)
        coordinator = self._shards[place] = Coordinator(kind, replica, self._node.world.clock.wall_ms)
        steps = coordinator.load()
        if replica.log.size <= LOAD_AT_ONCE_BYTES:
            try:
                for _ in steps:
                    pass
            except (ApiError, ProtocolError) as error:
                self._load_failed(place, error)
            return
        self._to_load.append((coordinator, steps))
        if self._loading is None or self._loading.done():
            self._loading = asyncio.get_running_loop().create_task(self._load_in_turn())

    async def _load_in_turn(self) -> None:
        """One piece of one shard between two turns of the loop, so that clients of other shards notice nothing."""
        while self._to_load:
            coordinator, steps = self._to_load.popleft()
            place = (coordinator.replica.topic_partition.topic, coordinator.replica.topic_partition.partition)
            while self._shards.get(place) is coordinator:
                await asyncio.sleep(0)
                try:
                    if next(steps, self) is self:
                        log.info("loaded partition=%s epoch=%d", coordinator.replica.topic_partition, coordinator.epoch)
                        break
                except (ApiError, ProtocolError) as error:
                    self._load_failed(place, error)

    def _load_failed(self, place: tuple[str, int], error: Exception) -> None:
        """Its groups cannot be served from here, all others can. It is tried again: a disk may have misread."""
        log.error("load failed partition=%s-%d error=%s", *place, error)
        self._close(*place)
        asyncio.get_running_loop().call_later(LOAD_RETRY_MS / 1000, self._follow_partition, *place)

    def _close(self, topic: str, partition: int) -> None:
        coordinator = self._shards.pop((topic, partition), None)
        if coordinator is not None:
            coordinator.close()
            log.debug("unloaded partition=%s-%d epoch=%d", topic, partition, coordinator.epoch)
