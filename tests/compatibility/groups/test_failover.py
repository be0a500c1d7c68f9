"""A cluster of three whose coordinators are killed one after another: groups live on at the next, with all they had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.errors import ErrorCode
from ottla.protocol.messages import classic_groups as classic
from ottla.protocol.messages import group_offsets as offsets
from ottla.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.coordinator import FindCoordinatorRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.topics import CreateTopicsRequest
from ottla.protocol.schema import Message
from tests.compatibility.groups.plays import ANN, subscription
from tests.compatibility.wire import Closed, Wire, address_of, wait_until

RETRY = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
GROUPS = ("classic", "consumer", "simple")


class Cluster:
    """Asks whoever coordinates a group, looking for it anew as clients do."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster

    def coordinator(self, group: str) -> tuple[int, tuple[str, int]] | None:
        for bootstrap in self.cluster.bootstrap.split(","):
            try:
                with Wire(address_of(bootstrap), timeout_s=5) as wire:
                    found = wire.ask(FindCoordinatorRequest(coordinator_keys=[group]), 4).coordinators[0]
            except (OSError, Closed):
                continue
            if found.error_code == ErrorCode.NONE:
                return found.node_id, (found.host, found.port)
        return None

    def ask(self, group: str, request: Message, version: int, code_of: Callable[[Any], int]) -> Any:
        def attempt() -> Any:
            found = self.coordinator(group)
            if found is None:
                return None
            try:
                with Wire(found[1], client_id="ann", timeout_s=10) as wire:
                    answer = wire.ask(request, version)
            except (OSError, Closed):
                return None
            return None if code_of(answer) in RETRY else answer

        return wait_until(f"an answer to {type(request).__name__}", attempt)

    def commit(self, group: str, offset: int, **who: Any) -> int:
        topic = offsets.OffsetCommitRequest.OffsetCommitRequestTopic
        rows = [topic(name="t", partitions=[topic.OffsetCommitRequestPartition(committed_offset=offset)])]
        request = offsets.OffsetCommitRequest(group_id=group, topics=rows, **who)
        answer = self.ask(group, request, 9, lambda reply: reply.topics[0].partitions[0].error_code)
        return int(answer.topics[0].partitions[0].error_code)

    def fetch(self, group: str) -> int:
        asked = offsets.OffsetFetchRequest.OffsetFetchRequestGroup
        wanted = [asked.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        request = offsets.OffsetFetchRequest(groups=[asked(group_id=group, topics=wanted)])
        answer = self.ask(group, request, 8, lambda reply: reply.groups[0].error_code)
        return int(answer.groups[0].topics[0].partitions[0].committed_offset)

    def kill_coordinator(self, group: str) -> None:
        found = self.coordinator(group)
        assert found is not None
        node = next(node for node in self.cluster.nodes if node.node_id == found[0])
        node.kill()
        wait_until("another coordinator", lambda: (now := self.coordinator(group)) is not None and now[0] != found[0])
        node.start()
        wait_until("all replicas in sync", self.is_in_sync)  # or the next kill may leave nobody who has everything

    def is_in_sync(self) -> bool:
        asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="__consumer_offsets")])
        with Wire(address_of(self.cluster.bootstrap)) as wire:
            [topic] = wire.ask(asked, 9).topics
        return all(len(row.isr_nodes) == len(row.replica_nodes) for row in topic.partitions)


def test_groups_outlive_their_coordinators() -> None:
    with EmbeddedCluster(3, settings={"group.initial.rebalance.delay.ms": "0"}) as running:
        cluster = Cluster(running)
        with Wire(address_of(running.bootstrap)) as wire:
            wanted = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=3)
            assert wire.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000), 7).topics[0].error_code == ErrorCode.NONE
        member, generation = join_classic(cluster)
        epoch = join_consumer(cluster)
        for number in range(1, 4):
            assert cluster.commit("simple", number) == ErrorCode.NONE
            assert cluster.commit("classic", number, member_id=member, generation_id_or_member_epoch=generation) == ErrorCode.NONE
            assert cluster.commit("consumer", number, member_id=ANN, generation_id_or_member_epoch=epoch) == ErrorCode.NONE
            cluster.kill_coordinator(GROUPS[number % 3])
            assert [cluster.fetch(group) for group in GROUPS] == [number] * 3
            beat = classic.HeartbeatRequest(group_id="classic", member_id=member, generation_id=generation)
            assert cluster.ask("classic", beat, 4, lambda reply: reply.error_code).error_code == ErrorCode.NONE
            beat = ConsumerGroupHeartbeatRequest(group_id="consumer", member_id=ANN, member_epoch=epoch)
            assert cluster.ask("consumer", beat, 1, lambda reply: reply.error_code).error_code == ErrorCode.NONE


def join_classic(cluster: Cluster) -> tuple[str, int]:
    protocol = classic.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription("t"))
    request = classic.JoinGroupRequest(
        group_id="classic", session_timeout_ms=60_000, rebalance_timeout_ms=60_000, protocol_type="consumer", protocols=[protocol]
    )
    request.member_id = cluster.ask("classic", request, 9, lambda reply: reply.error_code).member_id
    joined = cluster.ask("classic", request, 9, lambda reply: reply.error_code)
    given = classic.SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
    sync = classic.SyncGroupRequest(
        group_id="classic",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[given],
    )
    assert cluster.ask("classic", sync, 5, lambda reply: reply.error_code).assignment == b"all"
    return joined.member_id, joined.generation_id


def join_consumer(cluster: Cluster) -> int:
    request = ConsumerGroupHeartbeatRequest(
        group_id="consumer", member_id=ANN, rebalance_timeout_ms=60_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    return int(cluster.ask("consumer", request, 1, lambda reply: reply.error_code).member_epoch)


def test_a_commit_that_the_replicas_do_not_take_is_refused_in_time_and_may_be_tried_again() -> None:
    with EmbeddedCluster(3, settings={"offsets.commit.timeout.ms": "300"}) as running:
        cluster = Cluster(running)
        with Wire(address_of(running.bootstrap)) as wire:
            wanted = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2, replication_factor=3)
            assert wire.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000), 7).topics[0].error_code == ErrorCode.NONE
        assert cluster.commit("simple", 1) == ErrorCode.NONE
        found = cluster.coordinator("simple")
        assert found is not None
        others = [node for node in running.nodes if node.node_id != found[0]]
        topic = offsets.OffsetCommitRequest.OffsetCommitRequestTopic
        rows = [topic(name="t", partitions=[topic.OffsetCommitRequestPartition(committed_offset=2)])]
        for node in others:
            node.pause()
        try:
            with Wire(found[1]) as wire:
                answer = wire.ask(offsets.OffsetCommitRequest(group_id="simple", topics=rows), 9)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        finally:
            for node in others:
                node.resume()
        assert cluster.commit("simple", 3) == ErrorCode.NONE
        assert cluster.fetch("simple") == 3
