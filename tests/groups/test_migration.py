"""Groups that change their protocol while members are in them, told as stories."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from ottla.groups import embedded
from ottla.groups.classic import ClassicGroup
from ottla.groups.consumer import ConsumerGroup
from ottla.model.errors import ErrorCode
from ottla.protocol import codec
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tests.groups.test_consumer import Consumer, commit, describe
from tests.groups.world import World, topic

Row = ConsumerProtocolSubscription.TopicPartition


class Classic:
    """A member as an older client is one. A cooperative one keeps what it has while it joins, an eager one drops it first."""

    def __init__(self, world: World, topics: list[str], *, cooperative: bool = False, instance: str | None = None) -> None:
        self.world, self.topics, self.cooperative, self.instance = world, topics, cooperative, instance
        self.member_id = ""
        self.generation = -1
        self.owned: dict[str, list[int]] = {}
        self._joining: int | None = None
        self._syncing: int | None = None

    @property
    def partitions(self) -> list[int]:
        return sorted(p for partitions in self.owned.values() for p in partitions)

    def _subscription(self) -> bytes:
        if not self.cooperative:
            self.owned = {}
        rows = [Row(topic=name, partitions=partitions) for name, partitions in self.owned.items()]
        return b"\x00\x01" + codec.encode(ConsumerProtocolSubscription(topics=self.topics, owned_partitions=rows), 1)

    def join(self) -> None:
        named = {"group_instance_id": self.instance} if self.instance else {}
        protocol = "cooperative-sticky" if self.cooperative else "range"
        self._joining = self.world.join(self.member_id, protocols=[(protocol, self._subscription())], **named)

    def step(self) -> None:
        """Whatever comes next: join, hear of it, sync, hear of it, or a heartbeat."""
        if self._syncing is not None:
            self._hear_sync()
        elif self._joining is not None:
            self._hear_join()
        elif self.generation < 0:
            self.join()
        else:
            named = {"group_instance_id": self.instance} if self.instance else {}
            code = self.world.heartbeat(self.member_id, self.generation, **named)
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self.join()
            elif code != ErrorCode.NONE:
                self._start_again(code)

    def _start_again(self, code: int) -> None:
        assert code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS), code
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if code != ErrorCode.REBALANCE_IN_PROGRESS:
            self.owned = {}
        self.generation, self._joining, self._syncing = -1, None, None

    def _hear_join(self) -> None:
        assert self._joining is not None
        reply = self.world.answers.get(self._joining)
        if reply is None:
            return
        self._joining = None
        if reply.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            self.join()
        elif reply.error_code != ErrorCode.NONE:
            self._start_again(reply.error_code)
        else:
            self.member_id, self.generation = reply.member_id, reply.generation_id
            given = None
            if reply.leader == self.member_id:
                subscriptions = {each.member_id: embedded.read_subscription(each.metadata) for each in reply.members}
                given = share(self.world, subscriptions)
            named = {"group_instance_id": self.instance} if self.instance else {}
            self._syncing = self.world.sync(
                self.member_id,
                self.generation,
                given,
                protocol_type=reply.protocol_type,
                protocol_name=reply.protocol_name,
                **named,
            )

    def _hear_sync(self) -> None:
        assert self._syncing is not None
        reply = self.world.answers.get(self._syncing)
        if reply is None:
            return
        self._syncing = None
        if reply.error_code != ErrorCode.NONE:
            self._start_again(reply.error_code)
            return
        rows = embedded.read_assignment(reply.assignment).assigned_partitions if reply.assignment else []
        now = {row.topic: sorted(row.partitions) for row in rows}
        lost = {(name, p) for name, partitions in self.owned.items() for p in partitions}
        lost -= {(name, p) for name, partitions in now.items() for p in partitions}
        self.owned = now
        if lost and self.cooperative:
            self.join()


def share(world: World, members: dict[str, ConsumerProtocolSubscription]) -> dict[str, bytes]:
    """The assignment of a leader: `t` in turns, but nothing that another still owns."""
    count = world.topics.by_name["t"].partition_count
    owners = {p: member_id for member_id, said in members.items() for row in said.owned_partitions for p in row.partitions}
    given = {}
    for place, member_id in enumerate(sorted(members)):
        mine = [p for p in range(place, count, len(members)) if owners.get(p, member_id) == member_id]
        rows = [ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=mine)]
        given[member_id] = b"\x00\x01" + codec.encode(ConsumerProtocolAssignment(assigned_partitions=rows), 1)
    return given


def settle(world: World, *members: Classic | Consumer, rounds: int = 14) -> None:
    """Everybody acts in turn; at no moment do two own the same partition."""
    for _ in range(rounds):
        world.pass_time(1_000)
        for member in members:
            if isinstance(member, Consumer):
                reply = member.heartbeat()
                assert reply.error_code == ErrorCode.NONE, reply
            else:
                member.step()
            owned = [p for each in members for p in each.partitions]
            assert len(owned) == len(set(owned)), f"owned twice: {[each.partitions for each in members]}"


def shares(*members: Classic | Consumer) -> list[int]:
    assert sorted(p for member in members for p in member.partitions) == [0, 1, 2, 3]
    return sorted(len(member.partitions) for member in members)


def check_reload(world: World) -> None:
    """The log alone makes the same group."""
    live, loaded = world.shard.groups["g"], world.reloaded().groups["g"]
    assert type(live) is type(loaded)
    if isinstance(live, ConsumerGroup) and isinstance(loaded, ConsumerGroup):
        for name in ("epoch", "assignment_epoch", "members", "target", "owners", "static_members"):
            assert getattr(live, name) == getattr(loaded, name), name
    elif isinstance(live, ClassicGroup) and isinstance(loaded, ClassicGroup):
        assert {m: each.assignment for m, each in loaded.members.items()} == {
            m: each.assignment for m, each in live.members.items()
        }


@pytest.mark.parametrize("cooperative", [False, True], ids=["eager", "cooperative"])
def test_a_group_is_upgraded_member_by_member(cooperative: bool) -> None:
    world = World(topic("t", 4))
    old = [Classic(world, ["t"], cooperative=cooperative) for _ in range(2)]
    settle(world, *old, rounds=20)
    assert shares(*old) == [2, 2]
    new = [Consumer(world, "a", ["t"])]
    settle(world, *old, *new)
    assert shares(*old, *new) == [1, 1, 2]
    assert sorted(member.member_type for member in describe(world).members) == [0, 0, 1]
    check_reload(world)
    for member_id in ("b", "c"):
        leaving = old.pop()
        assert world.leave(leaving.member_id).members[0].error_code == ErrorCode.NONE
        new.append(Consumer(world, member_id, ["t"]))
        settle(world, *old, *new)
    assert shares(*new) == [1, 1, 2]
    assert describe(world).group_state == "Stable"
    check_reload(world)


@pytest.mark.parametrize("cooperative", [False, True], ids=["eager", "cooperative"])
def test_a_group_is_downgraded_member_by_member(cooperative: bool) -> None:
    world = World(topic("t", 4))
    new = [Consumer(world, "a", ["t"]), Consumer(world, "b", ["t"])]
    settle(world, *new)
    assert commit(world, "a", new[0].epoch) == ErrorCode.NONE
    old: list[Classic] = []
    while new:
        old.append(Classic(world, ["t"], cooperative=cooperative))
        settle(world, *old, *new)
        check_reload(world)
        leaving = new.pop()
        leaving.heartbeat(member_epoch=-1)
        assert leaving.reply.error_code == ErrorCode.NONE
        leaving.owned = {}
        assert isinstance(world.shard.groups["g"], ConsumerGroup if new else ClassicGroup)
        check_reload(world)
        settle(world, *old, *new, rounds=20)
    assert shares(*old) == [2, 2]
    assert world.shard.offsets.get("g", "t", 0).offset == 7


def test_the_death_of_the_last_consumer_downgrades_too() -> None:
    world = World(topic("t", 4))
    new, old = Consumer(world, "a", ["t"]), Classic(world, ["t"])
    settle(world, new)
    settle(world, old, new)
    for _ in range(60):
        settle(world, old, rounds=1)
    assert isinstance(world.shard.groups["g"], ClassicGroup)
    assert old.partitions == [0, 1, 2, 3]


def test_members_that_wait_for_a_rebalance_hear_of_the_upgrade() -> None:
    world = World(topic("t", 4))
    first, waiting = Classic(world, ["t"]), Classic(world, ["t"])
    settle(world, first, rounds=10)
    waiting.step(), waiting.step()
    assert world.shard.groups["g"].state_name == "PreparingRebalance"
    new = Consumer(world, "a", ["t"])
    new.heartbeat()
    assert world.answers[waiting._joining].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    settle(world, first, waiting, new, rounds=20)
    assert shares(first, waiting, new) == [1, 1, 2]


def test_a_classic_member_that_does_not_join_again_is_removed_though_it_is_alive() -> None:
    world = World(topic("t", 4))
    stubborn, new = Classic(world, ["t"]), Consumer(world, "a", ["t"])
    settle(world, stubborn, rounds=10)
    settle(world, new, rounds=1)
    for _ in range(59):
        world.pass_time(1_000)
        assert world.heartbeat(stubborn.member_id, stubborn.generation) == ErrorCode.REBALANCE_IN_PROGRESS
        new.heartbeat()
    world.pass_time(1_000)
    assert world.heartbeat(stubborn.member_id, stubborn.generation) == ErrorCode.REBALANCE_IN_PROGRESS
    world.pass_time(1_000)
    assert world.heartbeat(stubborn.member_id, stubborn.generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_that_joins_and_does_not_sync_is_removed() -> None:
    world = World(topic("t", 4))
    new = Consumer(world, "a", ["t"])
    settle(world, new, rounds=2)
    half = Classic(world, ["t"])
    half.step(), half.step()
    joined = world.answers[half._joining]
    for _ in range(59):
        world.pass_time(1_000)
        new.heartbeat()
        world.heartbeat(half.member_id, joined.generation_id)
    assert half.member_id in world.shard.groups["g"].members
    world.pass_time(2_000)
    assert half.member_id not in world.shard.groups["g"].members


def test_a_static_member_changes_its_protocol_and_back() -> None:
    world = World(topic("t", 4))
    other, old = Classic(world, ["t"]), Classic(world, ["t"], instance="one")
    settle(world, other, old, rounds=20)
    new = Consumer(world, "a", ["t"], instance_id="one")
    settle(world, other, new, rounds=20)
    assert shares(other, new) == [2, 2]
    assert list(world.shard.groups["g"].members) == [other.member_id, "a"]
    again = Classic(world, ["t"], instance="one")
    new.owned = {}
    settle(world, other, again, rounds=20)
    assert isinstance(world.shard.groups["g"], ClassicGroup)
    assert shares(other, again) == [2, 2]
    check_reload(world)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"consumer_migration_policy": "disabled"}, "online upgrade is disabled"),
        ({"consumer_migration_policy": "downgrade"}, "online upgrade is disabled"),
        ({"consumer_group_max_size": 1}, "the group size exceeds the consumer group maximum size"),
    ],
)
def test_an_upgrade_that_the_settings_forbid_is_refused(fields: dict[str, Any], reason: str) -> None:
    world = World(topic("t", 4), **fields)
    old = [Classic(world, ["t"]), Classic(world, ["t"])]
    settle(world, *old, rounds=20)
    reply = Consumer(world, "a", ["t"]).heartbeat()
    assert reply.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert reply.error_message == f"Cannot upgrade classic group g to consumer group because {reason}."
    settle(world, *old)
    assert shares(*old) == [2, 2]


def test_a_group_that_may_not_be_downgraded_stays_what_it_is() -> None:
    world = World(topic("t", 4), consumer_migration_policy="upgrade")
    new, old = Consumer(world, "a", ["t"]), Classic(world, ["t"])
    settle(world, new)
    settle(world, old, new)
    new.heartbeat(member_epoch=-1)
    assert isinstance(world.shard.groups["g"], ConsumerGroup)
    back = Consumer(world, "b", ["t"])
    settle(world, old, back)
    assert shares(old, back) == [2, 2]


@pytest.mark.parametrize(
    ("protocol", "assignment", "reason"),
    [
        (("connect", [("range", b"")]), b"", "the group does not use the consumer embedded protocol"),
        (("consumer", [("range", b"?")]), b"", "the embedded consumer protocol is malformed"),
        (("consumer", None), b"garbage", "the embedded consumer protocol is malformed"),
        (("consumer", None), b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03own", "an unsupported custom assignor is in use"),
    ],
)
def test_a_group_that_is_not_understood_is_not_upgraded(protocol: Any, assignment: bytes, reason: str) -> None:
    world = World(topic("t", 4))
    fields = {"protocol_type": protocol[0]} | ({"protocols": protocol[1]} if protocol[1] else {})
    member_id, ticket = world.new_member(**fields)
    world.pass_time(4_000)
    world.sync(member_id, world.answers[ticket].generation_id, {member_id: assignment})
    reply = Consumer(world, "a", ["t"]).heartbeat()
    assert reply.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert reason in reply.error_message
    assert world.heartbeat(member_id, world.answers[ticket].generation_id) == ErrorCode.NONE


def test_classic_requests_about_a_consumer_are_refused() -> None:
    world = World(topic("t", 4))
    new, old = Consumer(world, "a", ["t"]), Classic(world, ["t"])
    settle(world, new)
    settle(world, old, new)
    assert world.heartbeat("a", new.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(old.member_id, old.generation + 1) == ErrorCode.ILLEGAL_GENERATION
    assert world.answers[world.sync("a", new.epoch)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    wrong = world.sync(old.member_id, old.generation, protocol_type="consumer", protocol_name="sticky")
    assert world.answers[wrong].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.answers[world.join(protocols=[("sticky", b"")])].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.answers[world.join(protocol_type="connect")].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert commit(world, old.member_id, old.generation + 1) == ErrorCode.ILLEGAL_GENERATION
    assert commit(world, old.member_id, old.generation) == ErrorCode.NONE
    settle(world, old, new, rounds=2)


def test_an_administrator_removes_a_consumer() -> None:
    world = World(topic("t", 4))
    first, second = Consumer(world, "a", ["t"]), Consumer(world, "b", ["t"])
    settle(world, first, second)
    assert [row.error_code for row in world.leave("b", "nobody").members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    settle(world, first)
    assert first.partitions == [0, 1, 2, 3]
    assert second.heartbeat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_partition_that_the_leader_gave_to_two_members_has_one_owner_after_the_upgrade() -> None:
    world = World(topic("t", 4))
    old = [Classic(world, ["t"]), Classic(world, ["t"])]
    settle(world, *old, rounds=20)
    both = share(world, {old[0].member_id: ConsumerProtocolSubscription()})[old[0].member_id]
    group = world.shard.groups["g"].copy()
    for member in list(group.members.values()):
        group.put(replace(member, assignment=both))
    world.shard.groups["g"] = group
    new = Consumer(world, "a", ["t"])
    new.heartbeat()
    held = [p for member in world.shard.groups["g"].members.values() for p in member.partitions()]
    assert len(held) == len(set(held)) == 4
    for member in old:
        member.owned = {}
    settle(world, *old, new, rounds=20)
    assert shares(*old, new) == [1, 1, 2]


# Random histories --------------------------------------------------------------------------------------------------------


class Crowd:
    """Members of both protocols that come, go and die at random. No two may ever own a partition, whatever the group is."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(topic("t", 4), consumer_assignment_interval_ms=self.chance.choice([0, 1_000]))
        self.alive: list[Classic | Consumer] = []
        self.kinds: set[str] = set()  # of the group, as it went

    def step(self) -> None:
        act = self.chance.random()
        if act < 0.08 and len(self.alive) < 5:
            self._add()
        elif act < 0.12 and len(self.alive) > 1:
            self._leave(self.alive.pop(self.chance.randrange(len(self.alive))))
        elif act < 0.14 and len(self.alive) > 1:
            self.alive.pop(self.chance.randrange(len(self.alive)))  # it dies; nobody is told
        else:
            self.world.pass_time(self.chance.choice([100, 1_000, 2_000]))
        self.act()

    def _add(self) -> None:
        if self.chance.random() < 0.5:
            self.alive.append(Classic(self.world, ["t"]))
        else:
            self.alive.append(Consumer(self.world, f"c{self.chance.randrange(10**9)}", ["t"]))

    def _leave(self, member: Classic | Consumer) -> None:
        if isinstance(member, Consumer):
            member.heartbeat(member_epoch=-1)
        elif member.member_id:
            self.world.leave(member.member_id)

    def act(self) -> None:
        for member in self.chance.sample(self.alive, len(self.alive)):
            if isinstance(member, Classic):
                member.step()
            elif member.heartbeat().error_code != ErrorCode.NONE:
                assert member.reply.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH), member.reply
                member.epoch, member.owned = 0, {}
            self.check()

    def check(self) -> None:
        owned = [p for each in self.alive for p in each.partitions]
        assert len(owned) == len(set(owned)), f"owned twice: {[each.partitions for each in self.alive]}"
        group = self.world.shard.groups.get("g")
        if isinstance(group, ConsumerGroup):
            held = [place for member in group.members.values() for place in member.partitions()]
            assert len(held) == len(set(held)), held
        if group is not None:
            self.kinds.add(group.group_type)


@pytest.mark.parametrize("seed", range(20))
def test_random_mixtures_share_everything_and_nothing_twice(seed: int) -> None:
    crowd = Crowd(seed)
    crowd.alive.append(Classic(crowd.world, ["t"]))
    crowd.act()
    crowd.alive.append(Consumer(crowd.world, "first", ["t"]))
    for _ in range(250):
        crowd.step()
    for _ in range(150):  # until the dead are missed
        crowd.world.pass_time(1_000)
        crowd.act()
    check_reload(crowd.world)
    assert sorted(p for each in crowd.alive for p in each.partitions) == [0, 1, 2, 3]
    counts = [len(each.partitions) for each in crowd.alive]
    assert max(counts) - min(counts) <= 1, counts
    assert crowd.kinds == {"classic", "consumer"}
