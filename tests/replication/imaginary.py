"""A partition without a world: logs that are lists, a controller that is a few lines, fetches that happen when told to.

A record is (leader epoch, value). The law that is checked: what was acknowledged with acks=all is in the log of every later
leader that was elected from the in-sync set, at its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ottla.model.errors import ApiError, ErrorCode
from ottla.replication.follower import PartitionFollower, Restart, Truncate
from ottla.replication.leader import PartitionLeader, divergence
from ottla.replication.state import EpochEnd, PartitionState, Progress, Proposal

Record = tuple[int, int]


@dataclass
class ImaginaryLog:
    records: list[Record] = field(default_factory=list)
    epoch_starts: dict[int, int] = field(default_factory=dict)  # leader epoch to its first offset
    high_watermark: int = 0  # as checkpointed

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def last_epoch(self) -> int:
        return max(self.epoch_starts, default=-1)

    def append(self, record: Record) -> None:
        self.epoch_starts.setdefault(record[0], self.end)
        self.records.append(record)

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.epoch_starts = {epoch: start for epoch, start in self.epoch_starts.items() if start < offset}

    def end_of(self, epoch: int) -> EpochEnd | None:
        """As Kafka's epoch cache answers: where the first later epoch starts, and the largest epoch before that."""
        if epoch == self.last_epoch:
            return EpochEnd(epoch, self.end)
        later = [each for each in self.epoch_starts if each > epoch]
        if not later:
            return None
        earlier = [each for each in self.epoch_starts if each <= epoch]
        return EpochEnd(max(earlier, default=epoch), self.epoch_starts[min(later)])


@dataclass
class Broker:
    broker_id: int
    epoch: int = 1
    log: ImaginaryLog = field(default_factory=ImaginaryLog)
    role: PartitionLeader | PartitionFollower | None = None
    proposals: list[Proposal] = field(default_factory=list)
    alive: bool = True
    known: PartitionState | None = None


class ImaginaryCluster:
    """Time, one partition, its brokers and the controller's word on it."""

    def __init__(self, broker_count: int = 3, min_insync_replicas: int = 1, lag_max_ms: int = 1000) -> None:
        ids = range(broker_count)
        self.now_ms = 0
        self.min_isr = min_insync_replicas
        self.lag_max_ms = lag_max_ms
        self.brokers = {broker_id: Broker(broker_id) for broker_id in ids}
        self.live = dict.fromkeys(ids, 1)
        self.state = PartitionState(0, 0, 0, tuple(ids), frozenset(ids))
        self.waiting: list[tuple[int, int, int]] = []  # (leader epoch, required offset, value)
        self.acknowledged: dict[int, int] = {}  # offset to value
        self.watermarks: dict[tuple[int, int], int] = {}
        self.unclean = False
        for broker_id in ids:
            self.learn(broker_id)

    # What brokers do -----------------------------------------------------------------------------------------------------

    def learn(self, broker_id: int) -> None:
        """A broker applies the latest metadata."""
        broker = self.brokers[broker_id]
        state = self.state
        if not broker.alive or broker.known == state:
            return
        broker.known = state
        if state.leader_id == broker_id:
            self._lead(broker, state)
        elif state.leader_id >= 0:
            if isinstance(broker.role, PartitionFollower):
                broker.role.updated(state)
            else:
                log = broker.log
                broker.role = PartitionFollower(broker_id, state, log.end, log.last_epoch, log.high_watermark)
                broker.proposals.clear()
        else:
            broker.role = None
        self._note(broker)

    def _lead(self, broker: Broker, state: PartitionState) -> None:
        log = broker.log
        if isinstance(broker.role, PartitionLeader):
            self._handle(broker, broker.role.updated(state, self.now_ms))
        else:
            broker.role = PartitionLeader(
                broker.broker_id,
                broker.epoch,
                state,
                log.end,
                log.high_watermark,
                self.now_ms,
                live_brokers=self.live,
                min_insync_replicas=self.min_isr,
                replica_lag_time_max_ms=self.lag_max_ms,
            )
        log.epoch_starts.setdefault(state.leader_epoch, log.end)

    def produce(self, broker_id: int, value: int) -> ErrorCode:
        broker = self.brokers[broker_id]
        leader = broker.role
        if not broker.alive or not isinstance(leader, PartitionLeader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            leader.check_append(-1)
        except ApiError as error:
            return error.code
        broker.log.append((leader.leader_epoch, value))
        self.waiting.append((broker_id, broker.log.end, value))
        leader.appended(broker.log.end, self.now_ms)
        self._note(broker)
        return ErrorCode.NONE

    def fetch(self, follower_id: int, max_records: int = 2) -> None:
        follower_broker = self.brokers[follower_id]
        follower = follower_broker.role
        if not follower_broker.alive or not isinstance(follower, PartitionFollower):
            return
        leader_broker = self.brokers[follower.leader_id]
        leader = leader_broker.role
        if not leader_broker.alive or not isinstance(leader, PartitionLeader):
            return
        offset, last_epoch, leader_epoch = follower.position
        try:
            leader.check_follower(follower_id, follower_broker.epoch, leader_epoch)
            diverging = None
            if last_epoch >= 0:
                diverging = divergence(last_epoch, offset, leader_broker.log.end_of(last_epoch), 0)
            elif offset > leader_broker.log.end:
                raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        except ApiError as error:
            if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._cut(follower_broker, follower, follower.out_of_range(0, leader_broker.log.end))
            return
        if diverging is not None:
            self._cut(follower_broker, follower, follower.diverged(diverging, follower_broker.log.end_of(diverging.epoch)))
            return
        self._handle(leader_broker, leader.fetched(follower_id, offset, 0, follower_broker.epoch, self.now_ms))
        self._note(leader_broker)
        for record in leader_broker.log.records[offset : offset + max_records]:
            follower_broker.log.append(record)
        follower.appended(follower_broker.log.end, follower_broker.log.last_epoch)
        follower.heard(leader.high_watermark)
        self._note(follower_broker)

    def tick(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        if broker.alive and isinstance(broker.role, PartitionLeader):
            self._handle(broker, broker.role.tick(self.now_ms))

    def _cut(self, broker: Broker, follower: PartitionFollower, order: Truncate | Restart | None) -> None:
        if order is None:
            return
        assert self.unclean or order.offset >= follower.high_watermark, "a committed record was cut off"
        broker.log.truncate(order.offset)
        follower.truncated(broker.log.end, broker.log.last_epoch)
        if self.unclean:
            self.watermarks.pop((broker.broker_id, broker.epoch), None)

    def _handle(self, broker: Broker, progress: Progress) -> None:
        if progress.proposal is not None:
            broker.proposals.append(progress.proposal)

    # The controller ------------------------------------------------------------------------------------------------------

    def answer(self, broker_id: int) -> None:
        """The controller takes the oldest proposal of this broker."""
        broker = self.brokers[broker_id]
        if not broker.proposals:
            return
        proposal = broker.proposals.pop(0)
        error = self._judge(broker_id, proposal)
        if error == ErrorCode.NONE:
            self.state = replace(self.state, isr=proposal.members, partition_epoch=self.state.partition_epoch + 1)
        if not broker.alive or not isinstance(broker.role, PartitionLeader):
            return
        if error == ErrorCode.NONE:
            state = self.state
            broker.role.altered(proposal, state.isr, state.leader_epoch, state.partition_epoch, self.now_ms)
            self._note(broker)
        else:
            self._handle(broker, broker.role.alter_failed(proposal, error))

    def _judge(self, broker_id: int, proposal: Proposal) -> ErrorCode:
        if proposal.leader_epoch != self.state.leader_epoch or self.state.leader_id != broker_id:
            return ErrorCode.FENCED_LEADER_EPOCH
        if proposal.partition_epoch != self.state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for member, epoch in proposal.isr:
            if member not in self.live or epoch not in (-1, self.live[member]):
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    def kill(self, broker_id: int) -> None:
        """The process dies; its log stays."""
        broker = self.brokers[broker_id]
        if not broker.alive:
            return
        broker.alive, broker.role, broker.known = False, None, None
        broker.proposals.clear()
        broker.log.high_watermark = min(broker.log.high_watermark, broker.log.end)
        self.fence(broker_id)

    def fence(self, broker_id: int) -> None:
        """The controller no longer counts on this broker, which may still run and not know it yet."""
        self.live.pop(broker_id, None)
        isr = self.state.isr - {broker_id} or self.state.isr  # the last one stays, so that it can lead again
        self._elect(replace(self.state, isr=isr))

    def start(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        if not broker.alive:
            broker.alive = True
            broker.epoch += 1
        self.live[broker_id] = broker.epoch
        self._elect(self.state)

    def elect(self, broker_id: int) -> None:
        """Another member of the in-sync set takes over, as a preferred election does."""
        if broker_id in self.state.isr and broker_id in self.live and self.state.leader_id != broker_id:
            self._lead_by(self.state, broker_id)

    def _elect(self, state: PartitionState) -> None:
        if state.leader_id in self.live and state.leader_id in state.isr:
            if state != self.state:
                self.state = replace(state, partition_epoch=state.partition_epoch + 1)
            return
        candidates = [member for member in state.replicas if member in state.isr and member in self.live]
        self._lead_by(state, candidates[0] if candidates else -1)

    def _lead_by(self, state: PartitionState, leader_id: int) -> None:
        if (leader_id, state.isr) == (self.state.leader_id, self.state.isr):
            return
        self.state = replace(
            state, leader_id=leader_id, leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1
        )

    # The laws ------------------------------------------------------------------------------------------------------------

    def _note(self, broker: Broker) -> None:
        role = broker.role
        if role is None:
            return
        life = (broker.broker_id, broker.epoch)
        assert role.high_watermark <= broker.log.end
        assert role.high_watermark >= self.watermarks.get(life, 0), "a high watermark went back"
        self.watermarks[life] = broker.log.high_watermark = role.high_watermark
        if isinstance(role, PartitionLeader):
            self._acknowledge(broker, role)

    def _acknowledge(self, broker: Broker, leader: PartitionLeader) -> None:
        still = []
        for broker_id, offset, value in self.waiting:
            record = (leader.leader_epoch, value)
            here = broker_id == broker.broker_id and offset <= broker.log.end and broker.log.records[offset - 1] == record
            verdict = leader.acknowledged(offset) if here else None
            if verdict == ErrorCode.NONE:
                self.acknowledged[offset - 1] = value
            elif verdict is None:
                still.append((broker_id, offset, value))
        self.waiting = still

    def check(self) -> None:
        if self.unclean:
            return
        leaders = [
            broker
            for broker in self.brokers.values()
            if isinstance(broker.role, PartitionLeader) and broker.role.leader_epoch == self.state.leader_epoch
        ]
        assert len(leaders) <= 1, "two leaders in one epoch"
        for broker in leaders:
            for offset, value in self.acknowledged.items():
                assert offset < broker.log.end, f"acknowledged offset {offset} is lost"
                assert broker.log.records[offset][1] == value, f"acknowledged offset {offset} is another record now"
        self._check_agreement()

    def _check_agreement(self) -> None:
        """Below both their high watermarks any two replicas have the same records."""
        running = [broker for broker in self.brokers.values() if broker.role is not None]
        for one in running:
            for other in running:
                common = min(one.log.high_watermark, other.log.high_watermark)
                assert one.log.records[:common] == other.log.records[:common]
