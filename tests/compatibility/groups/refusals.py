"""Plays about bad input: each refusal with Kafka's own code, and the group afterwards as it was before."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.groups.records import partition_for
from ottla.protocol.messages import classic_groups as classic
from ottla.protocol.messages import group_offsets as offsets
from ottla.protocol.messages import groups
from ottla.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from ottla.protocol.messages.coordinator import FindCoordinatorRequest
from ottla.protocol.schema import Message
from tests.compatibility.groups.plays import (
    ANN,
    BOB,
    EVE,
    beat,
    become_stable,
    commit,
    consume,
    delete_offsets,
    fetch,
    join,
    leave,
    see_topic,
    subscription,
    sync,
)
from tests.compatibility.groups.stage import Stage

GROUP_ID_BYTES = 300


def nothing_changes(stage: Stage, look: Iterable[tuple[Message, int]], requests: Iterable[tuple[Message, int]]) -> None:
    """Ask all of them; what can be seen of the group before and after must be the same."""
    before = [stage.ask("looker", request, version) for request, version in look]
    for request, version in requests:
        stage.ask("eve", request, version)
        after = [stage.quietly("looker", request, version) for request, version in look]
        if after != before:
            stage.note(f"changed: {after}")


def a_classic_group_stays_as_it_was(stage: Stage) -> None:
    ann, bob = become_stable(stage)
    stage.ask("ann", commit(stage, member_id=ann, generation_id_or_member_epoch=2), 9)
    look = [(groups.DescribeGroupsRequest(groups=[stage.group]), 6), (fetch(stage, 0, 1), 9)]
    nothing_changes(
        stage,
        look,
        (
            (join(stage, "nobody"), 9),
            (join(stage, ann, group_instance_id="static"), 9),
            (join(stage, ann, protocols=[("sticky", b"")]), 9),
            (join(stage, ann, protocol_type="connect"), 9),
            (join(stage, ann, session_timeout_ms=1), 9),
            (sync(stage, "nobody", 2, "nobody"), 5),
            (sync(stage, ann, 1, ann, bob), 5),
            (sync(stage, ann, 3, ann, bob), 5),
            (sync(stage, ann, 2, ann, bob, protocol_name="sticky"), 5),
            (beat(stage, "nobody", 2), 4),
            (beat(stage, ann, 1), 4),
            (beat(stage, ann, 3), 4),
            (leave(stage, ("nobody", None), (ann, "static")), 5),
            (commit(stage, offset=99), 9),
            (commit(stage, offset=99, member_id="nobody", generation_id_or_member_epoch=2), 9),
            (commit(stage, offset=99, member_id=ann, generation_id_or_member_epoch=1), 9),
            (commit(stage, offset=99, member_id=ann, generation_id_or_member_epoch=3), 9),
            (commit(stage, offset=99, member_id=ann, generation_id_or_member_epoch=2, metadata="x" * 4097), 9),
            (commit(stage, offset=99, member_id=ann, generation_id_or_member_epoch=2, name="no-such-topic"), 9),
            (commit(stage, 9, offset=99, member_id=ann, generation_id_or_member_epoch=2), 9),
            (delete_offsets(stage, 0), 0),
            (groups.DeleteGroupsRequest(groups_names=[stage.group]), 2),
            (consume(stage, EVE, 1), 1),
            (consume(stage, EVE, -1), 1),
        ),
    )
    stage.ask("ann", beat(stage, ann, 2), 4)


def a_consumer_group_stays_as_it_was(stage: Stage) -> None:
    see_topic(stage)
    epoch = stage.ask("ann", consume(stage, ANN), 1).member_epoch
    stage.ask("ann", commit(stage, member_id=ANN, generation_id_or_member_epoch=epoch), 9)
    look = [
        (ConsumerGroupDescribeRequest(group_ids=[stage.group]), 1),
        (fetch(stage, 0, 1, member_id=ANN, member_epoch=epoch), 9),
    ]
    nothing_changes(
        stage,
        look,
        (
            (consume(stage, BOB, 7), 1),
            (consume(stage, BOB, -1), 1),
            (consume(stage, ANN, epoch + 1), 1),
            (consume(stage, ANN, epoch, instance_id="static"), 1),
            (consume(stage, ANN, epoch, server_assignor="magic"), 1),
            (consume(stage, ANN, epoch, subscribed_topic_regex="foo("), 1),
            (consume(stage, ANN, epoch, subscribed_topic_regex="(?<=look)behind"), 1),
            (consume(stage, BOB, subscribed_topic_names=None, subscribed_topic_regex="*"), 1),
            (consume(stage, BOB, subscribed_topic_names=None), 1),
            (consume(stage, BOB, rebalance_timeout_ms=-1), 1),
            (commit(stage, offset=99), 9),
            (commit(stage, offset=99, member_id=BOB, generation_id_or_member_epoch=epoch), 9),
            (commit(stage, offset=99, member_id=ANN, generation_id_or_member_epoch=epoch + 1), 9),
            (commit(stage, offset=99, member_id=ANN, generation_id_or_member_epoch=epoch, metadata="x" * 4097), 9),
            (commit(stage, offset=99, member_id=ANN, generation_id_or_member_epoch=epoch, topic_id=b"?" * 16), 10),
            (fetch(stage, 0, member_id=BOB, member_epoch=epoch), 9),
            (delete_offsets(stage, 0), 0),
            (groups.DeleteGroupsRequest(groups_names=[stage.group]), 2),
            (join(stage, protocols=[("range", b"")]), 9),
            (join(stage, protocol_type="connect"), 9),
            (beat(stage, BOB, epoch), 4),
            (sync(stage, BOB, epoch), 5),
            (leave(stage, (BOB, None)), 5),
        ),
    )
    stage.ask("ann", consume(stage, ANN, epoch), 1)


def _about(stage: Stage, group: str) -> tuple[tuple[Message, int], ...]:
    """A request of every kind that names a group."""
    wanted = offsets.OffsetFetchRequest.OffsetFetchRequestTopic(name=stage.topic, partition_indexes=[0])
    return (
        (join(stage, group_id=group), 9),
        (join(stage, "nobody", group_id=group), 9),
        (sync(stage, "nobody", 1, group_id=group), 5),
        (beat(stage, "nobody", 1, group_id=group), 4),
        (classic.LeaveGroupRequest(group_id=group, members=leave(stage, ("nobody", None)).members), 5),
        (commit(stage, group_id=group), 9),
        (commit(stage, group_id=group, member_id="nobody", generation_id_or_member_epoch=3), 9),
        (fetch(stage, 0, group_id=group), 9),
        (offsets.OffsetFetchRequest(group_id=group, topics=[wanted]), 7),
        (delete_offsets(stage, 0, group_id=group), 0),
        (groups.DescribeGroupsRequest(groups=[group]), 6),
        (ConsumerGroupDescribeRequest(group_ids=[group]), 1),
        (consume(stage, ANN, 3, group_id=group), 1),
        (consume(stage, ANN, -1, group_id=group), 1),
        (groups.DeleteGroupsRequest(groups_names=[group]), 2),
    )


def a_group_id_is_empty(stage: Stage) -> None:
    stage.wait_for_coordinator(next(name for n in range(1000) if partition_for(name := f"{stage.group}-{n}", 50) == 0))  # its own
    for request, version in _about(stage, ""):
        stage.ask("eve", request, version)
    stage.ask("eve", consume(stage, ANN, group_id=""), 1)
    answer = stage.quietly("eve", FindCoordinatorRequest(coordinator_keys=[""]), 4)
    stage.note(f"its coordinator: {answer.coordinators[0].error_code}")


def a_group_id_has_300_bytes(stage: Stage) -> None:
    group = stage.group.ljust(GROUP_ID_BYTES, "g")
    stage.give_name(group, "<long group>")
    stage.wait_for_coordinator(group)
    for request, version in _about(stage, group):
        stage.ask("eve", request, version)
    see_topic(stage)
    stage.ask("ann", consume(stage, ANN, group_id=group), 1)
    stage.ask("ann", consume(stage, ANN, -1, group_id=group), 1)
    stage.ask("ann", join(stage, group_id=group, protocols=[("range", subscription(stage.topic))]), 3)


PLAYS: list[Callable[[Stage], None]] = [
    a_classic_group_stays_as_it_was,
    a_consumer_group_stays_as_it_was,
    a_group_id_is_empty,
    a_group_id_has_300_bytes,
]
