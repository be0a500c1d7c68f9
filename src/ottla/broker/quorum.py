"""The metadata log: agreed by the quorum, applied to an image, published to the node.

Records become visible when they are committed: on disk at a majority of the voters. A quorum of one is committed when its own
disk has it. Flushing happens on a worker thread; what is appended meanwhile shares the next flush.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.controller import ActiveController
from ottla.metadata.loader import Loader
from ottla.metadata.records import MetadataRecord, decode, encode
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition
from ottla.protocol.codec import encode as encode_message
from ottla.protocol.messages.control_records import LeaderChangeMessage, Voter
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, control_key
from ottla.records.record import Record, decode_batches
from ottla.storage.config import LogConfig
from ottla.storage.log import Log

if TYPE_CHECKING:
    from ottla.broker.node import Node

log = logging.getLogger("ottla.quorum")
METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
READ_BYTES = 1 << 20


class Quorum:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._loader = Loader()
        self._controller: ActiveController | None = None
        self._log: Log
        self._flushing: asyncio.Task[None] | None = None
        self._flush_wanted = asyncio.Event()
        self._moved = asyncio.Event()
        self.leader_epoch = 0
        self.high_watermark = 0

    @property
    def log(self) -> Log:
        return self._log

    @property
    def leader_id(self) -> int:
        return self._node.node_id

    async def start(self) -> None:
        world = self._node.world
        path = f"{self._node.config.directory}/{METADATA_PARTITION}"
        self._log = Log.open(
            world.disk, path, METADATA_PARTITION, METADATA_TOPIC_ID, _log_config(self._node), world.clock.wall_ms()
        )
        self._flushing = asyncio.get_running_loop().create_task(self._flush())
        self.leader_epoch = max(self._log.latest_epoch, 0) + 1
        self._log.assign_epoch(self.leader_epoch, self._log.log_end_offset)
        self._append_leader_change()
        await self._until_committed(self._log.log_end_offset)
        self._controller = ActiveController(
            self._node, self._loader.image, self.leader_epoch, self._append_records, lambda: self._log.log_end_offset
        )
        self._controller.committed(self.high_watermark)

    async def stop(self) -> None:
        if self._controller is not None:
            self._controller.close()
        if self._flushing is not None:
            self._flushing.cancel()
            self._log.close(self._node.world.clock.wall_ms())

    async def ask(self, request: Any, version: int | None = None) -> Any:
        """A request to the active controller, wherever it is. Raises ApiError NOT_CONTROLLER when there is none."""
        if self._controller is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return await self._controller.ask(request, request.VERSIONS.last if version is None else version)

    # Appending ------------------------------------------------------------------------------------------------------------

    def _append_records(self, records: Sequence[MetadataRecord], metadata_version: int) -> int:
        now_ms, first = self._node.world.clock.wall_ms(), self._log.log_end_offset
        values = [Record(first + index, now_ms, None, encode(record, metadata_version)) for index, record in enumerate(records)]
        self._append(build_batch(values, leader_epoch=self.leader_epoch))
        return first

    def _append_leader_change(self) -> None:
        """The first record of an epoch (KIP-595): what lies before it may be counted as committed once it is."""
        message = LeaderChangeMessage(
            leader_id=self._node.node_id,
            voters=[Voter(voter_id=self._node.node_id)],
            granting_voters=[Voter(voter_id=self._node.node_id)],
        )
        now_ms = self._node.world.clock.wall_ms()
        record = Record(
            self._log.log_end_offset,
            now_ms,
            control_key(ControlType.LEADER_CHANGE),
            encode_message(message, message.VERSIONS.first),
        )
        self._append(build_batch([record], control=True, leader_epoch=self.leader_epoch))

    def _append(self, batch: bytes) -> None:
        self._log.append_as_follower(batch)
        self._flush_wanted.set()

    async def _flush(self) -> None:
        """Sync what is appended, then commit it; a disk that fails stops the node, because it can promise nothing."""
        while True:
            await self._flush_wanted.wait()
            self._flush_wanted.clear()
            job = self._log.prepare_flush()
            await self._node.world.workers.thread(job.run)
            self._log.complete_flush(job, self._node.world.clock.wall_ms())
            self._commit(job.end_offset)

    # Committing -----------------------------------------------------------------------------------------------------------

    def _commit(self, offset: int) -> None:
        self._log.advance_high_watermark(offset)
        self.high_watermark = self._log.high_watermark
        self._moved.set()
        while self._loader.offset + 1 < self.high_watermark:
            self._apply_from(self._loader.offset + 1)
        if self._controller is not None:
            self._controller.committed(self.high_watermark)

    def _apply_from(self, offset: int) -> None:
        found = self._log.read(offset, READ_BYTES, self.high_watermark)
        content = b"".join(part.read() for part in found.parts)
        for header, records in decode_batches(content, from_offset=offset):
            values = [] if header.is_control else [decode(record.value or b"") for record in records]
            image, changes = self._loader.apply_batch(values, header.last_offset, header.leader_epoch)
            self._node.publish(image, changes)

    async def _until_committed(self, offset: int) -> None:
        while self.high_watermark < offset:
            self._moved.clear()
            await self._moved.wait()


def _log_config(node: Node) -> LogConfig:
    return LogConfig(
        segment_bytes=node.settings["metadata.log.segment.bytes"],
        segment_ms=node.settings["metadata.log.segment.ms"],
        retention_ms=-1,
        retention_bytes=-1,
        delete=False,
        max_message_bytes=8 << 20,
    )
