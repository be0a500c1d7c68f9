"""A group shard with its shell played by hand: virtual time, a log in memory, replies by ticket.

It obeys the rules of `ottla.model.machine` (append, apply, timers, replies) and checks as it goes that every record survives
its encoding and that every ticket is answered at most once.
"""

from __future__ import annotations

import heapq
from typing import Any

from ottla.groups.context import Context, GroupSettings, Topic, Topics
from ottla.groups.records import GroupRecord, decode, encode
from ottla.groups.shard import GroupShard
from ottla.groups.versions import shape
from ottla.protocol import codec
from ottla.protocol.messages import classic_groups as classic
from ottla.protocol.messages.classic_groups import JoinGroupRequest, SyncGroupRequest
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from ottla.protocol.schema import Message

LATEST = {"JoinGroupRequest": 9, "SyncGroupRequest": 5, "HeartbeatRequest": 4, "LeaveGroupRequest": 5}


def topic(name: str, partitions: int, racks: tuple[frozenset[str], ...] = ()) -> Topic:
    return Topic(name, name.encode().ljust(16, b"\0")[:16], partitions, racks)


def subscription(*topics: str) -> bytes:
    return b"\x00\x00" + codec.encode(ConsumerProtocolSubscription(topics=list(topics)), 0)


class World:
    def __init__(self, *topics: Topic, **settings: Any) -> None:
        self.shard = GroupShard()
        self.log: list[tuple[GroupRecord | tuple[int, bool]]] = []
        self.now_ms = 1_000_000
        self.topics = Topics.of(topics, version=1)
        self.settings = GroupSettings(**settings)
        self.answers: dict[int, Message] = {}
        self.versions: dict[int, int] = {}
        self.tickets = 0
        self.deadlines: dict[Any, int] = {}
        self._heap: list[tuple[int, int, Any]] = []
        self._serial = 0
        self.perform(self.shard.loaded(self.context()))

    # The shell's part ---------------------------------------------------------------------------------------------------

    def context(self, **known: Any) -> Context:
        self._serial += 1
        base = Context(
            now_ms=self.now_ms,
            client_id="client",
            client_host="/127.0.0.1",
            new_member_id=self._serial.to_bytes(16, "big"),
            topics=self.topics,
            settings=self.settings,
            settings_for=lambda group_id: self.settings,
        )
        return base._replace(**known)

    def send(self, request: Message, version: int | None = None, client_id: str = "client") -> int:
        """Returns the ticket; the reply, if it is there, is in `answers`."""
        if version is None:
            version = LATEST.get(type(request).__name__, type(request).VERSIONS.last)
        # As it would arrive: what the version cannot say is not there.
        request = codec.decode(type(request), version, codec.encode(request, version))
        self.tickets += 1
        self.versions[self.tickets] = version
        self.perform(self.shard.decide(request, self.context(ticket=self.tickets, version=version, client_id=client_id)))
        return self.tickets

    def ask(self, request: Message, version: int | None = None, client_id: str = "client") -> Any:
        """For requests that are answered at once."""
        return self.answers[self.send(request, version, client_id)]

    def perform(self, decision: Any) -> None:
        for record in decision.records:
            key, value = encode(record)
            assert decode(key, value, record.producer_id, record.producer_epoch) == record
            self.shard.apply(record, len(self.log))
            self.log.append(record)
        for change in decision.changes:
            self.shard.apply_change(change)
        for timer in decision.timers:
            if timer.delay_ms is None:
                self.deadlines.pop(timer.key, None)
            elif not (timer.if_absent and timer.key in self.deadlines):
                self._serial += 1
                self.deadlines[timer.key] = self.now_ms + timer.delay_ms
                heapq.heappush(self._heap, (self.now_ms + timer.delay_ms, self._serial, timer.key))
        for reply in decision.replies:
            assert reply.ticket not in self.answers, f"ticket {reply.ticket} was answered twice"
            shape(reply.message, self.versions[reply.ticket])
            codec.encode(reply.message, self.versions[reply.ticket])
            self.answers[reply.ticket] = reply.message

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        self.log.append((producer_id, committed))
        self.shard.complete_transaction(producer_id, 0, committed)

    def pass_time(self, duration_ms: int) -> None:
        """Let time go by, with every timer at its moment."""
        until = self.now_ms + duration_ms
        while self._heap and self._heap[0][0] <= until:
            at, _, key = heapq.heappop(self._heap)
            if self.deadlines.get(key) == at:
                del self.deadlines[key]
                self.now_ms = max(self.now_ms, at)
                self.perform(self.shard.expire(key, self.context()))
        self.now_ms = until

    def grow(self, *topics: Topic) -> None:
        """Add topics, or replace those of the same name."""
        self.topics = Topics.of({**self.topics.by_name, **{t.name: t for t in topics}}.values(), self.topics.version + 1)

    def reloaded(self) -> GroupShard:
        """Another shard, made of the log alone."""
        shard = GroupShard()
        for offset, entry in enumerate(self.log):
            if isinstance(entry, GroupRecord):
                shard.apply(entry, offset)
            else:
                shard.complete_transaction(entry[0], 0, entry[1])
        return shard

    # A client's part ------------------------------------------------------------------------------------------------------

    def join(self, member_id: str = "", group: str = "g", version: int | None = None, **fields: Any) -> int:
        protocols = fields.pop("protocols", [("range", subscription("t"))])
        request = JoinGroupRequest(
            group_id=group,
            member_id=member_id,
            session_timeout_ms=fields.pop("session_timeout_ms", 10_000),
            rebalance_timeout_ms=fields.pop("rebalance_timeout_ms", 60_000),
            protocol_type=fields.pop("protocol_type", "consumer"),
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols],
            **fields,
        )
        return self.send(request, version)

    def new_member(self, group: str = "g", **fields: Any) -> tuple[str, int]:
        """A dynamic member as current clients do it: ask for an id, then join with it. Returns the id and the join's ticket."""
        given = self.answers[self.join("", group, **fields)]
        return given.member_id, self.join(given.member_id, group, **fields)

    def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, group: str = "g", **fields: Any
    ) -> int:
        given = [SyncGroupRequest.SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in (assignments or {}).items()]
        named = {"protocol_type": None, "protocol_name": None} | fields
        request = SyncGroupRequest(group_id=group, generation_id=generation, member_id=member_id, assignments=given, **named)
        return self.send(request, 5 if named["protocol_type"] and named["protocol_name"] else 4)

    def heartbeat(self, member_id: str, generation: int, group: str = "g", **fields: Any) -> int:
        request = classic.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id, **fields)
        return int(self.ask(request).error_code)

    def leave(self, *member_ids: str, group: str = "g", **fields: Any) -> Any:
        members = [classic.LeaveGroupRequest.MemberIdentity(member_id=member_id, **fields) for member_id in member_ids]
        return self.ask(classic.LeaveGroupRequest(group_id=group, members=members))

    def stable_group(self, size: int = 2, group: str = "g", **fields: Any) -> tuple[list[str], int]:
        """A group of `size` members that has synced; the first is its leader. Returns the ids and the generation."""
        joins = [self.new_member(group, **fields) for _ in range(size)]
        self.pass_time(4 * self.settings.group_initial_rebalance_delay_ms)
        ids = [member_id for member_id, _ in joins]
        generation = self.answers[joins[0][1]].generation_id
        leader = self.answers[joins[0][1]].leader
        for member_id in sorted(ids, key=lambda m: m == leader):
            self.sync(member_id, generation, {m: m.encode() for m in ids} if member_id == leader else None, group)
        return ids, generation
