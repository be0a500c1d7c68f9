"""Committed offsets: the store of one shard, and the decisions of OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

An offset committed inside a transaction is pending until the transaction's marker arrives in the log; then it either joins
the committed ones or vanishes. A pending offset never replaces one whose record is younger (compaction may have removed what
lay between). A tombstone removes the committed offset and every pending one.

Invariant: `open_transactions[group][topic, partition]` names exactly the producers that have a pending offset there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from ottla.groups.context import Context, Topic
from ottla.groups.draft import Draft
from ottla.groups.records import NO_PRODUCER_ID, GroupRecord
from ottla.model.errors import ErrorCode
from ottla.model.ids import ZERO_UUID
from ottla.protocol.messages import group_offsets as wire
from ottla.protocol.messages.group_records import OffsetCommitKey, OffsetCommitValue
from ottla.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

INVALID_OFFSET = -1
NO_LEADER_EPOCH = -1
FIRST_COMMIT_VERSION_WITH_TOPIC_IDS = 10
FIRST_FETCH_VERSION_WITH_TOPIC_IDS = 10

CommitRequest = wire.OffsetCommitRequest | TxnOffsetCommitRequest
CommitReply = wire.OffsetCommitResponse | TxnOffsetCommitResponse
# Raises ApiError when the sender may not commit for this partition (KIP-1251: it depends on when the partition was assigned).
PartitionCheck = Callable[[str, bytes, int], None]


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int  # negative: as the settings say
    topic_id: bytes
    record_offset: int


class Expiring(Protocol):
    """What the store must know of a group to expire its offsets."""

    def is_subscribed_to(self, topic: str) -> bool: ...

    def expiry_base_ms(self, commit_timestamp_ms: int) -> int | None: ...


class OffsetStore:
    __slots__ = ("committed", "open_transactions", "pending")

    def __init__(self) -> None:
        self.committed: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self.pending: dict[int, dict[tuple[str, str, int], CommittedOffset]] = {}
        self.open_transactions: dict[str, dict[tuple[str, int], set[int]]] = {}

    # Reading -----------------------------------------------------------------------------------------------------------

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.committed.get(group_id, {}).get(topic, {}).get(partition)

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self.open_transactions.get(group_id, {})

    def partitions_of(self, group_id: str) -> Iterator[tuple[str, int]]:
        """Every partition for which the group has an offset, committed or pending; each once."""
        topics = self.committed.get(group_id, {})
        for topic, offsets in topics.items():
            yield from ((topic, partition) for partition in offsets)
        for topic, partition in self.open_transactions.get(group_id, {}):
            if partition not in topics.get(topic, {}):
                yield topic, partition

    def groups_with(self, topic: str, topic_id: bytes) -> Iterator[tuple[str, int]]:
        """Groups and partitions that have an offset for this very topic; one without an id is taken to mean it."""
        found: set[tuple[str, int]] = set()
        for group_id, topics in self.committed.items():
            for partition, offset in topics.get(topic, {}).items():
                if offset.topic_id in (ZERO_UUID, topic_id):
                    found.add((group_id, partition))
        for offsets in self.pending.values():
            for (group_id, name, partition), offset in offsets.items():
                if name == topic and offset.topic_id in (ZERO_UUID, topic_id):
                    found.add((group_id, partition))
        yield from sorted(found)

    # Applying ----------------------------------------------------------------------------------------------------------

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None, record_offset: int, producer_id: int) -> None:
        place = (key.topic, key.partition)
        if value is None:
            self._remove(key.group, key.topic, key.partition)
            for open_producer in self.open_transactions.get(key.group, {}).pop(place, ()):
                self.pending[open_producer].pop((key.group, *place), None)
            self._forget_if_empty(key.group)
            return
        offset = CommittedOffset(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            record_offset,
        )
        if producer_id == NO_PRODUCER_ID:
            self.committed.setdefault(key.group, {}).setdefault(key.topic, {})[key.partition] = offset
        else:
            self.pending.setdefault(producer_id, {})[key.group, key.topic, key.partition] = offset
            self.open_transactions.setdefault(key.group, {}).setdefault(place, set()).add(producer_id)

    def complete_transaction(self, producer_id: int, committed: bool) -> None:
        for (group_id, topic, partition), offset in self.pending.pop(producer_id, {}).items():
            producers = self.open_transactions[group_id][topic, partition]
            producers.discard(producer_id)
            if not producers:
                del self.open_transactions[group_id][topic, partition]
                self._forget_if_empty(group_id)
            if committed:
                existing = self.get(group_id, topic, partition)
                if existing is None or existing.record_offset < offset.record_offset:
                    self.committed.setdefault(group_id, {}).setdefault(topic, {})[partition] = offset

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self.committed.get(group_id, {})
        offsets = topics.get(topic, {})
        offsets.pop(partition, None)
        if not offsets:
            topics.pop(topic, None)
        if not topics:
            self.committed.pop(group_id, None)

    def _forget_if_empty(self, group_id: str) -> None:
        if not self.open_transactions.get(group_id, True):
            del self.open_transactions[group_id]


# Committing ----------------------------------------------------------------------------------------------------------


def known_topics(request: CommitRequest, context: Context) -> dict[int, Topic]:
    """Position in the request → the topic it names, for those that exist."""
    if isinstance(request, wire.OffsetCommitRequest) and context.version >= FIRST_COMMIT_VERSION_WITH_TOPIC_IDS:
        wanted = [context.topics.by_id.get(asked.topic_id) for asked in request.topics]
    else:
        wanted = [context.topics.by_name.get(asked.name) for asked in request.topics]
    return {position: topic for position, topic in enumerate(wanted) if topic is not None}


def set_aside_unknown(request: CommitRequest, context: Context) -> CommitReply:
    """Take out of the request what is not known here, and what names no partition, and answer for it: as with Kafka, a group that has
    something against the sender has no say in that."""
    topics = known_topics(request, context)
    kept: list[Any] = []
    unknown: list[Any] = []
    codes: list[ErrorCode] = []
    asked: Any
    for position, asked in enumerate(request.topics):
        topic = topics.get(position)
        count = 0 if topic is None else topic.partition_count
        known = [partition for partition in asked.partitions if 0 <= partition.partition_index < count]
        if len(known) < len(asked.partitions) or topic is None:
            others = [partition for partition in asked.partitions if not 0 <= partition.partition_index < count]
            unknown.append(asked.replace(partitions=others))
            codes.append(_unknown_topic(request, context) if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if known:
            kept.append(asked if len(known) == len(asked.partitions) else asked.replace(partitions=known))
    request.topics = kept
    return commit_reply(request.replace(topics=unknown), lambda position, partition: codes[position])


def _unknown_topic(request: CommitRequest, context: Context) -> ErrorCode:
    by_id = isinstance(request, wire.OffsetCommitRequest) and context.version >= FIRST_COMMIT_VERSION_WITH_TOPIC_IDS
    return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def add_to_reply(reply: CommitReply, more: CommitReply) -> None:
    topic: Any
    for topic in more.topics:
        same = [there for there in reply.topics if there.replace(partitions=[]) == topic.replace(partitions=[])]
        if same:
            same[0].partitions += topic.partitions
        else:
            reply.topics.append(topic)


def commit(
    request: CommitRequest, topics: dict[int, Topic], context: Context, check: PartitionCheck | None, draft: Draft
) -> None:
    """Answer partition by partition. The group has agreed to the sender; `check` may still refuse the whole request."""
    transactional = isinstance(request, TxnOffsetCommitRequest)
    now_ms, limit = context.now_ms, context.settings.offset_metadata_max_bytes
    retention_ms = -1 if transactional else request.retention_time_ms  # type: ignore[union-attr]
    expire_timestamp_ms = -1 if retention_ms < 0 else now_ms + retention_ms
    unknown_topic = _unknown_topic(request, context)
    # The version that keeps a time to live has no room for the id.
    has_id = not transactional and expire_timestamp_ms < 0
    producer = (request.producer_id, request.producer_epoch) if isinstance(request, TxnOffsetCommitRequest) else ()

    def decide(position: int, partition: _CommitPartition) -> ErrorCode:
        topic, index = topics.get(position), partition.partition_index
        if topic is None:
            return unknown_topic
        if not 0 <= index < topic.partition_count:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        metadata = partition.committed_metadata or ""
        if len(metadata) > limit:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        if check is not None:
            check(topic.name, topic.topic_id, index)
        value = OffsetCommitValue(
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=metadata,
            commit_timestamp=now_ms,
            expire_timestamp=expire_timestamp_ms,
            topic_id=topic.topic_id if has_id else ZERO_UUID,
        )
        draft.records.append(GroupRecord(OffsetCommitKey(request.group_id, topic.name, index), value, *producer))
        return ErrorCode.NONE

    draft.reply(context.ticket, commit_reply(request, decide))


class _CommitPartition(Protocol):
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


def commit_reply(request: CommitRequest, code_of: Callable[[int, _CommitPartition], ErrorCode]) -> CommitReply:
    if isinstance(request, TxnOffsetCommitRequest):
        txn_topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        txn_partition = txn_topic.TxnOffsetCommitResponsePartition
        return TxnOffsetCommitResponse(
            topics=[
                txn_topic(
                    name=asked.name,
                    partitions=[
                        txn_partition(partition_index=p.partition_index, error_code=code_of(position, p))
                        for p in asked.partitions
                    ],
                )
                for position, asked in enumerate(request.topics)
            ]
        )
    topic = wire.OffsetCommitResponse.OffsetCommitResponseTopic
    partition = topic.OffsetCommitResponsePartition
    return wire.OffsetCommitResponse(
        topics=[
            topic(
                name=asked.name,
                topic_id=asked.topic_id,
                partitions=[
                    partition(partition_index=p.partition_index, error_code=code_of(position, p)) for p in asked.partitions
                ],
            )
            for position, asked in enumerate(request.topics)
        ]
    )


def commit_error(request: CommitRequest, code: ErrorCode) -> CommitReply:
    return commit_reply(request, lambda position, partition: code)


# Fetching ------------------------------------------------------------------------------------------------------------

_FetchGroup = wire.OffsetFetchRequest.OffsetFetchRequestGroup
_FetchedGroup = wire.OffsetFetchResponse.OffsetFetchResponseGroup
_FetchedTopic = _FetchedGroup.OffsetFetchResponseTopics
_FetchedPartition = _FetchedTopic.OffsetFetchResponsePartitions


def fetch(store: OffsetStore, asked: _FetchGroup, require_stable: bool, context: Context, exists: bool) -> _FetchedGroup:
    """The offsets of one group; of one that does not `exist` there are none, which is not an error."""
    by_id = context.version >= FIRST_FETCH_VERSION_WITH_TOPIC_IDS
    topics = []
    if asked.topics is None:
        for name, offsets in (store.committed.get(asked.group_id, {}) if exists else {}).items():
            topic = context.topics.by_name.get(name)
            if not by_id or topic is not None:
                partitions = [fetched(store, asked.group_id, name, index, require_stable) for index in offsets]
                topics.append(_FetchedTopic(name=name, topic_id=topic.topic_id if topic else ZERO_UUID, partitions=partitions))
    else:
        for wanted in asked.topics:
            topic = context.topics.by_id.get(wanted.topic_id) if by_id else None
            if by_id and topic is None:
                partitions = [unfetched(index, ErrorCode.UNKNOWN_TOPIC_ID) for index in wanted.partition_indexes]
            else:
                name = topic.name if topic is not None else wanted.name
                partitions = [
                    fetched(store, asked.group_id, name, index, require_stable) if exists else unfetched(index)
                    for index in wanted.partition_indexes
                ]
            topics.append(_FetchedTopic(name=wanted.name, topic_id=wanted.topic_id, partitions=partitions))
    return _FetchedGroup(group_id=asked.group_id, topics=topics)


def fetched(store: OffsetStore, group_id: str, topic: str, partition: int, require_stable: bool) -> _FetchedPartition:
    if require_stable and store.is_unstable(group_id, topic, partition):
        return unfetched(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    offset = store.get(group_id, topic, partition)
    if offset is None:
        return unfetched(partition)
    return _FetchedPartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
    )


def unfetched(partition: int, code: ErrorCode = ErrorCode.NONE) -> _FetchedPartition:
    return _FetchedPartition(
        partition_index=partition,
        committed_offset=INVALID_OFFSET,
        committed_leader_epoch=NO_LEADER_EPOCH,
        metadata="",
        error_code=code,
    )


# Deleting and expiring -----------------------------------------------------------------------------------------------


def tombstone(group_id: str, topic: str, partition: int) -> GroupRecord:
    return GroupRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)


def delete_all(store: OffsetStore, group_id: str) -> Iterator[GroupRecord]:
    for topic, partition in store.partitions_of(group_id):
        yield tombstone(group_id, topic, partition)


def delete(store: OffsetStore, request: wire.OffsetDeleteRequest, group: Expiring, context: Context, draft: Draft) -> None:
    topic_reply = wire.OffsetDeleteResponse.OffsetDeleteResponseTopic
    partition_reply = topic_reply.OffsetDeleteResponsePartition
    topics = []
    for asked in request.topics:
        topic = context.topics.by_name.get(asked.name)
        subscribed = group.is_subscribed_to(asked.name)
        partitions = []
        for wanted in asked.partitions:
            index, code = wanted.partition_index, ErrorCode.NONE
            if topic is None or not 0 <= index < topic.partition_count:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif subscribed:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif store.get(request.group_id, asked.name, index) or store.is_unstable(request.group_id, asked.name, index):
                draft.records.append(tombstone(request.group_id, asked.name, index))
            partitions.append(partition_reply(partition_index=index, error_code=code))
        if partitions or topic is None:
            topics.append(topic_reply(name=asked.name, partitions=partitions))
    draft.reply(context.ticket, wire.OffsetDeleteResponse(topics=topics))


def expire(store: OffsetStore, group_id: str, group: Expiring, context: Context, records: list[GroupRecord]) -> bool:
    """Add the tombstones of offsets whose time is over; True when the group has none left, so that it may go too."""
    retention_ms = context.settings.offsets_retention_ms
    nothing_left = group_id not in store.open_transactions
    for topic, offsets in store.committed.get(group_id, {}).items():
        if group.is_subscribed_to(topic):
            nothing_left = False
            continue
        for partition, offset in offsets.items():
            if _is_expired(offset, group, context.now_ms, retention_ms) and not store.is_unstable(group_id, topic, partition):
                records.append(tombstone(group_id, topic, partition))
            else:
                nothing_left = False
    return nothing_left


def _is_expired(offset: CommittedOffset, group: Expiring, now_ms: int, retention_ms: int) -> bool:
    base_ms = group.expiry_base_ms(offset.commit_timestamp_ms)
    if base_ms is None:
        return False
    if offset.expire_timestamp_ms >= 0:
        return now_ms >= offset.expire_timestamp_ms
    return now_ms - base_ms >= retention_ms
