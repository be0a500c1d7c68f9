"""A coordinator that is killed and started again: no committed offset is lost, and members find it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.model.errors import ErrorCode
from tests.compatibility.groups import plays
from tests.compatibility.groups.stage import Stage
from tests.compatibility.node import OttlaNode
from tests.compatibility.wire import Wire


def commit_and_kill(node: OttlaNode, times: int) -> None:
    """Before each kill an offset is committed and acknowledged; after each start it must be there."""
    stage = Stage(node.address)
    for number in range(times):
        with Wire(node.address) as wire:
            answer = wire.ask(plays.commit(stage, number % 2, offset=number), 9)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        node.kill()
        node.start()
        with Wire(node.address) as wire:
            found = wire.ask(plays.fetch(stage, 0, 1), 9).groups[0].topics[0].partitions
        kept = {row.partition_index: row.committed_offset for row in found}
        assert kept[number % 2] == number
        assert kept[1 - number % 2] == (number - 1 if number else -1)
    stage.close()


def test_no_committed_offset_is_lost_when_the_coordinator_is_killed(tmp_path: Path) -> None:
    with OttlaNode(tmp_path) as node:
        commit_and_kill(node, 3)


@pytest.mark.slow
def test_no_committed_offset_is_lost_in_fifty_kills(tmp_path: Path) -> None:
    with OttlaNode(tmp_path) as node:
        commit_and_kill(node, 50)


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
