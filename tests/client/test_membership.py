"""The group member as a story: steps it wants, answers it gets. The coordinator is played by the test."""

from __future__ import annotations

import pytest

from ottla.client.assignors import CooperativeSticky, Range
from ottla.client.consumer_membership import ConsumerMember
from ottla.client.membership import Assign, ClassicMember, Idle, Lose, MemberSettings, NeedTopics, Phase, Revoke, Send
from ottla.client.subscriptions import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.model.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ottla.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse, TopicPartitions

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
TOPIC_ID = b"t" * 16


def settings(**changes) -> MemberSettings:
    return MemberSettings(
        **(
            {
                "group_id": "g",
                "session_timeout_ms": 6000,
                "heartbeat_interval_ms": 1000,
                "rebalance_timeout_ms": 60_000,
                "retry_backoff_ms": 100,
            }
            | changes
        )
    )


def classic(*assignors, **changes) -> ClassicMember:
    member = ClassicMember(settings(**changes), assignors or (Range(),))
    member.subscribe(["t"])
    member.want()
    return member


def send(member, now: float = 0):
    step = member.next(now)
    assert isinstance(step, Send), step
    return step.request


def join(member, now: float = 0, generation: int = 1, protocol: str = "range") -> None:
    """As a follower, up to the sync."""
    assert isinstance(send(member, now), JoinGroupRequest)
    member.answered(
        JoinGroupResponse(generation_id=generation, protocol_name=protocol, leader="other", member_id="me"),
        now,
    )


def sync(member, *partitions, now: float = 0) -> None:
    assert isinstance(send(member, now), SyncGroupRequest)
    member.answered(SyncGroupResponse(assignment=encode_assignment(Assignment(tuple(partitions)))), now)


def do(member):
    duty = member.pending
    member.done(duty)
    return duty


def stable(*partitions, assignor=None, **changes) -> ClassicMember:
    member = classic(assignor or Range(), **changes)
    join(member, protocol=(assignor or Range()).name)
    sync(member, *partitions)
    assert do(member) == Assign(frozenset(partitions), frozenset(partitions))
    assert member.phase is Phase.STABLE
    return member


def test_nothing_happens_before_the_application_polls():
    member = ClassicMember(settings(), (Range(),))
    member.subscribe(["t"])
    assert member.next(0) == Idle(None)


def test_new_member_gets_an_id_and_joins_with_it():
    member = classic()
    assert send(member).member_id == ""
    assert member.next(0) == Idle(None)  # one request at a time
    member.answered(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me-1"), 0)
    request = send(member)
    assert request.member_id == "me-1"
    assert [protocol.name for protocol in request.protocols] == ["range"]
    assert decode_subscription(request.protocols[0].metadata).topics == ("t",)


def test_follower_syncs_takes_its_partitions_and_beats():
    member = stable(T0)
    assert member.owned == {T0}
    assert member.next(500) == Idle(1000)
    beat = send(member, 1000)
    assert isinstance(beat, HeartbeatRequest)
    assert (beat.generation_id, beat.member_id) == (1, "me")
    member.answered(HeartbeatResponse(), 1001)
    assert member.next(1500) == Idle(2000)


def test_leader_asks_for_partition_counts_and_assigns_for_all():
    member = classic()
    send(member)
    rows = [
        JoinGroupResponse.JoinGroupResponseMember(member_id=name, metadata=encode_subscription(Subscription(topics)))
        for name, topics in (("me", ("t",)), ("you", ("t", "u")))
    ]
    member.answered(JoinGroupResponse(generation_id=3, protocol_name="range", leader="me", member_id="me", members=rows), 0)
    assert member.next(0) == NeedTopics(frozenset({"t", "u"}))
    member.with_topics({"t": 3, "u": 1})
    request = send(member)
    assigned = {row.member_id: decode_assignment(row.assignment).partitions for row in request.assignments}
    assert assigned == {"me": (T0, T1), "you": (T2, TopicPartition("u", 0))}
    member.answered(SyncGroupResponse(assignment=encode_assignment(Assignment((T0, T1)))), 0)
    do(member)
    member.partitions_changed({"t": 3, "u": 1})
    assert isinstance(member.next(10), Idle)
    member.partitions_changed({"t": 4, "u": 1})
    member.next(20)
    assert member.pending == Revoke(frozenset({T0, T1}))


def test_eager_rebalance_gives_everything_up_first():
    member = stable(T0, T1)
    send(member, 1000)
    member.answered(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 1000)
    assert isinstance(member.next(1000), Idle)  # the application must act first
    assert member.pending == Revoke(frozenset({T0, T1}))
    assert isinstance(send(member, 2000), HeartbeatRequest)  # and meanwhile the member lives
    member.answered(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 2000)
    do(member)
    assert member.owned == frozenset()
    join(member, 2000, generation=2)
    sync(member, T1, now=2000)
    assert do(member) == Assign(frozenset({T1}), frozenset({T1}))


def test_cooperative_rebalance_gives_up_only_what_goes_and_joins_again():
    member = stable(T0, T1, assignor=CooperativeSticky())
    member.rejoin("test")
    request = send(member, 10)
    assert isinstance(request, JoinGroupRequest)
    owned = decode_subscription(request.protocols[0].metadata)
    assert (owned.owned, owned.generation) == ((T0, T1), 1)
    member.answered(JoinGroupResponse(generation_id=2, protocol_name="cooperative-sticky", leader="x", member_id="me"), 10)
    sync(member, T0, now=10)
    assert do(member) == Revoke(frozenset({T1}))
    assert do(member) == Assign(frozenset(), frozenset({T0}))
    assert isinstance(send(member, 20), JoinGroupRequest)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_forgotten_member_loses_its_partitions_and_starts_again(code):
    member = stable(T0)
    send(member, 1000)
    member.answered(HeartbeatResponse(error_code=code), 1000)
    assert member.pending == Lose(frozenset({T0}))
    assert member.next(1000) == Idle(None)
    do(member)
    request = send(member, 1001)
    assert isinstance(request, JoinGroupRequest)
    assert request.member_id == ("" if code is ErrorCode.UNKNOWN_MEMBER_ID else "me")


def test_fenced_static_member_fails_for_good():
    member = stable(T0, instance_id="i")
    send(member, 1000)
    member.answered(HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID), 1000)
    assert member.error.code is ErrorCode.FENCED_INSTANCE_ID
    assert member.next(2000) == Idle(None)


def test_coordinator_that_moved_is_asked_again_after_a_while():
    member = classic()
    send(member)
    member.answered(JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR), 0)
    assert member.next(50) == Idle(100)
    assert isinstance(send(member, 100), JoinGroupRequest)
    member.failed(100)
    assert isinstance(send(member, 200), JoinGroupRequest)


def test_rebalance_during_sync_joins_again():
    member = classic()
    join(member)
    send(member)
    member.answered(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    assert isinstance(send(member), JoinGroupRequest)


def test_new_subscription_joins_again():
    member = stable(T0)
    member.subscribe(["t", "u"])
    member.next(10)
    do(member)
    assert decode_subscription(send(member, 10).protocols[0].metadata).topics == ("t", "u")


def test_leaving_tells_the_group_unless_the_member_is_static():
    request = stable(T0).leave("bye")
    assert isinstance(request, LeaveGroupRequest)
    assert request.members[0].member_id == "me"
    assert stable(T0, instance_id="i").leave("bye") is None


def test_duty_that_was_overtaken_does_not_count_for_the_new_one():
    """The application is giving partitions up when the group forgets the member."""
    member = stable(T0, T1)
    member.rejoin("test")
    member.next(10)
    revoke = member.pending
    send(member, 1500)
    member.answered(HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), 1500)
    assert isinstance(member.pending, Lose)
    member.done(revoke)
    assert member.pending is None  # nothing is left to lose
    assert isinstance(send(member, 1501), JoinGroupRequest)


# KIP-848 --------------------------------------------------------------------------------------------------------------------


def modern(**changes) -> ConsumerMember:
    member = ConsumerMember(settings(**changes), "id")
    member.subscribe(["t"])
    member.want()
    return member


def reply(epoch: int, *numbers: int, none: bool = False, code: ErrorCode = ErrorCode.NONE) -> ConsumerGroupHeartbeatResponse:
    kind = ConsumerGroupHeartbeatResponse.Assignment
    rows = [TopicPartitions(topic_id=TOPIC_ID, partitions=list(numbers))] if numbers else []
    return ConsumerGroupHeartbeatResponse(
        error_code=code,
        member_id="id",
        member_epoch=epoch,
        heartbeat_interval_ms=500,
        assignment=None if none else kind(topic_partitions=rows),
    )


def settled() -> ConsumerMember:
    member = modern()
    send(member)
    member.answered(reply(1, 0, 1), 0)
    assert member.next(0) == NeedTopics(ids=frozenset({TOPIC_ID}))
    member.with_topics({}, {TOPIC_ID: "t"})
    member.next(0)
    assert do(member) == Assign(frozenset({T0, T1}), frozenset({T0, T1}))
    owns = send(member, 1)
    assert [(row.topic_id, row.partitions) for row in owns.topic_partitions] == [(TOPIC_ID, [0, 1])]
    member.answered(reply(1, none=True), 1)
    return member


def test_first_heartbeat_says_everything_and_later_ones_only_what_changed():
    member = modern()
    first = send(member)
    assert (first.member_epoch, first.subscribed_topic_names, first.topic_partitions) == (0, ["t"], [])
    assert first.rebalance_timeout_ms == 60_000
    member = settled()
    assert member.next(100) == Idle(501)
    later = send(member, 501)
    assert (later.subscribed_topic_names, later.topic_partitions, later.rebalance_timeout_ms) == (None, None, -1)


def test_coordinator_takes_and_gives_in_one_step():
    member = settled()
    send(member, 501)
    member.answered(reply(2, 1, 2), 501)
    member.next(501)
    assert do(member) == Revoke(frozenset({T0}))
    assert do(member) == Assign(frozenset({T2}), frozenset({T1, T2}))
    beat = send(member, 502)
    assert (beat.member_epoch, beat.topic_partitions[0].partitions) == (2, [1, 2])


def test_newer_assignment_that_comes_meanwhile_is_taken_up_afterwards():
    member = settled()
    send(member, 501)
    member.answered(reply(2, 0), 501)
    member.next(501)
    revoke = member.pending
    assert revoke == Revoke(frozenset({T1}))
    send(member, 1100)
    member.answered(reply(3, 0, 2), 1100)
    member.done(revoke)
    assert do(member) == Assign(frozenset({T2}), frozenset({T0, T2}))


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_fenced_member_loses_everything_and_joins_with_epoch_0(code):
    member = settled()
    send(member, 501)
    member.answered(reply(1, code=code), 501)
    assert do(member) == Lose(frozenset({T0, T1}))
    again = send(member, 502)
    assert (again.member_epoch, again.subscribed_topic_names, again.topic_partitions) == (0, ["t"], [])


def test_heartbeat_without_an_answer_is_said_again_in_full():
    member = settled()
    send(member, 501)
    member.failed(501)
    assert member.next(550) == Idle(601)
    again = send(member, 601)
    assert again.subscribed_topic_names == ["t"]
    assert again.topic_partitions[0].partitions == [0, 1]


def test_new_subscription_and_pattern_are_told_at_once():
    member = settled()
    member.subscribe(["t", "u"])
    assert send(member, 10).subscribed_topic_names == ["t", "u"]
    member.answered(reply(2, none=True), 10)
    member.subscribe([], "t.*")
    beat = send(member, 11)
    assert (beat.subscribed_topic_names, beat.subscribed_topic_regex) == ([], "t.*")


def test_leaving_says_minus_one_and_a_static_member_minus_two():
    assert settled().leave("bye").member_epoch == -1
    member = modern(instance_id="i")
    send(member)
    member.answered(reply(1), 0)
    assert member.leave("bye").member_epoch == -2
    assert modern().leave("bye") is None  # never joined


def test_refusal_is_the_end():
    member = modern()
    send(member)
    member.answered(reply(0, code=ErrorCode.UNSUPPORTED_ASSIGNOR), 0)
    assert member.error.code is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert member.next(1) == Idle(None)
