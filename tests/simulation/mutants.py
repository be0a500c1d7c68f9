"""Broken variants of the code, each of which the simulator must catch (`mutations.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ottla.broker import coordinators, fetchers, markers, metadata_log, quorum, reading
from ottla.broker.controller import ActiveController
from ottla.broker.lifecycle import Lifecycle
from ottla.broker.replicas import Replica, Replicas
from ottla.groups.classic import ClassicGroup
from ottla.groups.consumer import ConsumerGroup
from ottla.groups.draft import MemberSession
from ottla.model.errors import ErrorCode
from ottla.raft import elections, leading
from ottla.raft.log import LogView
from ottla.raft.roles import Candidate, Prospective, Unattached, Voted
from ottla.raft.voters import VoterSet
from ottla.replication.follower import PartitionFollower
from ottla.replication.leader import PartitionLeader
from ottla.replication.state import NO_EPOCH, UNKNOWN_BROKER_EPOCH
from ottla.storage import log as storage_log
from ottla.storage.compaction import _Compaction
from ottla.storage.epochs import LeaderEpochs
from ottla.storage.log import Log
from ottla.storage.producers import ProducerStates, Staging
from ottla.storage.state import LogState
from ottla.transactions import ending
from ottla.transactions.shard import TransactionShard
from tests.simulation.clients import PlainProducer


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    what: str
    changes: tuple[tuple[Any, str, Any], ...]
    focus: str = ""

    @contextmanager
    def applied(self) -> Iterator[None]:
        former = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute, _ in self.changes]
        for owner, attribute, changed in self.changes:
            setattr(owner, attribute, changed)
        try:
            yield
        finally:
            for owner, attribute, original in former:
                setattr(owner, attribute, original)


def _acknowledged_at_once(self: PartitionLeader, required_offset: int) -> ErrorCode | None:
    return ErrorCode.NONE


def _highest_instead_of_lowest(self: PartitionLeader, now_ms: int) -> bool:
    ends = [remote.log_end_offset for remote in self._remotes.values() if remote.broker_id in self.isr]
    highest = min(self.log_end_offset, max(ends, default=self.log_end_offset))
    if highest <= self.high_watermark:
        return False
    self.high_watermark = highest
    return True


def _log_end_as_watermark(self: PartitionLeader, now_ms: int) -> bool:
    if self.log_end_offset <= self.high_watermark:
        return False
    self.high_watermark = self.log_end_offset
    return True


def _no_truncation(self: Any, replica: Replica, decided: Any) -> None:
    if replica.follower is not None:
        replica.follower.truncated(replica.log.log_end_offset, replica.state.leader_epoch)


def _shrink_counts_at_once(self: PartitionLeader, isr: frozenset[int]) -> Any:
    proposal = _original_propose(self, isr)
    self.isr = self.maximal_isr = isr
    return proposal


_original_propose = PartitionLeader._propose


def _joins_at_once(self: PartitionLeader, remote: Any) -> bool:
    return self._eligible(remote)


def _votes_again(core: Any, candidate: Any, up_to_date: bool) -> bool:
    return up_to_date and isinstance(core.role, Unattached | Prospective | Voted | Candidate)


def _votes_for_the_outdated(self: LogView, other: Any) -> bool:
    return True


def _unsynced_state(self: Any, state: Any, voters: Any) -> None:
    self._world.disk.replace(
        f"{self._path}/{metadata_log.QUORUM_STATE}", metadata_log.to_text(state, voters).encode(), sync=False
    )


def _commits_the_unflushed(core: Any, role: Any) -> None:
    core.log.flushed_offset = core.log.end_offset
    _original_commit(core, role)


_original_commit = leading.commit


def _append_without_leading(self: Any, records: Any, metadata_version: int) -> int:
    first: int = self._log.append(records, metadata_version, self.leader.epoch)
    self._appended(())
    return first


def _close_and_go_on(self: ActiveController) -> None:
    for future in self._tickets.values():
        if not future.done():
            future.cancel()
    self._tickets.clear()


async def _register_without_waiting(self: Lifecycle) -> None:
    self._node._load(self._node.world.clock.wall_ms())
    await self._register()
    self._node._load = lambda now_ms: None  # type: ignore[method-assign]


def _keeps_empty_epochs(self: LeaderEpochs, end_offset: int) -> None:
    if self.entries and self.entries[-1][1] > end_offset:
        _original_truncate_end(self, end_offset)


_original_truncate_end = LeaderEpochs.truncate_end


def _forgets_producers(self: ProducerStates, entries: Any) -> None:
    _original_load(self, {})


_original_load = ProducerStates.load


def _new_sequence_when_retrying(self: PlainProducer, topic_partition: Any, data: bytes, batch: Any) -> Any:
    async def attempt() -> int:
        self._epoch += 1
        again = bytearray(data)
        return await _original_produce(self, topic_partition, _with_epoch(again, self._epoch), batch)

    return attempt()


_original_produce = PlainProducer._produce


def _with_epoch(batch: bytearray, epoch: int) -> bytes:
    from ottla.records.batch import HEADER, HEADER_SIZE, crc_of, read_header

    header = read_header(batch)._replace(producer_epoch=epoch, base_sequence=0)
    batch[:HEADER_SIZE] = HEADER.pack(*header)
    batch[:HEADER_SIZE] = HEADER.pack(*header._replace(crc=crc_of(batch, 0, len(batch))))
    return bytes(batch)


def _shows_everything(self: Any, *arguments: Any) -> None:
    """As a follower is shown it. The log's own `read` is not touched: the simulator uses it, too."""
    reader, self.follower = self.follower, max(self.follower, 0)
    try:
        _original_fill(self, *arguments)
    finally:
        self.follower = reader


_original_fill = reading.Reading._fill


def _believes_every_watermark(self: PartitionFollower, leader_high_watermark: int) -> bool:
    self.high_watermark = min(leader_high_watermark, self.log_end_offset)
    return True


def _opens_what_is_there(self: Replicas, topic_partition: Any, topic_id: bytes) -> Log:
    found = self._node.directory.logs.get(topic_partition)
    if found is not None:
        found.topic_id = topic_id
        return found
    return _original_open(self, topic_partition, topic_id)


_original_open = Replicas._open


def _keeps_the_log(self: Replicas, replica: Replica) -> None:
    del self._by_partition[replica.topic_partition]
    self._node.fetchers.drop(replica)
    replica.retire()


def _drops_the_last_word(self: Any, record: Any, horizon: int | None) -> bool:
    return record.offset >= self._mapped_end


def _sessions_run_out(self: Any, key: Any, delay_ms: int | None, if_absent: bool = False) -> None:
    if not (isinstance(key, MemberSession) and delay_ms is not None and key in self._deadlines):
        _original_set(self, key, delay_ms, if_absent)


_original_set = coordinators.Timers.set


def _leaves_one_out(self: Any, work: Any, partitions: list[Any]) -> None:
    if len(partitions) > 1:
        work.missing.discard(partitions[0])
    _original_route(self, work, partitions[len(partitions) > 1 :])


_original_route = markers.MarkerSender._route


async def _same_sequence_again(self: PlainProducer, topic_partition: Any, size: int) -> None:
    await _original_write(self, topic_partition, size)
    if self._random.random() < 0.02:
        self._numbers[topic_partition] -= size


_original_write = PlainProducer._write


def _finds_any_writer(self: TransactionShard, transactional_id: str, producer_id: int, producer_epoch: int) -> Any:
    transaction = self.transactions.get(transactional_id)
    epoch = producer_epoch if transaction is None else transaction.producer_epoch
    return _original_find_writer(self, transactional_id, producer_id, epoch)


_original_find_writer = TransactionShard._find_writer


def _anybody_ends(transaction: Any, producer_id: int, producer_epoch: int, commit: bool) -> bool:
    return _original_repeats(transaction, producer_id, transaction.producer_epoch, commit)


_original_repeats = ending._repeats_version_2


def _any_epoch(self: PartitionLeader, replica_id: int, broker_epoch: int, current_leader_epoch: int) -> None:
    _original_check_follower(self, replica_id, UNKNOWN_BROKER_EPOCH, NO_EPOCH)


_original_check_follower = PartitionLeader.check_follower


def _nothing(*_: Any) -> None:
    return None


MUTANTS = (
    Mutant("early-acknowledgement", "acks=all is answered before replication", ((PartitionLeader, "acknowledged", _acknowledged_at_once), (Replica, "is_committed", lambda self, offset: True))),
    Mutant("watermark-at-the-end", "the high watermark is the leader's log end", ((PartitionLeader, "_advance", _log_end_as_watermark),)),
    Mutant("watermark-of-the-fastest", "the high watermark follows the fastest replica in sync", ((PartitionLeader, "_advance", _highest_instead_of_lowest),)),
    Mutant("no-truncation", "a follower whose log diverges keeps it", ((fetchers.Fetcher, "_carry_out", _no_truncation),)),
    Mutant("shrink-before-agreement", "a follower is out of sync before the controller agrees", ((PartitionLeader, "_propose", _shrink_counts_at_once),)),
    Mutant("joins-while-behind", "a follower joins the in-sync set before it has what is committed", ((PartitionLeader, "_may_join", _joins_at_once),), "replication"),
    Mutant("stale-watermark", "a follower takes over a smaller high watermark", ((PartitionFollower, "heard", _believes_every_watermark),)),
    Mutant("two-votes", "a voter votes for every candidate of an epoch", ((elections, "_may_vote", _votes_again),), "raft"),
    Mutant("outdated-leader", "a voter does not look at the candidate's log", ((LogView, "is_no_longer_than", _votes_for_the_outdated),), "raft"),
    Mutant("minority", "one voter of three is a majority", ((VoterSet, "majority", property(lambda self: max(1, len(self.directories) // 2))),), "raft"),
    Mutant("unsynced-vote", "the quorum's state is not synced", ((metadata_log.MetadataLog, "persist", _unsynced_state),), "raft"),
    Mutant("unflushed-commit", "the metadata leader counts itself before it has flushed", ((leading, "commit", _commits_the_unflushed),), "raft"),
    Mutant("zombie-controller", "a controller goes on after it has lost the quorum", ((ActiveController, "close", _close_and_go_on), (quorum.Quorum, "_append_records", _append_without_leading)), "raft"),
    Mutant("leads-from-memory", "a broker takes its old roles before it has registered again", ((Lifecycle, "register", _register_without_waiting),), "raft"),
    Mutant("empty-epochs-stay", "an epoch without a record is not cut", ((LeaderEpochs, "truncate_end", _keeps_empty_epochs),)),
    Mutant("no-duplicate-check", "a batch that is sent again is appended again", ((Staging, "_check_duplicate", _nothing), (Staging, "_check_sequence", _nothing))),
    Mutant("producers-forgotten", "producers' sequences are forgotten at a restart", ((ProducerStates, "load", _forgets_producers),)),
    Mutant("reads-uncommitted", "readers see what is not committed", ((reading.Reading, "_fill", _shows_everything),)),
    Mutant("diverged-followers-count", "a leader counts fetches of followers whose log parts from its own", ((reading, "divergence", _nothing),), "replication"),
    Mutant("stale-fetches-count", "a leader counts fetches of another epoch, and does not look whether the logs part", ((PartitionLeader, "check_follower", _any_epoch), (reading, "divergence", _nothing)), "replication"),
    Mutant("damage-is-copied", "a follower does not look at checksums", ((storage_log, "check_batches", _nothing),), "storage"),
    Mutant("old-log-for-a-new-topic", "a topic that is created again gets the log of the former", ((Replicas, "_open", _opens_what_is_there), (Replicas, "_drop", _keeps_the_log)), "administration"),
    Mutant("last-word-cleaned", "the cleaner drops the newest record of a key, too", ((_Compaction, "_is_kept", _drops_the_last_word),), "storage"),
    Mutant("live-member-expires", "heartbeats do not prolong a member's session", ((coordinators.Timers, "set", _sessions_run_out),), "groups"),
    Mutant("unfenced-commits", "members of earlier generations may commit offsets", ((ClassicGroup, "check_offset_commit", _nothing), (ConsumerGroup, "check_offset_commit", _nothing)), "groups"),
    Mutant("dropped-marker", "a transaction counts as ended before one of its markers is written", ((markers.MarkerSender, "_route", _leaves_one_out),), "transactions"),
    Mutant("unfenced-producers", "a producer of an older epoch may go on writing, and end what the newer one began", ((Staging, "_check_epoch", _nothing), (TransactionShard, "_find_writer", _finds_any_writer), (ending, "_repeats_version_2", _anybody_ends)), "transactions"),
    Mutant("uncommitted-read", "read_committed consumers see open transactions", ((LogState, "last_stable_offset", property(lambda self: self.high_watermark)),), "transactions"),
    Mutant("client-reuses-a-sequence", "a producer gives two batches the same sequence", ((PlainProducer, "_write", _same_sequence_again),)),
    Mutant("client-reuses-nothing", "a producer takes a new epoch for every attempt", ((PlainProducer, "_produce", _new_sequence_when_retrying),)),
)  # fmt: skip
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
