"""The assignors against dumb twins and against what every assignment must be."""

from __future__ import annotations

import random
from itertools import product

import pytest

from ottla.groups.assignors import ASSIGNORS
from ottla.groups.assignors.spec import GroupSpec, MemberSpec
from ottla.groups.context import Topic
from tests.groups.world import topic

Assignment = dict[str, dict[bytes, set[int]]]


def random_group(chance: random.Random, homogeneous: bool, racks: bool = False) -> GroupSpec:
    names = [f"t{n}" for n in range(chance.randint(1, 4))]
    topics = []
    for name in names:
        count = chance.randint(0, 7)
        places = tuple(frozenset(chance.sample("xyz", 2)) for _ in range(count)) if racks else ()
        topics.append(topic(name, count, places))
    everything = frozenset(t.topic_id for t in topics)
    members = {}
    for n in range(chance.randint(1, 6)):
        wanted = everything if homogeneous else frozenset(t.topic_id for t in topics if chance.random() < 0.6)
        members[f"m{chance.randint(0, 99)}-{n}"] = MemberSpec(
            wanted, instance_id=f"i{n}" if chance.random() < 0.3 else None, rack_id=chance.choice("xyz") if racks else None
        )
    wanted_by_any = frozenset().union(*(m.topic_ids for m in members.values()))
    return GroupSpec(members, {t.topic_id: t for t in topics if t.topic_id in wanted_by_any})


def check(group: GroupSpec, assignment: Assignment) -> None:
    """Every partition exactly once, and only to members that want its topic."""
    given = [(t, p) for topics in assignment.values() for t, partitions in topics.items() for p in partitions]
    wanted = [(t.topic_id, p) for t in group.topics.values() for p in range(t.partition_count)]
    assert sorted(given) == sorted(wanted)
    for member_id, topics in assignment.items():
        assert topics.keys() <= group.members[member_id].topic_ids
        assert all(topics.values()), "no empty sets"


def loads(assignment: Assignment) -> list[int]:
    return sorted(sum(len(p) for p in topics.values()) for topics in assignment.values())


def then(group: GroupSpec, assignment: Assignment, members: dict[str, MemberSpec] | None = None) -> GroupSpec:
    """The same group later, with this assignment as the target it has."""
    source = members if members is not None else group.members
    kept = {
        name: MemberSpec(member.topic_ids, member.instance_id, member.rack_id, assignment.get(name, {}))
        for name, member in source.items()
    }
    wanted = frozenset().union(*(member.topic_ids for member in kept.values()))
    return GroupSpec(kept, {t: v for t, v in group.topics.items() if t in wanted})


@pytest.mark.parametrize(("name", "homogeneous", "racks"), list(product(ASSIGNORS, (True, False), (True, False))))
def test_every_partition_has_one_owner_that_wants_it(name: str, homogeneous: bool, racks: bool):
    for seed in range(150):
        group = random_group(random.Random(seed), homogeneous, racks)
        assignment = ASSIGNORS[name](group)
        check(group, assignment)
        check(group, ASSIGNORS[name](then(group, assignment)))


def test_uniform_gives_everybody_the_same_number_in_a_homogeneous_group():
    for seed in range(300):
        chance = random.Random(seed)
        group = random_group(chance, homogeneous=True, racks=chance.random() < 0.5)
        spread = loads(ASSIGNORS["uniform"](group))
        assert spread[-1] - spread[0] <= 1


def test_uniform_moves_nothing_when_nothing_changes():
    for seed in range(300):
        group = random_group(random.Random(seed), homogeneous=seed % 2 == 0)
        assignment = ASSIGNORS["uniform"](group)
        assert ASSIGNORS["uniform"](then(group, assignment)) == assignment


def moves(before: Assignment, after: Assignment, staying: set[str]) -> int:
    """Partitions that members who stay lost."""
    return sum(
        len(partitions - after.get(member_id, {}).get(t, set()))
        for member_id, topics in before.items()
        if member_id in staying
        for t, partitions in topics.items()
    )


def test_uniform_moves_no_more_than_a_leaving_or_joining_member_makes_necessary():
    for seed in range(300):
        chance = random.Random(seed)
        group = random_group(chance, homogeneous=True)
        before = ASSIGNORS["uniform"](group)
        total = sum(loads(before))
        if len(group.members) > 1:
            rest = dict(list(group.members.items())[1:])
            assert moves(before, ASSIGNORS["uniform"](then(group, before, rest)), set(rest)) == 0
        newcomer = MemberSpec(next(iter(group.members.values())).topic_ids)
        more = {**group.members, "new": newcomer}
        after = ASSIGNORS["uniform"](then(group, before, more))
        assert moves(before, after, set(group.members)) <= -(-total // len(more))


def best_spread(group: GroupSpec) -> list[int]:
    """The dumb twin: all ways to share the partitions out, and the most even of them."""
    partitions = [t.topic_id for t in group.topics.values() for _ in range(t.partition_count)]
    choices = [[m for m, spec in group.members.items() if topic_id in spec.topic_ids] for topic_id in partitions]
    best: list[int] | None = None
    for owners in product(*choices):
        load = sorted(owners.count(member_id) for member_id in group.members)
        if best is None or sum(n * n for n in load) < sum(n * n for n in best):
            best = load
    assert best is not None
    return best


def test_uniform_is_as_even_as_subscriptions_allow_in_a_heterogeneous_group():
    tried = 0
    for seed in range(400):
        group = random_group(random.Random(seed), homogeneous=False)
        size = sum(t.partition_count for t in group.topics.values())
        if size > 7 or len(group.members) > 4:
            continue
        tried += 1
        assert loads(ASSIGNORS["uniform"](group)) == best_spread(group)
    assert tried > 20


def test_uniform_prefers_members_near_a_replica():
    racks = tuple(frozenset({"xyz"[n % 3]}) for n in range(6))
    spread: Topic = topic("t", 6, racks)
    members = {f"m{rack}": MemberSpec(frozenset({spread.topic_id}), rack_id=rack) for rack in "zyx"}
    assignment = ASSIGNORS["uniform"](GroupSpec(members, {spread.topic_id: spread}))
    assert assignment == {f"m{r}": {spread.topic_id: {p for p in range(6) if "xyz"[p % 3] == r}} for r in "xyz"}


def test_range_cuts_each_topic_into_consecutive_ranges():
    """The dumb twin: cut a list into slices."""
    for seed in range(200):
        group = random_group(random.Random(seed), homogeneous=False)
        assignment = ASSIGNORS["range"](group)
        order = sorted(group.members, key=lambda m: (group.members[m].instance_id is None, group.members[m].instance_id or m))
        for topic_id, known in group.topics.items():
            takers = [member_id for member_id in order if topic_id in group.members[member_id].topic_ids]
            rest = list(range(known.partition_count))
            for position, member_id in enumerate(takers):
                share = -(-len(rest) // (len(takers) - position))
                assert sorted(assignment[member_id].get(topic_id, set())) == rest[:share]
                rest = rest[share:]


def test_range_gives_the_same_ranges_of_equally_partitioned_topics():
    topics = {t.topic_id: t for t in (topic("left", 5), topic("right", 5))}
    members = {name: MemberSpec(frozenset(topics)) for name in "abc"}
    for shares in ASSIGNORS["range"](GroupSpec(members, topics)).values():
        left, right = shares.values()
        assert left == right
