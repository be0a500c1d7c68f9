"""A controller with the shell a test needs: appends to a list, applies, and hands back the reply at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.metadata.controller import Controller
from ottla.metadata.features import BOOTSTRAP_LEVELS, SERVED_LEVELS, SUPPORTED_LEVELS
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import MetadataRecord
from ottla.metadata.state import Activated, BrokerUnreachable, Context, ControllerSettings, EffectiveConfig, TimedOut
from ottla.model.errors import ApiError, ErrorCode
from ottla.protocol.messages.controller import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
)
from ottla.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


class Rules:
    """A few settings, enough for the controller's own decisions."""

    defaults: Mapping[str, str] = {
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "false",
        "cleanup.policy": "delete",
        "retention.ms": "604800000",
    }

    def check(self, resource_type: int, resource_name: str, values: Mapping[str, str]) -> None:
        for name in values:
            if resource_type == 2 and name not in self.defaults:
                raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")

    def is_list(self, resource_type: int, setting: str) -> bool:
        return setting == "cleanup.policy"

    def default_value(self, resource_type: int, setting: str) -> str | None:
        return self.defaults.get(setting)

    def effective_topic_configs(
        self, overrides: Mapping[str, str], node: Mapping[str, str], cluster: Mapping[str, str]
    ) -> Iterable[EffectiveConfig]:
        return [
            EffectiveConfig(name, overrides.get(name, value), 1 if name in overrides else 5)
            for name, value in self.defaults.items()
        ]


class Driver:
    """Time stands still unless a test moves `now_ms`; ids count up; the dice always say 0."""

    def __init__(self, image: ClusterImage | None = None, **settings: Any) -> None:
        options: dict[str, Any] = {"supported_features": SERVED_LEVELS, "bootstrap_features": BOOTSTRAP_LEVELS, **settings}
        self.settings = ControllerSettings(cluster_id=CLUSTER_ID, node_id=1, **options)
        self.log: list[MetadataRecord] = []
        self.now_ms = 1_000_000
        self.timers: dict[Any, int] = {}
        self.last_records: tuple[MetadataRecord, ...] = ()
        self._uuids = 0
        self.controller = Controller(self.settings, Rules(), image)
        self.ask(Activated())

    @property
    def image(self) -> ClusterImage:
        return self.controller.image

    def new_uuid(self) -> bytes:
        self._uuids += 1
        return (2**64 + self._uuids).to_bytes(16, "big")

    def ask(self, event: Any, version: int | None = None) -> Any:
        """Decide, append, apply, and give the reply."""
        served = getattr(type(event), "VERSIONS", None)
        context = Context(
            now_ms=self.now_ms,
            next_offset=len(self.log),
            version=version if version is not None else served.last if served else 0,
            new_uuid=self.new_uuid,
        )
        decision = self.controller.decide(event, context)
        self.controller.apply_batch(decision.records, len(self.log))
        self.log += decision.records
        self.last_records = decision.records
        for change in decision.changes:
            self.controller.apply_change(change)
        for timer in decision.timers:
            if timer.delay_ms is None:
                self.timers.pop(timer.key, None)
            else:
                self.timers[timer.key] = self.now_ms + timer.delay_ms
        return decision.replies[0].message if decision.replies else None

    def sleep(self, ms: int) -> None:
        """Let time pass and timers run out, in order."""
        until = self.now_ms + ms
        while due := [(at, key) for key, at in self.timers.items() if at <= until]:
            at, key = min(due, key=lambda row: (row[0], str(row[1])))
            self.now_ms = max(self.now_ms, at)
            del self.timers[key]
            self.ask(TimedOut(key))
        self.now_ms = until

    # Words of a cluster ---------------------------------------------------------------------------------------------------

    def register(self, broker_id: int, *, rack: str | None = None, life: int = 1, previous_epoch: int = -1, **fields: Any) -> Any:
        request = BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=(broker_id * 1000 + life).to_bytes(16, "big"),
            rack=rack,
            log_dirs=[(10_000 + broker_id).to_bytes(16, "big")],
            previous_broker_epoch=previous_epoch,
            listeners=[BrokerRegistrationRequest.Listener(name="PLAINTEXT", host="localhost", port=9092 + broker_id)],
            features=[
                BrokerRegistrationRequest.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in SUPPORTED_LEVELS.items()
            ],
        )
        return self.ask(request.replace(**fields))

    def beat(self, broker_id: int, **fields: Any) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[broker_id].epoch if broker_id in self.image.brokers else -1,
            current_metadata_offset=len(self.log) - 1,
        )
        reply: BrokerHeartbeatResponse = self.ask(request.replace(**fields))
        return reply

    def start(self, *broker_ids: int, **fields: Any) -> None:
        for broker_id in broker_ids:
            self.register(broker_id, **fields)
            self.beat(broker_id)

    def kill(self, broker_id: int) -> None:
        self.ask(BrokerUnreachable(broker_id, self.image.brokers[broker_id].epoch))

    def create(
        self, name: str, assignments: list[list[int]] | None = None, partitions: int = -1, factor: int = -1, **configs: str
    ) -> Any:
        topic = CreateTopicsRequest.CreatableTopic
        request = CreateTopicsRequest(
            topics=[
                topic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=factor,
                    assignments=[
                        topic.CreatableReplicaAssignment(partition_index=index, broker_ids=replicas)
                        for index, replicas in enumerate(assignments or [])
                    ],
                    configs=[
                        topic.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
                    ],
                )
            ]
        )
        reply: CreateTopicsResponse = self.ask(request)
        return reply.topics[0]

    def alter_isr(self, name: str, index: int, isr: list[int], **fields: Any) -> Any:
        topic = self.image.topic(name)
        assert topic is not None
        partition = topic.partitions[index]
        data = AlterPartitionRequest.TopicData
        wanted = data.PartitionData(
            partition_index=index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            leader_recovery_state=0,
            new_isr_with_epochs=[
                data.PartitionData.BrokerState(
                    broker_id=replica, broker_epoch=self.image.brokers[replica].epoch if replica in self.image.brokers else -1
                )
                for replica in isr
            ],
        ).replace(**fields)
        broker = self.image.brokers.get(partition.leader)
        request = AlterPartitionRequest(
            broker_id=partition.leader,
            broker_epoch=broker.epoch if broker else -1,
            topics=[data(topic_id=topic.topic_id, partitions=[wanted])],
        )
        return self.ask(request).topics[0].partitions[0]

    def show(self, name: str, index: int = 0) -> str:
        """A partition on one line: `leader=1/0 isr=1,2 replicas=1,2,3` with what else is not empty."""
        partition = self.image.partition(name, index)
        assert partition is not None
        words = [f"leader={partition.leader}/{partition.leader_epoch}", f"isr={_ids(partition.isr)}"]
        words.append(f"replicas={_ids(partition.replicas)}")
        for label, ids in (
            ("adding", partition.adding),
            ("removing", partition.removing),
            ("eligible", partition.eligible_leaders),
            ("last", partition.last_known_eligible),
        ):
            if ids:
                words.append(f"{label}={_ids(ids)}")
        if partition.recovery_state:
            words.append("recovering")
        return " ".join(words)


def _ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids)) or "none"
