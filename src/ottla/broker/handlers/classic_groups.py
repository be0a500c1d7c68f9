"""JoinGroup 0-9, SyncGroup 0-5, Heartbeat 0-4, LeaveGroup 0-5: the classic group protocol.

JoinGroup: 1 rebalance timeout; 4 an id must be fetched first (KIP-394); 5 static members (KIP-345); 6 flexible; 7 protocol type;
8 reason; 9 a returning static leader may skip the assignment (KIP-814).
SyncGroup: 3 static members; 4 flexible; 5 protocol type and name.  Heartbeat: 3 static members; 4 flexible.
LeaveGroup: 3 several members at once; 4 flexible; 5 reason.

All are decided by the group's shard; a join and a sync may be parked there for as long as the rebalance takes.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.dispatch import RequestContext, handles
from ottla.groups.versions import normalise
from ottla.protocol.messages.classic_groups import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest


@handles("JoinGroup")
def join_group(request: JoinGroupRequest, context: RequestContext) -> Any:
    return context.node.coordinators.ask(context.node.groups, request.group_id, request, context)


@handles("SyncGroup")
def sync_group(request: SyncGroupRequest, context: RequestContext) -> Any:
    return context.node.coordinators.ask(context.node.groups, request.group_id, request, context)


@handles("Heartbeat")
def heartbeat(request: HeartbeatRequest, context: RequestContext) -> Any:
    return context.node.coordinators.ask(context.node.groups, request.group_id, request, context)


@handles("LeaveGroup")
def leave_group(request: LeaveGroupRequest, context: RequestContext) -> Any:
    normalise(request, context.version)
    return context.node.coordinators.ask(context.node.groups, request.group_id, request, context)
