"""Requests made at random from small pools of plausible and absurd values: the shard answers every one, and breaks on none."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ottla.groups.shard import _HANDLERS
from ottla.protocol.schema import Field, Message, Struct
from tests.groups.test_properties import check_members_are_consistent, check_one_owner, durable, restricted
from tests.groups.world import World, subscription, topic

STEPS = 400
TEXTS = ["", "g", "h", "t", "u", "i1", "i2", "range", "uniform", "consumer", "x" * 300, "(", "t|u", "Stable", "classic", "é𝄞"]
NUMBERS = [-(2**31), -3, -2, -1, 0, 0, 1, 1, 2, 3, 5, 10_000, 60_000, 2**31 - 1]
ASSIGNMENT = b"\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff"  # t-0 and t-1
BYTES = [b"", b"\x00", subscription("t"), subscription("t", "u"), ASSIGNMENT, ASSIGNMENT, b"\xff" * 40]
RANGES = {"int8": 2**7, "int16": 2**15, "int32": 2**31, "int64": 2**63}


class Maker:
    def __init__(self, chance: random.Random, world: World) -> None:
        self.chance, self.world = chance, world

    def message(self, kind: type[Struct]) -> Any:
        return kind(**{name: self.field(name, field) for name, field in kind.__fields__.items()})

    def field(self, name: str, field: Field) -> Any:
        if field.nullable.last >= field.nullable.first and self.chance.random() < 0.3:
            return None
        if field.is_array:
            return [self.value(name, field.kind) for _ in range(self.chance.choice([0, 1, 1, 2]))]
        return self.value(name, field.kind)

    def value(self, name: str, kind: Any) -> Any:
        if isinstance(kind, type):
            return self.message(kind)
        if kind == "string":
            return self.chance.choice([*TEXTS, *self.known_members(), *(["g", "h"] * 8 if name == "group_id" else [])])
        if kind in ("bytes", "records"):
            return self.chance.choice(BYTES)
        if kind == "uuid":
            return self.chance.choice([bytes(16), topic("t", 1).topic_id, b"?" * 16])
        if kind == "bool":
            return self.chance.random() < 0.5
        number = self.chance.choice([*NUMBERS, *self.known_epochs()])
        return max(-RANGES[kind], min(RANGES[kind] - 1, number))

    def known_members(self) -> list[str]:
        return [member for group in self.world.shard.groups.values() for member in getattr(group, "members", {})] * 2

    def known_epochs(self) -> list[int]:
        return [getattr(group, "generation", getattr(group, "epoch", 0)) for group in self.world.shard.groups.values()] * 3


def send(world: World, chance: random.Random, request: Message) -> None:
    """In any version that can carry it."""
    versions = list(type(request).VERSIONS)
    chance.shuffle(versions)
    for version in versions:
        try:
            world.send(request, version)
            return
        except Exception as error:
            if "must not be null" not in str(error):
                raise


@pytest.mark.parametrize("seed", range(12))
def test_no_request_breaks_the_shard(seed: int):
    chance = random.Random(seed)
    world = World(topic("t", 3), topic("u", 2), consumer_assignment_interval_ms=0)
    world.new_member("g")
    maker = Maker(chance, world)
    kinds = list(_HANDLERS)
    for _ in range(STEPS):
        send(world, chance, maker.message(chance.choice(kinds)))
        if chance.random() < 0.1:
            world.pass_time(chance.choice([1, 3_000, 50_000]))
        for group in world.shard.groups.values():
            if group.group_type == "classic":
                check_members_are_consistent(group)
        check_one_owner(world)
    live, recovered = durable(world.shard), durable(world.reloaded())
    assert restricted(recovered, live[0].keys()) == live
    world.pass_time(3_000_000_000)
    assert world.answers.keys() == set(range(1, world.tickets + 1))
