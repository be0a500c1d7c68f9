"""What members tell each other inside the opaque bytes of the classic protocol: subscriptions and assignments.

Both start with a version. A reader takes what it knows of a newer version and ignores what follows, as every Kafka client does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from ottla.model.errors import ProtocolError
from ottla.model.ids import TopicPartition
from ottla.protocol.codec import encode, read_from
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription

HIGHEST_VERSION = 3
_VERSION = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Subscription:
    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def _grouped(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped


def _version_of(blob: bytes) -> int:
    if len(blob) < 2:
        raise ProtocolError("a subscription or assignment without a version")
    version: int = _VERSION.unpack_from(blob)[0]
    if version < 0:
        raise ProtocolError(f"a subscription or assignment of version {version}")
    return min(version, HIGHEST_VERSION)


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """Topics and owned partitions go out sorted, as Java's members send them, so that equal subscriptions are equal bytes."""
    kind = ConsumerProtocolSubscription.TopicPartition
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[
            kind(topic=topic, partitions=sorted(numbers)) for topic, numbers in sorted(_grouped(subscription.owned).items())
        ],
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return _VERSION.pack(version) + encode(message, version)


def decode_subscription(blob: bytes) -> Subscription:
    blob = bytes(blob)
    message, _ = read_from(ConsumerProtocolSubscription, _version_of(blob), blob, 2)
    owned = tuple(TopicPartition(row.topic, number) for row in message.owned_partitions for number in row.partitions)
    return Subscription(tuple(message.topics), message.user_data, owned, message.generation_id, message.rack_id)


def encode_assignment(assignment: Assignment, version: int = HIGHEST_VERSION) -> bytes:
    kind = ConsumerProtocolAssignment.TopicPartition
    message = ConsumerProtocolAssignment(
        assigned_partitions=[kind(topic=topic, partitions=numbers) for topic, numbers in _grouped(assignment.partitions).items()],
        user_data=assignment.user_data,
    )
    return _VERSION.pack(version) + encode(message, version)


def decode_assignment(blob: bytes) -> Assignment:
    blob = bytes(blob)
    message, _ = read_from(ConsumerProtocolAssignment, _version_of(blob), blob, 2)
    return Assignment(
        tuple(TopicPartition(row.topic, number) for row in message.assigned_partitions for number in row.partitions),
        message.user_data,
    )
