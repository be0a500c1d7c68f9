"""A coordinator that is killed and started again: no committed offset and no decided transaction is lost; members find it again.

`OTTLA_KILLS=50` makes it the long form.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla.model.errors import ErrorCode
from tests.compatibility.groups import plays
from tests.compatibility.groups.stage import Stage
from tests.compatibility.node import OttlaNode
from tests.compatibility.transactions import Conversation
from tests.compatibility.wire import Wire

KILLS = int(os.environ.get("OTTLA_KILLS", "10"))


class Life:
    """Between two kills: an offset is committed, a transaction decided, and another left open."""

    def __init__(self, node: OttlaNode) -> None:
        self.node = node
        self.stage = Stage(node.address)
        self.kept = {0: -1, 1: -1}
        self.decided: list[str] = []
        self.identity = (-1, -1)

    def act(self, number: int) -> None:
        with Wire(self.node.address) as wire:
            answer = wire.ask(plays.commit(self.stage, number % 2, offset=number), 9)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        self.kept[number % 2] = number
        talk = Conversation(self.node.address, "decided", "decided")
        assert talk.init()[0] == "NONE"
        assert talk.identity > self.identity
        self.identity = talk.identity
        assert talk.produce(f"value {number}", version=12) == "NONE"
        commits = number % 3 != 2
        assert talk.end(commit=commits, version=5, settles=False)[0] == "NONE", "its markers may not be written yet"
        self.decided += [f"value {number}"] if commits else []
        talk.produce(f"open {number}", version=12)
        talk.close()

    def look(self) -> None:
        with Wire(self.node.address) as wire:
            found = wire.ask(plays.fetch(self.stage, 0, 1), 9).groups[0].topics[0].partitions
        assert {row.partition_index: row.committed_offset for row in found} == self.kept
        talk = Conversation(self.node.address, "decided", "decided")
        talk.settle()
        assert talk.read() == self.decided, "what was decided, and nothing else"
        talk.close()


def act_and_kill(node: OttlaNode, times: int) -> None:
    life = Life(node)
    for number in range(times):
        life.act(number)
        node.kill()
        node.start()
        life.look()
    life.stage.close()
    assert not node.tracebacks()


def test_no_committed_offset_and_no_decided_transaction_is_lost_when_the_coordinator_is_killed(tmp_path: Path) -> None:
    with OttlaNode(tmp_path) as node:
        act_and_kill(node, 3)


@pytest.mark.slow
def test_no_committed_offset_and_no_decided_transaction_is_lost_in_many_kills(tmp_path: Path) -> None:
    with OttlaNode(tmp_path) as node:
        act_and_kill(node, KILLS)


def test_members_go_on_with_a_coordinator_that_came_back(tmp_path: Path) -> None:
    """Both kinds of group: the generation or epoch is the one before, and no member has to join again."""
    with OttlaNode(tmp_path) as node:
        stage, other = Stage(node.address), Stage(node.address)
        ann, bob = plays.become_stable(stage)
        plays.see_topic(other)
        epoch = other.ask("ann", plays.consume(other, plays.ANN), 1).member_epoch
        stage.close()
        other.close()
        node.kill()
        node.start()
        with Wire(node.address, client_id="ann") as wire:
            for member in (ann, bob):
                assert wire.ask(plays.beat(stage, member, 2), 4).error_code == ErrorCode.NONE
            assert wire.ask(plays.sync(stage, bob, 2), 5).assignment == b"part 1"
            again = wire.ask(plays.consume(other, plays.ANN, epoch), 1)
            assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, epoch)
