"""Small text files: checkpoints, `partition.metadata`, `meta.properties`, the clean-shutdown marker. All Kafka's own.

A checkpoint is a version line, a count line and one line an entry. Reading is strict: a file that is not whole gives None, and
the caller falls back to what is always safe (recover everything, start where the first segment starts).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ottla.model.ids import TopicPartition, uuid_parse, uuid_text

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"


def write_lines(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join(f"{line}\n" for line in ("0", str(len(entries)), *entries)).encode()


def read_lines(content: bytes) -> list[str] | None:
    lines = content.decode("utf-8", "replace").splitlines()
    try:
        version, count = int(lines[0]), int(lines[1])
    except (IndexError, ValueError):
        return None
    entries = lines[2:]
    return entries if version == 0 and len(entries) == count else None


def write_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return write_lines(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def read_offsets(content: bytes) -> dict[TopicPartition, int] | None:
    lines = read_lines(content)
    if lines is None:
        return None
    found = {}
    try:
        for line in lines:
            topic, partition, offset = line.split()
            found[TopicPartition(topic, int(partition))] = int(offset)
    except ValueError:
        return None
    return found


def write_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def read_partition_metadata(content: bytes) -> bytes | None:
    fields = dict(line.split(": ", 1) for line in content.decode("utf-8", "replace").splitlines() if ": " in line)
    try:
        return uuid_parse(fields["topic_id"]) if fields.get("version") == "0" else None
    except (KeyError, ValueError):
        return None


def write_meta_properties(cluster_id: str, node_id: int, directory_id: bytes) -> bytes:
    return f"#\nversion=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={uuid_text(directory_id)}\n".encode()


def read_properties(content: bytes) -> dict[str, str]:
    """Java properties as Kafka writes them: one `name=value` a line, `#` comments, `\\:` and `\\=` escaped."""
    found = {}
    for line in content.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if text and text[0] not in "#!" and "=" in text:
            name, value = text.split("=", 1)
            found[name.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    return found


def write_clean_shutdown(broker_epoch: int) -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def read_clean_shutdown(content: bytes) -> int:
    """The broker epoch of the node that stopped cleanly; -1 when the marker does not say."""
    try:
        return int(json.loads(content)["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1
