"""What a topic's settings mean to its logs.

In: the effective values of a topic (`model.settings` names and kinds). Out: one frozen value per topic, shared by its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ottla.records.compression import codec_id

LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Defaults are Kafka's. -1 in a retention limit means no limit."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 86_400_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 86_400_000
    retention_bytes: int = -1
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    compact: bool = False
    delete: bool = True
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    file_delete_delay_ms: int = 60_000
    max_message_bytes: int = 1_048_588
    log_append_time: bool = False
    timestamp_before_max_ms: int = LONG_MAX
    timestamp_after_max_ms: int = 3_600_000
    min_insync_replicas: int = 1
    codec: int | None = None  # compression.type; None keeps the producer's
    compression_level: int | None = None
    producer_id_expiration_ms: int = 86_400_000  # a broker setting
    verify_transactions: bool = True  # transaction.partition.verification.enable, a broker setting

    @classmethod
    def from_settings(cls, values: Mapping[str, Any]) -> LogConfig:
        """From parsed values by Kafka's names (as `model.settings.effective` gives them); what is absent keeps its default."""
        found = {field: values[name] for name, field in _NAMES.items() if values.get(name) is not None}
        policy = values.get("cleanup.policy")
        if policy is not None:
            found["compact"], found["delete"] = "compact" in policy, "delete" in policy
        kind = values.get("message.timestamp.type")
        if kind is not None:
            found["log_append_time"] = kind == "LogAppendTime"
        codec = values.get("compression.type", "producer")
        if codec != "producer":
            found["codec"] = codec_id("none" if codec == "uncompressed" else codec)
            level = values.get(f"compression.{codec}.level")
            found["compression_level"] = None if level == -1 else level
        return cls(**found)


_NAMES = {
    "segment.bytes": "segment_bytes",
    "internal.segment.bytes": "segment_bytes",  # Kafka's own, for tests: below the public minimum of 1 MB
    "segment.ms": "segment_ms",
    "segment.jitter.ms": "segment_jitter_ms",
    "segment.index.bytes": "segment_index_bytes",
    "index.interval.bytes": "index_interval_bytes",
    "retention.ms": "retention_ms",
    "retention.bytes": "retention_bytes",
    "flush.messages": "flush_messages",
    "flush.ms": "flush_ms",
    "min.insync.replicas": "min_insync_replicas",
    "delete.retention.ms": "delete_retention_ms",
    "min.compaction.lag.ms": "min_compaction_lag_ms",
    "max.compaction.lag.ms": "max_compaction_lag_ms",
    "min.cleanable.dirty.ratio": "min_cleanable_dirty_ratio",
    "file.delete.delay.ms": "file_delete_delay_ms",
    "max.message.bytes": "max_message_bytes",
    "message.timestamp.before.max.ms": "timestamp_before_max_ms",
    "message.timestamp.after.max.ms": "timestamp_after_max_ms",
    "producer.id.expiration.ms": "producer_id_expiration_ms",
    "transaction.partition.verification.enable": "verify_transactions",
}
