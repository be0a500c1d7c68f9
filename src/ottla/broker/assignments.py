"""The directory in which this node's replicas live, told to the controller where it believes otherwise (AssignReplicasToDirs, KIP-858).

A node has one directory. When its disk was replaced that has a new id, and the controller, which knows the replicas in the old one,
lets them follow and be in sync but never lead.

A replica whose directory is gone began anew with nothing, and where it is said to live it may lead: so that is said once another broker
leads and has it in sync, or if there is no other replica at all. Kafka's brokers say it as they start. There the last that led a
partition that nobody leads now (KIP-966) can be elected with nothing, and others cut off what they have.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import groupby, islice
from typing import TYPE_CHECKING

from ottla.metadata.image import NO_LEADER, Partition
from ottla.metadata.records import LEVEL_3_7_IV2
from ottla.model.errors import ApiError, ErrorCode
from ottla.model.ids import DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED
from ottla.protocol.messages.log_dirs import AssignReplicasToDirsRequest

if TYPE_CHECKING:
    from ottla.broker.node import Node
    from ottla.broker.replicas import Replica

log = logging.getLogger("ottla.assignments")
MAX_ASSIGNMENTS = 2_250  # in one request, as Kafka's brokers have it
LOOK_AGAIN_MS = 500  # by then the image shows what was told, or it is told again


class Assignments:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._telling: asyncio.Task[None] | None = None

    def look(self, replica: Replica) -> None:
        """The controller has said something about this replica."""
        if self._telling is None and self._is_due(replica):
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    def stop(self) -> None:
        if self._telling is not None:
            self._telling.cancel()

    def _is_due(self, replica: Replica) -> bool:
        node = self._node
        if node.image.metadata_version < LEVEL_3_7_IV2:
            return False
        return may_tell(replica.state, node.node_id, node.directory.directory_id)

    async def _tell(self) -> None:
        while due := list(islice(filter(self._is_due, self._node.replicas), MAX_ASSIGNMENTS)):
            try:
                response = await self._node.quorum.ask(self._request(due))
                error = ErrorCode(response.error_code).name
            except ApiError as refused:
                error = str(refused)
            log.info("directory told node=%d replicas=%d error=%s", self._node.node_id, len(due), error)
            await asyncio.sleep(LOOK_AGAIN_MS / 1000)
        self._telling = None

    def _request(self, due: list[Replica]) -> AssignReplicasToDirsRequest:
        directory = AssignReplicasToDirsRequest.DirectoryData
        row = directory.TopicData.PartitionData
        topics = [
            directory.TopicData(
                topic_id=topic_id, partitions=[row(partition_index=replica.topic_partition.partition) for replica in replicas]
            )
            for topic_id, replicas in groupby(sorted(due, key=_by_topic), key=_by_topic)
        ]
        return AssignReplicasToDirsRequest(
            broker_id=self._node.node_id,
            broker_epoch=self._node.lifecycle.broker_epoch,
            directories=[directory(id=self._node.directory.directory_id, topics=topics)],
        )


def _by_topic(replica: Replica) -> bytes:
    return replica.topic_id


def may_tell(partition: Partition, node_id: int, directory_id: bytes) -> bool:
    """Whether the controller has another directory than this one, and nothing is lost if it learns of it."""
    known = partition.directory_of(node_id)
    if known == directory_id:
        return False
    if known in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING) or partition.replicas == (node_id,):
        return True
    return partition.leader not in (NO_LEADER, node_id) and node_id in partition.isr
