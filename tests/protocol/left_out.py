"""Messages of Kafka 4.3 that ottla does not declare, each with its reason. The judges skip these and nothing else."""

from __future__ import annotations

# A part of a message's name → why every message with it in its name is left out.
REASONS = {
    "DelegationToken": "delegation tokens wait until there is a security layer that could use them",
    "ShareGroup": "share groups (KIP-932) wait",
    "ShareFetch": "share groups (KIP-932) wait",
    "ShareAcknowledge": "share groups (KIP-932) wait",
    "ShareSnapshot": "share groups (KIP-932) wait",
    "ShareUpdate": "share groups (KIP-932) wait",
    "StreamsGroup": "streams groups (KIP-1071) wait",
    "ControlledShutdown": "ZooKeeper era: Kafka 4 keeps the definition without any valid version",
    "LeaderAndIsr": "ZooKeeper era: Kafka 4 keeps the definition without any valid version",
    "StopReplica": "ZooKeeper era: Kafka 4 keeps the definition without any valid version",
    "UpdateMetadata": "ZooKeeper era: Kafka 4 keeps the definition without any valid version",
    "ZkMigrationRecord": "ZooKeeper era: only a migrating cluster wrote it; unknown records are skipped and kept",
}


def why_left_out(name: str) -> str | None:
    """The reason a message is not declared, or nothing if it must be."""
    return next((reason for part, reason in REASONS.items() if part in name), None)
