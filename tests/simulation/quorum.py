"""Invariants of the metadata quorum: one vote and one leader per epoch, epochs that never go back, nothing committed that a majority
does not have on its disks, the same image at the same offset."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ottla.broker.node import Node
from ottla.metadata.image import ClusterImage
from ottla.raft.roles import Candidate, Leader
from ottla.records.batch import headers
from tests.simulation.checks import Violation
from tests.simulation.cluster import DATA, SimulatedBroker, SimulatedCluster
from tests.simulation.disk import Inode, SimulatedDisk

FOLDER = f"{DATA}/__cluster_metadata-0/"
_SNAPSHOT = re.compile(r"(\d{20})-\d{10}\.checkpoint")


@dataclass(slots=True)
class _Parsed:
    """How far the durable part of one file was read, and the offset that comes next."""

    inode: Inode
    rewritten: int
    position: int = 0
    end_offset: int = 0


class QuorumInvariants:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._journal = cluster.simulation.journal
        self.newest_image: ClusterImage | None = None
        self._images: dict[int, ClusterImage] = {}  # metadata offset → the first image seen there
        self._leaders: dict[int, int] = {}  # epoch → who led it
        self._votes: dict[tuple[int, int], int] = {}  # (voter, epoch) → for whom
        self._epochs: dict[int, int] = {}  # node → the highest epoch it knew, in any of its lives
        self._watermarks: dict[int, tuple[int, int]] = {}  # node → era, high watermark
        self._parsed: dict[tuple[str, str], _Parsed] = {}
        self._seen: dict[int, tuple[object, int, Node]] = {}  # what a node was when it was last looked at

    def look(self, broker: SimulatedBroker, node: Node) -> None:
        quorum = node.quorum
        raft = quorum._raft
        if node.image is not self._images.get(node.image.offset):
            self._image(node)
        if raft is None or quorum._stepping:
            return  # not started, or the disk refuses what it decided: nobody has heard of that
        role = raft.role
        now = role, quorum.high_watermark, node
        if self._seen.get(broker.node_id) == now and not isinstance(role, Candidate):  # whose votes come in one by one
            return
        self._seen[broker.node_id] = now
        self._epoch(node, raft.epoch)
        if isinstance(role, Candidate | Leader):
            granted = role.ballot.granted if isinstance(role, Candidate) else role.granting
            self._one_vote_per_epoch(node, role.epoch, granted)
        if isinstance(role, Leader):
            self._one_leader_per_epoch(node, role.epoch)
        self._watermark(broker, node, isinstance(role, Leader))

    def _image(self, node: Node) -> None:
        image = node.image
        known = self._images.get(image.offset)
        if known is None:
            self._images[image.offset] = image
            if self.newest_image is None or image.offset > self.newest_image.offset:
                self.newest_image = image
        elif known != image:
            raise Violation("images_equal_at_equal_offsets", f"node {node.node_id} at offset {image.offset}")
        else:
            node.image = known  # equal values become one, so that the next look is a comparison of identities

    def _epoch(self, node: Node, epoch: int) -> None:
        known = self._epochs.get(node.node_id, -1)
        if epoch < known:
            raise Violation("quorum_epochs_never_go_back", f"n{node.node_id}: {known} -> {epoch}")
        self._epochs[node.node_id] = epoch

    def _one_vote_per_epoch(self, node: Node, epoch: int, granted: set[int] | frozenset[int]) -> None:
        for voter in granted:
            former = self._votes.setdefault((voter, epoch), node.node_id)
            if former != node.node_id:
                raise Violation("one_vote_per_epoch", f"n{voter} voted for n{former} and for n{node.node_id} in epoch {epoch}")

    def _one_leader_per_epoch(self, node: Node, epoch: int) -> None:
        if epoch not in self._leaders:
            self._journal.tell("elections", f"n{node.node_id} leads the metadata quorum in epoch {epoch}")
        former = self._leaders.setdefault(epoch, node.node_id)
        if former != node.node_id:
            raise Violation("one_controller_per_epoch", f"epoch {epoch}: nodes {former} and {node.node_id}")

    # -- commitment

    def _watermark(self, broker: SimulatedBroker, node: Node, leads: bool) -> None:
        era, before = self._watermarks.get(node.node_id, (-1, 0))
        offset = node.quorum.high_watermark
        if era == broker.machine.disk.era:
            if offset == before:
                return
            if offset < before:
                raise Violation("metadata_watermark_never_goes_back", f"n{node.node_id}: {before} -> {offset}")
        self._watermarks[node.node_id] = broker.machine.disk.era, offset
        if leads and offset > 0:
            self._a_majority_has_it(node, offset)

    def _a_majority_has_it(self, node: Node, offset: int) -> None:
        ends = {each.node_id: self._durable_end(each.machine.disk) for each in self._cluster.voters}
        if sum(end >= offset for end in ends.values()) * 2 <= len(ends):
            raise Violation(
                "committed_once_a_majority_has_it_on_disk", f"n{node.node_id} commits up to {offset}; on disk is {ends}"
            )

    def _durable_end(self, disk: SimulatedDisk) -> int:
        """Where the metadata log would end if the power went now."""
        end = 0
        for path, inode in disk.durable_files(FOLDER):
            name = path.removeprefix(FOLDER)
            if match := _SNAPSHOT.fullmatch(name):
                end = max(end, int(match[1]))
            elif name.endswith(".log"):
                end = max(end, self._read_on(disk.name, path, inode))
        return end

    def _read_on(self, disk: str, path: str, inode: Inode) -> int:
        parsed = self._parsed.get((disk, path))
        if parsed is None or parsed.inode is not inode or parsed.rewritten != inode.rewritten:
            parsed = self._parsed[disk, path] = _Parsed(inode, inode.rewritten)
        start = parsed.position
        for position, header in headers(bytes(memoryview(inode.durable)[start:])):
            parsed.position, parsed.end_offset = start + position + header.size, header.next_offset
        return parsed.end_offset
