"""One partition of a fetch: what its reader gets, or the error that it is told.

In: what a reader wants of a partition (`Wanted`). Out: `PartitionData`, its records a range of a file, never bytes. A follower's
position is noted on the way, which may move the high watermark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.replicas import Replica
from ottla.broker.sessions import PartitionData, Wanted
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.settings import RACK_AWARE
from ottla.protocol.messages.fetch import FetchResponse
from ottla.replication.closest import closest_replica
from ottla.replication.leader import divergence
from ottla.replication.state import EpochEnd
from ottla.storage.log import Log
from ottla.storage.types import LogSlice

if TYPE_CHECKING:
    from ottla.broker.node import Node

NO_FOLLOWER = -1
# Errors that are found before a log is looked at. Kafka leaves the aborted transactions empty then, and null after others.
_BEFORE_THE_LOG = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class Found(NamedTuple):
    results: list[tuple[Wanted, PartitionData]]
    size: int  # bytes of records
    is_urgent: bool  # something must be told at once, whether or not there are records


class Reading:
    """How one reader reads: who it is, by which version of Fetch, and what it may see."""

    __slots__ = ("_committed_only", "_listener", "_node", "_rack_id", "broker_epoch", "follower", "notes", "version")

    def __init__(
        self,
        node: Node,
        listener: str,
        version: int,
        *,
        follower: int = NO_FOLLOWER,
        broker_epoch: int = -1,
        rack_id: str = "",
        committed_only: bool = False,
    ) -> None:
        self._node = node
        self._listener = listener
        self.version = version
        self._rack_id = rack_id
        self._committed_only = committed_only and follower < 0
        self.follower = follower
        self.broker_epoch = broker_epoch  # of the follower's life
        self.notes = True  # whether positions are noted: once per request

    def name(self, wanted: Wanted) -> str | None:
        return wanted.topic if self.version < 13 else self._node.topic_name(wanted.topic_id)

    def replica(self, wanted: Wanted) -> Replica | None:
        return self._node.replicas.get(self.name(wanted) or "", wanted.partition)

    def upper(self, log: Log) -> int:
        """Where reading ends: for a follower with the log."""
        if self.follower >= 0:
            return log.log_end_offset
        return log.last_stable_offset if self._committed_only else log.high_watermark

    def read_all(self, rows: Iterable[Wanted], max_bytes: int) -> Found:
        """One after the other, as far as there is room; the first that has records gives some in any case."""
        results, size, is_urgent = [], 0, False
        for wanted in rows:
            data = self.read(wanted, max(0, max_bytes - size), first=size == 0)
            results.append((wanted, data))
            size += len(data.records)
            if data.error_code or data.diverging_epoch.epoch >= 0 or data.preferred_read_replica >= 0:
                is_urgent = True
        return Found(results, size, is_urgent)

    def read(self, wanted: Wanted, max_bytes: int, first: bool) -> PartitionData:
        data = PartitionData(partition_index=wanted.partition, records=b"")
        try:
            name = self.name(wanted)
            if name is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
            replica = self._replica(name, wanted.partition)
            if self.follower >= 0:
                if self._diverges(data, replica, wanted):
                    return data
            else:
                replica.check_epoch(wanted.current_leader_epoch)
                if wanted.last_fetched_epoch >= 0 and self._parts(data, replica, wanted):
                    return data
                data.preferred_read_replica = self._closest(replica, wanted)
                if data.preferred_read_replica >= 0:
                    _tell_bounds(data, replica.log)
                    return data
            self._fill(data, replica, wanted, min(max_bytes, wanted.max_bytes), first)
        except ApiError as error:
            data.error_code = error.code
            data.high_watermark = -1
            if error.code not in _BEFORE_THE_LOG:
                data.aborted_transactions = None
        return data

    def now_ms(self) -> int:
        return int(self._node.world.clock.monotonic_ms())

    def note(self, replica: Replica, wanted: Wanted, now_ms: int) -> None:
        """How far a follower is, which may move the high watermark. Raises what the follower is to be told."""
        leader = replica.leader
        assert leader is not None
        leader.check_follower(self.follower, self.broker_epoch, wanted.current_leader_epoch)
        if self.notes:
            moved = leader.fetched(self.follower, wanted.offset, wanted.log_start_offset, self.broker_epoch, now_ms)
            replica.progress(moved)

    def _replica(self, topic: str, partition: int) -> Replica:
        """Consumers may read from any replica since version 11 (KIP-392)."""
        replicas = self._node.replicas
        if self.follower < 0 and self.version >= 11:
            replica = replicas.get(topic, partition)
            if replica is not None:
                return replica
        return replicas.leader(topic, partition)

    def _diverges(self, data: PartitionData, replica: Replica, wanted: Wanted) -> bool:
        """A follower's log may part from ours (KIP-595): it is told where to look. If not, we note how far it is."""
        leader, log = replica.leader, replica.log
        assert leader is not None
        leader.check_follower(self.follower, self.broker_epoch, wanted.current_leader_epoch)
        if wanted.last_fetched_epoch >= 0 and self._parts(data, replica, wanted):
            return True
        if log.log_start_offset <= wanted.offset <= log.log_end_offset:
            self.note(replica, wanted, self.now_ms())
        return False

    def _parts(self, data: PartitionData, replica: Replica, wanted: Wanted) -> bool:
        """Whether what the reader has before its offset is not what is here, and if so says where the logs part."""
        log = replica.log
        found = log.end_offset_for_epoch(wanted.last_fetched_epoch)
        local = None if found.epoch < 0 else EpochEnd(found.epoch, found.offset)
        end = divergence(wanted.last_fetched_epoch, wanted.offset, local, log.log_start_offset)
        if end is None:
            return False
        data.diverging_epoch = PartitionData.EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)
        _tell_bounds(data, log)
        return True

    def _closest(self, replica: Replica, wanted: Wanted) -> int:
        node = self._node
        if replica.leader is None or not self._rack_id or node.settings["replica.selector.class"] != RACK_AWARE:
            return -1
        racks = {broker_id: rack for broker_id, _, rack in node.endpoints(self._listener, replica.state.replicas)}
        return closest_replica(replica.leader, self._rack_id, wanted.offset, racks)

    def _fill(self, data: PartitionData, replica: Replica, wanted: Wanted, max_bytes: int, first: bool) -> None:
        log = replica.log
        if self.follower < 0 and replica.leader is None and wanted.offset > log.high_watermark:
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)  # the leader has committed what has not reached us yet
        found = log.read(wanted.offset, max_bytes, self.upper(log), first)
        _tell_bounds(data, log)
        data.records = part(found)
        if self._committed_only:
            data.aborted_transactions = [
                PartitionData.AbortedTransaction(producer_id=row.producer_id, first_offset=row.first_offset)
                for row in log.aborted_transactions(wanted.offset, found.end_offset)
            ]

    def hint_leaders(self, response: FetchResponse) -> None:
        """Tell a reader with stale metadata where to go (KIP-951)."""
        node = self._node
        if self.version < 16:
            return
        leaders = set()
        for topic in response.responses:
            for data in topic.partitions:
                if data.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
                    state = node.partition_state(topic.topic or node.topic_name(topic.topic_id), data.partition_index)
                    if state is not None:
                        data.current_leader = PartitionData.LeaderIdAndEpoch(
                            leader_id=state.leader, leader_epoch=state.leader_epoch
                        )
                        leaders.add(state.leader)
        if leaders and self.follower < 0:
            response.node_endpoints = [
                FetchResponse.NodeEndpoint(node_id=node_id, host=endpoint.host, port=endpoint.port, rack=rack)
                for node_id, endpoint, rack in node.endpoints(self._listener, leaders)
            ]


def _tell_bounds(data: PartitionData, log: Log) -> None:
    data.high_watermark, data.log_start_offset = log.high_watermark, log.log_start_offset
    data.last_stable_offset, data.aborted_transactions = log.last_stable_offset, None


def part(found: LogSlice) -> Any:
    """A slice never spans segments, so it is one range of one file."""
    if found.empty:
        return b""
    [only] = found.parts
    return only
