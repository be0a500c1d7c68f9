"""The metadata log on disk: `__cluster_metadata-0`, its snapshots (`OFFSET-EPOCH.checkpoint`) and the `quorum-state` file.

All of it in Kafka's formats: a snapshot is a file of record batches between a header and a footer record (KIP-630).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ottla.broker import snapshot_file
from ottla.host import World
from ottla.host.disk import File
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import MetadataRecord, decode, encode
from ottla.metadata.snapshot import batches as snapshot_batches
from ottla.model.ids import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition
from ottla.protocol.codec import decode as decode_message
from ottla.protocol.messages.control_records import LeaderChangeMessage, VotersRecord
from ottla.raft.log import LogView, OffsetAndEpoch
from ottla.raft.quorum_state import QuorumState, from_text, to_text, voters_in_text
from ottla.records.batch import BatchHeader, headers
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, read_control_type
from ottla.records.record import Record, decode_batch, decode_batches
from ottla.storage.config import LogConfig
from ottla.storage.log import FlushJob, Log

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
QUORUM_STATE = "quorum-state"
READ_BYTES = 1 << 20
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class MetadataLog:
    def __init__(self, world: World, folder: str, config: LogConfig) -> None:
        self._world = world
        self._path = f"{folder}/{METADATA_PARTITION}"
        self._incoming: File | None = None  # a snapshot on its way from the leader
        snapshot = self.latest_snapshot()
        # Always as after a crash: the clean-shutdown marker goes only when the other logs are loaded, long after the first append.
        # But only what no snapshot stands for is read and checked (`roll`).
        self._log = Log.open(
            world.disk,
            self._path,
            METADATA_PARTITION,
            METADATA_TOPIC_ID,
            config,
            world.clock.wall_ms(),
            recovery_point=0 if snapshot is None else snapshot.offset,
        )
        self._begin_at_snapshot()

    def _begin_at_snapshot(self) -> None:
        """The log begins where the newest snapshot ends, as it did before the node stopped; that it does is not written down elsewhere.

        The epochs of what came before were forgotten with it: a log that claimed to begin at 0 would tell a follower of an older
        epoch to cut everything, committed records too. A log that ends before the snapshot has nothing to add to it.
        """
        snapshot = self.latest_snapshot()
        if snapshot is None:
            return
        if snapshot.offset > self._log.log_end_offset:
            self._log.truncate_fully_and_start_at(snapshot.offset, self._world.clock.wall_ms())
        else:
            self._log.advance_high_watermark(snapshot.offset)  # what is in a snapshot is committed
            self._log.advance_log_start_offset(snapshot.offset)

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def size(self) -> int:
        return self._log.size

    def view(self) -> LogView:
        """What the raft machine starts from."""
        return LogView(
            start_offset=self._log.log_start_offset,
            end_offset=self._log.log_end_offset,
            epochs=self._log.epoch_entries,
            snapshot=self.latest_snapshot(),
        )

    def close(self) -> None:
        self._log.close(self._world.clock.wall_ms())

    # Quorum state ---------------------------------------------------------------------------------------------------------

    def quorum_state(self) -> QuorumState | None:
        path = f"{self._path}/{QUORUM_STATE}"
        return from_text(self._world.disk.read_all(path).decode()) if self._world.disk.exists(path) else None

    def remembered_voters(self) -> list[int]:
        path = f"{self._path}/{QUORUM_STATE}"
        return voters_in_text(self._world.disk.read_all(path).decode()) if self._world.disk.exists(path) else []

    def persist(self, state: QuorumState, voters: Iterable[int]) -> None:
        """Synced before it returns: a vote that is not on disk must not be cast."""
        self._world.disk.replace(f"{self._path}/{QUORUM_STATE}", to_text(state, voters).encode())

    # Records --------------------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[MetadataRecord], metadata_version: int, epoch: int) -> int:
        """As leader; the offset of the first."""
        now_ms, first = self._world.clock.wall_ms(), self.end_offset
        values = [Record(first + index, now_ms, None, encode(record, metadata_version)) for index, record in enumerate(records)]
        self._log.append_as_follower(build_batch(values, leader_epoch=epoch))
        return first

    def append_leader_change(self, message: LeaderChangeMessage, epoch: int) -> None:
        """The first record of an epoch (KIP-595): what lies before it is committed once it is."""
        now_ms = self._world.clock.wall_ms()
        kind = ControlType.LEADER_CHANGE
        self._log.append_as_follower(snapshot_file.control_batch(kind, message, self.end_offset, epoch, now_ms))

    def append_fetched(self, content: bytes | memoryview) -> tuple[tuple[int, int], ...]:
        """As follower; each epoch that begins in what was appended, with its first offset."""
        epochs: dict[int, int] = {}
        for _, header in headers(content):
            epochs.setdefault(header.leader_epoch, header.base_offset)
        self._log.append_as_follower(content)
        return tuple(epochs.items())

    def truncate(self, offset: int) -> None:
        self._log.truncate_to(offset, self._world.clock.wall_ms())

    def prepare_flush(self) -> FlushJob:
        return self._log.prepare_flush()

    def complete_flush(self, job: FlushJob) -> None:
        self._log.complete_flush(job, self._world.clock.wall_ms())

    def advance_high_watermark(self, offset: int) -> None:
        self._log.advance_high_watermark(offset)

    def read(self, offset: int, max_bytes: int, upper_offset: int) -> bytes:
        return b"".join(part.read() for part in self._log.read(offset, max_bytes, upper_offset).parts)

    def batches(self, offset: int, upper_offset: int) -> Iterator[tuple[BatchHeader, list[MetadataRecord]]]:
        """From `offset` on, a bounded piece at a time; a control batch has no metadata records."""
        for header, records in decode_batches(self.read(offset, READ_BYTES, upper_offset), from_offset=offset):
            yield header, [] if header.is_control else [decode(record.value or b"") for record in records]

    # Snapshots ------------------------------------------------------------------------------------------------------------

    def roll(self) -> int:
        """Begin a segment, and say where: a snapshot that reaches there stands for whole segments, which can go."""
        return self._log.roll(self._world.clock.wall_ms())

    def snapshots(self) -> list[OffsetAndEpoch]:
        found = (_SNAPSHOT.fullmatch(name) for name in self._world.disk.list(self._path))
        return sorted(OffsetAndEpoch(int(match[1]), int(match[2])) for match in found if match)

    def latest_snapshot(self) -> OffsetAndEpoch | None:
        found = self.snapshots()
        return found[-1] if found else None

    def snapshot_path(self, snapshot: OffsetAndEpoch) -> str:
        return f"{self._path}/{snapshot.offset:020d}-{snapshot.epoch:010d}.checkpoint"

    def load_snapshot(self, snapshot: OffsetAndEpoch) -> list[MetadataRecord]:
        return snapshot_file.from_bytes(self._world.disk.read_all(self.snapshot_path(snapshot)))

    def write_snapshot(self, image: ClusterImage) -> OffsetAndEpoch:
        """Everything committed up to the image's offset."""
        snapshot = OffsetAndEpoch(image.offset + 1, image.epoch)
        now_ms, level = self._world.clock.wall_ms(), image.metadata_version
        batches = snapshot_batches(image)
        content = snapshot_file.to_bytes(batches, epoch=image.epoch, level=level, now_ms=now_ms, contained_ms=now_ms)
        self._world.disk.replace(self.snapshot_path(snapshot), content)
        return snapshot

    def read_snapshot(self, snapshot: OffsetAndEpoch, position: int, max_bytes: int) -> tuple[bytes, int] | None:
        """A piece of a snapshot and the size of all of it; None when it is gone."""
        path = self.snapshot_path(snapshot)
        if not self._world.disk.exists(path):
            return None
        file = self._world.disk.open(path)
        try:
            return file.read(position, max_bytes), file.size
        finally:
            file.close()

    def receive_snapshot(self, snapshot: OffsetAndEpoch, position: int, data: bytes, is_last: bool) -> None:
        """A piece from the leader, in order; the last one makes it real, and the log begins anew behind it."""
        path = self.snapshot_path(snapshot)
        if position == 0:
            self._incoming = self._world.disk.open(path + ".part", create=True)
            self._incoming.truncate(0)
        assert self._incoming is not None
        self._incoming.append(data)
        if is_last:
            self._incoming.sync()
            self._incoming.close()
            self._incoming = None
            self._world.disk.rename(path + ".part", path)
            self._world.disk.sync_directory(self._path)
            self._log.truncate_fully_and_start_at(snapshot.offset, self._world.clock.wall_ms())

    def forget_before(self, snapshot: OffsetAndEpoch, keep: int = 2) -> None:
        """Delete the segments that the snapshot stands for, and all but the newest snapshots."""
        self._log.advance_log_start_offset(snapshot.offset)
        self._log.apply_retention(self._world.clock.wall_ms())
        for old in self.snapshots()[:-keep]:
            self._world.disk.remove(self.snapshot_path(old))


def voters_in(content: bytes | memoryview, from_offset: int) -> Iterator[tuple[int, VotersRecord]]:
    """Voters records (KIP-853) in fetched batches: they count as soon as they are in the log, committed or not."""
    for position, header in headers(content):
        if header.is_control and header.base_offset >= from_offset:
            for record in decode_batch(content, position):
                if read_control_type(record.key) is ControlType.KRAFT_VOTERS:
                    yield record.offset, decode_message(VotersRecord, 0, record.value or b"")


async def flush(log: MetadataLog, world: World) -> int:
    """Sync what is appended on a worker thread; the offset up to which it is."""
    job = log.prepare_flush()
    await world.workers.thread(job.run)
    log.complete_flush(job)
    return job.end_offset
