"""Groups: how fast offsets are committed, how soon a large group stands, what a thousand idle ones cost."""

from __future__ import annotations

import statistics
import time

import psutil
from confluent_kafka import Consumer
from tests.compatibility.wire import Wire, wait_until

from bench import clients
from bench.systems import System
from ottla.protocol.framing import request_frame
from ottla.protocol.messages.classic_groups import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from ottla.protocol.messages.coordinator import FindCoordinatorRequest
from ottla.protocol.messages.group_offsets import OffsetCommitRequest
from ottla.protocol.schema import Message

HEARTBEAT_INTERVAL_S = 3.0
TICK_S = 0.01
SESSION_MS = 60_000
STABLE_LIMIT_S = 120.0
STABLE_GROUPS = 7


def commits_per_second(system: System, count: int) -> float:
    """One commit after the other over one plain socket, each for four partitions."""
    clients.create(system.bootstrap, "committed", 4)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    rows = [topic.OffsetCommitRequestPartition(partition_index=n, committed_offset=n, committed_metadata="") for n in range(4)]
    frame = _frame(OffsetCommitRequest(group_id="bench", topics=[topic(name="committed", partitions=rows)]), 8)
    with Wire(system.address) as wire:
        _wait_for_coordinator(wire, "bench")
        for _ in range(count // 2):
            _exchange(wire, frame)
        started = time.perf_counter()
        for _ in range(count):
            _exchange(wire, frame)
        return count / (time.perf_counter() - started)


def seconds_until_stable(system: System, members: int) -> float:
    """From the first of so many librdkafka consumers to the moment when each has its one partition; the median of several groups,
    because it depends on who comes between whose requests, and is a heartbeat more or less."""
    clients.create(system.bootstrap, "shared", members)
    _until_stable(system, "warm-up", members)
    return statistics.median(_until_stable(system, f"measured-{number}", members) for number in range(STABLE_GROUPS))


def _until_stable(system: System, group: str, members: int) -> float:
    settings = {
        "bootstrap.servers": system.bootstrap,
        "group.id": group,
        "heartbeat.interval.ms": 500,
        "session.timeout.ms": 30_000,
    }
    started = time.perf_counter()
    consumers = [Consumer(settings) for _ in range(members)]
    try:
        for consumer in consumers:
            consumer.subscribe(["shared"])
        while not all(len(consumer.assignment()) == 1 for consumer in consumers):
            for consumer in consumers:
                consumer.poll(0)
            assert time.perf_counter() - started < STABLE_LIMIT_S, f"{members} members of {system.name} did not come together"
        return time.perf_counter() - started
    finally:
        for consumer in consumers:
            consumer.close()


def idle_groups_cpu(system: System, groups: int, duration_s: float) -> float:
    """Percent of a core for so many groups of one member that does nothing but send a heartbeat every three seconds."""
    with Wire(system.address) as wire:
        _wait_for_coordinator(wire, "idle-0")
        frames = [_frame(_join(wire, f"idle-{number}"), 4) for number in range(groups)]
        _beat(wire, frames, min(duration_s, 2.0))  # warm
        before, started = _cpu_s(system), time.perf_counter()
        _beat(wire, frames, duration_s)
        return 100 * (_cpu_s(system) - before) / (time.perf_counter() - started)


def _join(wire: Wire, group: str) -> HeartbeatRequest:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    join = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        protocol_type="bench",
        protocols=[protocol],
    )
    joined = wait_until("a place in the group", lambda: found if (found := wire.ask(join, 3)).error_code == 0 else None)
    synced = wire.ask(SyncGroupRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id), 2)
    assert synced.error_code == 0, synced
    return HeartbeatRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)


def _beat(wire: Wire, frames: list[bytes], duration_s: float) -> None:
    """Evenly over time, as members that started at different moments do."""
    started, sent = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < duration_s:
        due = int(elapsed * len(frames) / HEARTBEAT_INTERVAL_S)
        while sent < due:
            _exchange(wire, frames[sent % len(frames)])
            sent += 1
        time.sleep(TICK_S)


def _cpu_s(system: System) -> float:
    parent = psutil.Process(system.pid)
    return sum(sum(each.cpu_times()[:2]) for each in [parent, *parent.children(recursive=True)])


def _wait_for_coordinator(wire: Wire, group: str) -> None:
    asked = FindCoordinatorRequest(coordinator_keys=[group])
    wait_until("a coordinator", lambda: wire.ask(asked, 4).coordinators[0].error_code == 0)
    wait_until("its loading", lambda: wire.ask(HeartbeatRequest(group_id=group, member_id="x"), 4).error_code == 25)


def _frame(request: Message, version: int) -> bytes:
    return b"".join(bytes(part) for part in request_frame(request, version, 1, "bench"))


def _exchange(wire: Wire, frame: bytes) -> bytes:
    wire.socket.sendall(frame)
    return wire.read_frame()
