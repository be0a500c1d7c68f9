"""The `quorum-state` file: the epoch, who leads it, and for whom this node voted in it. JSON, as Kafka writes it.

Version 0 belongs to static voters, version 1 to voters in the log (KIP-853). In: the file's text. Out: a `QuorumState`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ottla.model.ids import uuid_parse, uuid_text
from ottla.raft.voters import ANY_DIRECTORY, ReplicaKey

NOBODY = -1


@dataclass(frozen=True, slots=True)
class QuorumState:
    epoch: int
    leader_id: int = NOBODY
    voted: ReplicaKey | None = None


def to_text(state: QuorumState, voters: Iterable[int], version: int = 0) -> str:
    voted = state.voted or ReplicaKey(NOBODY)
    row: dict[str, Any]
    if version == 0:
        row = {
            "clusterId": "",
            "leaderId": state.leader_id,
            "leaderEpoch": state.epoch,
            "votedId": voted.node_id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in voters],
            "data_version": 0,
        }
    else:
        row = {
            "leaderId": state.leader_id,
            "leaderEpoch": state.epoch,
            "votedId": voted.node_id,
            "votedDirectoryId": uuid_text(voted.directory_id),
            "data_version": 1,
        }
    return json.dumps(row, separators=(",", ":"))


def voters_in_text(text: str) -> list[int]:
    """The static voters among whom the state came about; version 1 keeps them in the log instead."""
    return sorted(int(voter["voterId"]) for voter in json.loads(text).get("currentVoters") or ())


def from_text(text: str) -> QuorumState:
    """Raises ValueError for what is no quorum-state: the node must not guess for whom it voted."""
    try:
        row = json.loads(text)
        if row["data_version"] not in (0, 1):
            raise ValueError(f"unknown version {row['data_version']}")
        voted_id = int(row.get("votedId", NOBODY))
        directory = uuid_parse(row["votedDirectoryId"]) if row.get("votedDirectoryId") else ANY_DIRECTORY
        voted = None if voted_id == NOBODY else ReplicaKey(voted_id, directory)
        return QuorumState(int(row["leaderEpoch"]), int(row.get("leaderId", NOBODY)), voted)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the quorum-state file is not readable: {error}") from None
