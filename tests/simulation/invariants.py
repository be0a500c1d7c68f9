"""What must hold after every event, while a run goes on: small named looks into the nodes that run.

Only the node that has just taken a step is looked at, because nothing else can have changed, and of its partitions only those that
differ from the last look. What nodes must agree on is kept here, beyond their deaths: who led which epoch, which record belongs to
an offset once it is committed, how far everybody's log reaches.

The metadata quorum is looked at in `quorum.py`, what coordinators write in `coordinators.py`, files in `files.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ottla.broker.node import Node
from ottla.broker.replicas import Replica
from ottla.metadata.image import Partition
from ottla.model.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from ottla.records.batch import BatchHeader
from ottla.records.batch import headers as batch_headers
from ottla.records.record import decode_batch
from ottla.storage.log import Log
from tests.simulation.checks import Violation
from tests.simulation.cluster import SimulatedBroker, SimulatedCluster
from tests.simulation.coordinators import CoordinatorLogs
from tests.simulation.loop import Process
from tests.simulation.quorum import QuorumInvariants

READ_BYTES = 1 << 20
Place = tuple[TopicPartition, bytes]  # a partition of one topic id: a topic that is created again is another


class Invariants:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._brokers = {broker.name: broker for broker in cluster.nodes}
        self._journal = cluster.simulation.journal
        self._quorum = QuorumInvariants(cluster)
        self._coordinators = CoordinatorLogs(self._journal)
        self._seen: dict[Replica, tuple[Any, ...]] = {}  # what a replica was when it was last looked at
        self._logs: dict[tuple[int, TopicPartition], Log] = {}
        self._in_sync: dict[Place, tuple[int, ...]] = {}
        self._ends: dict[tuple[int, Place], int] = {}  # where each broker's log was last seen to end, dead ones' too
        self._leaders: dict[tuple[Place, int], int] = {}  # leader epoch → who led it
        self._epochs: dict[tuple[int, Place], int] = {}  # the highest leader epoch a broker was told of
        self._watermarks: dict[tuple[int, Place], tuple[int, int]] = {}  # era, high watermark
        self._committed: dict[Place, dict[int, tuple[int, int]]] = {}  # what is committed, by offset: its epoch and what it says
        self._committed_up_to: dict[Place, int] = {}  # the highest high watermark that any node ever had
        self._read_up_to: dict[tuple[int, Place], int] = {}
        self.looks = 0

    def after(self, process: Process) -> None:
        """Called by the loop after each event."""
        broker = self._brokers.get(process.name)
        if broker is None or broker.machine.process is not process:
            return
        node = broker.node
        if node is None:
            return
        self.looks += 1
        self._quorum.look(broker, node)
        seen = self._seen
        for replica in node.replicas:
            log = replica.log
            now = (log.log_end_offset, log.high_watermark, log.log_start_offset, replica.state, replica.leader, log)
            if seen.get(replica) != now:
                seen[replica] = now
                self._changed(broker, node, replica)
        self._coordinators.settle()

    def _changed(self, broker: SimulatedBroker, node: Node, replica: Replica) -> None:
        key, log = (broker.node_id, replica.topic_partition), replica.log
        before = self._logs.get(key)
        self._logs[key] = log
        if before is not None and before is not log:
            self._begin_anew(broker, replica)
        self._look(broker, node, replica)

    def _begin_anew(self, broker: SimulatedBroker, replica: Replica) -> None:
        """The partition was moved away from this node, its log deleted, and now it is back."""
        where = broker.node_id, (replica.topic_partition, replica.topic_id)
        self._read_up_to.pop(where, None)
        if self._watermarks.get(where, (-1, 0))[0] == broker.machine.disk.era:
            del self._watermarks[where]
            del self._ends[where]

    def _look(self, broker: SimulatedBroker, node: Node, replica: Replica) -> None:
        place = replica.topic_partition, replica.topic_id
        self._one_leader_per_epoch(node, replica, place)
        self._offsets_in_order(broker, replica, place)
        self._committed_data_agreed(broker, replica, place)

    # -- leaders

    def _one_leader_per_epoch(self, node: Node, replica: Replica, place: Place) -> None:
        if not replica.leads:
            return
        if (place, replica.leader_epoch) not in self._leaders:
            text = f"n{node.node_id} leads {replica.topic_partition} in epoch {replica.leader_epoch}"
            self._journal.tell("leaderships", f"{text} from offset {replica.log.log_end_offset}, in sync {replica.state.isr}")
        elif self._in_sync.get(place) != replica.state.isr:
            self._journal.tell("in-sync changes", f"{replica.topic_partition}: in sync {replica.state.isr}")
            self._newcomers_have_all(node, replica, place)
        self._in_sync[place] = replica.state.isr
        former = self._leaders.setdefault((place, replica.leader_epoch), node.node_id)
        if former != node.node_id:
            where = f"{replica.topic_partition} epoch {replica.leader_epoch}"
            raise Violation("one_leader_per_epoch", f"{where}: nodes {former} and {node.node_id}")
        if node.node_id not in replica.state.isr:
            raise Violation("leader_in_the_in_sync_set", f"{replica.topic_partition}: {node.node_id} not in {replica.state.isr}")

    def _newcomers_have_all(self, node: Node, replica: Replica, place: Place) -> None:
        """A leader may know less than is committed, right after its election; what counts is what anybody ever called committed. A
        leader that hears late of what was decided is not asked: the set may have changed again since."""
        newest = self._newest_state(place)
        if newest is None or newest.partition_epoch != replica.state.partition_epoch:
            return
        high_watermark = max(replica.log.high_watermark, self._committed_up_to.get(place, 0))
        for member in set(replica.state.isr) - set(self._in_sync.get(place, ())) - self._cluster.weakened - {node.node_id}:
            end = self._ends.get((member, place), 0)
            if end < high_watermark:
                text = f"{replica.topic_partition}: n{member} ends at {end}, committed is everything up to {high_watermark}"
                raise Violation("in_sync_means_having_all_that_is_committed", text)

    # -- offsets

    def _offsets_in_order(self, broker: SimulatedBroker, replica: Replica, place: Place) -> None:
        log, where = replica.log, (broker.node_id, place)
        if not log.log_start_offset <= log.high_watermark <= log.log_end_offset:
            numbers = f"start {log.log_start_offset}, high watermark {log.high_watermark}, end {log.log_end_offset}"
            raise Violation("offsets_in_order", f"{replica.topic_partition} on node {broker.node_id}: {numbers}")
        end = self._ends.get(where, 0)
        if log.log_end_offset < end:
            self._journal.tell(
                "truncations", f"n{broker.node_id} cuts {replica.topic_partition} from {end} to {log.log_end_offset}"
            )
        self._ends[where] = log.log_end_offset
        epoch = replica.leader_epoch
        if epoch < self._epochs.get(where, -1):
            raise Violation("leader_epochs_never_go_back", f"{replica.topic_partition} on node {broker.node_id}: {epoch}")
        self._epochs[where] = epoch
        self._watermark(broker, replica, place)

    def _watermark(self, broker: SimulatedBroker, replica: Replica, place: Place) -> None:
        where, high_watermark = (broker.node_id, place), replica.log.high_watermark
        era, before = self._watermarks.get(where, (-1, 0))
        self._watermarks[where] = broker.machine.disk.era, high_watermark
        if high_watermark > self._committed_up_to.get(place, 0):
            self._committed_up_to[place] = high_watermark
        if era == broker.machine.disk.era and high_watermark < before:
            text = f"{replica.topic_partition} on node {broker.node_id}: {before} -> {high_watermark} in epoch {replica.leader_epoch}"
            raise Violation("high_watermark_never_goes_back", text)
        if replica.leads and high_watermark > before and era == broker.machine.disk.era:
            self._everybody_in_sync_has_it(broker, replica, place)

    def _everybody_in_sync_has_it(self, broker: SimulatedBroker, replica: Replica, place: Place) -> None:
        """A leader has just called something committed: whoever could be elected next, by the newest metadata, must have it.

        A machine that lost power is not asked until it has caught up (`faults.py` says why no promise covers it).
        """
        state = self._newest_state(place)
        high_watermark = replica.log.high_watermark
        for member in state.isr if state is not None else ():
            end = self._ends.get((member, place), 0)
            if end < high_watermark and member not in self._cluster.weakened and member != broker.node_id:
                text = f"{replica.topic_partition}: n{broker.node_id} commits up to {high_watermark}, n{member} is in sync and ends at {end}"
                raise Violation("committed_once_all_in_sync_have_it", text)

    def _newest_state(self, place: Place) -> Partition | None:
        image = self._quorum.newest_image
        topic = None if image is None else image.topics.get(place[1])
        return None if topic is None else topic.partitions.get(place[0].partition)

    # -- records

    def _committed_data_agreed(self, broker: SimulatedBroker, replica: Replica, place: Place) -> None:
        """Everything below a high watermark is the same on every node that has it below its own, for ever: the bytes, and the epoch of
        the leader that wrote them. A producer may write the same batch again to the next leader, at the same offset: by the bytes
        alone a follower that kept what it had from the former one would pass."""
        log, where = replica.log, (broker.node_id, place)
        start = max(self._read_up_to.get(where, 0), log.log_start_offset)
        if log.high_watermark <= start:
            return
        agreed = self._committed.setdefault(place, {})
        compacted = log.config.compact or place[0].topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
        for header, content, position in _batches(replica, start):
            if compacted:
                self._records_agreed(broker, replica, agreed, header, content, position)
                continue
            told = header.leader_epoch, header.crc
            if agreed.setdefault(header.base_offset, told) != told:
                raise _disagreement(broker, replica, header.base_offset, agreed[header.base_offset], told)
            if header.is_control:
                self._coordinators.marker(replica.topic_partition, header, decode_batch(content, position))
        self._read_up_to[where] = log.high_watermark

    def _records_agreed(
        self,
        broker: SimulatedBroker,
        replica: Replica,
        agreed: dict[int, tuple[int, int]],
        header: BatchHeader,
        content: bytes,
        position: int,
    ) -> None:
        """Compaction makes other batches of the same records."""
        records = decode_batch(content, position)
        for record in records:
            told = header.leader_epoch, hash((record.key, record.value))
            if agreed.setdefault(record.offset, told) != told:
                raise _disagreement(broker, replica, record.offset, agreed[record.offset], told)
        if header.is_control:
            self._coordinators.marker(replica.topic_partition, header, records)
        self._coordinators.committed(replica.topic_partition, header, records)


def _disagreement(
    broker: SimulatedBroker, replica: Replica, offset: int, known: tuple[int, int], found: tuple[int, int]
) -> Violation:
    what = "another record" if known[1] != found[1] else "the same record"
    text = f"{replica.topic_partition} offset {offset} is of epoch {known[0]}; n{broker.node_id} has {what} of epoch {found[0]}"
    return Violation("committed_data_agreed", text)


def _batches(replica: Replica, start: int) -> Iterator[tuple[BatchHeader, bytes, int]]:
    upper = replica.log.high_watermark
    while start < upper:
        found = replica.log.read(start, READ_BYTES, upper)
        content = b"".join(part.file.peek(part.position, part.size) for part in found.parts)
        moved = start
        for position, header in batch_headers(content):
            if header.base_offset >= start:
                yield header, content, position
            moved = header.next_offset
        if moved <= start:
            return
        start = moved
