"""Committed offsets: commit, fetch, delete, transactions, expiry."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from ottla.protocol.messages import group_offsets as wire
from ottla.protocol.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from ottla.protocol.messages.transactions import TxnOffsetCommitRequest
from tests.groups.world import World, topic

DAY_MS = 24 * 3600 * 1000
_CommitTopic = wire.OffsetCommitRequest.OffsetCommitRequestTopic
_FetchGroup = wire.OffsetFetchRequest.OffsetFetchRequestGroup


def commit(world: World, offset: int = 7, name: str = "t", partition: int = 0, version: int = 9, **fields: Any) -> int:
    row = _CommitTopic.OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        committed_leader_epoch=fields.pop("leader_epoch", -1),
        committed_metadata=fields.pop("metadata", ""),
    )
    asked = _CommitTopic(name=name, topic_id=fields.pop("topic_id", bytes(16)), partitions=[row])
    request = wire.OffsetCommitRequest(**({"group_id": "g"} | fields), topics=[asked])
    return int(world.ask(request, version).topics[0].partitions[0].error_code)


def fetch(world: World, name: str = "t", partition: int = 0, require_stable: bool = False) -> tuple[int, int]:
    wanted = [_FetchGroup.OffsetFetchRequestTopics(name=name, partition_indexes=[partition])]
    request = wire.OffsetFetchRequest(groups=[_FetchGroup(group_id="g", topics=wanted)], require_stable=require_stable)
    found = world.ask(request, 9).groups[0].topics[0].partitions[0]
    return found.committed_offset, found.error_code


def txn_commit(world: World, offset: int, producer_id: int = 1, partition: int = 0, **fields: Any) -> int:
    row = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=""
    )
    asked = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=fields.pop("name", "t"), partitions=[row])
    request = TxnOffsetCommitRequest(
        transactional_id="x", producer_id=producer_id, producer_epoch=0, topics=[asked], **({"group_id": "g"} | fields)
    )
    return int(world.ask(request, 3).topics[0].partitions[0].error_code)


# Commit and fetch --------------------------------------------------------------------------------------------------------


def test_what_is_committed_is_fetched_also_after_a_restart():
    world = World(topic("t", 2))
    assert fetch(world) == (-1, ErrorCode.NONE)
    commit(world, 5)
    commit(world, 6)
    commit(world, 9, partition=1)
    assert (fetch(world), fetch(world, partition=1)) == ((6, 0), (9, 0))
    world.shard = world.reloaded()
    assert (fetch(world), fetch(world, partition=1)) == ((6, 0), (9, 0))


@pytest.mark.parametrize("version", range(2, 11))
def test_every_version_commits(version: int):
    world = World(topic("t", 1))
    assert commit(world, 5, version=version, topic_id=topic("t", 1).topic_id) == ErrorCode.NONE
    assert fetch(world) == (5, 0)


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_fetches(version: int):
    world = World(topic("t", 2))
    commit(world, 5, metadata="note", leader_epoch=3)
    old = wire.OffsetFetchRequest(
        group_id="g", topics=[wire.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    )
    wanted = [_FetchGroup.OffsetFetchRequestTopics(name="t", topic_id=topic("t", 2).topic_id, partition_indexes=[0, 1])]
    new = wire.OffsetFetchRequest(groups=[_FetchGroup(group_id="g", topics=wanted)])
    reply = world.ask(old if version < 8 else new, version)
    topics = reply.topics if version < 8 else reply.groups[0].topics
    assert [(p.committed_offset, p.metadata, p.error_code) for p in topics[0].partitions] == [(5, "note", 0), (-1, "", 0)]


def test_all_offsets_of_several_groups_come_with_one_request():
    world = World(topic("t", 2), topic("u", 1))
    commit(world, 1)
    commit(world, 2, name="u")
    commit(world, 3, group_id="h")
    request = wire.OffsetFetchRequest(groups=[_FetchGroup(group_id=name, topics=None) for name in ("g", "h", "nothing")])
    found = {
        group.group_id: {t.name: t.partitions[0].committed_offset for t in group.topics} for group in world.ask(request, 8).groups
    }
    assert found == {"g": {"t": 1, "u": 2}, "h": {"t": 3}, "nothing": {}}
    by_id = world.ask(wire.OffsetFetchRequest(groups=[_FetchGroup(group_id="h", topics=None)]), 10).groups[0]
    assert by_id.topics[0].topic_id == topic("t", 2).topic_id


def test_topic_ids_that_nobody_knows_are_said_to_be_unknown():
    world = World(topic("t", 1))
    assert commit(world, 1, version=10, topic_id=b"?" * 16) == ErrorCode.UNKNOWN_TOPIC_ID
    wanted = [_FetchGroup.OffsetFetchRequestTopics(topic_id=b"?" * 16, partition_indexes=[0])]
    reply = world.ask(wire.OffsetFetchRequest(groups=[_FetchGroup(group_id="g", topics=wanted)]), 10)
    assert reply.groups[0].topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": "missing"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"metadata": "x" * 4097}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ({"generation_id_or_member_epoch": 3}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"generation_id_or_member_epoch": 3, "version": 8}, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_a_commit_that_cannot_be_is_refused_and_changes_nothing(fields: dict, code: ErrorCode):
    world = World(topic("t", 1))
    assert commit(world, **fields) == code
    assert world.log == []


def test_commits_into_a_group_with_members_need_a_member_of_this_generation():
    world = World(topic("t", 1))
    (only,), generation = world.stable_group(1)
    assert commit(world) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(world, member_id=only, generation_id_or_member_epoch=generation - 1) == ErrorCode.ILLEGAL_GENERATION
    assert commit(world, member_id="x", generation_id_or_member_epoch=generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(world, member_id=only, generation_id_or_member_epoch=generation) == ErrorCode.NONE
    world.new_member()
    assert commit(world, member_id=only, generation_id_or_member_epoch=generation) == ErrorCode.NONE, (
        "it may commit before it rejoins"
    )
    world.join(only)
    assert commit(world, member_id=only, generation_id_or_member_epoch=generation + 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_metadata_of_just_the_allowed_size_is_taken():
    assert commit(World(topic("t", 1)), metadata="x" * 4096) == ErrorCode.NONE


# Transactions ------------------------------------------------------------------------------------------------------------


def test_an_offset_in_a_transaction_is_seen_once_the_transaction_is_committed():
    world = World(topic("t", 1))
    commit(world, 5)
    txn_commit(world, 9)
    assert fetch(world) == (5, 0)
    assert fetch(world, require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    world.end_transaction(1, committed=True)
    assert fetch(world, require_stable=True) == (9, 0)
    assert world.reloaded().offsets.get("g", "t", 0).offset == 9


def test_an_offset_in_a_transaction_that_is_aborted_never_was():
    world = World(topic("t", 1))
    commit(world, 5)
    txn_commit(world, 9)
    world.end_transaction(1, committed=False)
    assert fetch(world, require_stable=True) == (5, 0)
    assert world.shard.offsets.open_transactions == {}


def test_a_plain_commit_after_a_pending_one_wins():
    """Its record is younger; the marker comes later, but commits what was written before."""
    world = World(topic("t", 1))
    txn_commit(world, 9)
    commit(world, 20)
    world.end_transaction(1, committed=True)
    assert fetch(world) == (20, 0)


def test_transactions_of_two_producers_are_apart():
    world = World(topic("t", 1))
    txn_commit(world, 9, producer_id=1)
    txn_commit(world, 11, producer_id=2)
    world.end_transaction(1, committed=True)
    assert fetch(world, require_stable=True)[1] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(2, committed=False)
    assert fetch(world, require_stable=True) == (9, 0)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"generation_id": 4}, ErrorCode.ILLEGAL_GENERATION),
        ({"name": "missing"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 3}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_transactional_commit_that_cannot_be_is_refused(fields: dict, code: ErrorCode):
    world = World(topic("t", 1))
    assert txn_commit(world, 1, **fields) == code
    assert world.log == []


def test_a_zombie_of_an_older_generation_cannot_commit_in_a_transaction():
    world = World(topic("t", 1))
    (only,), generation = world.stable_group(1)
    assert txn_commit(world, 1, member_id=only, generation_id=generation - 1) == ErrorCode.ILLEGAL_GENERATION
    assert txn_commit(world, 1, member_id="zombie", generation_id=generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert txn_commit(world, 1, member_id=only, generation_id=generation) == ErrorCode.NONE
    assert txn_commit(world, 1, producer_id=2) == ErrorCode.NONE, "a producer that names no consumer is not fenced by it"


# Deleting and expiring ---------------------------------------------------------------------------------------------------


def delete_offsets(world: World, name: str = "t", partition: int = 0, group: str = "g") -> tuple[int, int | None]:
    asked = wire.OffsetDeleteRequest.OffsetDeleteRequestTopic
    topics = [asked(name=name, partitions=[asked.OffsetDeleteRequestPartition(partition_index=partition)])]
    reply = world.ask(wire.OffsetDeleteRequest(group_id=group, topics=topics))
    return reply.error_code, reply.topics[0].partitions[0].error_code if reply.topics else None


def test_offsets_of_a_topic_in_use_are_not_deleted():
    world = World(topic("t", 1), topic("u", 1))
    commit(world, 1)
    commit(world, 2, name="u")
    world.stable_group(1)
    assert delete_offsets(world) == (0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    assert delete_offsets(world, "u") == (0, 0)
    assert (fetch(world), fetch(world, "u")) == ((1, 0), (-1, 0))
    assert delete_offsets(world, "missing") == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert delete_offsets(world, group="nothing") == (ErrorCode.GROUP_ID_NOT_FOUND, None)
    assert delete_offsets(world, group="") == (ErrorCode.INVALID_GROUP_ID, None)


def test_offsets_of_a_group_that_is_no_group_of_consumers_stay_while_it_lives():
    world = World(topic("t", 1))
    commit(world, 1)
    world.stable_group(1, protocol_type="connect")
    assert delete_offsets(world) == (ErrorCode.NON_EMPTY_GROUP, None)


def test_a_deleted_group_takes_its_offsets_along_pending_ones_too():
    world = World(topic("t", 2))
    commit(world, 1)
    txn_commit(world, 2, partition=1)
    results = world.ask(DeleteGroupsRequest(groups_names=["g", "nothing"])).results
    assert [result.error_code for result in results] == [0, ErrorCode.GROUP_ID_NOT_FOUND]
    world.end_transaction(1, committed=True)
    for shard in (world.shard, world.reloaded()):
        assert (shard.groups, shard.offsets.committed) == ({}, {})


def test_offsets_of_a_simple_group_expire_by_their_own_age():
    world = World(topic("t", 2))
    commit(world, 1)
    world.pass_time(4 * DAY_MS)
    commit(world, 2, partition=1)
    world.pass_time(3 * DAY_MS + 700_000)
    assert (fetch(world), fetch(world, partition=1)) == ((-1, 0), (2, 0))
    world.pass_time(4 * DAY_MS)
    assert world.shard.groups == {}, "the group goes with its last offset"


def test_offsets_of_a_group_count_from_when_its_last_member_left():
    world = World(topic("t", 1))
    (only,), generation = world.stable_group(1, session_timeout_ms=1_800_000)
    commit(world, 1, member_id=only, generation_id_or_member_epoch=generation)
    for _ in range(9 * 24 * 3):
        world.pass_time(1_200_000)
        assert world.heartbeat(only, generation) == ErrorCode.NONE
    assert fetch(world) == (1, 0)
    world.leave(only)
    world.pass_time(6 * DAY_MS)
    assert fetch(world) == (1, 0)
    world.pass_time(DAY_MS + 700_000)
    assert fetch(world) == (-1, 0)


def test_offsets_of_topics_no_longer_subscribed_to_expire_in_a_living_group():
    world = World(topic("t", 1), topic("u", 1))
    commit(world, 1)
    commit(world, 2, name="u")
    (only,), generation = world.stable_group(1, session_timeout_ms=1_800_000)
    for _ in range(8 * 24 * 3):
        world.pass_time(1_200_000)
        assert world.heartbeat(only, generation) == ErrorCode.NONE
    assert (fetch(world), fetch(world, "u")) == ((1, 0), (-1, 0))


def test_a_client_may_say_how_long_to_keep_its_offset():
    world = World(topic("t", 1))
    commit(world, 1, version=3, retention_time_ms=1_000)
    world.pass_time(700_000)
    assert fetch(world) == (-1, 0)


def test_an_offset_that_is_pending_in_a_transaction_does_not_expire():
    world = World(topic("t", 1))
    commit(world, 1)
    txn_commit(world, 2)
    world.pass_time(8 * DAY_MS)
    assert fetch(world) == (1, 0)


def test_offsets_go_with_their_topic_but_not_with_a_namesake():
    world = World(topic("t", 2))
    commit(world, 1)
    world.perform(world.shard.topics_deleted([("t", b"another topic id")], world.context()))
    assert fetch(world) == (1, 0)
    world.perform(world.shard.topics_deleted([("t", topic("t", 2).topic_id)], world.context()))
    assert fetch(world) == (-1, 0)


# Listing -----------------------------------------------------------------------------------------------------------------


def test_groups_are_listed_by_state_and_type():
    world = World(topic("t", 1))
    commit(world, 1, group_id="simple")
    world.stable_group(1, group="busy")

    def listed(**filters: Any) -> dict[str, tuple[str, str, str]]:
        groups = world.ask(ListGroupsRequest(**filters)).groups
        return {g.group_id: (g.protocol_type, g.group_state, g.group_type) for g in groups}

    assert listed() == {"simple": ("", "Empty", "classic"), "busy": ("consumer", "Stable", "classic")}
    assert set(listed(states_filter=["stable"])) == {"busy"}
    assert set(listed(states_filter=["Empty", "Dead"])) == {"simple"}
    assert set(listed(types_filter=["consumer"])) == set()
    assert set(listed(types_filter=["nonsense"])) == set()
