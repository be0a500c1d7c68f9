"""Following a leader: fetch, append, truncate where logs diverge, take a snapshot where the leader's log no longer reaches back.

One fetch is under way at a time, and the next, which acknowledges what came with the last, waits until that is on disk.
"""

from __future__ import annotations

from typing import Any

from ottla.model.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.quorum import FetchSnapshotResponse
from ottla.raft import messages
from ottla.raft.core import Core, Pending
from ottla.raft.events import SnapshotChunk, SnapshotInstalled
from ottla.raft.log import OffsetAndEpoch
from ottla.raft.roles import Follower, SnapshotFetch


def poll_follower(core: Core, role: Follower) -> int:
    if core.now_ms >= role.fetch_deadline_ms:
        if core.is_voter:
            core.become_prospective()
        else:
            core.become_unattached(role.epoch)
        return core.now_ms
    if role.awaits_append or core.log.flushed_offset < core.log.end_offset:
        return role.fetch_deadline_ms
    if role.snapshot is None:
        core.send(role.leader_id, _fetch(core), messages.FETCH_VERSION)
    elif not role.snapshot.is_complete:
        request = messages.snapshot_request(
            core.me.cluster_id,
            core.me.key,
            role.epoch,
            role.snapshot.snapshot,
            role.snapshot.position,
            core.timing.fetch_max_bytes,
        )
        core.send(role.leader_id, request, messages.SNAPSHOT_VERSION)
    return role.fetch_deadline_ms


def _fetch(core: Core) -> FetchRequest:
    return messages.fetch_request(
        core.me.cluster_id,
        core.me.key,
        core.epoch,
        core.end,
        core.high_watermark,
        core.timing.fetch_max_wait_ms,
        core.timing.fetch_max_bytes,
    )


def look_for_leader(core: Core) -> None:
    """Ask somebody by fetching: whoever does not lead says who does."""
    if core.pending or core.is_only_voter or core.log.flushed_offset < core.log.end_offset:
        return
    candidates = [*core.other_voters(), *core.bootstrap]
    ready = [node_id for node_id in candidates if core.is_ready(node_id) and core.address_of(node_id) is not None]
    if ready:
        core.send(ready[core.random_below(len(ready))], _fetch(core), messages.FETCH_VERSION)


def handle_fetch_answer(core: Core, pending: Pending, response: FetchResponse) -> None:
    if response.error_code or len(response.responses) != 1 or len(response.responses[0].partitions) != 1:
        _back_off(core, pending)
        return
    partition = response.responses[0].partitions[0]
    for end in response.node_endpoints:
        core.learn(end.node_id, end.host, end.port)
    leader = partition.current_leader
    if partition.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH or core.hear_of(leader.leader_id, leader.leader_epoch):
        return
    role = core.role
    if not isinstance(role, Follower) or pending.node_id != role.leader_id or leader.leader_epoch != role.epoch:
        _back_off(core, pending)
        return
    if partition.error_code:
        _back_off(core, pending)
        if partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            leader_lost(core, role)  # it led this epoch and says that it no longer does: it resigned, or was started again
        return
    role.fetch_deadline_ms = core.fetch_deadline_ms()
    role.has_fetched = True
    _take(core, role, pending, partition)


def _take(core: Core, role: Follower, pending: Pending, partition: Any) -> None:
    asked = pending.request.topics[0].partitions[0]
    if (asked.fetch_offset, asked.last_fetched_epoch) != core.end:
        return  # the log has changed since
    diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
    if diverging.epoch >= 0 and diverging.end_offset >= 0:
        core.truncate(core.log.truncation_point(OffsetAndEpoch(diverging.end_offset, diverging.epoch)))
    elif snapshot.epoch >= 0 and snapshot.end_offset >= 0:
        role.snapshot = SnapshotFetch(OffsetAndEpoch(snapshot.end_offset, snapshot.epoch))
    else:
        role.leader_high_watermark = partition.high_watermark
        if partition.records is not None and len(partition.records):
            role.awaits_append = True
            core.effects.append_records = partition.records
        else:
            follow_high_watermark(core, role)


def follow_high_watermark(core: Core, role: Follower) -> None:
    core.advance_high_watermark(min(role.leader_high_watermark, core.log.end_offset))


def _back_off(core: Core, pending: Pending) -> None:
    core.peers[pending.node_id].backoff_until_ms = core.now_ms + core.timing.retry_backoff_ms


def handle_snapshot_answer(core: Core, pending: Pending, response: FetchSnapshotResponse) -> None:
    partition = messages.only_partition(response) if not response.error_code else None
    if partition is None:
        _back_off(core, pending)
        return
    for end in response.node_endpoints:
        core.learn(end.node_id, end.host, end.port)
    leader = partition.current_leader
    if core.hear_of(leader.leader_id, leader.leader_epoch):
        return
    role = core.role
    if not isinstance(role, Follower) or role.snapshot is None or leader.leader_epoch != role.epoch:
        return
    named = OffsetAndEpoch(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
    if partition.error_code or named != role.snapshot.snapshot or partition.position != role.snapshot.position:
        role.snapshot = None  # gone, or muddled: the next fetch names another
        _back_off(core, pending)
        return
    role.fetch_deadline_ms = core.fetch_deadline_ms()
    role.has_fetched = True
    data = partition.unaligned_records
    end_position = role.snapshot.position + len(data)
    role.snapshot.is_complete = end_position >= partition.size
    core.effects.snapshot_chunk = SnapshotChunk(named, role.snapshot.position, data, role.snapshot.is_complete)
    role.snapshot.position = end_position


def snapshot_installed(core: Core, event: SnapshotInstalled) -> None:
    core.log.install(event.snapshot)
    core.advance_high_watermark(event.snapshot.offset)
    role = core.role
    if isinstance(role, Follower):
        role.snapshot = None


def fetch_failed(core: Core, pending: Pending, refused: bool) -> None:
    """Nobody listens where the leader was: its process is gone."""
    role = core.role
    if refused and isinstance(role, Follower) and pending.node_id == role.leader_id:
        leader_lost(core, role)


def leader_lost(core: Core, role: Follower) -> None:
    """Voters ask for an election soon, and not all at the same moment; observers ask others where the leader went."""
    role.has_fetched = False
    if core.is_voter:
        role.fetch_deadline_ms = min(role.fetch_deadline_ms, core.early_election_deadline_ms())
    else:
        core.become_unattached(role.epoch)
