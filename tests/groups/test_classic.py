"""The classic protocol, told as stories. Names of members are made from the order in which they came."""

from __future__ import annotations

import pytest

from ottla.groups.classic import ClassicGroup, State
from ottla.model.errors import ErrorCode
from ottla.protocol.messages import classic_groups as wire
from ottla.protocol.messages.group_offsets import OffsetCommitRequest
from ottla.protocol.messages.groups import DescribeGroupsRequest
from tests.groups.world import World, subscription, topic


def group_of(world: World, name: str = "g") -> ClassicGroup:
    group = world.shard.groups[name]
    assert isinstance(group, ClassicGroup)
    return group


def describe(world: World, version: int = 6, name: str = "g"):
    return world.ask(DescribeGroupsRequest(groups=[name]), version).groups[0]


# Joining ---------------------------------------------------------------------------------------------------------------


def test_a_new_member_is_given_an_id_and_must_come_back_with_it():
    world = World()
    given = world.answers[world.join()]
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert given.member_id.startswith("client-")
    ticket = world.join(given.member_id)
    assert ticket not in world.answers
    assert describe(world).group_state == "PreparingRebalance"


def test_an_old_client_joins_without_being_sent_back():
    world = World()
    ticket = world.join(version=3)
    world.pass_time(3_000)
    assert world.answers[ticket].error_code == ErrorCode.NONE
    assert world.answers[ticket].members[0].member_id == world.answers[ticket].leader


def test_an_id_that_nobody_gave_out_is_refused_and_makes_no_group():
    world = World()
    assert world.answers[world.join("made-up")].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.shard.groups == {}
    assert world.log == []


def test_an_id_given_out_and_never_used_is_forgotten_after_the_session_timeout():
    world = World()
    given = world.answers[world.join()].member_id
    world.pass_time(10_001)
    assert world.answers[world.join(given)].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_start_together_meet_in_the_first_generation():
    world = World()
    first, first_ticket = world.new_member()
    world.pass_time(2_000)
    second, second_ticket = world.new_member()
    world.pass_time(3_000)
    assert first_ticket not in world.answers, "the newcomer prolongs the wait"
    world.pass_time(3_000)
    leader, follower = world.answers[first_ticket], world.answers[second_ticket]
    assert leader.leader == follower.leader == first
    assert [member.member_id for member in leader.members] == [first, second]
    assert follower.members == []
    assert leader.generation_id == follower.generation_id == 1


def test_the_initial_wait_ends_with_the_rebalance_timeout_however_many_come():
    world = World()
    _, first = world.new_member(rebalance_timeout_ms=7_000)
    for _ in range(8):
        world.pass_time(1_000)
        if first in world.answers:
            break
        world.new_member(rebalance_timeout_ms=7_000)
    assert world.answers[first].error_code == ErrorCode.NONE


def test_the_leaders_assignments_reach_everybody_through_the_log():
    world = World()
    ids, generation = world.stable_group(3)
    assert describe(world).group_state == "Stable"
    described = {member.member_id: member.member_assignment for member in describe(world).members}
    assert described == {member_id: member_id.encode() for member_id in ids}
    assert world.log[-1].value.generation == generation


def test_a_member_that_joins_a_stable_group_sends_everybody_back_to_join():
    world = World()
    ids, generation = world.stable_group(2)
    _, newcomer = world.new_member()
    assert [world.heartbeat(member_id, generation) for member_id in ids] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    tickets = [world.join(member_id) for member_id in ids]
    assert {world.answers[ticket].generation_id for ticket in [newcomer, *tickets]} == {generation + 1}


def test_who_does_not_rejoin_in_time_is_out():
    world = World()
    (leader, lost), generation = world.stable_group(2, session_timeout_ms=100_000)
    _, newcomer = world.new_member()
    rejoin = world.join(leader)
    world.pass_time(59_999)
    assert newcomer not in world.answers
    world.pass_time(1)
    assert world.answers[newcomer].generation_id == generation + 1
    assert lost not in [member.member_id for member in world.answers[rejoin].members]
    assert world.heartbeat(lost, generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_rejoin_is_replaced():
    world = World()
    (leader, follower), _ = world.stable_group(2, session_timeout_ms=100_000)
    _, newcomer = world.new_member()
    rejoin = world.join(follower)
    world.pass_time(60_000)
    assert world.answers[rejoin].leader == follower
    assert world.answers[newcomer].leader == follower
    assert leader not in group_of(world).members


def test_a_follower_that_rejoins_with_the_same_metadata_is_told_the_current_generation():
    world = World()
    (_, follower), generation = world.stable_group(2)
    answer = world.answers[world.join(follower)]
    assert (answer.error_code, answer.generation_id) == (ErrorCode.NONE, generation)
    assert group_of(world).state is State.STABLE


def test_a_member_with_new_metadata_makes_the_group_rebalance():
    world = World()
    (_, follower), _ = world.stable_group(2)
    world.join(follower, protocols=[("range", subscription("t", "u"))])
    assert group_of(world).state is State.PREPARING_REBALANCE


def test_the_protocol_is_the_one_most_members_prefer_among_those_all_have():
    world = World()
    a, b = ("a", b""), ("b", b"")
    tickets = [world.new_member(protocols=p)[1] for p in ([("c", b""), a, b], [b, a], [b, a])]
    world.pass_time(20_000)
    assert {world.answers[ticket].protocol_name for ticket in tickets} == {"b"}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"protocols": [("sticky", b"")]}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_that_cannot_be_is_refused_and_changes_nothing(fields: dict, code: ErrorCode):
    world = World()
    world.stable_group(2)
    before, written = group_of(world), len(world.log)
    assert world.answers[world.join(**fields)].error_code == code
    assert group_of(world) is before
    assert len(world.log) == written


def test_a_full_group_takes_nobody():
    world = World(group_max_size=2)
    world.stable_group(2)
    assert world.answers[world.join()].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_group_that_is_over_its_limit_after_a_restart_shrinks_to_it():
    world = World()
    ids, _ = world.stable_group(3)
    world.shard = world.reloaded()
    world.settings = world.settings.__class__(group_max_size=2)
    world.perform(world.shard.loaded(world.context()))
    tickets = [world.join(member_id) for member_id in ids]
    assert [world.answers[ticket].error_code for ticket in tickets] == [0, 0, ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_a_member_that_asks_again_gets_one_answer_for_each_question():
    world = World()
    member_id, first = world.new_member()
    second = world.join(member_id)
    world.pass_time(4_000)
    assert world.answers[first].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.answers[second].error_code == ErrorCode.NONE


def test_a_group_id_of_300_bytes_is_a_group_id():
    world = World()
    ids, generation = world.stable_group(1, group="g" * 300)
    assert world.heartbeat(ids[0], generation, group="g" * 300) == ErrorCode.NONE


# Sync ------------------------------------------------------------------------------------------------------------------


def joined(world: World, size: int = 2) -> tuple[list[str], int]:
    joins = [world.new_member() for _ in range(size)]
    world.pass_time(12_000)
    return [member_id for member_id, _ in joins], world.answers[joins[0][1]].generation_id


def test_a_follower_that_syncs_first_waits_for_the_leader():
    world = World()
    (leader, follower), generation = joined(world)
    early = world.sync(follower, generation)
    assert early not in world.answers
    world.sync(leader, generation, {follower: b"yours"})
    assert world.answers[early].assignment == b"yours"
    assert world.answers[early].protocol_name == "range"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"generation": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"protocol_type": "connect", "protocol_name": "range"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "consumer", "protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "static"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_sync_that_cannot_be_is_refused(fields: dict, code: ErrorCode):
    world = World()
    (leader, _), generation = joined(world)
    asked = {"member_id": leader, "generation": generation} | fields
    assert world.answers[world.sync(**asked)].error_code == code


def test_a_sync_that_could_name_its_protocol_must():
    world = World()
    (leader, _), generation = joined(world)
    request = wire.SyncGroupRequest(group_id="g", generation_id=generation, member_id=leader)
    assert world.ask(request, 5).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    request.protocol_type, request.protocol_name = "consumer", "range"
    assert world.ask(request, 5).error_code == ErrorCode.NONE


def test_who_does_not_sync_in_time_is_out_and_the_others_start_again():
    world = World()
    (leader, follower), generation = joined(world)
    waiting = world.sync(follower, generation)
    for _ in range(6):  # both keep their session; only the leader's sync is missing
        world.pass_time(9_500)
        world.heartbeat(leader, generation)
        world.heartbeat(follower, generation)
    world.pass_time(3_000)
    assert world.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(leader, generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_joins_during_the_sync_sends_those_who_wait_back():
    world = World()
    (_, follower), generation = joined(world)
    waiting = world.sync(follower, generation)
    world.new_member()
    assert world.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS


# Leaving, dying ----------------------------------------------------------------------------------------------------------


def test_a_member_that_leaves_is_replaced_at_once():
    world = World()
    (leader, follower), generation = world.stable_group(2)
    assert world.leave(leader).members[0].error_code == ErrorCode.NONE
    assert world.heartbeat(follower, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    answer = world.answers[world.join(follower)]
    assert (answer.leader, answer.generation_id) == (follower, generation + 1)


def test_the_last_member_leaves_an_empty_group_of_a_new_generation():
    world = World()
    (only,), generation = world.stable_group(1)
    world.leave(only)
    assert describe(world).group_state == "Empty"
    assert group_of(world).generation == generation + 1
    assert world.log[-1].value.members == []


def test_a_silent_member_dies_after_its_session_timeout_and_not_before():
    world = World()
    (quiet, alive), generation = world.stable_group(2)
    for _ in range(2):
        world.pass_time(4_999)
        assert world.heartbeat(alive, generation) == ErrorCode.NONE
    world.pass_time(2)
    assert world.heartbeat(alive, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert quiet not in group_of(world).members


def test_a_commit_is_a_sign_of_life():
    world = World(topic("t", 1))
    (only,), generation = world.stable_group(1)
    for _ in range(4):
        world.pass_time(9_000)
        partition = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(committed_offset=1)
        asked = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
        request = OffsetCommitRequest(group_id="g", member_id=only, generation_id_or_member_epoch=generation, topics=[asked])
        assert world.ask(request, 9).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert world.heartbeat(only, generation) == ErrorCode.NONE


def test_several_members_leave_with_one_request_and_each_has_its_answer():
    world = World()
    (first, second), _ = world.stable_group(2)
    results = world.leave(first, "nobody", second).members
    assert [result.error_code for result in results] == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0]
    assert group_of(world).is_empty


def test_an_old_leave_request_has_its_answer_at_the_top():
    world = World()
    world.stable_group(1)
    assert world.ask(wire.LeaveGroupRequest(group_id="g", member_id="nobody"), 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"generation": 99}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": -1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_a_heartbeat_that_cannot_be_is_refused(fields: dict, code: ErrorCode):
    world = World()
    (only,), generation = world.stable_group(1)
    assert world.heartbeat(**({"member_id": only, "generation": generation} | fields)) == code


def test_a_heartbeat_writes_nothing_and_copies_nothing():
    world = World()
    (only,), generation = world.stable_group(1)
    before, written = group_of(world), len(world.log)
    assert world.heartbeat(only, generation) == ErrorCode.NONE
    assert group_of(world) is before
    assert len(world.log) == written


# Static members ----------------------------------------------------------------------------------------------------------


def stable_static_group(world: World) -> tuple[list[str], int]:
    tickets = [world.join(group_instance_id=name) for name in ("one", "two")]
    world.pass_time(12_000)
    ids = [world.answers[ticket].member_id for ticket in tickets]
    generation = world.answers[tickets[0]].generation_id
    world.sync(ids[0], generation, {member_id: member_id.encode() for member_id in ids}, group_instance_id="one")
    world.sync(ids[1], generation, group_instance_id="two")
    return ids, generation


def test_a_static_member_that_restarts_takes_its_place_without_a_rebalance():
    world = World()
    (_, second), generation = stable_static_group(world)
    answer = world.answers[world.join(group_instance_id="two")]
    assert (answer.error_code, answer.generation_id) == (ErrorCode.NONE, generation)
    assert answer.member_id != second
    assert world.heartbeat(answer.member_id, generation, group_instance_id="two") == ErrorCode.NONE
    assert world.heartbeat(second, generation, group_instance_id="two") == ErrorCode.FENCED_INSTANCE_ID
    synced = world.answers[world.sync(answer.member_id, generation, group_instance_id="two")]
    assert synced.assignment == second.encode()


def test_a_static_leader_that_restarts_is_told_not_to_assign_again():
    world = World()
    (first, _), generation = stable_static_group(world)
    answer = world.answers[world.join(group_instance_id="one")]
    assert (answer.skip_assignment, answer.leader) == (True, answer.member_id)
    assert len(answer.members) == 2
    world2 = World()
    (first, _), generation = stable_static_group(world2)
    old = world2.answers[world2.join(group_instance_id="one", version=8)]
    assert (old.generation_id, old.leader) == (generation, first), "an old client must not take itself for the leader"


def test_a_static_member_that_restarts_with_another_protocol_makes_the_group_rebalance():
    world = World()
    tickets = [world.join(group_instance_id=n, protocols=[("a", b""), ("b", b"")]) for n in ("one", "two")]
    world.pass_time(12_000)
    ids = [world.answers[ticket].member_id for ticket in tickets]
    world.sync(ids[0], 1, {}, group_instance_id="one")
    again = world.join(group_instance_id="two", protocols=[("b", b"")])
    assert again not in world.answers
    world.join(ids[0], group_instance_id="one", protocols=[("a", b""), ("b", b"")])
    assert world.answers[again].protocol_name == "b"


def test_a_static_member_may_be_away_for_its_session_timeout():
    world = World()
    (first, second), generation = stable_static_group(world)
    world.heartbeat(second, generation, group_instance_id="two")
    world.pass_time(9_000)
    assert world.heartbeat(first, generation, group_instance_id="one") == ErrorCode.NONE
    world.pass_time(1_001)
    assert world.heartbeat(first, generation, group_instance_id="one") == ErrorCode.REBALANCE_IN_PROGRESS


def test_an_administrator_removes_a_static_member_by_its_name():
    world = World()
    stable_static_group(world)
    assert world.leave("", group_instance_id="two").members[0].error_code == ErrorCode.NONE
    assert world.leave("", group_instance_id="two").members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_whose_join_is_parked_is_fenced_by_its_successor():
    world = World()
    first = world.join(group_instance_id="one")
    second = world.join(group_instance_id="one")
    assert world.answers[first].error_code == ErrorCode.FENCED_INSTANCE_ID
    world.pass_time(4_000)
    assert world.answers[second].error_code == ErrorCode.NONE


# Describing ------------------------------------------------------------------------------------------------------------


def test_a_group_that_is_not_there_is_dead():
    world = World()
    assert (describe(world).group_state, describe(world).error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert describe(world).error_message == "Group g not found."
    assert (describe(world, 5).group_state, describe(world, 5).error_code) == ("Dead", ErrorCode.NONE)


def test_a_reloaded_coordinator_knows_its_members():
    world = World()
    ids, generation = world.stable_group(2)
    world.shard = world.reloaded()
    assert [world.heartbeat(member_id, generation) for member_id in ids] == [ErrorCode.NONE] * 2
    assert world.answers[world.sync(ids[1], generation)].assignment == ids[1].encode()
