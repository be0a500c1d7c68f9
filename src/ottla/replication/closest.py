"""KIP-392: which replica a consumer should read from, so that records do not cross racks twice.

As Kafka's RackAwareReplicaSelector: the leader if it is in the consumer's rack, else the in-sync replica of that rack that is
furthest ahead, else the leader. Only replicas that have the offset asked for are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.replication.leader import PartitionLeader, RemoteReplica

THE_LEADER = -1


def closest_replica(leader: PartitionLeader, client_rack: str | None, fetch_offset: int, racks: Mapping[int, str | None]) -> int:
    """The broker to send the consumer to, or -1 to serve it here. `racks` are those of the brokers it can reach."""
    if not client_rack or racks.get(leader.broker_id) == client_rack:
        return THE_LEADER
    near = [remote for remote in _readable(leader, fetch_offset) if racks.get(remote.broker_id) == client_rack]
    if not near:
        return THE_LEADER
    return max(near, key=lambda remote: (remote.log_end_offset, remote.last_caught_up_ms, -remote.broker_id)).broker_id


def _readable(leader: PartitionLeader, offset: int) -> list[RemoteReplica]:
    members = [leader.remote(member) for member in sorted(leader.isr)]
    return [each for each in members if each is not None and each.log_start_offset <= offset <= each.log_end_offset]
