"""The consumer protocol (KIP-848), told as stories."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.groups.consumer import ConsumerGroup
from ottla.model.errors import ErrorCode
from ottla.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.group_offsets import OffsetCommitRequest, OffsetFetchRequest
from ottla.protocol.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from tests.groups.world import World, topic

Owned = dict[bytes, list[int]]


class Consumer:
    """A member as Kafka's client is one: it gives up what is taken from it and reports what it owns when that changes."""

    def __init__(self, world: World, member_id: str, topics: list[str] | None = None, **fields: Any) -> None:
        self.world, self.member_id, self.topics, self.fields = world, member_id, topics, fields
        self.epoch = 0
        self.owned: Owned = {}
        self.reply: Any = None

    def heartbeat(self, **more: Any) -> Any:
        joining = self.epoch == 0
        first = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": self.topics} | self.fields if joining else {}
        owned = ConsumerGroupHeartbeatRequest.TopicPartitions
        said = {
            "group_id": "g",
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "topic_partitions": [owned(topic_id=t, partitions=p) for t, p in self.owned.items()],
        }
        if "instance_id" in self.fields:
            said["instance_id"] = self.fields["instance_id"]
        self.reply = self.world.ask(ConsumerGroupHeartbeatRequest(**(said | first | more)), 1)
        if self.reply.error_code == ErrorCode.NONE:
            self.epoch = self.reply.member_epoch
            if self.reply.assignment is not None:
                self.owned = {t.topic_id: t.partitions for t in self.reply.assignment.topic_partitions}
        return self.reply

    @property
    def partitions(self) -> list[int]:
        return sorted(p for partitions in self.owned.values() for p in partitions)


def settle(world: World, *consumers: Consumer, rounds: int = 8) -> None:
    for _ in range(rounds):
        world.pass_time(1_000)
        for consumer in consumers:
            consumer.heartbeat()
            assert consumer.reply.error_code == ErrorCode.NONE, consumer.reply


def group_of(world: World) -> ConsumerGroup:
    group = world.shard.groups["g"]
    assert isinstance(group, ConsumerGroup)
    return group


def describe(world: World) -> Any:
    return world.ask(ConsumerGroupDescribeRequest(group_ids=["g"])).groups[0]


def test_a_first_member_has_everything_with_its_first_heartbeat():
    world = World(topic("t", 4))
    consumer = Consumer(world, "a", ["t"])
    consumer.heartbeat()
    assert (consumer.epoch, consumer.partitions) == (2, [0, 1, 2, 3])
    assert consumer.reply.heartbeat_interval_ms == 5_000
    assert describe(world).group_state == "Stable"


def test_a_member_that_subscribes_to_nothing_yet_is_a_member():
    world = World(topic("t", 4))
    consumer = Consumer(world, "a", [])
    consumer.heartbeat()
    assert (consumer.reply.error_code, consumer.epoch, consumer.partitions) == (ErrorCode.NONE, 1, [])


def test_a_group_of_one_two_four_and_five_on_four_partitions():
    world = World(topic("t", 4))
    members: list[Consumer] = []
    for size in (1, 2, 4, 5):
        while len(members) < size:
            members.append(Consumer(world, f"member-{len(members)}", ["t"]))
        settle(world, *members)
        shares = sorted(len(member.partitions) for member in members)
        assert sorted(p for member in members for p in member.partitions) == [0, 1, 2, 3]
        assert shares == {1: [4], 2: [2, 2], 4: [1, 1, 1, 1], 5: [0, 1, 1, 1, 1]}[size]
    assert describe(world).group_state == "Stable"


def test_a_partition_is_given_only_once_its_owner_has_let_go():
    world = World(topic("t", 2), consumer_assignment_interval_ms=0)
    first, second = Consumer(world, "a", ["t"]), Consumer(world, "b", ["t"])
    first.heartbeat()
    second.heartbeat()
    assert second.partitions == []
    assert describe(world).group_state == "Reconciling"
    old = first.owned
    first.heartbeat()
    assert len(first.partitions) == 1
    second.heartbeat()
    assert second.partitions == [], "the first has been told, but has not yet answered"
    kept, first.owned = first.owned, old
    first.heartbeat(
        topic_partitions=[ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=t, partitions=p) for t, p in old.items()]
    )
    second.heartbeat()
    assert second.partitions == []
    first.owned = kept
    first.heartbeat()
    second.heartbeat()
    assert sorted(first.partitions + second.partitions) == [0, 1]


def test_an_idle_heartbeat_writes_nothing_and_says_nothing_new():
    world = World(topic("t", 4))
    consumer = Consumer(world, "a", ["t"])
    settle(world, consumer)
    before, written = group_of(world), len(world.log)
    reply = world.ask(ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=consumer.epoch), 1)
    assert reply.assignment is None
    assert group_of(world) is before
    assert len(world.log) == written


def test_a_topic_that_grows_is_noticed_with_the_next_heartbeat():
    world = World(topic("t", 2))
    consumer = Consumer(world, "a", ["t"])
    settle(world, consumer)
    world.grow(topic("t", 5))
    world.pass_time(1_000)
    consumer.heartbeat()
    assert consumer.partitions == [0, 1, 2, 3, 4]


def test_another_topic_that_grows_changes_nothing():
    world = World(topic("t", 2), topic("u", 2))
    consumer = Consumer(world, "a", ["t"])
    settle(world, consumer)
    epoch = group_of(world).epoch
    world.grow(topic("u", 5))
    settle(world, consumer)
    assert group_of(world).epoch == epoch


def test_a_topic_that_is_subscribed_to_before_it_exists_is_found_when_it_does():
    world = World()
    consumer = Consumer(world, "a", ["later"])
    settle(world, consumer)
    assert consumer.partitions == []
    world.grow(topic("later", 3))
    settle(world, consumer)
    assert consumer.partitions == [0, 1, 2]


def test_a_member_that_leaves_is_replaced_by_the_others():
    world = World(topic("t", 4))
    first, second = Consumer(world, "a", ["t"]), Consumer(world, "b", ["t"])
    settle(world, first, second)
    second.heartbeat(member_epoch=-1)
    assert (second.reply.error_code, second.reply.member_epoch) == (ErrorCode.NONE, -1)
    settle(world, first)
    assert first.partitions == [0, 1, 2, 3]


def test_a_silent_member_is_fenced_after_its_session():
    world = World(topic("t", 4))
    first, second = Consumer(world, "a", ["t"]), Consumer(world, "b", ["t"])
    settle(world, first, second)
    for _ in range(10):
        world.pass_time(5_000)
        first.heartbeat()
    assert first.partitions == [0, 1, 2, 3]
    second.heartbeat()
    assert second.reply.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_revoke_within_its_rebalance_timeout_is_fenced():
    world = World(topic("t", 2))
    stubborn, second = Consumer(world, "a", ["t"], rebalance_timeout_ms=20_000), Consumer(world, "b", ["t"])
    settle(world, stubborn)
    everything = list(stubborn.owned.items())
    for _ in range(12):
        world.pass_time(2_000)
        second.heartbeat()
        stubborn.heartbeat(
            topic_partitions=[ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=t, partitions=p) for t, p in everything]
        )
    assert stubborn.reply.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    settle(world, second)
    assert second.partitions == [0, 1]


def test_a_member_changes_its_subscription():
    world = World(topic("t", 1), topic("u", 2))
    consumer = Consumer(world, "a", ["t"])
    settle(world, consumer)
    consumer.heartbeat(subscribed_topic_names=["u"], rebalance_timeout_ms=60_000)
    settle(world, consumer)
    assert set(consumer.owned) == {topic("u", 2).topic_id}


# Epochs ------------------------------------------------------------------------------------------------------------------


def test_an_epoch_that_was_never_given_is_fenced():
    world = World(topic("t", 1))
    consumer = Consumer(world, "a", ["t"])
    settle(world, consumer)
    reply = consumer.heartbeat(member_epoch=consumer.epoch + 5)
    assert reply.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert "greater member epoch" in reply.error_message


def test_the_previous_epoch_will_do_for_a_member_whose_reply_was_lost():
    world = World(topic("t", 2))
    first, second = Consumer(world, "a", ["t"]), Consumer(world, "b", ["t"])
    first.heartbeat()
    world.pass_time(1_000)
    second.heartbeat()
    first.heartbeat()  # told to give up one
    first.heartbeat()  # it has
    lost = first.reply.member_epoch
    group = group_of(world)
    previous = group.members["a"].previous_epoch
    reply = first.heartbeat(member_epoch=previous)
    assert (reply.error_code, reply.member_epoch) == (ErrorCode.NONE, lost)
    both = [ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic("t", 2).topic_id, partitions=[0, 1])]
    if previous != group.members["a"].epoch:
        assert first.heartbeat(member_epoch=previous, topic_partitions=both).error_code == ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST, "MemberId can't be empty."),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST, "GroupId can't be empty."),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST, "InstanceId can't be empty."),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request."),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining."),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST, "Either SubscribedTopicNames or SubscribedTopicRegex"),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST, "InstanceId can't be null."),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid."),
        ({"member_epoch": 4}, ErrorCode.GROUP_ID_NOT_FOUND, "Consumer group g not found."),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found."),
        ({"server_assignor": "magic"}, ErrorCode.UNSUPPORTED_ASSIGNOR, "Supported assignors: uniform, range."),
        ({"subscribed_topic_regex": "foo("}, ErrorCode.INVALID_REGULAR_EXPRESSION, "SubscribedTopicRegex `foo(` is not a valid"),
    ],
)
def test_a_heartbeat_that_cannot_be_is_refused_and_changes_nothing(fields: dict, code: ErrorCode, message: str):
    world = World(topic("t", 1))
    reply = Consumer(world, "a", ["t"]).heartbeat(**fields)
    assert reply.error_code == code
    assert message in reply.error_message
    assert world.log == []
    assert world.shard.groups == {}


def test_an_old_client_is_given_its_member_id():
    world = World(topic("t", 1))
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", rebalance_timeout_ms=1_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert len(world.ask(request, 0).member_id) == 22


def test_a_full_group_takes_nobody():
    world = World(topic("t", 1), consumer_group_max_size=1)
    settle(world, Consumer(world, "a", ["t"]))
    assert Consumer(world, "b", ["t"]).heartbeat().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


# Regular expressions -----------------------------------------------------------------------------------------------------


def test_a_regular_expression_is_resolved_on_the_server_and_follows_new_topics():
    world = World(topic("orders-eu", 1), topic("orders-us", 2), topic("payments", 4))
    consumer = Consumer(world, "a", subscribed_topic_regex="orders-.*")
    consumer.heartbeat()
    assert len(consumer.partitions) == 3
    world.grow(topic("orders-asia", 3))
    settle(world, consumer)
    assert len(consumer.partitions) == 6
    assert describe(world).members[0].subscribed_topic_regex == "orders-.*"


def test_a_regular_expression_matches_whole_names_in_linear_time():
    world = World(topic("a" * 200, 1), topic("xab", 1))
    consumer = Consumer(world, "a", subscribed_topic_regex="(a+)+b")
    consumer.heartbeat()
    assert consumer.partitions == []


def test_a_regular_expression_is_forgotten_with_its_last_subscriber():
    world = World(topic("t", 1))
    first, second = (Consumer(world, name, subscribed_topic_regex="t.*") for name in "ab")
    settle(world, first, second)
    first.heartbeat(member_epoch=-1)
    assert "t.*" in group_of(world).regexes
    second.heartbeat(subscribed_topic_regex="", subscribed_topic_names=["t"])
    assert group_of(world).regexes == {}


# Static members --------------------------------------------------------------------------------------------------------


def test_a_static_member_that_restarts_gets_its_partitions_back():
    world = World(topic("t", 4))
    first, second = Consumer(world, "a", ["t"], instance_id="one"), Consumer(world, "b", ["t"], instance_id="two")
    settle(world, first, second)
    had, epoch = second.owned, group_of(world).epoch
    assert second.heartbeat(member_epoch=-2).member_epoch == -2
    again = Consumer(world, "c", ["t"], instance_id="two")
    again.heartbeat()
    assert again.owned == had
    assert group_of(world).epoch == epoch
    assert second.heartbeat(member_epoch=epoch).error_code == ErrorCode.FENCED_INSTANCE_ID


def test_an_instance_id_that_is_in_use_is_not_taken_over():
    world = World(topic("t", 1))
    settle(world, Consumer(world, "a", ["t"], instance_id="one"))
    reply = Consumer(world, "b", ["t"], instance_id="one").heartbeat()
    assert reply.error_code == ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_static_member_that_stays_away_is_fenced_after_its_session():
    world = World(topic("t", 1))
    member = Consumer(world, "a", ["t"], instance_id="one")
    settle(world, member)
    member.heartbeat(member_epoch=-2)
    world.pass_time(45_001)
    assert group_of(world).is_empty


# Offsets ---------------------------------------------------------------------------------------------------------------


def commit(world: World, member_id: str, epoch: int, partition: int = 0, version: int = 9) -> int:
    row = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(partition_index=partition, committed_offset=7)
    asked = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", topic_id=topic("t", 1).topic_id, partitions=[row])
    request = OffsetCommitRequest(group_id="g", member_id=member_id, generation_id_or_member_epoch=epoch, topics=[asked])
    return int(world.ask(request, version).topics[0].partitions[0].error_code)


def test_commits_need_a_member_and_an_epoch_that_fits_the_partition():
    world = World(topic("t", 2))
    first, second = Consumer(world, "a", ["t"]), Consumer(world, "b", ["t"])
    settle(world, first)
    early = first.epoch
    settle(world, first, second)
    [kept] = first.partitions
    assert commit(world, "a", first.epoch, kept) == ErrorCode.NONE
    assert commit(world, "a", early, kept) == ErrorCode.NONE, "it has had this partition since that epoch"
    assert commit(world, "a", early, 1 - kept) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "b", second.epoch - 1, 1 - kept) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "a", first.epoch + 1, kept) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "nobody", first.epoch, kept) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(world, "a", first.epoch, kept, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert commit(world, "a", first.epoch, kept, version=10) == ErrorCode.NONE


def test_fetching_offsets_checks_the_member_epoch():
    world = World(topic("t", 1))
    member = Consumer(world, "a", ["t"])
    settle(world, member)
    asked = OffsetFetchRequest.OffsetFetchRequestGroup

    def code(member_id: str | None, epoch: int) -> int:
        return int(
            world.ask(OffsetFetchRequest(groups=[asked(group_id="g", member_id=member_id, member_epoch=epoch)]), 9)
            .groups[0]
            .error_code
        )

    assert code("a", member.epoch) == ErrorCode.NONE
    assert code(None, -1) == ErrorCode.NONE
    assert code("a", member.epoch - 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert code("b", member.epoch) == ErrorCode.UNKNOWN_MEMBER_ID


# The two protocols meet --------------------------------------------------------------------------------------------------


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets():
    world = World(topic("t", 1))
    assert commit(world, "", -1) == ErrorCode.NONE
    settle(world, Consumer(world, "a", ["t"]))
    assert world.ask(ListGroupsRequest(types_filter=["consumer"])).groups[0].group_id == "g"
    Consumer(world, "a", ["t"]).heartbeat(member_epoch=-1)
    ids, generation = world.stable_group(1)
    assert world.heartbeat(ids[0], generation) == ErrorCode.NONE
    assert world.ask(ListGroupsRequest(types_filter=["Classic"])).groups[0].group_state == "Stable"
    assert world.shard.offsets.get("g", "t", 0).offset == 7
    assert world.reloaded().offsets.get("g", "t", 0).offset == 7


def test_a_deleted_group_leaves_nothing_behind():
    world = World(topic("t", 1))
    member = Consumer(world, "a", subscribed_topic_regex="t")
    settle(world, member)
    commit(world, "a", member.epoch)
    assert world.ask(DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    member.heartbeat(member_epoch=-1)
    assert world.ask(DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == ErrorCode.NONE
    for shard in (world.shard, world.reloaded()):
        assert shard.groups == {}
        assert shard.offsets.committed == {}


def test_a_described_group_shows_current_and_target_assignment():
    world = World(topic("t", 2), consumer_assignment_interval_ms=0)
    first, second = Consumer(world, "a", ["t"], rack_id="r1"), Consumer(world, "b", ["t"])
    first.heartbeat()
    second.heartbeat()
    described = {member.member_id: member for member in describe(world).members}
    held = {name: [t.partitions for t in member.assignment.topic_partitions] for name, member in described.items()}
    assert held == {"a": [[0, 1]], "b": []}
    assert len(described["b"].target_assignment.topic_partitions[0].partitions) == 1
    assert described["a"].rack_id == "r1"
    assert describe(world).assignor_name == "uniform"


def test_a_clock_that_was_set_back_does_not_hold_up_a_rebalance():
    """Found by the simulator: the time of the last assignment lay in the future, and the group stood still until then."""
    world = World(topic("t", 2), consumer_assignment_interval_ms=1_000)
    first, second = Consumer(world, "a", ["t"]), Consumer(world, "b", ["t"])
    first.heartbeat()
    world.now_ms -= 600_000
    second.heartbeat()
    assert len({member.member_id: member for member in describe(world).members}["b"].target_assignment.topic_partitions) == 1
