"""One partition at its leader: how far each replica is, what is committed, and who is in sync.

In:  `appended` after every local append, `fetched` for every follower's Fetch, `tick` now and then, `updated` when the metadata
     log says something new of this partition, `altered` or `alter_failed` when the controller has answered a proposal.
Out: `Progress`: whether the high watermark moved, and a proposal to send to the controller.

Invariants:
- the high watermark never goes back, is never above the log end, and every member of the maximal in-sync set has all below it;
- at most one proposal is under way; until it is answered (or the metadata log overtakes it) no other is made;
- with one replica the same code runs: there is nobody to wait for, so the high watermark is the log end at once.

The rules are those of Kafka 4.3's `Partition`: a follower outside the set that has caught up holds the watermark back too, because
it could otherwise run behind for ever (KAFKA-6361); below `min.insync.replicas` the watermark stands still (KIP-966).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.model.errors import ApiError, ErrorCode
from ottla.replication.state import (
    NO_EPOCH,
    NO_OFFSET,
    NOTHING,
    UNKNOWN_BROKER_EPOCH,
    EpochEnd,
    PartitionState,
    Progress,
    Proposal,
)

ACKS_ALL = -1
_NEVER = -(2**62)

# The controller says that nothing was changed and that we are up to date: the committed set holds again.
_REFUSED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
# Our view is old, or we are no longer the leader: wait for the metadata log to say so.
_OVERTAKEN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


@dataclass(slots=True)
class RemoteReplica:
    """What the leader knows of one follower, all of it from its Fetch requests."""

    broker_id: int
    log_end_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    broker_epoch: int | None = None  # None: not heard of since we lead
    last_caught_up_ms: int = _NEVER
    last_fetch_ms: int = _NEVER
    leader_end_at_last_fetch: int = NO_OFFSET

    def caught_up(self, leader_end_offset: int, now_ms: int, lag_max_ms: int) -> bool:
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_max_ms

    def note_fetch(self, offset: int, start_offset: int, broker_epoch: int, leader_end_offset: int, now_ms: int) -> None:
        """A follower that reads up to where the log ended at its previous fetch was caught up then: under a steady stream
        of small appends it would never be seen at the very end."""
        if offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif offset >= self.leader_end_at_last_fetch:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = offset
        self.log_start_offset = start_offset
        self.broker_epoch = broker_epoch
        self.last_fetch_ms = now_ms
        self.leader_end_at_last_fetch = max(self.leader_end_at_last_fetch, leader_end_offset)


class PartitionLeader:
    """Made when the metadata log names this broker the leader; dropped when it names another.

    `live_brokers` maps the brokers that may be in sync (registered, not fenced, not shutting down) to their epochs. The shell
    owns it and keeps it current; here it is only read. `high_watermark` is the one the local log remembers.
    """

    __slots__ = (
        "_pending",
        "_remotes",
        "broker_epoch",
        "broker_id",
        "epoch_start_offset",
        "high_watermark",
        "isr",
        "lag_max_ms",
        "leader_epoch",
        "live_brokers",
        "log_end_offset",
        "maximal_isr",
        "min_insync_replicas",
        "partition_epoch",
        "replicas",
    )

    def __init__(
        self,
        broker_id: int,
        broker_epoch: int,
        state: PartitionState,
        log_end_offset: int,
        high_watermark: int,
        now_ms: int,
        *,
        live_brokers: Mapping[int, int],
        min_insync_replicas: int = 1,
        replica_lag_time_max_ms: int = 30_000,
    ) -> None:
        assert state.leader_id == broker_id
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.live_brokers = live_brokers
        self.min_insync_replicas = min_insync_replicas  # may be set anew at any time, as the topic's setting changes
        self.lag_max_ms = replica_lag_time_max_ms
        self.log_end_offset = log_end_offset
        self.high_watermark = min(max(high_watermark, 0), log_end_offset)
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.epoch_start_offset = log_end_offset
        self.replicas: tuple[int, ...] = ()
        self.isr: frozenset[int] = frozenset()
        self.maximal_isr: frozenset[int] = frozenset()
        self._remotes: dict[int, RemoteReplica] = {}
        self._pending: Proposal | None = None
        self.updated(state, now_ms)

    # The data path -------------------------------------------------------------------------------------------------------

    def check_append(self, required_acks: int) -> None:
        """Before an append: raises NOT_ENOUGH_REPLICAS if `acks=all` could not be kept."""
        in_sync = len(self.isr)
        if required_acks == ACKS_ALL and in_sync < self.min_insync_replicas and in_sync < self.effective_min_isr:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {sorted(self.isr)} is insufficient to satisfy the min.isr requirement of {self.effective_min_isr}",
            )

    def appended(self, log_end_offset: int, now_ms: int) -> bool:
        """After an append: whether the high watermark moved."""
        self.log_end_offset = log_end_offset
        if not self._remotes:
            self.high_watermark = log_end_offset
            return True
        return self._advance(now_ms)

    def acknowledged(self, required_offset: int) -> ErrorCode | None:
        """The answer to a producer with `acks=all` whose last record is below `required_offset`; None: not yet."""
        if self.high_watermark < required_offset:
            return None
        enough = len(self.maximal_isr) >= self.effective_min_isr
        return ErrorCode.NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def check_follower(self, replica_id: int, broker_epoch: int, current_leader_epoch: int) -> None:
        """Before the read of a follower's Fetch. Raises what the follower is to be told."""
        self.check_epoch(current_leader_epoch)
        if replica_id not in self._remotes:
            # It may know of a reassignment that we have not heard of yet; told so, it tries again.
            named = ErrorCode.UNKNOWN_LEADER_EPOCH if current_leader_epoch != NO_EPOCH else ErrorCode.NOT_LEADER_OR_FOLLOWER
            raise ApiError(named, f"broker {replica_id} is not a replica of this partition in epoch {self.leader_epoch}")
        registered = self.live_brokers.get(replica_id)
        if broker_epoch != UNKNOWN_BROKER_EPOCH and registered is not None and registered > broker_epoch:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {replica_id} fetched with epoch {broker_epoch} of an earlier life"
            )

    def check_epoch(self, current_leader_epoch: int) -> None:
        """A reader that believes in another leader epoch is told who is behind (KIP-320). -1: it does not say."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        older = current_leader_epoch < self.leader_epoch
        raise ApiError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)

    def fetched(self, replica_id: int, offset: int, start_offset: int, broker_epoch: int, now_ms: int) -> Progress:
        """A checked follower asked for `offset` (and did not diverge): it has everything below. `start_offset` is the start of
        its log."""
        remote = self._remotes[replica_id]
        before, start_moved = remote.log_end_offset, remote.log_start_offset != start_offset
        remote.note_fetch(offset, start_offset, broker_epoch, self.log_end_offset, now_ms)
        proposal = None
        if self._pending is None and replica_id not in self.isr and self._may_join(remote):
            proposal = self._propose(self.isr | {replica_id})
        moved = before != offset and self._advance(now_ms)
        return Progress(moved, proposal, start_moved) if moved or start_moved or proposal is not None else NOTHING

    # The in-sync set -----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> Progress:
        """Every `replica.lag.time.max.ms` / 2: propose to go on without those that have been behind for too long."""
        if self._pending is not None:
            return NOTHING
        late = {member for member in self.isr if member != self.broker_id and not self._in_time(member, now_ms)}
        return Progress(proposal=self._propose(self.isr - late)) if late else NOTHING

    def updated(self, state: PartitionState, now_ms: int) -> Progress:
        """The metadata log has a new record of this partition, with this broker still its leader."""
        assert state.leader_id == self.broker_id
        if state.partition_epoch <= self.partition_epoch:
            # The answer to a proposal was faster than the log. To take the same state again would forget a proposal made
            # since: the controller might add a replica that the high watermark no longer waits for. (Our random runs did
            # lose a record so; Kafka's makeLeader takes it again.)
            return NOTHING
        self.replicas = state.replicas
        self._commit(state.isr, state.partition_epoch)
        if state.leader_epoch > self.leader_epoch:
            self.leader_epoch = state.leader_epoch
            self.epoch_start_offset = self.log_end_offset
            # Between two epochs of ours another broker may have led without our hearing of it, and followers may have cut
            # their logs for it: nothing that was known of them counts. (Kafka keeps it if it has missed the reign.)
            self._remotes.clear()
        others = [replica for replica in state.replicas if replica != self.broker_id]
        self._remotes = {replica: self._remotes.get(replica) or self._newcomer(replica, now_ms) for replica in others}
        return Progress(self._advance(now_ms))

    def altered(self, proposal: Proposal, isr: frozenset[int], leader_epoch: int, partition_epoch: int, now_ms: int) -> Progress:
        """The controller accepted: this is the in-sync set now."""
        if proposal is not self._pending or leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:
            return NOTHING
        self._commit(isr, partition_epoch)
        return Progress(self._advance(now_ms))

    def alter_failed(self, proposal: Proposal, error: ErrorCode) -> Progress:
        """The controller refused, or could not be reached. A proposal in the result is to be sent again, after a pause."""
        if proposal is not self._pending or error in _OVERTAKEN:
            return NOTHING
        if error in _REFUSED:
            self._commit(self.isr, self.partition_epoch)
            return NOTHING
        return Progress(proposal=proposal)

    @property
    def effective_min_isr(self) -> int:
        return min(self.min_insync_replicas, len(self._remotes) + 1)

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    def remote(self, replica_id: int) -> RemoteReplica | None:
        return self._remotes.get(replica_id)

    def low_watermark(self, log_start_offset: int) -> int:
        """DeleteRecords is done when every live replica has moved its log start."""
        starts = [each.log_start_offset for each in self._remotes.values() if each.broker_id in self.live_brokers]
        return min([log_start_offset, *starts])

    # Parts ---------------------------------------------------------------------------------------------------------------

    def _advance(self, now_ms: int) -> bool:
        if len(self.isr) < self.effective_min_isr:
            return False
        end = lowest = self.log_end_offset
        maximal = self.maximal_isr
        for remote in self._remotes.values():
            if remote.log_end_offset < lowest and (
                remote.broker_id in maximal or (remote.caught_up(end, now_ms, self.lag_max_ms) and self._eligible(remote))
            ):
                lowest = remote.log_end_offset
        if lowest <= self.high_watermark:
            return False
        self.high_watermark = lowest
        return True

    def _propose(self, isr: frozenset[int]) -> Proposal:
        """Adding counts at once and removing only when it is committed, so that either outcome is safe."""
        self._pending = Proposal(
            self.leader_epoch, self.partition_epoch, tuple((member, self._broker_epoch(member)) for member in sorted(isr))
        )
        self.maximal_isr = self.isr | isr
        return self._pending

    def _commit(self, isr: frozenset[int], partition_epoch: int) -> None:
        self.isr = self.maximal_isr = isr
        self.partition_epoch = partition_epoch
        self._pending = None

    def _newcomer(self, replica: int, now_ms: int) -> RemoteReplica:
        """Those in sync get the full time to make their first fetch; those that are not hold nothing back."""
        return RemoteReplica(replica, last_caught_up_ms=now_ms if replica in self.isr else _NEVER)

    def _may_join(self, remote: RemoteReplica) -> bool:
        """It has all that is committed, and all that earlier leaders left to this one."""
        return remote.log_end_offset >= max(self.high_watermark, self.epoch_start_offset) and self._eligible(remote)

    def _eligible(self, remote: RemoteReplica) -> bool:
        registered = self.live_brokers.get(remote.broker_id)
        if registered is None or remote.broker_epoch is None:
            return False
        return remote.broker_epoch in (UNKNOWN_BROKER_EPOCH, registered)

    def _in_time(self, member: int, now_ms: int) -> bool:
        remote = self._remotes.get(member)
        return remote is not None and remote.caught_up(self.log_end_offset, now_ms, self.lag_max_ms)

    def _broker_epoch(self, member: int) -> int:
        if member == self.broker_id:
            return self.live_brokers.get(member, self.broker_epoch)  # it may have registered anew since
        remote = self._remotes.get(member)
        return UNKNOWN_BROKER_EPOCH if remote is None or remote.broker_epoch is None else remote.broker_epoch


def divergence(last_fetched_epoch: int, fetch_offset: int, local: EpochEnd | None, log_start_offset: int) -> EpochEnd | None:
    """Whether a follower's log parts from ours before `fetch_offset` (KIP-595), and if so where it should look.

    `local` is what our log says of `last_fetched_epoch`. Raises OFFSET_OUT_OF_RANGE if it says nothing.
    """
    if local is None:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"the end of epoch {last_fetched_epoch} is not known here")
    if fetch_offset < log_start_offset:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {fetch_offset} is before the log's start {log_start_offset}")
    if local.epoch < last_fetched_epoch or local.end_offset < fetch_offset:
        return local
    return None
