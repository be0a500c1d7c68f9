"""Elections, failures and recoveries as documents: `transcripts/*.txt`, each a story in commands with what came of them.

A command is a line; what happened follows it, indented; lines that begin with # are for people. Commands:

    nodes 3 [observers 1]      a world of voters 1, 2, 3 and observer 4; nothing runs yet
    start 1 2                  processes start; without ids, all
    crash 1                    kill -9: what was not synced is lost
    run 1000                   milliseconds pass
    propose apple              the leader appends a record
    cut 1 2                    nothing passes between 1 and 2; with one id, it is cut off from all
    join                       the network is whole again
    slow-disk 50               a sync takes so many milliseconds
    snapshot 1                 write a snapshot of what is committed, and drop the log before it
    resign 1                   a clean shut-down begins
    show                       every node's role, log and high watermark

To write the outcomes anew after a change that is meant: REWRITE=1 pytest tests/raft/test_transcripts.py, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ottla.raft.events import Effects, Resign
from tests.raft.world import Replica, World

FOLDER = Path(__file__).parent / "transcripts"


class Story:
    def __init__(self) -> None:
        self.world: World
        self.lines: list[str] = []

    def tell(self, command: str) -> list[str]:
        """Carry a command out; what happened meanwhile, one line for each thing worth telling."""
        self.lines = []
        name, *words = command.split()
        getattr(self, "do_" + name.replace("-", "_"))(*words)
        return self.lines

    def do_nodes(self, voters: str, *words: str) -> None:
        observers = int(words[1]) if words else 0
        self.world = World(int(voters), observers, seed=1)
        for replica in self.world.replicas.values():
            self._listen(replica)

    def _listen(self, replica: Replica) -> None:
        carry_out = replica.carry_out
        told: dict[str, Any] = {}

        def carry_out_and_tell(effects: Effects) -> None:
            self._note(replica, effects, told)
            carry_out(effects)

        replica.carry_out = carry_out_and_tell  # type: ignore[method-assign]

    def _note(self, replica: Replica, effects: Effects, told: dict[str, Any]) -> None:
        machine = replica.machine
        who = f"{self.world.now_ms - 1000:>6}  node {replica.node_id}"
        role = (type(machine.role).__name__, machine.epoch, machine.leader_id)
        if told.get("machine") is not machine or role != told.get("role"):
            led = f", led by {machine.leader_id}" if machine.leader_id >= 0 and not machine.is_leader else ""
            self.lines.append(f"{who} is {role[0]} in epoch {role[1]}{led}")
            told["machine"], told["role"] = machine, role
        if effects.truncate_to is not None:
            self.lines.append(f"{who} cuts its log to {effects.truncate_to}")
        if effects.snapshot_chunk is not None and effects.snapshot_chunk.is_last:
            self.lines.append(f"{who} has the whole snapshot of {effects.snapshot_chunk.snapshot.offset} records")
        if effects.high_watermark is not None:
            self.lines.append(f"{who} commits to {effects.high_watermark}")

    def do_start(self, *ids: str) -> None:
        for node_id in ids or list(map(str, self.world.replicas)):
            self.world.replicas[int(node_id)].start()
            self.world.check()

    def do_crash(self, *ids: str) -> None:
        for node_id in ids:
            self.world.replicas[int(node_id)].crash()

    def do_run(self, ms: str) -> None:
        self.world.run(int(ms))

    def do_propose(self, *contents: str) -> None:
        leader = self.world.leader()
        assert leader is not None
        for content in contents:
            leader.propose(content)
            self.world.check()

    def do_cut(self, one: str, *others: str) -> None:
        for other in others or [str(node_id) for node_id in self.world.replicas if node_id != int(one)]:
            self.world.cut.add(frozenset({int(one), int(other)}))

    def do_join(self) -> None:
        self.world.cut.clear()

    def do_slow_disk(self, ms: str) -> None:
        self.world.flush_delay_ms = (int(ms), int(ms))

    def do_snapshot(self, node_id: str) -> None:
        self.world.replicas[int(node_id)].snapshot()

    def do_resign(self, node_id: str) -> None:
        self.world.replicas[int(node_id)].step(Resign())

    def do_show(self) -> None:
        for replica in self.world.replicas.values():
            if not replica.is_up:
                self.lines.append(f"node {replica.node_id} is down")
                continue
            machine = replica.machine
            log = " ".join(f"{epoch}:{content}" for epoch, content in replica.records)
            start = f" from {replica.start_offset}" if replica.start_offset else ""
            self.lines.append(
                f"node {replica.node_id} {type(machine.role).__name__} epoch {machine.epoch} leader {machine.leader_id} "
                f"high watermark {machine.high_watermark} log{start} [{log}]"
            )


def retell(text: str) -> str:
    """The same document with what happens now."""
    story = Story()
    told = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        told.append(line)
        if line and not line.startswith("#"):
            told += [f"  {happened}" for happened in story.tell(line)]
    return "\n".join(told) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_the_story_is_still_true(path: Path) -> None:
    text = path.read_text()
    now = retell(text)
    if os.environ.get("REWRITE"):
        path.write_text(now)
    assert now == text or os.environ.get("REWRITE")
