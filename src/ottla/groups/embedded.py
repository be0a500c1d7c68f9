"""What consumers put inside the opaque bytes of the classic protocol: their subscriptions and assignments.

The first two bytes are a version. A newer one than ours starts with the fields of ours, so it is read as ours.
"""

from __future__ import annotations

from struct import Struct, error
from typing import TypeVar

from ottla.groups.context import Topics
from ottla.model.errors import ProtocolError
from ottla.protocol import codec
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.protocol.schema import Message

_VERSION = Struct(">h")
M = TypeVar("M", bound=Message)


def version_of(content: bytes) -> int:
    """Raises ProtocolError."""
    try:
        (version,) = _VERSION.unpack_from(content)
    except error:
        raise ProtocolError("a consumer's bytes without a version") from None
    if version < 0:
        raise ProtocolError(f"a consumer's bytes of version {version}")
    return min(int(version), ConsumerProtocolSubscription.VERSIONS.last)


def read_subscription(content: bytes) -> ConsumerProtocolSubscription:
    """Raises ProtocolError."""
    return codec.read_from(ConsumerProtocolSubscription, version_of(content), content, _VERSION.size)[0]


def read_assignment(content: bytes) -> ConsumerProtocolAssignment:
    """Raises ProtocolError."""
    return codec.read_from(ConsumerProtocolAssignment, version_of(content), content, _VERSION.size)[0]


def write_assignment(partitions: dict[bytes, set[int]], topics: Topics, version: int) -> bytes:
    """Topics that are gone have no name to be told by, and are left out."""
    row = ConsumerProtocolAssignment.TopicPartition
    rows = [
        row(topic=topics.by_id[topic_id].name, partitions=sorted(partitions[topic_id]))
        for topic_id in sorted(partitions)
        if topic_id in topics.by_id
    ]
    return _VERSION.pack(version) + codec.encode(ConsumerProtocolAssignment(assigned_partitions=rows), version)


Rows = list[ConsumerProtocolSubscription.TopicPartition] | list[ConsumerProtocolAssignment.TopicPartition]


def by_topic_id(rows: Rows, topics: Topics) -> dict[bytes, list[int]]:
    """Names as ids; topics that are gone, or not known here yet, are left out."""
    found: dict[bytes, list[int]] = {}
    for row in rows:
        topic = topics.by_name.get(row.topic)
        if topic is not None:
            found.setdefault(topic.topic_id, []).extend(row.partitions)
    return found
