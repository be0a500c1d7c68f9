"""The partitions this node holds: their logs, who leads them, and what happens when the cluster's image changes.

`Replica` joins one log with the replication machine of its partition; `Replicas` finds them by name or id and follows the
metadata. Everything is synchronous and on the loop: no await lies between a check and its change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.purgatory import Agenda, Watchers
from ottla.metadata.delta import Changes
from ottla.metadata.image import NO_LEADER, TOPIC, ClusterImage, Partition, Topic
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.controller import AlterPartitionRequest
from ottla.records.batch import BatchHeader
from ottla.replication.follower import PartitionFollower
from ottla.replication.leader import PartitionLeader
from ottla.replication.state import PartitionState, Progress, Proposal
from ottla.storage.config import LONG_MAX, LogConfig
from ottla.storage.flushing import SyncFailed, flush
from ottla.storage.log import Log, VerificationGuard
from ottla.storage.types import CLIENT, COORDINATOR, AppendResult, Origin

if TYPE_CHECKING:
    from ottla.broker.node import Node

log = logging.getLogger("ottla.replicas")
PROPOSAL_RETRY_MS = 50


class Replica:
    """One partition on this node: its log, and the machine of the role that the controller gave it."""

    __slots__ = ("follower", "leader", "log", "state", "topic_id", "topic_partition", "watchers", "_replicas")

    def __init__(self, replicas: Replicas, topic_partition: TopicPartition, topic_id: bytes, log_: Log) -> None:
        self._replicas = replicas
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log_
        self.state = Partition((), (), NO_LEADER, -1, -1)  # as the controller last said
        self.leader: PartitionLeader | None = None
        self.follower: PartitionFollower | None = None
        self.watchers = Watchers()

    @property
    def leads(self) -> bool:
        return self.leader is not None

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    def check_epoch(self, current_leader_epoch: int) -> None:
        """A client that knows of a newer or an older leader must look at its metadata again (KIP-320)."""
        if current_leader_epoch < 0 or current_leader_epoch == self.state.leader_epoch:
            return
        older = current_leader_epoch < self.state.leader_epoch
        raise ApiError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)

    # The data path at the leader -----------------------------------------------------------------------------------------

    def append(
        self,
        buffer: bytearray | memoryview,
        batches: list[tuple[int, BatchHeader]],
        now_ms: int,
        origin: Origin = CLIENT,
        guard: VerificationGuard | None = None,
        transaction_version: int = 0,
    ) -> AppendResult:
        epoch = self.state.leader_epoch
        try:
            result = self.log.append_as_leader(buffer, batches, epoch, now_ms, origin, guard, transaction_version)
        except ApiError as error:
            self._replicas.refused(error)
            raise
        self._appended()
        if origin is COORDINATOR:
            self._sync_if_counted(now_ms)
        return result

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        now_ms: int,
        *,
        transaction_version: int,
    ) -> AppendResult:
        """The end of a transaction, as the transaction coordinator decided it."""
        epoch = self.state.leader_epoch
        try:
            result = self.log.append_control(
                producer_id, producer_epoch, coordinator_epoch, commit, epoch, now_ms, transaction_version=transaction_version
            )
        except ApiError as error:
            self._replicas.refused(error)
            raise
        self._appended()
        self._sync_if_counted(now_ms)
        return result

    def append_fetched(self, records: bytes | bytearray | memoryview) -> None:
        """What the leader has, at a follower."""
        try:
            self.log.append_as_follower(records)
        except ApiError as error:
            self._replicas.refused(error)
            raise

    def _sync_if_counted(self, now_ms: int) -> None:
        """With `flush.messages` what a coordinator decides is on disk before anybody acts on it: a blocking sync, as in Kafka, because
        its state changes with the append. Producers' records wait for theirs without blocking (`flush_if_counted`)."""
        if self.log.config.flush_messages == LONG_MAX or not self.log.flush_due(now_ms):
            return
        try:
            self.log.flush(now_ms)
        except SyncFailed as error:
            self._replicas.fail(error)
            raise

    def _appended(self) -> None:
        leader, held = self.leader, self.log
        assert leader is not None
        # By the clock followers are judged: who has none need not read it.
        if leader.appended(held.log_end_offset, self._replicas.monotonic_ms() if len(leader.replicas) > 1 else 0):
            held.advance_high_watermark(leader.high_watermark)
        self.watchers.wake()

    def is_committed(self, offset: int) -> bool:
        return self.log.high_watermark > offset

    def flush_if_counted(self, now_ms: int) -> bool:
        """With `flush.messages` an acknowledgement promises the disk: whether a sync was begun that it must wait for."""
        if self.log.config.flush_messages == LONG_MAX or not self.log.flush_due(now_ms):
            return False
        self._replicas.flush(self)
        return True

    def delete_records(self, offset: int) -> int:
        moved = self.log.delete_records(offset)
        self.watchers.wake()
        return moved

    @property
    def low_watermark(self) -> int:
        """Every live replica has dropped what lies below."""
        assert self.leader is not None
        return self.leader.low_watermark(self.log.log_start_offset)

    def progress(self, progress: Progress) -> None:
        """What came of an event at the leader's machine."""
        if progress.high_watermark_moved and self.leader is not None:
            self.log.advance_high_watermark(self.leader.high_watermark)
        if progress.high_watermark_moved or progress.follower_start_moved:
            self.watchers.committed()
        if progress.proposal is not None:
            self._replicas.propose(self, progress.proposal)

    # Roles ---------------------------------------------------------------------------------------------------------------

    def become(self, state: Partition, now_ms: int) -> None:
        """The controller decided: leader or follower, in which epoch, with whom in sync."""
        if state.leader == self._replicas.node_id:
            self._lead(state, now_ms)
        else:
            self._follow(state)
        self.state = state
        self.watchers.wake()

    def _lead(self, state: Partition, now_ms: int) -> None:
        self.follower = None
        described = _described(state)
        if state.leader_epoch != self.state.leader_epoch or self.leader is None:
            self.log.assign_epoch(state.leader_epoch, self.log.log_end_offset)
        if self.leader is not None:
            self.progress(self.leader.updated(described, now_ms))
            return
        self.leader = PartitionLeader(
            self._replicas.node_id,
            self._replicas.broker_epoch,
            described,
            self.log.log_end_offset,
            self.log.high_watermark,
            now_ms,
            live_brokers=self._replicas.live_brokers,
            min_insync_replicas=self.log.config.min_insync_replicas,
            replica_lag_time_max_ms=self._replicas.lag_max_ms,
        )
        self.log.advance_high_watermark(self.leader.high_watermark)

    def _follow(self, state: Partition) -> None:
        self.leader = None
        described = _described(state)
        if self.follower is None:
            self.follower = PartitionFollower(
                self._replicas.node_id, described, self.log.log_end_offset, self.log.latest_epoch, self.log.high_watermark
            )
        else:
            self.follower.updated(described)

    def retire(self) -> None:
        """No longer ours: whoever waits here must look elsewhere."""
        self.leader = self.follower = None
        self.watchers.wake()


def _described(state: Partition) -> PartitionState:
    return PartitionState(
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        replicas=state.replicas,
        isr=frozenset(state.isr),
        adding_replicas=state.adding,
        removing_replicas=state.removing,
        leader_recovery_state=state.recovery_state,
    )


class Fresh(NamedTuple):
    """The end of a log as it was just appended, still in memory: those who wait for it need not read it from the file."""

    log: Log
    offset: int
    records: bytearray | memoryview


class Replicas:
    def __init__(self, node: Node) -> None:
        self._node = node
        self.node_id = node.node_id
        self.agenda = Agenda()
        self.fresh: Fresh | None = None  # only while the request that brought it is being served, which keeps it in memory anyway
        self.live_brokers: dict[int, int] = {}  # those that may be in sync, with their epochs; shared with the machines
        self._by_partition: dict[tuple[str, int], Replica] = {}  # a plain tuple finds what its twin with names does
        self._configs: dict[str, LogConfig] = {}
        self._unflushed: set[TopicPartition] = set()  # whose last flush failed, which is told once
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def broker_epoch(self) -> int:
        return self._node.lifecycle.broker_epoch

    def monotonic_ms(self) -> int:
        """The clock that tells how long followers have been behind; never the wall's, by which records are stamped."""
        return int(self._node.world.clock.monotonic_ms())

    @property
    def lag_max_ms(self) -> int:
        return int(self._node.settings["replica.lag.time.max.ms"])

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._by_partition.values())

    def __len__(self) -> int:
        return len(self._by_partition)

    def get(self, topic: str, partition: int) -> Replica | None:
        return self._by_partition.get((topic, partition))

    def leader(self, topic: str, partition: int) -> Replica:
        """The replica to append to or read from, or the error that sends the client elsewhere."""
        replica = self._by_partition.get((topic, partition))
        if replica is not None and replica.leader is not None:
            return replica
        image = self._node.image
        topic_id = image.topic_ids.get(topic)
        if topic_id is None or partition not in image.topics[topic_id].partitions:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def config_of(self, topic: str) -> LogConfig:
        config = self._configs.get(topic)
        if config is None:
            settings = self._node.settings
            values = settings.topic(self._node.image.configs.get((TOPIC, topic), {}))
            values["producer.id.expiration.ms"] = settings["producer.id.expiration.ms"]
            values["transaction.partition.verification.enable"] = settings["transaction.partition.verification.enable"]
            config = self._configs[topic] = LogConfig.from_settings(values)
        return config

    def refused(self, error: ApiError) -> None:
        self._node.disk_watch.refused(error)

    def fail(self, error: SyncFailed) -> None:
        self._node.fail(f"a log could not be synced: {error}")

    def flush(self, replica: Replica) -> None:
        async def work() -> None:
            await self.sync(replica)
            replica.watchers.wake()

        self._spawn(work())

    async def sync(self, replica: Replica) -> None:
        try:
            await flush(replica.log, self._node.world.workers, self._node.world.clock.wall_ms())
        except SyncFailed as error:
            self.fail(error)
        except ApiError as error:  # a full disk: it stays due, and is tried every second
            if replica.topic_partition not in self._unflushed:
                self._unflushed.add(replica.topic_partition)
                log.error("flush failed topic=%s partition=%d error=%s", *replica.topic_partition, error)
        else:
            if replica.topic_partition in self._unflushed:
                self._unflushed.discard(replica.topic_partition)
                log.info("flushed again topic=%s partition=%d", *replica.topic_partition)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The in-sync set -----------------------------------------------------------------------------------------------------

    def propose(self, replica: Replica, proposal: Proposal) -> None:
        """Ask the controller to change a partition's in-sync set, and tell the machine what it said."""
        self._spawn(self._propose(replica, proposal))

    async def _propose(self, replica: Replica, proposal: Proposal) -> None:
        request = alter_partition_request(
            self.node_id, self.broker_epoch, replica.topic_id, replica.topic_partition.partition, proposal
        )
        try:
            response = await self._node.quorum.ask(request)
            error, row = ErrorCode(response.error_code), None
            if not error:
                row = response.topics[0].partitions[0]
                error = ErrorCode(row.error_code)
        except ApiError as refused:
            error, row = refused.code, None
        if replica.leader is None:
            return
        now_ms = self.monotonic_ms()
        if not error and row is not None:
            accepted = replica.leader.altered(proposal, frozenset(row.isr), row.leader_epoch, row.partition_epoch, now_ms)
            replica.progress(accepted)
            return
        again = replica.leader.alter_failed(proposal, error)
        if again.proposal is not None:
            await asyncio.sleep(PROPOSAL_RETRY_MS / 1000)
            if replica.leader is not None:
                replica.progress(again)

    # Following the metadata ---------------------------------------------------------------------------------------------

    def follow(self, image: ClusterImage, changes: Changes) -> None:
        if changes.brokers:
            live = {broker.broker_id: broker.epoch for broker in image.brokers.values() if broker.is_active}
            self.live_brokers.clear()
            self.live_brokers.update(live)
        for topic_id, topic in changes.deleted_topics.items():
            self._delete(topic_id, topic)
        for topic_id, indexes in changes.partitions.items():
            current = image.topics.get(topic_id)
            if current is not None:
                for index in sorted(indexes):
                    self._update(current, index)
        self._follow_configs(changes)

    def load(self, image: ClusterImage) -> None:
        """At start: every partition the image gives us; folders that nobody asks for are set aside, not deleted."""
        for topic in image.topics.values():
            for index in topic.partitions:
                self._update(topic, index)
        for topic_partition, found in list(self._node.directory.logs.items()):
            held = self._by_partition.get(topic_partition)
            if held is None or held.log is not found:
                log.warning("stray log topic=%s partition=%d", *topic_partition)
                self._node.directory.mark_stray(topic_partition)

    def _update(self, topic: Topic, index: int) -> None:
        topic_partition = TopicPartition(topic.name, index)
        state = topic.partitions[index]
        replica = self._by_partition.get(topic_partition)
        if self.node_id not in state.replicas:
            if replica is not None:
                self._drop(replica)
            return
        if replica is None:
            opened = self._open(topic_partition, topic.topic_id)
            replica = self._by_partition[topic_partition] = Replica(self, topic_partition, topic.topic_id, opened)
        replica.become(state, self.monotonic_ms())
        if replica.follower is not None:
            self._node.fetchers.assign(replica)
        else:
            self._node.fetchers.drop(replica)
        self._node.assignments.look(replica)

    def _open(self, topic_partition: TopicPartition, topic_id: bytes) -> Log:
        directory, now_ms = self._node.directory, self._node.world.clock.wall_ms()
        found = directory.logs.get(topic_partition)
        if found is not None and found.topic_id in (topic_id, bytes(16)):
            return found
        if found is not None:  # a topic of the same name that was deleted while we were away
            directory.delete_log(topic_partition, now_ms)
        return directory.create_log(topic_partition, topic_id, self.config_of(topic_partition.topic), now_ms)

    def _drop(self, replica: Replica) -> None:
        del self._by_partition[replica.topic_partition]
        self._unflushed.discard(replica.topic_partition)
        self._node.fetchers.drop(replica)
        replica.retire()
        self._node.directory.delete_log(replica.topic_partition, self._node.world.clock.wall_ms())

    def _delete(self, topic_id: bytes, topic: Topic) -> None:
        for index in topic.partitions:
            replica = self._by_partition.get(TopicPartition(topic.name, index))
            if replica is not None and replica.topic_id == topic_id:
                self._drop(replica)
        self._configs.pop(topic.name, None)

    def _follow_configs(self, changes: Changes) -> None:
        changed = {name for kind, name in changes.configs if kind == TOPIC}
        everything = any(kind != TOPIC for kind, _ in changes.configs)
        if everything:
            self._configs.clear()
        for name in changed:
            self._configs.pop(name, None)
        for replica in self._by_partition.values() if everything else self._named(changed):
            replica.log.config = config = self.config_of(replica.topic_partition.topic)
            if replica.leader is not None:
                replica.leader.min_insync_replicas = config.min_insync_replicas

    def _named(self, topics: set[str]) -> Iterator[Replica]:
        image = self._node.image
        for name in topics:
            topic_id = image.topic_ids.get(name)
            for index in image.topics[topic_id].partitions if topic_id is not None else ():
                replica = self._by_partition.get(TopicPartition(name, index))
                if replica is not None:
                    yield replica


def alter_partition_request(
    broker_id: int, broker_epoch: int, topic_id: bytes, partition: int, proposal: Proposal
) -> AlterPartitionRequest:
    topic = AlterPartitionRequest.TopicData
    return AlterPartitionRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        topics=[
            topic(
                topic_id=topic_id,
                partitions=[
                    topic.PartitionData(
                        partition_index=partition,
                        leader_epoch=proposal.leader_epoch,
                        new_isr_with_epochs=[
                            topic.PartitionData.BrokerState(broker_id=member, broker_epoch=epoch)
                            for member, epoch in proposal.isr
                        ],
                        leader_recovery_state=proposal.leader_recovery_state,
                        partition_epoch=proposal.partition_epoch,
                    )
                ],
            )
        ],
    )
