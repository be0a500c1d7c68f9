"""Where the replicas of new partitions go: even over brokers, spread over racks (as Kafka's StripedReplicaPlacer).

In: the brokers that may hold replicas, how many partitions and replicas, and random numbers from the caller. Out: a list of
broker ids for each partition, the first of which is to lead.

The idea: go round the racks, starting one further for each partition, and within each rack round its brokers, starting one
further each time too. With racks A, B, C of two brokers each and all starts at 0:

    partition 0: A0 B0 C0      partition 1: B1 C1 A1      partition 2: C0 A0 B0 …

Fenced brokers are taken only when a rack has no other left, and never lead. After as many partitions as there are live brokers,
every order is shuffled, so that the pattern does not repeat and two brokers do not share all their partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ottla.model.errors import ApiError, ErrorCode

RandomIndex = Callable[[int], int]  # a number in [0, n), drawn by the shell


@dataclass(frozen=True, slots=True)
class UsableBroker:
    broker_id: int
    rack: str | None
    fenced: bool


class _Ring:
    """Brokers in a circle: each round starts one broker further than the last and gives each broker once."""

    def __init__(self) -> None:
        self.brokers: list[int] = []
        self._left: list[int] = []  # of this round, in order
        self._start = 0
        self._round = -1
        self._led: Counter[int] = Counter()

    def begin(self, random_index: RandomIndex) -> None:
        if self.brokers:
            self.brokers.sort()
            self._start = random_index(len(self.brokers)) - 1

    def next(self, round_: int) -> int | None:
        left = self._left_in(round_)
        return left.pop(0) if left else None

    def next_leader(self, round_: int) -> int | None:
        """The broker that leads least. Kafka takes the next in order, and with two racks of two brokers, two never lead."""
        left = self._left_in(round_)
        if not left:
            return None
        leader = min(left, key=self._led.__getitem__)
        left.remove(leader)
        self._led[leader] += 1
        return leader

    def _left_in(self, round_: int) -> list[int]:
        if round_ != self._round and self.brokers:
            self._round = round_
            self._start = (self._start + 1) % len(self.brokers)
            self._left = self.brokers[self._start :] + self.brokers[: self._start]
        return self._left


class _Rack:
    def __init__(self) -> None:
        self.live = _Ring()
        self.fenced = _Ring()

    def next(self, round_: int) -> int | None:
        broker = self.live.next(round_)
        return self.fenced.next(round_) if broker is None else broker


class _Racks:
    def __init__(self, brokers: Iterable[UsableBroker], random_index: RandomIndex) -> None:
        self._random_index = random_index
        by_name: dict[str, _Rack] = {}
        self.total = self.live = 0
        for broker in brokers:
            rack = by_name.setdefault(broker.rack or "", _Rack())
            (rack.fenced if broker.fenced else rack.live).brokers.append(broker.broker_id)
            self.total += 1
            self.live += not broker.fenced
        self._racks = [by_name[name] for name in sorted(by_name)]
        for rack in self._racks:
            rack.fenced.begin(random_index)
            rack.live.begin(random_index)
        self._start = random_index(len(self._racks)) if self._racks else 0
        self._round = 0

    def place(self, replica_count: int) -> list[int]:
        if self._round == self.live > 1:
            self._shuffle()
            self._round = 0
        self._start %= len(self._racks)
        leader_rack, leader = self._leader()
        replicas = [leader]
        index = self._start
        while len(replicas) < replica_count:
            if index == leader_rack:
                leader_rack = -1  # its turn is used up; from here on it takes part like the others
            elif (broker := self._racks[index].next(self._round)) is not None:
                replicas.append(broker)
            index = (index + 1) % len(self._racks)
        self._round += 1
        self._start += 1
        return replicas

    def _leader(self) -> tuple[int, int]:
        """The first rack, from the start on, that still has a live broker in this round."""
        for step in range(len(self._racks)):
            index = (self._start + step) % len(self._racks)
            broker = self._racks[index].live.next_leader(self._round)
            if broker is not None:
                return index, broker
        raise AssertionError("a live broker was counted and not found")

    def _shuffle(self) -> None:
        _shuffle(self._racks, self._random_index)
        for rack in self._racks:
            _shuffle(rack.fenced.brokers, self._random_index)
            _shuffle(rack.live.brokers, self._random_index)


def _shuffle(items: list[Any], random_index: RandomIndex) -> None:
    for last in range(len(items) - 1, 0, -1):
        other = random_index(last + 1)
        items[last], items[other] = items[other], items[last]


def place(
    brokers: Iterable[UsableBroker], partition_count: int, replica_count: int, random_index: RandomIndex
) -> list[list[int]]:
    """Replicas for each new partition; INVALID_REPLICATION_FACTOR when the brokers do not suffice."""
    racks = _Racks(brokers, random_index)
    if replica_count <= 0:
        raise _refused(f"Invalid replication factor {replica_count}: the replication factor must be positive.")
    if racks.live == 0:
        raise _refused("All brokers are currently fenced.")
    if replica_count > racks.total:
        raise _refused(
            f"The target replication factor of {replica_count} cannot be reached because only {racks.total} broker(s) are "
            "registered or some brokers have all their log directories cordoned."
        )
    return [racks.place(replica_count) for _ in range(partition_count)]


def _refused(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
