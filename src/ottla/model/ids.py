"""Names of things: partitions, and the sixteen-byte ids of topics, directories and clusters.

An id is plain `bytes`, because that is what the wire carries and what a dictionary hashes fastest; only people need text.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import NamedTuple

ZERO_UUID = bytes(16)
METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = bytes(15) + b"\x01"
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})

# Ids below this number are reserved (KIP-858): a replica's directory may be unknown, lost, or still from before directories had ids.
RESERVED_IDS = 100
DIRECTORY_UNASSIGNED = bytes(16)
DIRECTORY_LOST = bytes(15) + b"\x01"
DIRECTORY_MIGRATING = bytes(15) + b"\x02"


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def random_uuid(random_bytes: Callable[[int], bytes]) -> bytes:
    """Sixteen random bytes that mean nothing else, and whose text can stand on a command line: no leading dash."""
    while True:
        made = random_bytes(16)
        if not uuid_text(made).startswith("-") and int.from_bytes(made, "big") >= RESERVED_IDS:
            return made


def uuid_text(uuid: bytes) -> str:
    """Kafka prints ids as URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def uuid_parse(text: str) -> bytes:
    decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(decoded) != 16:
        raise ValueError(f"{text!r} is not a Kafka id: it must be 22 characters of URL-safe base64")
    return decoded
