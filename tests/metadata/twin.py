"""Our controller beside Apache Kafka's: the same request to both, then both replies and both decisions compared.

Kafka answers first. Ours starts from the image that Kafka's own metadata log adds up to, is given the topic ids that Kafka
drew, and afterwards applies Kafka's records, not its own, so that one difference does not hide the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ottla.metadata import records as frames
from ottla.metadata.controller import Controller
from ottla.metadata.features import BOOTSTRAP_LEVELS, SUPPORTED_LEVELS
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import MetadataRecord
from ottla.metadata.state import Context, ControllerSettings, Session, SessionChange
from ottla.protocol.messages.metadata_records import NoOpRecord, TopicRecord
from ottla.protocol.messages.quorum import DescribeQuorumRequest
from ottla.protocol.schema import Message, Struct
from ottla.records.record import decode_batches
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.wire import Wire
from tests.metadata.driver import Rules

Batch = tuple[int, int, list[MetadataRecord]]  # first offset, epoch, records


def read_log(folder: Path, from_offset: int = 0) -> list[Batch]:
    """The metadata batches of a log directory, without control batches."""
    batches = []
    for path in sorted((folder / "__cluster_metadata-0").glob("*.log")):
        for header, records in decode_batches(path.read_bytes(), from_offset=from_offset):
            if not header.is_control:
                decoded = [frames.decode(record.value or b"") for record in records]
                batches.append((header.base_offset, header.leader_epoch, decoded))
    return batches


class Twin:
    def __init__(self, kafka: KafkaPeer) -> None:
        self.kafka = kafka
        self.leader = self._active_controller()
        self.wire = Wire(("127.0.0.1", kafka.controller_ports[self.leader]))
        settings = ControllerSettings(
            cluster_id=kafka.cluster_id,
            node_id=self.leader,
            supported_features=SUPPORTED_LEVELS,
            bootstrap_features=BOOTSTRAP_LEVELS,
        )
        self.controller = Controller(settings, Rules())
        self.next_offset = 0
        self.differences: list[str] = []
        self.catch_up()
        for broker_id in self.image.brokers:
            self.controller.apply_change(SessionChange(broker_id, Session(0, 2**62)))

    def _active_controller(self) -> int:
        topic = DescribeQuorumRequest.TopicData(
            topic_name="__cluster_metadata", partitions=[DescribeQuorumRequest.TopicData.PartitionData()]
        )
        with Wire(self.kafka.address) as wire:
            answer = wire.ask(DescribeQuorumRequest(topics=[topic]), 0)
        leader: int = answer.topics[0].partitions[0].leader_id
        return leader

    @property
    def image(self) -> ClusterImage:
        return self.controller.image

    def catch_up(self) -> list[MetadataRecord]:
        """Apply what Kafka has written since, and give it back."""
        new: list[MetadataRecord] = []
        for first_offset, epoch, records in read_log(self.kafka.log_directory(self.leader), self.next_offset):
            self.controller.apply_batch(records, first_offset, epoch)
            self.next_offset = first_offset + len(records)
            new += [record for record in records if not isinstance(record, NoOpRecord)]
        return new

    def ask(self, request: Message, version: int | None = None) -> tuple[Any, Any, list[str], list[str]]:
        """Kafka's reply and ours, Kafka's records and ours as text."""
        version = request.VERSIONS.last if version is None else version
        self.catch_up()
        theirs = self.wire.ask(request, version)
        before = self.controller.image
        offset = self.next_offset
        written = self.catch_up()
        ids = [record.topic_id for record in written if isinstance(record, TopicRecord)]
        after, self.controller._state.image = self.controller.image, before
        decision = self.controller.decide(
            request,
            Context(now_ms=1, next_offset=offset, version=version, new_uuid=lambda: ids.pop(0) if ids else bytes(16)),
        )
        self.controller._state.image = after
        ours = decision.replies[0].message
        return theirs, ours, texts(written), texts(decision.records)


def texts(records: Any) -> list[str]:
    """Records as Kafka's bytes would say them: what the version cannot carry is gone."""
    level = frames.LATEST_LEVEL
    return sorted(repr(frames.decode(frames.encode(record, level))) for record in records)


def fields(value: Any, hidden: frozenset[str]) -> Any:
    """A message as plain data, in any order of lists, without the fields named."""
    if isinstance(value, Struct):
        return {name: fields(getattr(value, name), hidden) for name in value.__fields__ if name not in hidden}
    if isinstance(value, list):
        return sorted((fields(item, hidden) for item in value), key=repr)
    return int(value) if isinstance(value, int) else value
