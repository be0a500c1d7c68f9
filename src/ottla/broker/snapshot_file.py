"""A snapshot as a file (KIP-630): batches of metadata records between a header and a footer record.

Two kinds of file have this form: the snapshots of the metadata log, and `bootstrap.checkpoint`, which formatting leaves in the
data folder: the feature levels that the first controller of a new cluster writes into its log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ottla.host.disk import Disk
from ottla.metadata.features import SERVED_LEVELS, in_order
from ottla.metadata.records import LATEST_LEVEL, MetadataRecord, decode, encode
from ottla.protocol.codec import encode as encode_message
from ottla.protocol.messages.control_records import SnapshotFooterRecord, SnapshotHeaderRecord
from ottla.protocol.messages.metadata_records import FeatureLevelRecord
from ottla.protocol.schema import Message
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, control_key
from ottla.records.record import Record, decode_batches

BOOTSTRAP = "bootstrap.checkpoint"


def to_bytes(batches: Iterable[Iterable[MetadataRecord]], *, epoch: int, level: int, now_ms: int, contained_ms: int) -> bytes:
    """`level` is the metadata.version that the records are written for; `contained_ms` the time of the last record they stand for."""
    return b"".join(_batches(batches, epoch, level, now_ms, contained_ms))


def _batches(
    batches: Iterable[Iterable[MetadataRecord]], epoch: int, level: int, now_ms: int, contained_ms: int
) -> Iterator[bytes]:
    header = SnapshotHeaderRecord(last_contained_log_timestamp=contained_ms)
    yield control_batch(ControlType.SNAPSHOT_HEADER, header, 0, epoch, now_ms)
    offset = 1
    for records in batches:
        values = [Record(offset + i, now_ms, None, encode(each, level)) for i, each in enumerate(records)]
        yield build_batch(values, leader_epoch=epoch)
        offset += len(values)
    yield control_batch(ControlType.SNAPSHOT_FOOTER, SnapshotFooterRecord(), offset, epoch, now_ms)


def control_batch(kind: ControlType, message: Message, offset: int, epoch: int, now_ms: int) -> bytes:
    record = Record(offset, now_ms, control_key(kind), encode_message(message, message.VERSIONS.first))
    return build_batch([record], control=True, leader_epoch=epoch)


def from_bytes(content: bytes) -> list[MetadataRecord]:
    data = (records for header, records in decode_batches(content) if not header.is_control)
    return [decode(record.value or b"") for records in data for record in records]


def write_bootstrap(disk: Disk, folder: str, levels: Mapping[str, int], now_ms: int) -> None:
    records = [FeatureLevelRecord(name=name, feature_level=level) for name, level in in_order(levels)]
    content = to_bytes([records], epoch=0, level=LATEST_LEVEL, now_ms=now_ms, contained_ms=0)
    disk.replace(f"{folder}/{BOOTSTRAP}", content)


def read_bootstrap(disk: Disk, folder: str) -> dict[str, int] | None:
    """The levels to begin with, of features that this build has; None when the folder was formatted without."""
    path = f"{folder}/{BOOTSTRAP}"
    if not disk.exists(path):
        return None
    found = {each.name: each.feature_level for each in from_bytes(disk.read_all(path)) if isinstance(each, FeatureLevelRecord)}
    return {name: min(level, SERVED_LEVELS[name].highest) for name, level in found.items() if name in SERVED_LEVELS}
