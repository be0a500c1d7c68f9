"""The `quorum-state` file, which is JSON with these fields."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int32, int64, string, uuid


class QuorumStateData(Message, versions="0-1", flexible="0+"):
    class Voter(Struct):
        voter_id: int = int32("0")

    cluster_id: str = string("0")
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)
    voted_id: int = int32(default=-1)
    voted_directory_id: bytes = uuid("1+")
    applied_offset: int = int64("0")
    current_voters: list[Voter] | None = array(Voter, "0", nullable="0")
