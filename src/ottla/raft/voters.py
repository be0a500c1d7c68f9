"""Who votes: node ids, the directories that make them who they are (KIP-853), and where they listen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.model.ids import ZERO_UUID
from ottla.protocol.messages.control_records import VotersRecord

ANY_DIRECTORY = ZERO_UUID  # voters of a static list are known by their id alone


class Address(NamedTuple):
    host: str
    port: int


class ReplicaKey(NamedTuple):
    """A replica of the metadata log: a node, and which of its lives if the disk was replaced."""

    node_id: int
    directory_id: bytes = ANY_DIRECTORY

    def matches(self, other: ReplicaKey) -> bool:
        """The same replica, as far as both sides tell."""
        if self.node_id != other.node_id:
            return False
        return ANY_DIRECTORY in (self.directory_id, other.directory_id) or self.directory_id == other.directory_id


@dataclass(frozen=True, slots=True)
class VoterSet:
    """At least one voter, except for an observer that has not heard of any yet."""

    directories: Mapping[int, bytes]
    addresses: Mapping[int, Address]

    @classmethod
    def static(cls, voters: Iterable[tuple[int, str, int]]) -> VoterSet:
        """From `controller.quorum.voters`: id, host, port."""
        rows = list(voters)
        return cls({node: ANY_DIRECTORY for node, _, _ in rows}, {node: Address(host, port) for node, host, port in rows})

    @classmethod
    def from_record(cls, record: VotersRecord, listener: str) -> VoterSet:
        """From the log. A voter without an endpoint of that listener's name is taken by its first one."""
        addresses = {}
        for voter in record.voters:
            ends = [end for end in voter.endpoints if end.name == listener] or list(voter.endpoints)
            if ends:
                addresses[voter.voter_id] = Address(ends[0].host, ends[0].port)
        return cls({voter.voter_id: voter.voter_directory_id for voter in record.voters}, addresses)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self.directories

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.directories))

    def __len__(self) -> int:
        return len(self.directories)

    @property
    def majority(self) -> int:
        return len(self.directories) // 2 + 1

    def key(self, node_id: int) -> ReplicaKey:
        return ReplicaKey(node_id, self.directories.get(node_id, ANY_DIRECTORY))

    def is_voter(self, replica: ReplicaKey) -> bool:
        return replica.node_id in self.directories and self.key(replica.node_id).matches(replica)


def majority_offset(offsets: Iterable[int]) -> int:
    """The greatest offset that a majority has reached."""
    ordered = sorted(offsets)
    return ordered[(len(ordered) - 1) // 2]
