"""The plays: scripts of raw requests about groups. Each is a function of a stage; what it writes down must be the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.protocol import codec
from ottla.protocol.messages import classic_groups as classic
from ottla.protocol.messages import group_offsets as offsets
from ottla.protocol.messages import groups
from ottla.protocol.messages.configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from ottla.protocol.messages.coordinator import FindCoordinatorRequest
from tests.compatibility.groups.stage import Stage
from tests.compatibility.wire import wait_until


def subscription(*topics: str) -> bytes:
    return b"\x00\x00" + codec.encode(ConsumerProtocolSubscription(topics=list(topics)), 0)


def join(stage: Stage, member_id: str = "", **fields: Any) -> classic.JoinGroupRequest:
    protocols = fields.pop("protocols", [("range", subscription(stage.topic))])
    return classic.JoinGroupRequest(
        **(
            {
                "group_id": stage.group,
                "member_id": member_id,
                "session_timeout_ms": 30_000,
                "rebalance_timeout_ms": 60_000,
                "protocol_type": "consumer",
                "protocols": [classic.JoinGroupRequest.JoinGroupRequestProtocol(name=n, metadata=m) for n, m in protocols],
            }
            | fields
        )
    )


def sync(stage: Stage, member_id: str, generation: int, *assigned: str, **fields: Any) -> classic.SyncGroupRequest:
    given = classic.SyncGroupRequest.SyncGroupRequestAssignment
    assignments = [given(member_id=m, assignment=b"part %d" % n) for n, m in enumerate(assigned)]
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    return classic.SyncGroupRequest(
        **(
            {"group_id": stage.group, "generation_id": generation, "member_id": member_id, "assignments": assignments}
            | named
            | fields
        )
    )


def beat(stage: Stage, member_id: str, generation: int, **fields: Any) -> classic.HeartbeatRequest:
    return classic.HeartbeatRequest(**({"group_id": stage.group, "member_id": member_id, "generation_id": generation} | fields))


def leave(stage: Stage, *members: tuple[str, str | None]) -> classic.LeaveGroupRequest:
    identity = classic.LeaveGroupRequest.MemberIdentity
    return classic.LeaveGroupRequest(
        group_id=stage.group, members=[identity(member_id=m, group_instance_id=i) for m, i in members]
    )


def enter(stage: Stage, who: str, **fields: Any) -> str:
    """Fetch an id and join with it; returns the id. The join is parked if others must rejoin first."""
    member_id: str = stage.ask(who, join(stage, **fields), 9).member_id
    stage.tell(who, join(stage, member_id, **fields), 9)
    return member_id


def wait_for(stage: Stage, state: str) -> None:
    """What is told on one connection may be overtaken on another."""
    asked = groups.DescribeGroupsRequest(groups=[stage.group])
    wait_until(f"a group in {state}", lambda: stage.quietly("looker", asked, 5).groups[0].group_state == state)


def wait_for_members(stage: Stage, members: int) -> None:
    asked = groups.DescribeGroupsRequest(groups=[stage.group])
    wait_until(f"{members} members", lambda: len(stage.quietly("looker", asked, 5).groups[0].members) == members)


def become_stable(stage: Stage, **fields: Any) -> tuple[str, str]:
    """Two members, ann and bob, ann leading, in generation 2."""
    ann = enter(stage, "ann", **fields)
    stage.hear("ann", classic.JoinGroupRequest, 9)
    stage.ask("ann", sync(stage, ann, 1, ann), 5)
    bob = enter(stage, "bob", **fields)
    wait_for(stage, "PreparingRebalance")
    stage.ask("ann", beat(stage, ann, 1), 4)
    stage.ask("ann", join(stage, ann, **fields), 9)
    stage.hear("bob", classic.JoinGroupRequest, 9)
    stage.tell("bob", sync(stage, bob, 2), 5)
    stage.ask("ann", sync(stage, ann, 2, ann, bob), 5)
    stage.hear("bob", classic.SyncGroupRequest, 5)
    return ann, bob


# Classic groups ------------------------------------------------------------------------------------------------------------


def a_group_grows_and_shrinks(stage: Stage) -> None:
    ann, bob = become_stable(stage)
    stage.ask("ann", beat(stage, ann, 2), 4)
    stage.ask("bob", beat(stage, bob, 2), 4)
    stage.ask("bob", join(stage, bob), 9)
    stage.note("bob changes its subscription")
    stage.tell("bob", join(stage, bob, protocols=[("range", subscription(stage.topic, "other"))]), 9)
    wait_for(stage, "PreparingRebalance")
    stage.ask("ann", beat(stage, ann, 2), 4)
    stage.ask("ann", join(stage, ann), 9)
    stage.hear("bob", classic.JoinGroupRequest, 9)
    stage.note("ann joins again while the group waits for the sync")
    stage.ask("ann", join(stage, ann), 9)
    stage.ask("ann", sync(stage, ann, 3, ann, bob), 5)
    stage.ask("bob", sync(stage, bob, 3), 5)
    stage.note("ann leaves")
    stage.ask("ann", leave(stage, (ann, None)), 5)
    stage.ask("bob", beat(stage, bob, 3), 4)
    stage.ask("bob", join(stage, bob), 9)
    stage.ask("bob", leave(stage, (bob, None), (bob, None), ("nobody", None)), 5)
    stage.ask("bob", beat(stage, bob, 4), 4)


def a_member_joins_during_the_sync(stage: Stage) -> None:
    ann = enter(stage, "ann")
    stage.hear("ann", classic.JoinGroupRequest, 9)
    bob = enter(stage, "bob")
    wait_for(stage, "PreparingRebalance")
    stage.ask("ann", beat(stage, ann, 1), 4)
    stage.ask("ann", sync(stage, ann, 1, ann), 5)
    stage.ask("ann", join(stage, ann), 9)
    stage.hear("bob", classic.JoinGroupRequest, 9)
    stage.tell("bob", sync(stage, bob, 2), 5)
    eve = enter(stage, "eve")
    wait_for_members(stage, 3)
    stage.hear("bob", classic.SyncGroupRequest, 5)
    stage.tell("ann", join(stage, ann), 9)
    stage.ask("bob", join(stage, bob), 9)
    stage.hear("ann", classic.JoinGroupRequest, 9)
    stage.hear("eve", classic.JoinGroupRequest, 9)
    stage.ask("ann", sync(stage, ann, 3, ann, bob), 5)
    stage.ask("eve", sync(stage, eve, 3), 5)


def joins_are_refused(stage: Stage) -> None:
    stage.ask("ann", join(stage, "made-up"), 9)
    stage.ask("ann", join(stage, group_id=""), 9)
    stage.ask("ann", join(stage, session_timeout_ms=1), 9)
    stage.ask("ann", join(stage, session_timeout_ms=2_000_000), 9)
    become_stable(stage)
    stage.ask("eve", join(stage, protocols=[("sticky", b"")]), 9)
    stage.ask("eve", join(stage, protocols=[]), 9)
    stage.ask("eve", join(stage, protocol_type="connect"), 9)
    stage.ask("eve", join(stage, protocol_type=""), 9)
    stage.ask("eve", join(stage, "nobody"), 9)
    stage.ask("eve", join(stage, "nobody", group_instance_id="static"), 9)


def old_versions_of_join(stage: Stage) -> None:
    for version in range(10):
        request = join(stage, group_id=f"{stage.group}-{version}")
        answer = stage.ask("ann", request, version)
        if version >= 4:
            stage.ask("ann", join(stage, answer.member_id, group_id=f"{stage.group}-{version}"), version)


def syncs_beats_and_leaves_are_refused(stage: Stage) -> None:
    ann, _ = become_stable(stage)
    for request, version in (
        (sync(stage, ann, 1), 5),
        (sync(stage, "nobody", 2), 5),
        (sync(stage, ann, 2, group_id="no-such-group"), 5),
        (sync(stage, ann, 2, group_id=""), 5),
        (sync(stage, ann, 2, protocol_type="connect"), 5),
        (sync(stage, ann, 2, protocol_name="sticky"), 5),
        (sync(stage, ann, 2, protocol_name=None), 5),
        (sync(stage, ann, 2, protocol_type=None), 5),
        (sync(stage, ann, 2, group_instance_id="static"), 5),
        (beat(stage, ann, 1), 4),
        (beat(stage, ann, 3), 4),
        (beat(stage, ann, -1), 4),
        (beat(stage, "nobody", 2), 4),
        (beat(stage, ann, 2, group_id="no-such-group"), 4),
        (beat(stage, ann, 2, group_id=""), 4),
        (beat(stage, ann, 2, group_instance_id="static"), 4),
        (leave(stage, ("nobody", None)), 5),
        (leave(stage, ("", None)), 5),
        (leave(stage, ("", "static")), 5),
        (leave(stage, (ann, "static")), 5),
        (classic.LeaveGroupRequest(group_id="", members=[]), 5),
        (classic.LeaveGroupRequest(group_id="no-such-group", members=leave(stage, (ann, None)).members), 5),
        (classic.LeaveGroupRequest(group_id=stage.group, member_id="nobody"), 2),
        (classic.LeaveGroupRequest(group_id="no-such-group", member_id="nobody"), 0),
    ):
        stage.ask("eve", request, version)


def static_members_come_and_go(stage: Stage) -> None:
    one = stage.ask("ann", join(stage, group_instance_id="one"), 9).member_id
    stage.ask("ann", sync(stage, one, 1, one, group_instance_id="one"), 5)
    stage.tell("bob", join(stage, group_instance_id="two"), 9)
    wait_for(stage, "PreparingRebalance")
    stage.ask("ann", join(stage, one, group_instance_id="one"), 9)
    two = stage.hear("bob", classic.JoinGroupRequest, 9).member_id
    stage.tell("bob", sync(stage, two, 2, group_instance_id="two"), 5)
    stage.ask("ann", sync(stage, one, 2, one, two, group_instance_id="one"), 5)
    stage.hear("bob", classic.SyncGroupRequest, 5)
    stage.note("bob restarts")
    again = stage.ask("bob", join(stage, group_instance_id="two"), 9).member_id
    stage.ask("bob", beat(stage, two, 2, group_instance_id="two"), 4)
    stage.ask("bob", beat(stage, again, 2, group_instance_id="two"), 4)
    stage.ask("bob", sync(stage, again, 2, group_instance_id="two"), 5)
    stage.ask("bob", join(stage, two, group_instance_id="two"), 9)
    stage.note("ann, the leader, restarts: once as a new client, once as an old one")
    new = stage.ask("ann", join(stage, group_instance_id="one"), 9).member_id
    stage.ask("ann", sync(stage, new, 2, group_instance_id="one"), 5)
    stage.ask("ann", join(stage, group_instance_id="one"), 7)
    stage.ask("eve", leave(stage, ("", "two"), ("", "three")), 5)
    stage.ask("eve", groups.DescribeGroupsRequest(groups=[stage.group]), 6)


# Offsets ---------------------------------------------------------------------------------------------------------------------

_CommitTopic = offsets.OffsetCommitRequest.OffsetCommitRequestTopic
_FetchGroup = offsets.OffsetFetchRequest.OffsetFetchRequestGroup


def commit(stage: Stage, partition: int = 0, offset: int = 7, **fields: Any) -> offsets.OffsetCommitRequest:
    row = _CommitTopic.OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        committed_metadata=fields.pop("metadata", ""),
        committed_leader_epoch=fields.pop("leader_epoch", -1),
    )
    named = {"name": stage.topic, "topic_id": stage.topic_id}
    named |= {key: fields.pop(key) for key in ("name", "topic_id") if key in fields}
    return offsets.OffsetCommitRequest(**({"group_id": stage.group} | fields), topics=[_CommitTopic(**named, partitions=[row])])


def fetch(stage: Stage, *partitions: int, **fields: Any) -> offsets.OffsetFetchRequest:
    topic = _FetchGroup.OffsetFetchRequestTopics
    wanted = [topic(name=stage.topic, topic_id=fields.pop("topic_id", stage.topic_id), partition_indexes=list(partitions))]
    asked = {"group_id": stage.group, "topics": wanted if partitions else None} | fields
    return offsets.OffsetFetchRequest(groups=[_FetchGroup(**asked)])


def offsets_are_committed_and_fetched(stage: Stage) -> None:
    stage.ask("ann", fetch(stage, 0), 9)
    stage.ask("ann", fetch(stage), 9)
    for version in range(2, 11):
        stage.ask("ann", commit(stage, offset=version, metadata=f"by {version}", leader_epoch=0), version)
    stage.ask("ann", commit(stage, partition=1, metadata=None), 8)
    old = offsets.OffsetFetchRequest.OffsetFetchRequestTopic(name=stage.topic, partition_indexes=[0, 1, 9])
    for version in range(1, 8):
        stage.ask("ann", offsets.OffsetFetchRequest(group_id=stage.group, topics=[old]), version)
    for version in range(2, 8):
        stage.ask("ann", offsets.OffsetFetchRequest(group_id=stage.group, topics=None), version)
    for version in range(8, 11):
        stage.ask("ann", fetch(stage, 0, 1, 9), version)
        stage.ask("ann", fetch(stage), version)
    several = [fetch(stage, 0).groups[0], fetch(stage, 0, group_id="no-such-group").groups[0]]
    stage.ask("ann", offsets.OffsetFetchRequest(groups=several), 8)


def commits_are_refused(stage: Stage) -> None:
    stage.ask("ann", commit(stage, name="no-such-topic"), 9)
    stage.ask("ann", commit(stage, topic_id=b"?" * 16), 10)
    stage.ask("ann", commit(stage, partition=9), 9)
    stage.ask("ann", commit(stage, metadata="x" * 4096), 9)
    stage.ask("ann", commit(stage, metadata="x" * 4097), 9)
    stage.ask("ann", fetch(stage, 0, topic_id=b"?" * 16), 10)
    other = f"{stage.group}-other"
    stage.ask("ann", commit(stage, generation_id_or_member_epoch=1, member_id="x", group_id=other), 9)
    stage.ask("ann", commit(stage, generation_id_or_member_epoch=1, member_id="x", group_id=other), 8)
    stage.ask("ann", commit(stage, group_id="g" * 300), 9)
    ann, _ = become_stable(stage)
    stage.ask("eve", commit(stage), 9)
    stage.ask("eve", commit(stage, member_id=ann), 9)
    stage.ask("eve", commit(stage, member_id=ann, generation_id_or_member_epoch=1), 9)
    stage.ask("eve", commit(stage, member_id="nobody", generation_id_or_member_epoch=2), 9)
    stage.ask("eve", commit(stage, member_id=ann, generation_id_or_member_epoch=2, group_instance_id="static"), 9)
    stage.ask("eve", commit(stage, member_id=ann, generation_id_or_member_epoch=2), 9)
    stage.ask("eve", commit(stage, member_id=ann, generation_id_or_member_epoch=2), 2)


def delete_offsets(stage: Stage, *partitions: int, **fields: Any) -> offsets.OffsetDeleteRequest:
    topic = offsets.OffsetDeleteRequest.OffsetDeleteRequestTopic
    rows = [topic.OffsetDeleteRequestPartition(partition_index=p) for p in partitions]
    topics = [topic(name=fields.pop("name", stage.topic), partitions=rows)]
    return offsets.OffsetDeleteRequest(**({"group_id": stage.group} | fields), topics=topics)


def offsets_and_groups_are_deleted(stage: Stage) -> None:
    stage.ask("ann", commit(stage), 9)
    stage.ask("ann", delete_offsets(stage, 0, 1, 9), 0)
    stage.ask("ann", fetch(stage, 0), 9)
    stage.ask("ann", delete_offsets(stage, 0, name="no-such-topic"), 0)
    stage.ask("ann", delete_offsets(stage, 0, group_id="no-such-group"), 0)
    stage.ask("ann", delete_offsets(stage, 0, group_id=""), 0)
    stage.ask("ann", commit(stage), 9)
    ann, bob = become_stable(stage)
    stage.ask("eve", delete_offsets(stage, 0), 0)
    stage.ask("eve", groups.DeleteGroupsRequest(groups_names=[stage.group, "no-such-group", ""]), 2)
    stage.ask("eve", leave(stage, (ann, None), (bob, None)), 5)
    stage.ask("eve", groups.DeleteGroupsRequest(groups_names=[stage.group]), 2)
    stage.ask("eve", fetch(stage, 0), 9)
    stage.ask("eve", groups.DeleteGroupsRequest(groups_names=[stage.group]), 1)


# Listing ---------------------------------------------------------------------------------------------------------------------


def groups_are_described_and_listed(stage: Stage) -> None:
    for version in (5, 6):
        stage.ask("eve", groups.DescribeGroupsRequest(groups=[stage.group]), version)
    stage.ask("ann", commit(stage), 9)
    stage.ask("eve", groups.DescribeGroupsRequest(groups=[stage.group]), 6)
    ann, bob = become_stable(stage)
    for version in range(7):
        stage.ask("eve", groups.DescribeGroupsRequest(groups=[stage.group, "no-such-group"]), version)
    stage.ask("eve", ConsumerGroupDescribeRequest(group_ids=[stage.group, "no-such-group", ""]), 1)
    for filters in (
        {},
        {"states_filter": ["Stable"]},
        {"states_filter": ["empty"]},
        {"types_filter": ["classic"]},
        {"types_filter": ["Consumer"]},
    ):
        answer = stage.quietly("eve", groups.ListGroupsRequest(**filters), 5)
        mine = [f"{g.protocol_type} {g.group_state} {g.group_type}" for g in answer.groups if g.group_id == stage.group]
        stage.note(f"listed with {filters}: {mine}")
    stage.tell("bob", join(stage, bob, protocols=[("range", subscription(stage.topic, "more"))]), 9)
    wait_for(stage, "PreparingRebalance")
    stage.ask("ann", beat(stage, ann, 2), 4)
    stage.ask("eve", groups.DescribeGroupsRequest(groups=[stage.group]), 6)
    stage.ask("ann", join(stage, ann), 9)
    stage.hear("bob", classic.JoinGroupRequest, 9)
    stage.ask("eve", groups.DescribeGroupsRequest(groups=[stage.group]), 6)


def coordinators_are_found(stage: Stage) -> None:
    for version in range(4):
        answer = stage.quietly("ann", FindCoordinatorRequest(key=stage.group), version)
        stage.note(f"v{version}: {answer.error_code} {answer.error_message!r} {answer.node_id >= 0} {answer.host}")
    for version in range(4, 7):
        answer = stage.quietly("ann", FindCoordinatorRequest(coordinator_keys=[stage.group, ""]), version)
        stage.note(f"v{version}: {[(c.error_code, c.error_message, c.node_id >= 0, c.host) for c in answer.coordinators]}")


# Consumer groups -------------------------------------------------------------------------------------------------------------


def consume(stage: Stage, member_id: str, epoch: int = 0, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    first = (
        {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [stage.topic], "topic_partitions": []} if epoch == 0 else {}
    )
    return ConsumerGroupHeartbeatRequest(
        **({"group_id": stage.group, "member_id": member_id, "member_epoch": epoch} | first | fields)
    )


ANN, BOB, EVE = ("AnnAnnAnnAnnAnnAnnAnnA", "BobBobBobBobBobBobBobA", "EveEveEveEveEveEveEveA")


def see_topic(stage: Stage) -> None:
    """The coordinator of a group may hear of a new topic later than whoever created it: another group looks out for it."""
    scout = f"{stage.group}-scout"
    answer = stage.quietly("scout", consume(stage, EVE, group_id=scout), 1)

    def sees() -> bool:
        nonlocal answer
        if answer.assignment is None or not answer.assignment.topic_partitions:
            answer = stage.quietly("scout", consume(stage, EVE, group_id=scout), 1)
            return False
        return True

    wait_until("the coordinator seeing the topic", sees)
    stage.quietly("scout", consume(stage, EVE, -1, group_id=scout), 1)


def heartbeats_are_refused(stage: Stage) -> None:
    see_topic(stage)
    for fields in (
        {"member_id": ""},
        {"group_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"subscribed_topic_names": None},
        {"member_epoch": -2},
        {"member_epoch": -3},
        {"member_epoch": 4},
        {"member_epoch": -1},
        {"server_assignor": "magic"},
        {"subscribed_topic_regex": "foo("},
        {"subscribed_topic_regex": "foo["},
    ):
        stage.ask("ann", consume(stage, **({"member_id": ANN} | fields)), 1)
    stage.ask("ann", consume(stage, "", member_epoch=-1), 0)
    stage.ask("ann", consume(stage, ANN), 1)
    stage.ask("ann", consume(stage, ANN, 5), 1)
    stage.ask("bob", consume(stage, BOB, 2), 1)
    stage.ask("bob", consume(stage, ANN, 2, instance_id="static"), 1)
    stage.ask("bob", consume(stage, ANN, -1, instance_id="static"), 1)
    stage.note("a classic member wants in")
    stage.ask("bob", beat(stage, ANN, 1), 4)
    stage.ask("bob", leave(stage, (BOB, None)), 5)
    stage.ask("ann", consume(stage, ANN, -1), 1)


def a_consumer_comes_and_goes(stage: Stage) -> None:
    see_topic(stage)
    stage.ask("ann", consume(stage, ANN), 1)
    stage.ask("ann", consume(stage, ANN, 2), 1)
    stage.ask(
        "ann", consume(stage, ANN, 2, rebalance_timeout_ms=60_000, subscribed_topic_names=[stage.topic], topic_partitions=[]), 1
    )
    stage.ask("eve", ConsumerGroupDescribeRequest(group_ids=[stage.group]), 0)
    stage.ask("eve", ConsumerGroupDescribeRequest(group_ids=[stage.group]), 1)
    stage.ask("eve", groups.DescribeGroupsRequest(groups=[stage.group]), 6)
    stage.ask("ann", commit(stage, member_id=ANN, generation_id_or_member_epoch=2), 9)
    stage.ask("ann", commit(stage, member_id=ANN, generation_id_or_member_epoch=2), 10)
    stage.ask("ann", commit(stage, member_id=ANN, generation_id_or_member_epoch=1), 9)
    stage.ask("ann", commit(stage, member_id=ANN, generation_id_or_member_epoch=3), 9)
    stage.ask("ann", commit(stage, member_id=BOB, generation_id_or_member_epoch=2), 9)
    stage.ask("ann", commit(stage, member_id=ANN, generation_id_or_member_epoch=2), 8)
    stage.ask("ann", commit(stage), 9)
    stage.ask("ann", fetch(stage, 0, member_id=ANN, member_epoch=2), 9)
    stage.ask("ann", fetch(stage, 0, member_id=ANN, member_epoch=0), 9)
    stage.ask("ann", fetch(stage, 0, member_id=BOB, member_epoch=2), 9)
    stage.ask("ann", fetch(stage, 0), 9)
    stage.ask("eve", delete_offsets(stage, 0), 0)
    stage.ask("eve", groups.DeleteGroupsRequest(groups_names=[stage.group]), 2)
    stage.ask("ann", consume(stage, ANN, -1), 1)
    stage.ask("ann", consume(stage, ANN, 2), 1)
    stage.ask("eve", ConsumerGroupDescribeRequest(group_ids=[stage.group]), 1)
    stage.ask("eve", groups.DeleteGroupsRequest(groups_names=[stage.group]), 2)
    stage.ask("eve", ConsumerGroupDescribeRequest(group_ids=[stage.group]), 1)


class Follower:
    """Heartbeats until something is so, as a client would; how many it takes is not written down."""

    def __init__(self, stage: Stage, who: str, member_id: str, **fields: Any) -> None:
        self.stage, self.who, self.member_id, self.fields = stage, who, member_id, fields
        self.epoch = 0
        self.owned: list[ConsumerGroupHeartbeatRequest.TopicPartitions] = []

    def beat(self) -> None:
        always = {"instance_id": self.fields["instance_id"]} if "instance_id" in self.fields else {}
        request = consume(
            self.stage, self.member_id, self.epoch, topic_partitions=self.owned, **(self.fields if self.epoch == 0 else always)
        )
        answer = self.stage.quietly(self.who, request, 1)
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            row = ConsumerGroupHeartbeatRequest.TopicPartitions
            self.owned = [row(topic_id=t.topic_id, partitions=t.partitions) for t in answer.assignment.topic_partitions]

    @property
    def count(self) -> int:
        return sum(len(row.partitions) for row in self.owned)


def until(*followers: Follower, counts: list[int]) -> None:
    def settled() -> bool:
        for follower in followers:
            follower.beat()
        epochs = {follower.epoch for follower in followers}
        return len(epochs) == 1 and sorted(follower.count for follower in followers) == counts

    wait_until(f"shares of {counts}", settled)


def consumers_share_partitions(stage: Stage) -> None:
    ann, bob, eve = Follower(stage, "ann", ANN), Follower(stage, "bob", BOB), Follower(stage, "eve", EVE, server_assignor="range")
    until(ann, counts=[2])
    until(ann, bob, counts=[1, 1])
    until(ann, bob, eve, counts=[0, 1, 1])
    stage.ask("eve", consume(stage, EVE, -1), 1)
    until(ann, bob, counts=[1, 1])
    stage.ask("bob", consume(stage, BOB, -1), 1)
    until(ann, counts=[2])
    answer = stage.quietly("eve", ConsumerGroupDescribeRequest(group_ids=[stage.group]), 1).groups[0]
    stage.note(
        f"{answer.group_state} {answer.group_epoch == answer.assignment_epoch} {answer.assignor_name} {len(answer.members)}"
    )


def static_consumers_come_back(stage: Stage) -> None:
    one, two = Follower(stage, "ann", ANN, instance_id="one"), Follower(stage, "bob", BOB, instance_id="two")
    until(one, two, counts=[1, 1])
    epoch = two.epoch
    stage.ask("eve", consume(stage, EVE, instance_id="two"), 1)
    stage.ask("bob", consume(stage, BOB, -2, instance_id="two"), 1)
    again = stage.quietly("eve", consume(stage, EVE, instance_id="two"), 1)
    stage.note(
        f"eve is bob again: {again.error_code} same epoch {again.member_epoch == epoch} {len(again.assignment.topic_partitions)}"
    )
    fenced = stage.quietly("bob", consume(stage, BOB, epoch, instance_id="two"), 1)
    stage.note(f"bob: {fenced.error_code} {fenced.error_message}")
    stage.ask("bob", consume(stage, BOB, -1, instance_id="two"), 1)


def a_regular_expression_finds_its_topics(stage: Stage) -> None:
    ann = Follower(stage, "ann", ANN, subscribed_topic_names=None, subscribed_topic_regex=f"{stage.topic}|none")
    until(ann, counts=[2])
    stage.ask("eve", ConsumerGroupDescribeRequest(group_ids=[stage.group]), 1)
    stage.ask("ann", consume(stage, ANN, ann.epoch, subscribed_topic_regex="("), 1)


def an_empty_group_changes_its_protocol(stage: Stage) -> None:
    stage.ask("eve", commit(stage), 9)
    until(Follower(stage, "ann", ANN), counts=[2])
    stage.ask("eve", fetch(stage, 0), 9)
    stage.ask("ann", consume(stage, ANN, -1), 1)
    bob = enter(stage, "bob")
    stage.hear("bob", classic.JoinGroupRequest, 9)
    stage.ask("bob", sync(stage, bob, 1, bob), 5)
    stage.ask("eve", groups.DescribeGroupsRequest(groups=[stage.group]), 6)
    stage.ask("eve", fetch(stage, 0), 9)


def a_group_has_settings_of_its_own(stage: Stage) -> None:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource

    def alter(**configs: str) -> IncrementalAlterConfigsRequest:
        rows = [resource.AlterableConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()]
        return IncrementalAlterConfigsRequest(resources=[resource(resource_type=32, resource_name=stage.group, configs=rows)])

    see_topic(stage)
    stage.ask("eve", alter(consumer_heartbeat_interval_ms="7000", consumer_session_timeout_ms="50000"), 1)
    stage.ask("eve", alter(consumer_heartbeat_interval_ms="1"), 1)
    stage.ask("eve", alter(consumer_session_timeout_ms="1000000"), 1)
    stage.ask("eve", alter(consumer_session_timeout_ms="soon"), 1)
    stage.ask("eve", alter(no_such_setting="1"), 1)

    def interval() -> int:
        return int(stage.quietly("ann", consume(stage, ANN), 1).heartbeat_interval_ms)

    wait_until("the group's own interval", lambda: interval() == 7000)
    other = stage.quietly("bob", consume(stage, BOB, group_id=f"{stage.group}-other"), 1)
    stage.note(f"another group: {other.heartbeat_interval_ms}")


PLAYS: list[Callable[[Stage], None]] = [
    a_group_grows_and_shrinks,
    a_member_joins_during_the_sync,
    joins_are_refused,
    old_versions_of_join,
    syncs_beats_and_leaves_are_refused,
    static_members_come_and_go,
    offsets_are_committed_and_fetched,
    commits_are_refused,
    offsets_and_groups_are_deleted,
    groups_are_described_and_listed,
    coordinators_are_found,
    heartbeats_are_refused,
    a_consumer_comes_and_goes,
    consumers_share_partitions,
    static_consumers_come_back,
    a_regular_expression_finds_its_topics,
    an_empty_group_changes_its_protocol,
    a_group_has_settings_of_its_own,
]
