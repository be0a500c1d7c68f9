"""Random histories of groups, and what must hold whatever happens.

Named invariants, checked after every step: generations only grow; a partition has one owner; tickets are answered at most once
(the world asserts it); deciding changes nothing; the records alone give the durable state. At the end of a history, once
everybody has been silent long enough, every ticket has been answered.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from ottla.groups.classic import ClassicGroup, State
from ottla.groups.consumer import ConsumerGroup
from ottla.groups.shard import GroupShard
from ottla.model.errors import ErrorCode
from ottla.protocol.messages import group_offsets as offsets
from ottla.protocol.messages.transactions import TxnOffsetCommitRequest
from tests.groups.test_consumer import Consumer
from tests.groups.world import World, subscription, topic

GROUPS = ["g", "h"]
STEPS = 120


def durable(shard: GroupShard) -> Any:
    """What must survive a restart. A classic group between two generations has not written the next one yet, so only its
    offsets count then."""
    seen: dict[str, Any] = {}
    for group_id, group in shard.groups.items():
        if isinstance(group, ConsumerGroup):
            seen[group_id] = (
                group.epoch,
                group.assignment_epoch,
                group.metadata_hash,
                group.members,
                group.target,
                group.owners,
                group.regexes,
            )
        elif isinstance(group, ClassicGroup) and group.state in (State.STABLE, State.EMPTY):
            members = {
                m.member_id: (m.group_instance_id, m.session_timeout_ms, m.assignment, m.metadata(group.protocol_name))
                for m in group.members.values()
            }
            seen[group_id] = (group.generation, group.protocol_type, group.protocol_name, group.leader, members)
    return seen, shard.offsets.committed, shard.offsets.pending, shard.offsets.open_transactions


def restricted(state: Any, group_ids: Any) -> Any:
    seen, *rest = state
    return {name: value for name, value in seen.items() if name in group_ids}, *rest


class History:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(topic("t", 4), topic("u", 3))
        self.members: list[tuple[str, str, str | None]] = []  # group, member, instance
        self.generations: dict[str, int] = {}
        self.producers: set[int] = set()

    def step(self) -> None:
        action = self.chance.choice(
            [
                self.join,
                self.join,
                self.rejoin,
                self.rejoin,
                self.sync,
                self.sync,
                self.beat,
                self.leave,
                self.wait,
                self.commit,
                self.txn,
            ]
        )
        action()

    def pick(self) -> tuple[str, str, str | None]:
        known = [
            (group_id, member_id, member.group_instance_id)
            for group_id, group in self.world.shard.groups.items()
            if isinstance(group, ClassicGroup)
            for member_id, member in group.members.items()
        ]
        return self.chance.choice([*known, *self.members[-3:], ("g", "nobody", None)])

    def protocols(self) -> list[tuple[str, bytes]]:
        return [(name, subscription("t", *self.chance.sample(["u", "v"], 1))) for name in self.chance.sample(["a", "b"], 2)]

    def join(self) -> None:
        group_id = self.chance.choice(GROUPS)
        instance = self.chance.choice([None, None, "i1", "i2"])
        if instance is not None:
            self.world.join("", group_id, group_instance_id=instance, protocols=self.protocols())
        else:
            ticket = self.world.join("", group_id, protocols=self.protocols(), version=self.chance.choice([3, 5, 9]))
            answer = self.world.answers.get(ticket)
            if answer is not None and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED and self.chance.random() < 0.8:
                self.members.append((group_id, answer.member_id, None))
                self.world.join(answer.member_id, group_id, protocols=self.protocols())

    def rejoin(self) -> None:
        group_id, member_id, instance = self.pick()
        self.world.join(member_id, group_id, group_instance_id=instance, protocols=self.protocols())

    def generation(self, group_id: str) -> int:
        group = self.world.shard.groups.get(group_id)
        current = group.generation if isinstance(group, ClassicGroup) else 0
        return current - (self.chance.random() < 0.1)

    def sync(self) -> None:
        group_id, member_id, instance = self.pick()
        group = self.world.shard.groups.get(group_id)
        everybody = list(group.members) if isinstance(group, ClassicGroup) else []
        self.world.sync(
            member_id, self.generation(group_id), {m: m.encode() for m in everybody}, group_id, group_instance_id=instance
        )

    def beat(self) -> None:
        group_id, member_id, instance = self.pick()
        self.world.heartbeat(member_id, self.generation(group_id), group_id, group_instance_id=instance)

    def leave(self) -> None:
        group_id, member_id, _ = self.pick()
        self.world.leave(member_id, group=group_id)

    def wait(self) -> None:
        self.world.pass_time(self.chance.choice([10, 1_000, 3_000, 11_000, 61_000]))

    def commit(self) -> None:
        group_id, member_id, _ = self.pick()
        row = offsets.OffsetCommitRequest.OffsetCommitRequestTopic
        part = row.OffsetCommitRequestPartition(
            partition_index=self.chance.randrange(5), committed_offset=self.chance.randrange(99)
        )
        asked = [row(name=self.chance.choice("tu"), partitions=[part])]
        generation = self.generation(group_id)
        request = offsets.OffsetCommitRequest(
            group_id=group_id, member_id=member_id, generation_id_or_member_epoch=generation, topics=asked
        )
        self.world.send(request, 9)

    def txn(self) -> None:
        producer = self.chance.randrange(3)
        if producer in self.producers and self.chance.random() < 0.5:
            self.producers.discard(producer)
            self.world.end_transaction(producer, self.chance.random() < 0.5)
            return
        self.producers.add(producer)
        row = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        part = row.TxnOffsetCommitRequestPartition(
            partition_index=self.chance.randrange(4), committed_offset=self.chance.randrange(99)
        )
        self.world.send(
            TxnOffsetCommitRequest(
                transactional_id="x",
                group_id=self.chance.choice(GROUPS),
                producer_id=producer,
                topics=[row(name="t", partitions=[part])],
            ),
            3,
        )

    def check(self) -> None:
        for group in self.world.shard.groups.values():
            if isinstance(group, ClassicGroup):
                check_generation_only_grows(self.generations, group)
                check_members_are_consistent(group)
        live, recovered = durable(self.world.shard), durable(self.world.reloaded())
        settled = live[0].keys()
        assert restricted(recovered, settled) == live


def check_generation_only_grows(generations: dict[str, int], group: ClassicGroup) -> None:
    assert group.generation >= generations.get(group.group_id, 0)
    generations[group.group_id] = group.generation


def check_members_are_consistent(group: ClassicGroup) -> None:
    assert (group.leader in group.members) if group.members else group.leader is None
    assert group.pending_sync <= group.members.keys()
    assert not group.pending_join & group.members.keys()
    assert group.static_members == {m.group_instance_id: m.member_id for m in group.members.values() if m.group_instance_id}
    assert (group.state is State.EMPTY) <= (not group.members)
    for name, count in group.supporters.items():
        assert count == sum(name in dict(m.protocols) for m in group.members.values())
    for member in group.members.values():
        assert member.join_ticket is None or member.sync_ticket is None
        assert member.join_ticket is None or group.state is State.PREPARING_REBALANCE
        assert member.sync_ticket is None or group.state is State.COMPLETING_REBALANCE


@pytest.mark.parametrize("seed", range(40))
def test_classic_groups_keep_their_invariants_through_random_histories(seed: int):
    history = History(seed)
    for _ in range(STEPS):
        history.step()
        history.check()
    history.world.pass_time(1_000_000)
    assert history.world.answers.keys() == set(range(1, history.world.tickets + 1)), "every ticket is answered in the end"


def test_deciding_changes_nothing():
    """Compare the whole shard before and after decisions that are then thrown away."""
    history = History(7)
    for _ in range(60):
        history.step()
        world = history.world
        before = copy.deepcopy((durable(world.shard), {name: group_fields(g) for name, g in world.shard.groups.items()}))
        perform, world.perform = world.perform, lambda decision: None
        quiet_step(history)
        world.perform = perform
        assert before == (durable(world.shard), {name: group_fields(g) for name, g in world.shard.groups.items()})


def quiet_step(history: History) -> None:
    world, chance = history.world, history.chance
    group_id, member_id, instance = history.pick()
    chance.choice(
        [
            lambda: world.join("", group_id, protocols=history.protocols()),
            lambda: world.join(member_id, group_id, group_instance_id=instance, protocols=history.protocols()),
            lambda: world.sync(member_id, history.generation(group_id), {member_id: b"x"}, group_id, group_instance_id=instance),
            lambda: [world.shard.expire(key, world.context()) for key in list(world.deadlines)],
        ]
    )()


def group_fields(group: Any) -> dict[str, Any]:
    return {name: getattr(group, name) for name in group.__slots__}


# Consumer groups ---------------------------------------------------------------------------------------------------------


def check_one_owner(world: World) -> None:
    group = world.shard.groups.get("g")
    if isinstance(group, ConsumerGroup):
        held = [place for member in group.members.values() for place in member.partitions()]
        assert len(held) == len(set(held)), "a partition has two owners"
        owners = {(t, p): m for t, partitions in group.owners.items() for p, m in partitions.items()}
        assert owners == {place: member.member_id for member in group.members.values() for place in member.partitions()}


@pytest.mark.parametrize("seed", range(40))
def test_consumer_groups_keep_their_invariants_through_random_histories(seed: int):
    chance = random.Random(seed)
    world = World(topic("t", 4), topic("u", 3), consumer_assignment_interval_ms=chance.choice([0, 1_000]))
    alive: dict[str, Consumer] = {}
    epoch = 0
    for number in range(STEPS):
        act = chance.random()
        if act < 0.12:
            fields = chance.choice(
                [{"subscribed_topic_regex": chance.choice(["t", "t|u", "v.*"])}, {"topics": ["t"]}, {"topics": ["t", "u"]}]
            )
            instance = chance.choice([None, None, "i1", "i2"])
            extra = {} if instance is None else {"instance_id": instance}
            member = Consumer(
                world, f"m{number}", fields.pop("topics", None), server_assignor=chance.choice([None, "range"]), **fields, **extra
            )
            if member.heartbeat().error_code == ErrorCode.NONE:
                alive[member.member_id] = member
        elif act < 0.8 and alive:
            member = chance.choice(list(alive.values()))
            said = member.owned if chance.random() < 0.8 else None
            reply = member.heartbeat(**({} if said is not None else {"topic_partitions": None}))
            if reply.error_code != ErrorCode.NONE:
                del alive[member.member_id]
        elif act < 0.86 and alive:
            member = alive.pop(chance.choice(list(alive)))
            member.heartbeat(member_epoch=-1 if "instance_id" not in member.fields else chance.choice([-1, -2]))
        elif act < 0.92:
            world.grow(topic(chance.choice("tuv"), chance.randint(1, 6)))
        else:
            world.pass_time(chance.choice([500, 1_000, 30_000, 61_000]))
        check_one_owner(world)
        group = world.shard.groups.get("g")
        if isinstance(group, ConsumerGroup):
            assert group.epoch >= epoch
            assert group.assignment_epoch <= group.epoch
            epoch = group.epoch
        else:
            epoch = 0  # an empty group without offsets goes, and one of its name begins anew
        assert durable(world.reloaded()) == durable(world.shard)
    converge(world, alive)


def converge(world: World, alive: dict[str, Consumer]) -> None:
    """Left alone, the group comes to rest with every subscribed partition owned by one who knows it."""
    for _ in range(60):
        world.pass_time(5_000)
        for name, member in list(alive.items()):
            if member.heartbeat().error_code != ErrorCode.NONE:
                del alive[name]
    group = world.shard.groups.get("g")
    if not alive:
        return
    assert isinstance(group, ConsumerGroup)
    assert group.state_name == "Stable"
    wanted = {
        (world.topics.by_name[n].topic_id, p)
        for n in group.subscribed_topics()
        if n in world.topics.by_name
        for p in range(world.topics.by_name[n].partition_count)
    }
    known = sorted((t, p) for member in alive.values() for t, partitions in member.owned.items() for p in partitions)
    assert known == sorted(wanted)
