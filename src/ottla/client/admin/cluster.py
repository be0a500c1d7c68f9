"""The cluster itself: brokers, quorum, features, disks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ottla.client.admin.base import AdminBase, by_topic, error_of, raise_code, settle
from ottla.client.admin.types import (
    ClusterDescription,
    FeatureDescription,
    FeaturesDescription,
    LogDirectory,
    QuorumDescription,
    QuorumNode,
    QuorumReplica,
    ReplicaOnDisk,
    UpgradeType,
)
from ottla.client.connection import SOFTWARE_NAME, SOFTWARE_VERSION
from ottla.client.metadata import Broker, code_of
from ottla.model.errors import ApiError
from ottla.model.ids import METADATA_TOPIC, TopicPartition
from ottla.protocol.messages.controller import UnregisterBrokerRequest, UpdateFeaturesRequest
from ottla.protocol.messages.log_dirs import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from ottla.protocol.messages.metadata import DescribeClusterRequest
from ottla.protocol.messages.quorum import AddRaftVoterRequest, DescribeQuorumRequest, RemoveRaftVoterRequest
from ottla.protocol.messages.versions import ApiVersionsRequest


class ClusterAdmin(AdminBase):
    async def describe_cluster(self, *, include_fenced: bool = False) -> ClusterDescription:
        reply = await self._ask_any(DescribeClusterRequest(include_fenced_brokers=include_fenced))
        raise_code(reply.error_code, reply.error_message)
        brokers = tuple(
            sorted((Broker(row.broker_id, row.host, row.port, row.rack) for row in reply.brokers), key=lambda row: row.id)
        )
        fenced = frozenset(row.broker_id for row in reply.brokers if row.is_fenced)
        return ClusterDescription(reply.cluster_id, reply.controller_id, brokers, fenced)

    async def unregister_broker(self, broker_id: int) -> None:
        reply = await self._ask_controller(UnregisterBrokerRequest(broker_id=broker_id), lambda reply: (reply.error_code,))
        raise_code(reply.error_code, reply.error_message)

    # Quorum ------------------------------------------------------------------------------------------------------------

    async def describe_quorum(self) -> QuorumDescription:
        kind = DescribeQuorumRequest.TopicData
        topic = kind(topic_name=METADATA_TOPIC, partitions=[kind.PartitionData(partition_index=0)])

        async def attempt() -> Any:
            reply = await self._cluster.ask(None, DescribeQuorumRequest(topics=[topic]))
            raise_code(reply.error_code, reply.error_message)
            part = reply.topics[0].partitions[0]
            raise_code(part.error_code, part.error_message)
            return reply

        reply = await self._persist(attempt)
        part = reply.topics[0].partitions[0]
        nodes = tuple(
            QuorumNode(node.node_id, {listener.name: (listener.host, listener.port) for listener in node.listeners})
            for node in reply.nodes
        )
        return QuorumDescription(
            part.leader_id,
            part.leader_epoch,
            part.high_watermark,
            tuple(map(_quorum_replica, part.current_voters)),
            tuple(map(_quorum_replica, part.observers)),
            nodes,
        )

    async def add_voter(
        self, voter_id: int, directory_id: bytes, listeners: Mapping[str, tuple[str, int]], *, cluster_id: str | None = None
    ) -> None:
        rows = [AddRaftVoterRequest.Listener(name=name, host=host, port=port) for name, (host, port) in listeners.items()]
        request = AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout_ms=int(self._cluster.settings["request_timeout_ms"]),
            voter_id=voter_id,
            voter_directory_id=directory_id,
            listeners=rows,
        )
        reply = await self._ask_controller(request, lambda reply: (reply.error_code,))
        raise_code(reply.error_code, reply.error_message)

    async def remove_voter(self, voter_id: int, directory_id: bytes, *, cluster_id: str | None = None) -> None:
        request = RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=voter_id, voter_directory_id=directory_id)
        reply = await self._ask_controller(request, lambda reply: (reply.error_code,))
        raise_code(reply.error_code, reply.error_message)

    # Features ----------------------------------------------------------------------------------------------------------

    async def describe_features(self) -> FeaturesDescription:
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        reply = await self._ask_any(request)
        raise_code(reply.error_code)
        finalized = {row.name: row.max_version_level for row in reply.finalized_features}
        features = tuple(
            FeatureDescription(row.name, finalized.get(row.name), row.min_version, row.max_version)
            for row in sorted(reply.supported_features, key=lambda row: row.name)
        )
        return FeaturesDescription(features, reply.finalized_features_epoch if reply.finalized_features_epoch >= 0 else None)

    async def update_features(
        self, levels: Mapping[str, int], *, upgrade_type: UpgradeType = UpgradeType.UPGRADE, validate_only: bool = False
    ) -> None:
        rows = [
            UpdateFeaturesRequest.FeatureUpdateKey(
                feature=name,
                max_version_level=level,
                allow_downgrade=upgrade_type != UpgradeType.UPGRADE,
                upgrade_type=upgrade_type,
            )
            for name, level in levels.items()
        ]
        request = UpdateFeaturesRequest(
            timeout_ms=int(self._cluster.settings["request_timeout_ms"]), feature_updates=rows, validate_only=validate_only
        )
        reply = await self._ask_controller(request, lambda reply: (reply.error_code,))
        raise_code(reply.error_code, reply.error_message)
        failed = {row.feature: error for row in reply.results if (error := error_of(row.error_code, row.error_message))}
        settle({name: None for name in levels if name not in failed}, failed)

    # Disks -------------------------------------------------------------------------------------------------------------

    async def describe_log_dirs(
        self, brokers: Collection[int] | None = None, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[int, tuple[LogDirectory, ...]]:
        """Where each broker keeps its replicas, and how large they are."""
        await self._persist(lambda: self._cluster.refresh(()))
        kind = DescribeLogDirsRequest.DescribableLogDirTopic
        topics = None
        if partitions is not None:
            topics = [kind(topic=topic, partitions=numbers) for topic, numbers in by_topic(partitions).items()]

        async def ask(broker: int) -> tuple[LogDirectory, ...]:
            reply = await self._persist(lambda: self._cluster.ask(broker, DescribeLogDirsRequest(topics=topics)))
            raise_code(reply.error_code)
            return tuple(map(_directory, reply.results))

        wanted = sorted(self._cluster.view.brokers if brokers is None else brokers)
        return dict(zip(wanted, await asyncio.gather(*map(ask, wanted)), strict=True))

    async def alter_replica_log_dirs(self, broker: int, places: Mapping[tuple[str, int], str]) -> None:
        """Move replicas between the log directories of one broker."""
        kind = AlterReplicaLogDirsRequest.AlterReplicaLogDir
        paths: dict[str, list[tuple[str, int]]] = {}
        for partition, path in places.items():
            paths.setdefault(path, []).append(partition)
        rows = [
            kind(
                path=path,
                topics=[
                    kind.AlterReplicaLogDirTopic(name=topic, partitions=numbers) for topic, numbers in by_topic(moved).items()
                ],
            )
            for path, moved in paths.items()
        ]
        reply = await self._persist(lambda: self._cluster.ask(broker, AlterReplicaLogDirsRequest(dirs=rows)))
        done: dict[TopicPartition, None] = {}
        failed: dict[TopicPartition, ApiError] = {}
        for topic in reply.results:
            for part in topic.partitions:
                key = TopicPartition(topic.topic_name, part.partition_index)
                if error := error_of(part.error_code):
                    failed[key] = error
                else:
                    done[key] = None
        settle(done, failed)


def _quorum_replica(row: Any) -> QuorumReplica:
    return QuorumReplica(
        row.replica_id,
        row.replica_directory_id,
        row.log_end_offset,
        row.last_fetch_timestamp if row.last_fetch_timestamp >= 0 else None,
        row.last_caught_up_timestamp if row.last_caught_up_timestamp >= 0 else None,
    )


def _directory(row: Any) -> LogDirectory:
    replicas = tuple(
        ReplicaOnDisk(TopicPartition(topic.name, part.partition_index), part.partition_size, part.offset_lag, part.is_future_key)
        for topic in row.topics
        for part in topic.partitions
    )
    return LogDirectory(
        row.log_dir,
        replicas,
        row.total_bytes if row.total_bytes >= 0 else None,
        row.usable_bytes if row.usable_bytes >= 0 else None,
        code_of(row.error_code).name if row.error_code else None,
    )
