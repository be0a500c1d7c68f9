"""What must hold after every event, while a run goes on: small named looks into the nodes that run.

Only the node that has just taken a step is looked at, because nothing else can have changed. What nodes must agree on is kept
here, beyond their deaths: who led which epoch, which image belongs to an offset, which record to an offset once it is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ottla.broker.node import Node
from ottla.broker.replicas import Replica
from ottla.model.ids import TopicPartition
from ottla.records.batch import headers
from tests.simulation.checks import Violation
from tests.simulation.cluster import SimulatedBroker, SimulatedCluster
from tests.simulation.loop import Process

READ_BYTES = 1 << 20


class Invariants:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._brokers = {broker.name: broker for broker in cluster.brokers}
        self._journal = cluster.simulation.journal
        self._in_sync: dict[TopicPartition, tuple[int, ...]] = {}
        self._ends: dict[tuple[int, TopicPartition], int] = {}
        self._leaders: dict[tuple[TopicPartition, int], int] = {}  # (partition, leader epoch) → who led it
        self._controllers: dict[int, int] = {}  # epoch of the metadata quorum → its leader
        self._images: dict[int, Any] = {}  # metadata offset → the first image seen there
        self._epochs: dict[tuple[int, TopicPartition], int] = {}  # the highest leader epoch a broker was told of
        self._watermarks: dict[tuple[int, TopicPartition], tuple[int, int, int]] = {}  # era, leader epoch, high watermark
        self._committed: dict[TopicPartition, dict[int, int]] = {}  # base offset of each committed batch → its crc
        self._read_up_to: dict[tuple[int, TopicPartition], int] = {}
        self.looks = 0

    def after(self, process: Process) -> None:
        """Called by the loop after each event."""
        broker = self._brokers.get(process.name)
        if broker is None or broker.node is None or broker.machine.process is not process:
            return
        self.looks += 1
        self._metadata(broker.node)
        for replica in broker.node.replicas:
            self._one_leader_per_epoch(broker.node, replica)
            self._offsets_in_order(broker, replica)
            self._committed_data_agreed(broker, replica)

    # -- metadata

    def _metadata(self, node: Node) -> None:
        leader = node.quorum.leader
        if leader.is_self:
            if leader.epoch not in self._controllers:
                self._journal.tell("elections", f"n{node.node_id} leads the metadata quorum in epoch {leader.epoch}")
            former = self._controllers.setdefault(leader.epoch, node.node_id)
            if former != node.node_id:
                raise Violation("one_controller_per_epoch", f"epoch {leader.epoch}: nodes {former} and {node.node_id}")
        image = node.image
        known = self._images.get(image.offset)
        if known is None:
            self._images[image.offset] = image
        elif known is not image and known != image:
            raise Violation("images_equal_at_equal_offsets", f"node {node.node_id} at offset {image.offset}")
        else:
            node.image = known  # equal values become one, so that the next look is a comparison of identities

    # -- partitions

    def _one_leader_per_epoch(self, node: Node, replica: Replica) -> None:
        if not replica.leads:
            return
        if (replica.topic_partition, replica.leader_epoch) not in self._leaders:
            text = f"n{node.node_id} leads {replica.topic_partition} in epoch {replica.leader_epoch}"
            self._journal.tell("leaderships", f"{text} from offset {replica.log.log_end_offset}, in sync {replica.state.isr}")
        elif self._in_sync.get(replica.topic_partition) != replica.state.isr:
            self._journal.tell("in-sync changes", f"{replica.topic_partition}: in sync {replica.state.isr}")
        self._in_sync[replica.topic_partition] = replica.state.isr
        former = self._leaders.setdefault((replica.topic_partition, replica.leader_epoch), node.node_id)
        if former != node.node_id:
            where = f"{replica.topic_partition} epoch {replica.leader_epoch}"
            raise Violation("one_leader_per_epoch", f"{where}: nodes {former} and {node.node_id}")
        if node.node_id not in replica.state.isr:
            raise Violation("leader_in_the_in_sync_set", f"{replica.topic_partition}: {node.node_id} not in {replica.state.isr}")

    def _offsets_in_order(self, broker: SimulatedBroker, replica: Replica) -> None:
        log, where = replica.log, (broker.node_id, replica.topic_partition)
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
        now = (broker.machine.disk.era, epoch, log.high_watermark)
        before = self._watermarks.get(where)
        if before is not None and before[0] == now[0] and now[2] < before[2]:
            raise Violation(
                "high_watermark_never_goes_back",
                f"{replica.topic_partition} on node {broker.node_id}: {before[2]} -> {now[2]} in epoch {epoch}",
            )
        self._watermarks[where] = now

    def _committed_data_agreed(self, broker: SimulatedBroker, replica: Replica) -> None:
        """Every batch below a high watermark is the same on every node that has it below its own, for ever."""
        log, where = replica.log, (broker.node_id, replica.topic_partition)
        start = max(self._read_up_to.get(where, 0), log.log_start_offset)
        if log.high_watermark <= start:
            return
        agreed = self._committed.setdefault(replica.topic_partition, {})
        for base_offset, crc in _batches(replica, start):
            if agreed.setdefault(base_offset, crc) != crc:
                raise Violation(
                    "committed_data_agreed", f"{replica.topic_partition} offset {base_offset} on node {broker.node_id}"
                )
        self._read_up_to[where] = log.high_watermark


def _batches(replica: Replica, start: int) -> Iterator[tuple[int, int]]:
    upper = replica.log.high_watermark
    while start < upper:
        found = replica.log.read(start, READ_BYTES, upper)
        content = b"".join(part.read() for part in found.parts)
        moved = start
        for _, header in headers(content):
            if header.base_offset >= start:
                yield header.base_offset, header.crc
            moved = header.next_offset
        if moved == start:
            return
        start = moved
