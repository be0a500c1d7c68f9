"""Leading: answer fetches, count how far the voters are, announce the epoch, and resign when the majority is gone.

What a majority of the voters has on disk is committed, once a record of this epoch is among it (Raft §5.4.2): the leader-change
record, appended first, sees to that. Fetches that find nothing new are parked until there is something to tell.
"""

from __future__ import annotations

from ottla.model.errors import ErrorCode
from ottla.model.ids import METADATA_TOPIC
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.quorum import DescribeQuorumResponse, FetchSnapshotRequest, ReplicaState
from ottla.raft import messages
from ottla.raft.core import Core, Pending
from ottla.raft.events import ReadLog, ReadSnapshot, Received
from ottla.raft.log import Fit, OffsetAndEpoch
from ottla.raft.quorum_state import NOBODY
from ottla.raft.roles import Leader, ParkedFetch, Progress
from ottla.raft.voters import ReplicaKey, majority_offset

MAX_OBSERVERS = 10_000
MAX_PARKED = 10_000
OBSERVER_SESSION_MS = 300_000

# Time -------------------------------------------------------------------------------------------------------------------


def poll_leader(core: Core, role: Leader) -> int:
    if not core.is_only_voter and core.now_ms >= role.check_quorum_deadline_ms:
        resign(core, role)
        return core.now_ms
    _answer_parked(core, role)
    _announce(core, role)
    wakes = [parked.deadline_ms for parked in role.parked]
    if not core.is_only_voter:
        wakes += [role.check_quorum_deadline_ms, role.next_begin_epoch_ms]
    return min(wakes, default=core.now_ms + OBSERVER_SESSION_MS)


def resign(core: Core, role: Leader) -> None:
    """Tell the voters, those with the longest log first."""
    ordered = sorted(core.other_voters(), key=lambda voter: -role.voters.get(voter, Progress()).end_offset)
    core.become_resigned(tuple(ordered))


def _announce(core: Core, role: Leader) -> None:
    """BeginQuorumEpoch to voters that do not fetch, at once and then now and again."""
    due = core.now_ms >= role.next_begin_epoch_ms
    if due:
        role.next_begin_epoch_ms = core.now_ms + core.timing.begin_epoch_interval_ms
    for voter in core.other_voters():
        seen = role.voters.get(voter, Progress()).last_fetch_ms
        silent = seen is None or core.now_ms - seen >= core.timing.begin_epoch_interval_ms
        if (due and silent) or voter not in role.acknowledged:
            request = messages.begin_request(
                core.me.cluster_id, role.epoch, core.me.node_id, core.voters.key(voter), core.me.address, core.me.listener
            )
            core.send(voter, request, messages.BEGIN_VERSION)


def begin_acknowledged(core: Core, pending: Pending) -> None:
    if isinstance(core.role, Leader):
        core.role.acknowledged.add(pending.node_id)


# Commit -----------------------------------------------------------------------------------------------------------------


def commit(core: Core, role: Leader) -> None:
    """Advance the high watermark to what a majority of voters has on disk."""
    offsets = [core.log.flushed_offset if voter == core.me.node_id else _end_of(role, voter) for voter in core.voters]
    committed = majority_offset(offsets) if offsets else -1
    if committed > role.epoch_start_offset:
        core.advance_high_watermark(committed)


def _end_of(role: Leader, voter: int) -> int:
    progress = role.voters.get(voter)
    return -1 if progress is None else progress.end_offset


# Fetch ------------------------------------------------------------------------------------------------------------------


def _leader_only(core: Core, epoch: int) -> ErrorCode:
    """As Kafka: an old epoch is fenced, an unknown one unknown, and only then is it asked whether this node leads."""
    if epoch < core.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > core.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if isinstance(core.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER


def handle_fetch(core: Core, event: Received) -> None:
    request: FetchRequest = event.request
    wanted = messages.only_fetch_partition(request, event.version)
    if wanted is None:
        core.reply(event.ticket, messages.refusal(request, ErrorCode.INVALID_REQUEST))
        return
    code = _leader_only(core, wanted.current_leader_epoch)
    if (
        min(request.max_wait_ms, wanted.fetch_offset, wanted.last_fetched_epoch) < 0
        or wanted.last_fetched_epoch > wanted.current_leader_epoch
    ):
        code = ErrorCode.INVALID_REQUEST
    role = core.role
    if code is not ErrorCode.NONE or not isinstance(role, Leader):
        core.reply(event.ticket, messages.fetch_response(code, core.leader_id, core.epoch, core.leader_endpoint))
        return
    _serve_fetch(core, role, event, wanted)


def _serve_fetch(core: Core, role: Leader, event: Received, wanted: FetchRequest.FetchTopic.FetchPartition) -> None:
    request: FetchRequest = event.request
    by_state = event.version >= messages.FETCH_STATE_VERSION
    node_id = request.replica_state.replica_id if by_state else request.replica_id
    replica = ReplicaKey(node_id, wanted.replica_directory_id)
    fit, place = core.log.fit(wanted.fetch_offset, wanted.last_fetched_epoch)
    _note_contact(core, role, replica)
    if fit is not Fit.VALID:
        core.reply(event.ticket, _elsewhere(core, fit, place))
        return
    _note_progress(core, role, replica, wanted.fetch_offset)
    known = wanted.high_watermark if event.version >= messages.FETCH_WATERMARK_VERSION else 2**63 - 1
    parked = ParkedFetch(
        ticket=event.ticket,
        offset=wanted.fetch_offset,
        max_bytes=min(request.max_bytes, wanted.partition_max_bytes or request.max_bytes),
        deadline_ms=core.now_ms + request.max_wait_ms,
        high_watermark=known,
        version=event.version,
        node_id=node_id,
    )
    if len(role.parked) >= MAX_PARKED:
        parked.deadline_ms = core.now_ms
    role.parked.append(parked)  # answered by the poll that follows, if there is anything to tell


def _elsewhere(core: Core, fit: Fit, place: OffsetAndEpoch) -> FetchResponse:
    response = _fetch_response(core)
    partition = response.responses[0].partitions[0]
    if fit is Fit.DIVERGING:
        partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset = place.epoch, place.offset
    else:
        partition.snapshot_id.epoch, partition.snapshot_id.end_offset = place.epoch, place.offset
    return response


def _fetch_response(core: Core) -> FetchResponse:
    return messages.fetch_response(
        ErrorCode.NONE,
        core.leader_id,
        core.epoch,
        core.leader_endpoint,
        high_watermark=core.high_watermark,
        log_start_offset=core.log.start_offset,
    )


def _answer_parked(core: Core, role: Leader) -> None:
    waiting = []
    for parked in role.parked:
        if parked.offset < core.log.end_offset:
            core.effects.reads.append(ReadLog(parked.ticket, parked.offset, parked.max_bytes, _fetch_response(core)))
        elif parked.high_watermark < core.high_watermark or core.now_ms >= parked.deadline_ms:
            core.reply(parked.ticket, _fetch_response(core))
        else:
            waiting.append(parked)
    role.parked = waiting


def _note_contact(core: Core, role: Leader, replica: ReplicaKey) -> None:
    """A voter that fetches is a voter that follows, whether its log fits yet or not."""
    if replica.node_id == core.me.node_id or not core.voters.is_voter(replica):
        return
    role.acknowledged.add(replica.node_id)
    role.fetched_lately.add(replica.node_id)
    if len(role.fetched_lately) + core.is_voter >= core.voters.majority:
        role.fetched_lately.clear()
        role.check_quorum_deadline_ms = core.now_ms + core.timing.check_quorum_ms


def _note_progress(core: Core, role: Leader, replica: ReplicaKey, offset: int) -> None:
    if replica.node_id < 0 or replica.node_id == core.me.node_id:
        return
    if core.voters.is_voter(replica):
        progress = role.voters.setdefault(replica.node_id, Progress())
    else:
        _forget_idle_observers(core, role)
        progress = role.observers.setdefault((replica.node_id, replica.directory_id), Progress())
    end = core.log.end_offset
    if offset >= end:
        progress.last_caught_up_ms = core.now_ms
    elif progress.last_fetch_ms is not None and offset >= progress.leader_end_then:
        progress.last_caught_up_ms = max(progress.last_caught_up_ms or 0, progress.last_fetch_ms)
    progress.last_fetch_ms, progress.leader_end_then = core.now_ms, end
    progress.directory_id = replica.directory_id
    progress.end_offset = max(progress.end_offset, offset)
    commit(core, role)


def _forget_idle_observers(core: Core, role: Leader) -> None:
    if len(role.observers) < MAX_OBSERVERS and core.now_ms % 64:
        return
    alive = {
        key: progress
        for key, progress in role.observers.items()
        if progress.last_fetch_ms is not None and core.now_ms - progress.last_fetch_ms < OBSERVER_SESSION_MS
    }
    role.observers = alive if len(alive) < MAX_OBSERVERS else {}


# FetchSnapshot ----------------------------------------------------------------------------------------------------------


def handle_fetch_snapshot(core: Core, event: Received) -> None:
    request: FetchSnapshotRequest = event.request
    wanted = messages.only_partition(request)
    if wanted is None:
        core.reply(event.ticket, messages.refusal(request, ErrorCode.INVALID_REQUEST))
        return
    snapshot = OffsetAndEpoch(wanted.snapshot_id.end_offset, wanted.snapshot_id.epoch)
    code = _leader_only(core, wanted.current_leader_epoch)
    if code is ErrorCode.NONE and wanted.position < 0:
        code = ErrorCode.POSITION_OUT_OF_RANGE
    response = messages.snapshot_response(code, core.leader_id, core.epoch, core.leader_endpoint, snapshot, wanted.position)
    role = core.role
    if code is not ErrorCode.NONE or not isinstance(role, Leader):
        core.reply(event.ticket, response)
        return
    _note_contact(core, role, ReplicaKey(request.replica_id, wanted.replica_directory_id))
    core.effects.reads.append(ReadSnapshot(event.ticket, snapshot, wanted.position, request.max_bytes, response))


# DescribeQuorum ---------------------------------------------------------------------------------------------------------


def handle_describe(core: Core, event: Received) -> None:
    data = DescribeQuorumResponse.TopicData
    wanted = messages.only_partition(event.request)
    role = core.role
    if wanted is None:
        topics = [
            data(
                topic_name=topic.topic_name,
                partitions=[
                    data.PartitionData(
                        partition_index=row.partition_index,
                        error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                        error_message=None,
                    )
                    for row in topic.partitions
                ],
            )
            for topic in event.request.topics
        ]
        core.reply(event.ticket, DescribeQuorumResponse(error_message=None, topics=topics))
        return
    partition = data.PartitionData(error_message=None, leader_id=core.leader_id, leader_epoch=core.epoch)
    if isinstance(role, Leader):
        _describe(core, role, partition, event.wall_ms)
    else:
        partition.error_code, partition.leader_id, partition.leader_epoch = int(ErrorCode.NOT_LEADER_OR_FOLLOWER), NOBODY, 0
    response = DescribeQuorumResponse(
        error_message=None, topics=[data(topic_name=METADATA_TOPIC, partitions=[partition])], nodes=_nodes(core)
    )
    core.reply(event.ticket, response)


def _describe(core: Core, role: Leader, partition: DescribeQuorumResponse.TopicData.PartitionData, wall_ms: int) -> None:
    def row(node_id: int, directory_id: bytes, progress: Progress) -> ReplicaState:
        return ReplicaState(
            replica_id=node_id,
            replica_directory_id=directory_id,
            log_end_offset=progress.end_offset,
            last_fetch_timestamp=_time_of_day(core, progress.last_fetch_ms, wall_ms),
            last_caught_up_timestamp=_time_of_day(core, progress.last_caught_up_ms, wall_ms),
        )

    own = Progress(core.log.end_offset, core.now_ms, -1, core.now_ms)
    partition.high_watermark = core.high_watermark
    partition.current_voters = [
        row(voter, core.voters.key(voter).directory_id, own if voter == core.me.node_id else role.voters.get(voter, Progress()))
        for voter in core.voters
    ]
    partition.observers = [row(node_id, directory_id, progress) for (node_id, directory_id), progress in role.observers.items()]


def _time_of_day(core: Core, then_ms: int | None, wall_ms: int) -> int:
    return -1 if then_ms is None else wall_ms - (core.now_ms - then_ms)


def _nodes(core: Core) -> list[DescribeQuorumResponse.Node]:
    node = DescribeQuorumResponse.Node
    addresses = ((voter, core.address_of(voter)) for voter in core.voters)
    return [
        node(node_id=voter, listeners=[node.Listener(name=core.me.listener, host=address.host, port=address.port)])
        for voter, address in addresses
        if address is not None
    ]
