"""One step of a member from what it owns towards what it should own (KIP-848, "reconciliation"), as one function.

    state                   may go on when                          next
    STABLE                  the target has a newer epoch            the table below
    UNREVOKED_PARTITIONS    it no longer owns what it must revoke   the table below, from its old epoch
    UNRELEASED_PARTITIONS   always                                  the table below
    UNKNOWN                 it owns nothing                         the table below

    it must give up something it still owns   → UNREVOKED_PARTITIONS, at its old epoch; it keeps only what it may keep
    all it should own is free                 → STABLE, at the target's epoch
    others still own some of it               → UNRELEASED_PARTITIONS, at the target's epoch, with what is free

A partition is thus never given to a member before its owner has said, by a heartbeat without it, that it let go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ottla.groups.consumer import Assignment, Member, MemberState, OwnedPartitions
from ottla.model.errors import ApiError, ErrorCode

# What the member says it owns; None when its heartbeat does not say.
Reported = Mapping[bytes, list[int]] | None


@dataclass(frozen=True, slots=True)
class Goal:
    """What a member is to be brought to."""

    epoch: int
    target: Assignment
    subscribed_topic_ids: frozenset[bytes]
    owners: Mapping[bytes, Mapping[int, str]]
    subscription_changed: bool = False


def reconcile(member: Member, goal: Goal, reported: Reported) -> Member:
    if member.state is MemberState.STABLE and member.epoch == goal.epoch:
        return _drop_unsubscribed(member, goal, reported) if goal.subscription_changed else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _still_owns(reported, member.revoking):
        return _drop_unsubscribed(member, goal, reported) if goal.subscription_changed else member
    if member.state is MemberState.UNKNOWN and (reported is None or reported):
        message = "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin."
        raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, message)
    return _advance(member, goal, reported)


def _still_owns(reported: Reported, revoking: OwnedPartitions) -> bool:
    if reported is None:
        return True
    return any(partition in revoking.get(topic_id, {}) for topic_id, partitions in reported.items() for partition in partitions)


def _drop_unsubscribed(member: Member, goal: Goal, reported: Reported) -> Member:
    """A member that unsubscribes gives those partitions up at once, before a new target says so."""
    kept = {topic_id: held for topic_id, held in member.assigned.items() if topic_id in goal.subscribed_topic_ids}
    if len(kept) == len(member.assigned):
        return member
    revoking = dict(member.revoking)
    for topic_id, held in member.assigned.items():
        if topic_id not in kept:
            revoking[topic_id] = {**revoking.get(topic_id, {}), **held}
    if _still_owns(reported, revoking):
        return _moved(member, member.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    return _moved(member, member.epoch, member.state, kept, member.revoking)


def _advance(member: Member, goal: Goal, reported: Reported) -> Member:
    kept: OwnedPartitions = {}
    revoking: OwnedPartitions = {}
    gained: OwnedPartitions = {}
    waiting = False
    for topic_id in sorted(goal.target.keys() | member.assigned.keys()):
        target = goal.target.get(topic_id, set()) if topic_id in goal.subscribed_topic_ids else set()
        held = member.assigned.get(topic_id, {})
        free = {partition for partition in target - held.keys() if _is_free(member, goal, topic_id, partition)}
        waiting |= len(free) < len(target - held.keys())
        for into, chosen in (
            (kept, {p: epoch for p, epoch in held.items() if p in target}),
            (revoking, {p: epoch for p, epoch in held.items() if p not in target}),
            (gained, dict.fromkeys(sorted(free), goal.epoch)),
        ):
            if chosen:
                into[topic_id] = chosen
    if revoking and _still_owns(reported, revoking):
        return _moved(member, member.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    for topic_id, partitions in gained.items():
        kept[topic_id] = {**kept.get(topic_id, {}), **partitions}
    return _moved(member, goal.epoch, MemberState.UNRELEASED_PARTITIONS if waiting else MemberState.STABLE, kept, {})


def _is_free(member: Member, goal: Goal, topic_id: bytes, partition: int) -> bool:
    owner = goal.owners.get(topic_id, {}).get(partition)
    return owner is None or (owner == member.member_id and partition in member.revoking.get(topic_id, {}))


def _moved(member: Member, epoch: int, state: MemberState, assigned: OwnedPartitions, revoking: OwnedPartitions) -> Member:
    return replace(member, epoch=epoch, previous_epoch=member.epoch, state=state, assigned=assigned, revoking=revoking)
