"""Replicas of the metadata log over an imaginary network and disk, one event at a time, with the laws checked after each.

Every replica is the real machine with the smallest shell: its log is a list of epochs (one for each record), its disk keeps what
was flushed. Bytes on the wire are lists of records. Requests and responses go through Kafka's codec, so that what a message
cannot carry is lost here as it would be there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ottla.protocol import codec
from ottla.protocol.apis import APIS
from ottla.raft import quorum_state
from ottla.raft.core import Identity, Timing
from ottla.raft.events import (
    Answered,
    Appended,
    Effects,
    Failed,
    Flushed,
    LogStartMoved,
    ReadLog,
    ReadSnapshot,
    Received,
    SnapshotInstalled,
    SnapshotMade,
    Tick,
)
from ottla.raft.log import LogView, OffsetAndEpoch
from ottla.raft.machine import RaftMachine
from ottla.raft.roles import Follower, Leader
from ottla.raft.voters import Address, VoterSet

CLUSTER = "a-cluster"
LEADER_CHANGE = "leader"
Record = tuple[int, str]  # epoch, content


@dataclass
class Disk:
    """What survives a crash."""

    quorum_state: str | None = None
    records: list[Record] = field(default_factory=list)
    start_offset: int = 0
    snapshots: dict[OffsetAndEpoch, list[Record]] = field(default_factory=dict)


@dataclass
class Message:
    """Something under way: `deliver` at a time, from one node to another."""

    at_ms: int
    serial: int
    sender: int
    to: int
    kind: str  # request, response, failure
    request_id: int
    api_key: int
    version: int
    body: bytes
    life: Any  # of the asker: a connection, and all that is under way on it, dies with its process
    refused: bool = False


class Replica:
    def __init__(self, world: World, node_id: int, *, is_voter: bool = True) -> None:
        self.world = world
        self.node_id = node_id
        self.is_voter = is_voter
        self.disk = Disk()
        self.is_up = False
        self.is_flushing = False
        self.flush_delay_ms = (0, 0)
        self.applied: list[Record] = []
        self.highest_epoch = -1
        self.highest_watermark = -1

    def start(self) -> None:
        disk = self.disk
        self.records = list(disk.records)
        self.start_offset = disk.start_offset
        self.pending_snapshot: list[Any] = []
        snapshot = max(disk.snapshots, default=None)
        log = LogView(
            start_offset=self.start_offset,
            end_offset=self.start_offset + len(self.records),
            epochs=_epochs(self.records, self.start_offset),
            snapshot=snapshot,
        )
        stored = None if disk.quorum_state is None else quorum_state.from_text(disk.quorum_state)
        self.machine = RaftMachine(
            Identity(self.node_id, CLUSTER, address=Address("host", self.node_id)),
            self.world.voters,
            log,
            stored,
            self.world.timing,
            self.world.random.randrange,
        )
        self.is_up, self.is_flushing = True, False
        self.wake_at_ms = self.world.now_ms
        self.carry_out(self.machine.start(self.world.now_ms))

    def crash(self) -> None:
        self.is_up = False
        self.world.reset_connections(self.node_id)

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.records)

    def step(self, event: Any) -> None:
        self.carry_out(self.machine.step(event, self.world.now_ms))

    def carry_out(self, effects: Effects) -> None:
        """The order of `events`: persist, cut, append, then send."""
        self.wake_at_ms = effects.wake_at_ms if effects.wake_at_ms is not None else 2**62
        if effects.persist is not None:
            self.disk.quorum_state = quorum_state.to_text(effects.persist, self.world.voters)
        if effects.truncate_to is not None:
            del self.records[effects.truncate_to - self.start_offset :]
            self.disk.records = self.disk.records[: max(0, effects.truncate_to - self.disk.start_offset)]
        self._send(effects)
        if effects.snapshot_chunk is not None:
            self._take_chunk(effects.snapshot_chunk)
        if effects.append_records is not None:
            self._append([tuple(row) for row in json.loads(bytes(effects.append_records))])
        if effects.leader_change is not None:
            self._append([(self.machine.epoch, LEADER_CHANGE)])

    def _send(self, effects: Effects) -> None:
        for send in effects.send:
            body = codec.encode(send.request, send.version)
            self.world.post(self.node_id, send.node_id, "request", send.request_id, send.request.TYPE_KEY, send.version, body)
        for reply in effects.replies:
            self.world.respond(self.node_id, reply.ticket, reply.message)
        for read in effects.reads:
            if isinstance(read, ReadLog):
                self._read_log(read)
            else:
                self._read_snapshot(read)

    def _read_log(self, read: ReadLog) -> None:
        first = read.offset - self.start_offset
        assert first >= 0, "the leader was told to read before its log"
        rows = self.records[first : first + self.world.records_per_fetch]
        read.response.responses[0].partitions[0].records = json.dumps(rows).encode()
        self.world.respond(self.node_id, read.ticket, read.response)

    def _read_snapshot(self, read: ReadSnapshot) -> None:
        partition = read.response.topics[0].partitions[0]
        rows = self.disk.snapshots.get(read.snapshot)
        if rows is None:
            partition.error_code = 98
        else:
            data = json.dumps(rows).encode()
            partition.size = len(data)
            partition.unaligned_records = data[read.position : read.position + 64]
        self.world.respond(self.node_id, read.ticket, read.response)

    def _take_chunk(self, chunk: Any) -> None:
        if chunk.position == 0:
            self.pending_snapshot = []
        self.pending_snapshot.append(bytes(chunk.data))
        if not chunk.is_last:
            return
        rows = [tuple(row) for row in json.loads(b"".join(self.pending_snapshot))]
        self.disk.snapshots = {chunk.snapshot: rows}
        self.records, self.start_offset = [], chunk.snapshot.offset
        self.disk.records, self.disk.start_offset = [], chunk.snapshot.offset
        self.step(SnapshotInstalled(chunk.snapshot))

    def _append(self, rows: list[Record]) -> None:
        first = self.end_offset
        self.records += rows
        self.step(Appended(self.end_offset, tuple(_epochs(rows, first))))
        self.begin_flush()

    def begin_flush(self) -> None:
        end, generation = self.end_offset, self.machine.log.generation
        delay = self.world.random.randint(*self.world.flush_delay_ms)
        if delay == 0:
            self.end_flush(end, generation)
        else:
            self.world.later(delay, lambda: self.end_flush(end, generation), self)

    def end_flush(self, end: int, generation: int) -> None:
        if generation != self.machine.log.generation:
            return
        if end > self.disk.start_offset + len(self.disk.records):  # flushes may end in another order than they began
            self.disk.records = self.records[: end - self.start_offset]
        self.step(Flushed(end, generation))

    def propose(self, content: str) -> None:
        assert self.machine.is_leader
        self._append([(self.machine.epoch, content)])

    def snapshot(self) -> None:
        """Write what is committed, and forget the log before it."""
        machine = self.machine
        end = machine.high_watermark
        if end <= self.start_offset or end > self.disk.start_offset + len(self.disk.records):
            return
        name = OffsetAndEpoch(end, self.record_at(end - 1)[0])
        former = max(self.disk.snapshots, default=None)
        before = self.disk.snapshots[former] if former is not None else []
        rows = before + self.records[(former.offset if former else 0) - self.start_offset : end - self.start_offset]
        self.disk.snapshots[name] = rows
        self.step(SnapshotMade(name))
        self.records = self.records[end - self.start_offset :]
        self.disk.records = self.disk.records[end - self.disk.start_offset :]
        self.start_offset = self.disk.start_offset = end
        self.disk.snapshots = {name: rows}
        self.step(LogStartMoved(end))

    def record_at(self, offset: int) -> Record:
        if offset >= self.start_offset:
            return self.records[offset - self.start_offset]
        return self.disk.snapshots[max(self.disk.snapshots)][offset]

    def committed(self) -> list[Record]:
        """All records below the high watermark, from the snapshot and the log."""
        end = self.machine.high_watermark
        return [self.record_at(offset) for offset in range(max(0, end))]


def _epochs(records: list[Record], first: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset, (epoch, _) in enumerate(records, start=first):
        if not found or epoch > found[-1][0]:
            found.append((epoch, offset))
    return found


class World:
    """Voters 1…n and observers after them."""

    def __init__(self, voters: int, observers: int = 0, seed: int = 0, timing: Timing | None = None) -> None:
        self.random = Random(seed)
        self.timing = timing or Timing()
        self.now_ms = 1000
        self.voters = VoterSet.static([(node_id, "host", node_id) for node_id in range(1, voters + 1)])
        self.messages: list[Message] = []
        self.jobs: list[tuple[int, int, Any, Replica, Any]] = []
        self.serial = 0
        self.tickets: dict[int, tuple[int, int, int, int, Any]] = {}  # ticket → asker, request id, api key, version, life
        self.asked: dict[int, int] = {}  # ticket → who is to answer
        self.cut: set[frozenset[int]] = set()
        self.delay_ms = (1, 1)
        self.loss = 0.0
        self.flush_delay_ms = (0, 0)
        self.records_per_fetch = 3
        self.leaders: dict[int, int] = {}  # epoch → who led it
        self.committed: list[Record] = []
        self.proposals = 0
        self.replicas = {
            node_id: Replica(self, node_id, is_voter=node_id <= voters) for node_id in range(1, voters + observers + 1)
        }

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids or self.replicas:
            self.replicas[node_id].start()
            self.check()

    # The network ----------------------------------------------------------------------------------------------------------

    def post(
        self, sender: int, to: int, kind: str, request_id: int, api_key: int, version: int, body: bytes, life: Any = None
    ) -> None:
        self.serial += 1
        life = life or self.replicas[sender].machine
        at_ms = self.now_ms + self.random.randint(*self.delay_ms)
        lost = self.random.random() < self.loss or frozenset({sender, to}) in self.cut
        if kind == "request" and to in self.replicas and not self.replicas[to].is_up and frozenset({sender, to}) not in self.cut:
            self.messages.append(
                Message(at_ms, self.serial, to, sender, "failure", request_id, api_key, version, b"", life, True)
            )
        elif not lost and to in self.replicas:
            self.messages.append(Message(at_ms, self.serial, sender, to, kind, request_id, api_key, version, body, life))

    def respond(self, node_id: int, ticket: int, message: Any) -> None:
        asker, request_id, api_key, version, life = self.tickets.pop(ticket)
        self.post(node_id, asker, "response", request_id, api_key, version, codec.encode(message, version), life)

    def reset_connections(self, node_id: int) -> None:
        """A process died: whoever waits for its answer hears so, unless the network between them is cut."""
        lost = [ticket for ticket, asked in self.asked.items() if asked == node_id and ticket in self.tickets]
        rows = [self.tickets.pop(ticket) for ticket in lost]
        under_way = [message for message in self.messages if message.to == node_id and message.kind == "request"]
        self.messages = [message for message in self.messages if message not in under_way]
        rows += [(row.sender, row.request_id, row.api_key, row.version, row.life) for row in under_way]
        for asker, request_id, api_key, version, life in rows:
            if frozenset({asker, node_id}) not in self.cut:
                self.serial += 1
                message = Message(
                    self.now_ms + 1, self.serial, node_id, asker, "failure", request_id, api_key, version, b"", life
                )
                self.messages.append(message)

    def later(self, delay_ms: int, job: Any, replica: Replica) -> None:
        self.serial += 1
        self.jobs.append((self.now_ms + delay_ms, self.serial, job, replica, replica.machine))

    # Time -----------------------------------------------------------------------------------------------------------------

    def next_event_ms(self) -> int:
        times = [message.at_ms for message in self.messages] + [job[0] for job in self.jobs]
        times += [replica.wake_at_ms for replica in self.replicas.values() if replica.is_up]
        return min(times, default=2**62)

    def step(self) -> None:
        """The next thing that happens."""
        self.now_ms = max(self.now_ms, self.next_event_ms())
        due = [message for message in self.messages if message.at_ms <= self.now_ms]
        jobs = [job for job in self.jobs if job[0] <= self.now_ms]
        if jobs:
            job = min(jobs, key=lambda row: row[:2])
            self.jobs.remove(job)
            _, _, action, replica, machine = job
            if replica.is_up and replica.machine is machine:
                action()
        elif due:
            message = min(due, key=lambda row: (row.at_ms, row.serial))
            self.messages.remove(message)
            self._deliver(message)
        else:
            for replica in self.replicas.values():
                if replica.is_up and replica.wake_at_ms <= self.now_ms:
                    replica.step(Tick())
                    break
        self.check()

    def _deliver(self, message: Message) -> None:
        replica = self.replicas[message.to]
        if not replica.is_up or frozenset({message.sender, message.to}) in self.cut:
            return
        if message.kind != "request" and message.life is not replica.machine:
            return
        if message.kind == "failure":
            replica.step(Failed(message.request_id, refused=message.refused))
            return
        api = APIS[message.api_key]
        if message.kind == "request":
            self.serial += 1
            self.tickets[self.serial] = (message.sender, message.request_id, message.api_key, message.version, message.life)
            self.asked[self.serial] = message.to
            request = codec.decode(api.request, message.version, message.body)
            replica.step(Received(self.serial, request, message.version, wall_ms=self.now_ms))
        else:
            replica.step(Answered(message.request_id, codec.decode(api.response, message.version, message.body)))

    def run(self, ms: int) -> None:
        until = self.now_ms + ms
        while self.next_event_ms() <= until:
            self.step()
        self.now_ms = until

    def run_until(self, condition: Any, limit_ms: int = 60_000) -> None:
        until = self.now_ms + limit_ms
        while not condition():
            assert self.next_event_ms() <= until, "it did not happen in time"
            self.step()

    # What is true ---------------------------------------------------------------------------------------------------------

    @property
    def up(self) -> list[Replica]:
        return [replica for replica in self.replicas.values() if replica.is_up]

    def leader(self) -> Replica | None:
        """The leader of the latest epoch, if it is up."""
        leading = [replica for replica in self.up if replica.machine.is_leader]
        return max(leading, key=lambda replica: replica.machine.epoch, default=None)

    def check(self) -> None:
        """The laws, after every event."""
        for replica in self.up:
            machine = replica.machine
            _one_leader_for_an_epoch(self, replica)
            assert machine.epoch >= replica.highest_epoch, "an epoch fell"
            replica.highest_epoch = machine.epoch
            assert machine.high_watermark <= replica.end_offset, "more is committed than there is"
            _committed_is_never_lost(self, replica)
            _log_matches_view(replica)
            assert quorum_state.from_text(replica.disk.quorum_state or "").epoch == machine.stored.epoch


def _one_leader_for_an_epoch(world: World, replica: Replica) -> None:
    machine = replica.machine
    if isinstance(machine.role, Leader):
        assert world.leaders.setdefault(machine.epoch, replica.node_id) == replica.node_id, "two leaders of one epoch"
    if isinstance(machine.role, Follower):
        assert world.leaders.get(machine.epoch, machine.leader_id) == machine.leader_id, "a follower of nobody"


def _committed_is_never_lost(world: World, replica: Replica) -> None:
    watermark = replica.machine.high_watermark
    if watermark <= 0:
        return
    for offset in range(len(world.committed), watermark):
        world.committed.append(replica.record_at(offset))
    first = min(replica.start_offset, watermark)
    assert replica.records[: watermark - first] == world.committed[first:watermark], "a committed record was replaced"


def _log_matches_view(replica: Replica) -> None:
    log = replica.machine.log
    assert log.end_offset == replica.end_offset
    assert log.start_offset == replica.start_offset
    if replica.records:
        assert log.last_epoch == replica.records[-1][0]
