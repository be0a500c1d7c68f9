"""Invariants of what group and transaction coordinators commit to their logs, read from the logs themselves.

A group's committed offsets never go back, its generations and epochs neither; no two members own a partition at the same time. A
transactional id's producer epochs never go back, its state moves as the transition table allows, and it has ended only when each of its
partitions has the marker that says how.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ottla.groups.records import GroupRecord
from ottla.groups.records import decode as decode_group
from ottla.model.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from ottla.protocol import codec
from ottla.protocol.messages import group_records as stored
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from ottla.records.batch import BatchHeader
from ottla.records.control import read_end_transaction
from ottla.records.record import Record
from ottla.transactions.records import decode_record
from ottla.transactions.states import DECIDED, Transaction, TransactionState
from tests.simulation.checks import Violation
from tests.simulation.journal import Journal

Offset = tuple[str, str, int]  # group, topic, partition

ENDINGS = {
    TransactionState.COMPLETE_COMMIT: (TransactionState.PREPARE_COMMIT,),
    TransactionState.COMPLETE_ABORT: (TransactionState.PREPARE_ABORT,),
    TransactionState.PREPARE_COMMIT: (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT),
}


@dataclass(slots=True)
class _Marker:
    """The latest one of a producer in a partition."""

    offset: int
    producer_epoch: int
    commit: bool
    counted: bool = False  # a transaction that ended has relied on it


class CoordinatorLogs:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._read_up_to: dict[TopicPartition, int] = {}
        self._offsets: dict[Offset, int] = {}
        self._pending: dict[tuple[TopicPartition, int], list[GroupRecord]] = defaultdict(
            list
        )  # of open transactions, by producer
        self._generations: dict[str, int] = {}
        self._assignments: dict[str, dict[str, set[tuple[bytes, int]]]] = defaultdict(dict)  # group → member → partitions
        self._transactions: dict[str, Transaction] = {}
        self._markers: dict[tuple[TopicPartition, int], _Marker] = {}  # by partition and producer
        self._ended: list[Transaction] = []  # as they were decided

    def committed(self, topic_partition: TopicPartition, header: BatchHeader, records: list[Record]) -> None:
        """A batch that a node saw committed; each is taken once, in the order of offsets."""
        if header.base_offset < self._read_up_to.get(topic_partition, 0):
            return
        self._read_up_to[topic_partition] = header.next_offset
        if topic_partition.topic == TRANSACTIONS_TOPIC:
            for record in records:
                self._transaction(record)
        elif topic_partition.topic == OFFSETS_TOPIC:
            for record in records:
                self._group(topic_partition, header, record)

    # -- groups

    def _group(self, topic_partition: TopicPartition, header: BatchHeader, record: Record) -> None:
        if header.is_control:
            ended = read_end_transaction(record)
            pending = self._pending.pop((topic_partition, header.producer_id), [])
            for held in pending if ended is not None and ended.commit else ():
                self._group_record(held)
            return
        decoded = decode_group(bytes(record.key or b""), None if record.value is None else bytes(record.value))
        if decoded is None:
            return
        if header.is_transactional:
            self._pending[topic_partition, header.producer_id].append(decoded)
        else:
            self._group_record(decoded)

    def _group_record(self, record: GroupRecord) -> None:
        key: Any = record.key
        if isinstance(key, stored.OffsetCommitKey):
            self._offset((key.group, key.topic, key.partition), record.value)
        elif isinstance(key, stored.GroupMetadataKey):
            self._classic(key.group, record.value)
        elif isinstance(key, stored.ConsumerGroupMetadataKey):
            self._epoch(key.group_id, record.value)
        elif isinstance(key, stored.ConsumerGroupCurrentMemberAssignmentKey):
            self._current_assignment(key.group_id, key.member_id, record.value)

    def _offset(self, where: Offset, value: Any) -> None:
        if value is None:
            self._offsets.pop(where, None)
            return
        before = self._offsets.get(where, -1)
        if value.offset < before:
            raise Violation("committed_offsets_never_go_back", f"{where[0]} in {where[1]}-{where[2]}: {before} -> {value.offset}")
        self._offsets[where] = value.offset

    def _classic(self, group: str, value: Any) -> None:
        if value is None:
            self._generations.pop(group, None)
            return
        self._generation(group, value.generation)
        owners: dict[tuple[str, int], str] = {}
        for member in value.members:
            for partition in _assigned(bytes(member.assignment or b"")):
                owner = owners.setdefault(partition, member.member_id)
                if owner != member.member_id:
                    text = f"{group} in generation {value.generation}: {partition} belongs to {owner} and {member.member_id}"
                    raise Violation("a_partition_has_one_owner", text)

    def _epoch(self, group: str, value: Any) -> None:
        if value is None:
            self._generations.pop(group, None)
        else:
            self._generation(group, value.epoch)

    def _generation(self, group: str, generation: int) -> None:
        before = self._generations.get(group, -1)
        if generation < before:
            raise Violation("group_epochs_never_go_back", f"{group}: {before} -> {generation}")
        if generation > before:
            self._journal.tell("rebalances", f"group {group} is in generation {generation}")
        self._generations[group] = generation

    def _current_assignment(self, group: str, member: str, value: Any) -> None:
        members = self._assignments[group]
        if value is None:
            members.pop(member, None)
            return
        rows = chain(value.assigned_partitions, value.partitions_pending_revocation)
        owned = {(bytes(row.topic_id), index) for row in rows for index in row.partitions}
        for other, theirs in members.items():
            if other != member and (both := owned & theirs):
                text = f"{group}: {sorted(index for _, index in both)} belong to {other} and {member}"
                raise Violation("a_partition_has_one_owner", text)
        members[member] = owned

    # -- transactions

    def _transaction(self, record: Record) -> None:
        decoded = decode_record(bytes(record.key or b""), None if record.value is None else bytes(record.value))
        if decoded is None:
            return
        transactional_id, now = decoded.transactional_id, decoded.transaction
        before = self._transactions.get(transactional_id)
        if now is None:
            self._transactions.pop(transactional_id, None)
            return
        self._transactions[transactional_id] = now
        if now.state is TransactionState.COMPLETE_ABORT:
            self._journal.tell("aborts", f"{transactional_id}: a transaction is aborted")
        if before is None:
            return
        if now.producer_id == before.producer_id and now.producer_epoch < before.producer_epoch:
            text = f"{transactional_id}: {before.producer_epoch} -> {now.producer_epoch} of producer {now.producer_id}"
            raise Violation("producer_epochs_never_go_back", text)
        if before.state not in ENDINGS.get(now.state, (before.state,)):
            raise Violation("transactions_end_as_decided", f"{transactional_id}: {before.state.name} -> {now.state.name}")
        if before.state in DECIDED and now.state not in DECIDED:
            self._ended.append(before)

    def marker(self, topic_partition: TopicPartition, header: BatchHeader, records: list[Record]) -> None:
        """A control batch that a node saw committed, in any partition. Nodes see it one after the other."""
        ended = read_end_transaction(records[0]) if records else None
        known = self._markers.get((topic_partition, header.producer_id))
        if ended is not None and (known is None or known.offset < header.base_offset):
            found = _Marker(header.base_offset, header.producer_epoch, ended.commit)
            self._markers[topic_partition, header.producer_id] = found

    def settle(self) -> None:
        """All partitions were looked at: markers and the end that relies on them may come in one event."""
        while self._ended:
            self._has_ended(self._ended.pop())

    def _has_ended(self, decided: Transaction) -> None:
        commit = decided.state is TransactionState.PREPARE_COMMIT
        for partition in sorted(decided.partitions):
            marker = self._markers.get((partition, decided.producer_id))
            wanted = (decided.producer_epoch, commit, False)
            if marker is None or (marker.producer_epoch, marker.commit, marker.counted) != wanted:
                outcome = "committed" if commit else "aborted"
                text = f"{decided.transactional_id} counts as {outcome}, and {partition} has no marker of it"
                raise Violation("an_ended_transaction_has_its_markers", text)
            marker.counted = True


def _assigned(assignment: bytes) -> list[tuple[str, int]]:
    if len(assignment) < 2:
        return []
    version = min(int.from_bytes(assignment[:2], "big"), ConsumerProtocolAssignment.VERSIONS.last)
    decoded, _ = codec.read_from(ConsumerProtocolAssignment, version, assignment, 2)
    return [(row.topic, index) for row in decoded.assigned_partitions for index in row.partitions]
