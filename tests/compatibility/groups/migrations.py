"""Plays about groups that change their protocol while members are in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.protocol import codec
from ottla.protocol.messages import classic_groups as classic
from ottla.protocol.messages import groups
from ottla.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tests.compatibility.groups.plays import (
    ANN,
    BOB,
    EVE,
    Follower,
    beat,
    commit,
    consume,
    fetch,
    join,
    leave,
    see_topic,
    sync,
    until,
)
from tests.compatibility.groups.stage import Stage
from tests.compatibility.wire import wait_until


def assignment(stage: Stage, *partitions: int) -> bytes:
    row = ConsumerProtocolAssignment.TopicPartition(topic=stage.topic, partitions=list(partitions))
    return b"\x00\x01" + codec.encode(ConsumerProtocolAssignment(assigned_partitions=[row]), 1)


class Old:
    """A member of the classic protocol that says what it owns, as a cooperative consumer does."""

    def __init__(self, stage: Stage, who: str, instance: str | None = None) -> None:
        self.stage, self.who, self.instance = stage, who, instance
        self.member_id, self.generation = "", -1
        self.owned: list[int] = []

    def request(self) -> classic.JoinGroupRequest:
        rows = [ConsumerProtocolSubscription.TopicPartition(topic=self.stage.topic, partitions=self.owned)] if self.owned else []
        said = ConsumerProtocolSubscription(topics=[self.stage.topic], owned_partitions=rows)
        metadata = b"\x00\x01" + codec.encode(said, 1)
        return join(self.stage, self.member_id, protocols=[("range", metadata)], group_instance_id=self.instance)

    def join(self) -> Any:
        """Both steps where two are needed; the group must not wait for anybody else."""
        answer = self.stage.ask(self.who, self.request(), 9)
        self.member_id = answer.member_id
        if answer.error_code == 79:
            answer = self.stage.ask(self.who, self.request(), 9)
        self.generation = answer.generation_id
        return answer

    def sync(self, *given: tuple[str, bytes]) -> None:
        row = classic.SyncGroupRequest.SyncGroupRequestAssignment
        rows = [row(member_id=member_id, assignment=content) for member_id, content in given]
        asked = sync(self.stage, self.member_id, self.generation, assignments=rows, group_instance_id=self.instance)
        self.owned = self._read(self.stage.ask(self.who, asked, 5).assignment)

    def _read(self, content: bytes) -> list[int]:
        if not content:
            return self.owned
        found = codec.read_from(ConsumerProtocolAssignment, 1, content, 2)[0].assigned_partitions
        return sorted(p for row in found for p in row.partitions)

    def beat(self) -> None:
        self.stage.ask(self.who, beat(self.stage, self.member_id, self.generation, group_instance_id=self.instance), 4)

    def wait_to_be_called(self) -> None:
        """Its heartbeat says that it should join again; how many that takes is a matter of time."""
        asked = beat(self.stage, self.member_id, self.generation, group_instance_id=self.instance)
        wait_until("a call to join again", lambda: self.stage.quietly(self.who, asked, 4).error_code == 27)


def describe(stage: Stage) -> None:
    answer = stage.quietly("looker", ConsumerGroupDescribeRequest(group_ids=[stage.group]), 1).groups[0]
    members = sorted(
        (each.client_id, each.member_type, [sorted(t.partitions) for t in each.assignment.topic_partitions])
        for each in answer.members
    )
    stage.note(f"{answer.error_code} {answer.group_state} {answer.assignor_name} {members}")


def a_group_is_upgraded(stage: Stage) -> None:
    see_topic(stage)
    ann = Old(stage, "ann")
    ann.join()
    ann.sync((ann.member_id, assignment(stage, 0, 1)))
    stage.ask("ann", commit(stage, member_id=ann.member_id, generation_id_or_member_epoch=ann.generation), 8)
    bob = Follower(stage, "bob", BOB)
    stage.note("bob joins with the consumer protocol")
    stage.ask("bob", consume(stage, BOB), 1)
    bob.epoch = stage.quietly("bob", consume(stage, BOB), 1).member_epoch
    describe(stage)
    stage.ask("eve", groups.DescribeGroupsRequest(groups=[stage.group]), 6)
    ann.wait_to_be_called()
    stage.ask("ann", sync(stage, ann.member_id, ann.generation), 5)
    stage.ask("ann", commit(stage, 1, member_id=ann.member_id, generation_id_or_member_epoch=ann.generation), 8)
    ann.join()
    ann.sync()
    stage.note("ann has given up what it was told to")
    ann.join()
    ann.sync()
    until(bob, counts=[1])
    ann.beat()
    describe(stage)
    stage.ask("ann", fetch(stage, 0), 9)
    stage.note("requests that do not fit")
    stage.ask("ann", beat(stage, ann.member_id, ann.generation + 1), 4)
    stage.ask("bob", beat(stage, BOB, bob.epoch), 4)
    stage.ask("bob", sync(stage, BOB, bob.epoch), 5)
    stage.ask("ann", sync(stage, ann.member_id, ann.generation, protocol_name="sticky"), 5)
    stage.ask("ann", commit(stage, member_id=ann.member_id, generation_id_or_member_epoch=ann.generation + 1), 9)
    stage.ask("eve", join(stage, protocols=[("sticky", b"")]), 9)
    stage.ask("eve", join(stage, protocol_type="connect"), 9)
    stage.note("ann leaves")
    stage.ask("ann", leave(stage, (ann.member_id, None)), 5)
    until(bob, counts=[2])
    describe(stage)


def a_group_is_downgraded(stage: Stage) -> None:
    bob = Follower(stage, "bob", BOB)
    until(bob, counts=[2])
    stage.ask("bob", commit(stage, member_id=BOB, generation_id_or_member_epoch=bob.epoch), 9)
    ann = Old(stage, "ann")
    stage.note("ann joins with the classic protocol")
    ann.member_id = stage.ask("ann", ann.request(), 9).member_id
    answer = stage.quietly("ann", ann.request(), 9)  # its generation says whether the target was computed at once
    ann.generation = answer.generation_id
    stage.note(f"{answer.error_code} {answer.protocol_name} {answer.leader!r} {len(answer.members)}")
    ann.sync()
    until_shared(ann, bob)
    describe(stage)
    stage.note("bob leaves")
    stage.ask("bob", consume(stage, BOB, -1), 1)
    described = stage.quietly("looker", groups.DescribeGroupsRequest(groups=[stage.group]), 6).groups[0]
    stage.note(f"{described.group_state} {described.protocol_type} {len(described.members)}")
    ann.beat()
    answer = stage.quietly("ann", ann.request(), 9)  # how many epochs there were before is a matter of time
    ann.generation = answer.generation_id
    stage.note(f"{answer.error_code} {answer.protocol_name} {answer.leader == ann.member_id} {len(answer.members)}")
    ann.sync((ann.member_id, assignment(stage, 0, 1)))
    ann.beat()
    stage.ask("ann", fetch(stage, 0), 9)
    stage.ask("ann", leave(stage, (ann.member_id, None)), 5)


def until_shared(ann: Old, bob: Follower) -> None:
    """One partition each; how many rounds that takes is a matter of time."""

    def shared() -> bool:
        bob.beat()
        asked = beat(ann.stage, ann.member_id, ann.generation)
        if ann.stage.quietly("ann", asked, 4).error_code == 27:
            answer = ann.stage.quietly("ann", ann.request(), 9)
            ann.generation = answer.generation_id
            told = ann.stage.quietly("ann", sync(ann.stage, ann.member_id, ann.generation), 5)
            ann.owned = ann._read(told.assignment)
        return bob.count == 1 and len(ann.owned) == 1

    wait_until("a partition each", shared)


def static_members_change_their_protocol(stage: Stage) -> None:
    see_topic(stage)
    one = Old(stage, "ann", instance="one")
    one.join()
    one.sync((one.member_id, assignment(stage, 0, 1)))
    stage.note("it comes back with the consumer protocol")
    new = stage.ask("bob", consume(stage, BOB, instance_id="one"), 1)
    one.beat()
    describe(stage)
    stage.note("and with the classic one again")
    again = Old(stage, "eve", instance="one")
    again.owned = [0, 1]
    again.join()
    described = stage.quietly("looker", groups.DescribeGroupsRequest(groups=[stage.group]), 6).groups[0]
    stage.note(f"{described.group_state} {described.protocol_type} {[m.client_id for m in described.members]}")
    again.sync()
    stage.ask("bob", consume(stage, BOB, new.member_epoch, instance_id="one"), 1)


def an_administrator_removes_consumers(stage: Stage) -> None:
    ann, bob = Follower(stage, "ann", ANN), Follower(stage, "bob", BOB, instance_id="two")
    until(ann, bob, counts=[1, 1])
    stage.ask("eve", leave(stage, (EVE, None), ("", "three"), (ANN, "two"), ("", "two")), 5)
    until(ann, counts=[2])
    stage.ask("bob", consume(stage, BOB, bob.epoch, instance_id="two"), 1)


PLAYS: list[Callable[[Stage], None]] = [
    a_group_is_upgraded,
    a_group_is_downgraded,
    static_members_change_their_protocol,
    an_administrator_removes_consumers,
]
