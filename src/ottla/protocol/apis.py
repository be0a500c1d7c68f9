"""THE table of what ottla speaks: every request of an Apache Kafka 4.3 broker and controller that we declare.

What a listener advertises is the rows that its role has a handler for, so a client sees one coherent release. Each row also
names the operation and resource that an authoriser will be asked about, and the subject under `messages/` that declares it.
"""

from __future__ import annotations

from enum import IntEnum
from importlib import import_module

from ottla.protocol.schema import Message, Versions


class Operation(IntEnum):
    """ACL operations, with Kafka's codes."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Resource(IntEnum):
    """ACL resource types, with Kafka's codes."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


BROKER = frozenset({"broker"})
CONTROLLER = frozenset({"controller"})
BOTH = BROKER | CONTROLLER


class Api:
    """One row. The message classes are loaded on first use: a client that never asks for quotas never compiles them."""

    __slots__ = ("_messages", "_subject", "key", "listeners", "name", "operation", "resource", "versions")

    def __init__(
        self,
        key: int,
        name: str,
        versions: str,
        subject: str,
        operation: Operation | None,
        resource: Resource | None,
        listeners: frozenset[str],
    ) -> None:
        self.key = key
        self.name = name
        self.versions = Versions.parse(versions)
        self.operation = operation
        self.resource = resource
        self.listeners = listeners
        self._subject = subject
        self._messages: tuple[type[Message], type[Message]] | None = None

    def __repr__(self) -> str:
        return f"Api({self.name}, {self.versions})"

    def _load(self) -> tuple[type[Message], type[Message]]:
        if self._messages is None:
            module = import_module(f"ottla.protocol.messages.{self._subject}")
            self._messages = getattr(module, self.name + "Request"), getattr(module, self.name + "Response")
        return self._messages

    @property
    def request(self) -> type[Message]:
        return self._load()[0]

    @property
    def response(self) -> type[Message]:
        return self._load()[1]


# fmt: off
_ROWS = (
    Api(0, "Produce", "3-13", "produce", Operation.WRITE, Resource.TOPIC, BROKER),
    Api(1, "Fetch", "4-18", "fetch", Operation.READ, Resource.TOPIC, BOTH),
    Api(2, "ListOffsets", "1-11", "offsets", Operation.DESCRIBE, Resource.TOPIC, BROKER),
    Api(3, "Metadata", "0-13", "metadata", Operation.DESCRIBE, Resource.TOPIC, BROKER),
    Api(8, "OffsetCommit", "2-10", "group_offsets", Operation.READ, Resource.GROUP, BROKER),
    Api(9, "OffsetFetch", "1-10", "group_offsets", Operation.DESCRIBE, Resource.GROUP, BROKER),
    Api(10, "FindCoordinator", "0-6", "coordinator", Operation.DESCRIBE, Resource.GROUP, BROKER),
    Api(11, "JoinGroup", "0-9", "classic_groups", Operation.READ, Resource.GROUP, BROKER),
    Api(12, "Heartbeat", "0-4", "classic_groups", Operation.READ, Resource.GROUP, BROKER),
    Api(13, "LeaveGroup", "0-5", "classic_groups", Operation.READ, Resource.GROUP, BROKER),
    Api(14, "SyncGroup", "0-5", "classic_groups", Operation.READ, Resource.GROUP, BROKER),
    Api(15, "DescribeGroups", "0-6", "groups", Operation.DESCRIBE, Resource.GROUP, BROKER),
    Api(16, "ListGroups", "0-5", "groups", Operation.DESCRIBE, Resource.CLUSTER, BROKER),
    Api(17, "SaslHandshake", "0-1", "security", None, None, BOTH),
    Api(18, "ApiVersions", "0-4", "versions", None, None, BOTH),
    Api(19, "CreateTopics", "2-7", "topics", Operation.CREATE, Resource.CLUSTER, BOTH),
    Api(20, "DeleteTopics", "1-6", "topics", Operation.DELETE, Resource.TOPIC, BOTH),
    Api(21, "DeleteRecords", "0-2", "offsets", Operation.DELETE, Resource.TOPIC, BROKER),
    Api(22, "InitProducerId", "0-5", "transactions", Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, BROKER),
    Api(23, "OffsetForLeaderEpoch", "2-4", "offsets", Operation.DESCRIBE, Resource.TOPIC, BROKER),
    Api(24, "AddPartitionsToTxn", "0-5", "transactions", Operation.WRITE, Resource.TRANSACTIONAL_ID, BROKER),
    Api(25, "AddOffsetsToTxn", "0-4", "transactions", Operation.WRITE, Resource.TRANSACTIONAL_ID, BROKER),
    Api(26, "EndTxn", "0-5", "transactions", Operation.WRITE, Resource.TRANSACTIONAL_ID, BROKER),
    Api(27, "WriteTxnMarkers", "1-2", "transactions", Operation.CLUSTER_ACTION, Resource.CLUSTER, BROKER),
    Api(28, "TxnOffsetCommit", "0-5", "transactions", Operation.WRITE, Resource.TRANSACTIONAL_ID, BROKER),
    Api(29, "DescribeAcls", "1-3", "security", Operation.DESCRIBE, Resource.CLUSTER, BOTH),
    Api(30, "CreateAcls", "1-3", "security", Operation.ALTER, Resource.CLUSTER, BOTH),
    Api(31, "DeleteAcls", "1-3", "security", Operation.ALTER, Resource.CLUSTER, BOTH),
    Api(32, "DescribeConfigs", "1-4", "configs", Operation.DESCRIBE_CONFIGS, Resource.TOPIC, BOTH),
    Api(33, "AlterConfigs", "0-2", "configs", Operation.ALTER_CONFIGS, Resource.TOPIC, BOTH),
    Api(34, "AlterReplicaLogDirs", "1-2", "log_dirs", Operation.ALTER, Resource.CLUSTER, BROKER),
    Api(35, "DescribeLogDirs", "1-5", "log_dirs", Operation.DESCRIBE, Resource.CLUSTER, BROKER),
    Api(36, "SaslAuthenticate", "0-2", "security", None, None, BOTH),
    Api(37, "CreatePartitions", "0-3", "topics", Operation.ALTER, Resource.TOPIC, BOTH),
    Api(42, "DeleteGroups", "0-2", "groups", Operation.DELETE, Resource.GROUP, BROKER),
    Api(43, "ElectLeaders", "0-2", "topics", Operation.ALTER, Resource.CLUSTER, BOTH),
    Api(44, "IncrementalAlterConfigs", "0-1", "configs", Operation.ALTER_CONFIGS, Resource.TOPIC, BOTH),
    Api(45, "AlterPartitionReassignments", "0-1", "topics", Operation.ALTER, Resource.CLUSTER, BOTH),
    Api(46, "ListPartitionReassignments", "0", "topics", Operation.DESCRIBE, Resource.CLUSTER, BOTH),
    Api(47, "OffsetDelete", "0", "group_offsets", Operation.DELETE, Resource.GROUP, BROKER),
    Api(48, "DescribeClientQuotas", "0-1", "quotas", Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, BROKER),
    Api(49, "AlterClientQuotas", "0-1", "quotas", Operation.ALTER_CONFIGS, Resource.CLUSTER, BOTH),
    Api(50, "DescribeUserScramCredentials", "0", "security", Operation.DESCRIBE, Resource.CLUSTER, BOTH),
    Api(51, "AlterUserScramCredentials", "0", "security", Operation.ALTER, Resource.CLUSTER, BOTH),
    Api(52, "Vote", "0-2", "quorum", Operation.CLUSTER_ACTION, Resource.CLUSTER, CONTROLLER),
    Api(53, "BeginQuorumEpoch", "0-1", "quorum", Operation.CLUSTER_ACTION, Resource.CLUSTER, CONTROLLER),
    Api(54, "EndQuorumEpoch", "0-1", "quorum", Operation.CLUSTER_ACTION, Resource.CLUSTER, CONTROLLER),
    Api(55, "DescribeQuorum", "0-2", "quorum", Operation.DESCRIBE, Resource.CLUSTER, BOTH),
    Api(56, "AlterPartition", "2-3", "controller", Operation.CLUSTER_ACTION, Resource.CLUSTER, CONTROLLER),
    Api(57, "UpdateFeatures", "0-2", "controller", Operation.ALTER, Resource.CLUSTER, BOTH),
    Api(58, "Envelope", "0", "controller", Operation.CLUSTER_ACTION, Resource.CLUSTER, CONTROLLER),
    Api(59, "FetchSnapshot", "0-1", "quorum", Operation.CLUSTER_ACTION, Resource.CLUSTER, CONTROLLER),
    Api(60, "DescribeCluster", "0-2", "metadata", Operation.DESCRIBE, Resource.CLUSTER, BOTH),
    Api(61, "DescribeProducers", "0", "transactions", Operation.READ, Resource.TOPIC, BROKER),
    Api(62, "BrokerRegistration", "0-4", "controller", Operation.CLUSTER_ACTION, Resource.CLUSTER, CONTROLLER),
    Api(63, "BrokerHeartbeat", "0-2", "controller", Operation.CLUSTER_ACTION, Resource.CLUSTER, CONTROLLER),
    Api(64, "UnregisterBroker", "0", "controller", Operation.ALTER, Resource.CLUSTER, BOTH),
    Api(65, "DescribeTransactions", "0", "transactions", Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, BROKER),
    Api(66, "ListTransactions", "0-2", "transactions", Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, BROKER),
    Api(67, "AllocateProducerIds", "0", "controller", Operation.CLUSTER_ACTION, Resource.CLUSTER, CONTROLLER),
    Api(68, "ConsumerGroupHeartbeat", "0-1", "consumer_groups", Operation.READ, Resource.GROUP, BROKER),
    Api(69, "ConsumerGroupDescribe", "0-1", "consumer_groups", Operation.DESCRIBE, Resource.GROUP, BROKER),
    Api(70, "ControllerRegistration", "0", "controller", Operation.CLUSTER_ACTION, Resource.CLUSTER, CONTROLLER),
    Api(71, "GetTelemetrySubscriptions", "0", "versions", None, None, BROKER),
    Api(72, "PushTelemetry", "0", "versions", None, None, BROKER),
    Api(73, "AssignReplicasToDirs", "0", "log_dirs", Operation.CLUSTER_ACTION, Resource.CLUSTER, CONTROLLER),
    Api(74, "ListConfigResources", "0-1", "configs", Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, BROKER),
    Api(75, "DescribeTopicPartitions", "0", "metadata", Operation.DESCRIBE, Resource.TOPIC, BROKER),
    Api(80, "AddRaftVoter", "0-1", "quorum", Operation.ALTER, Resource.CLUSTER, BOTH),
    Api(81, "RemoveRaftVoter", "0", "quorum", Operation.ALTER, Resource.CLUSTER, BOTH),
    Api(82, "UpdateRaftVoter", "0", "quorum", Operation.CLUSTER_ACTION, Resource.CLUSTER, CONTROLLER),
)
# fmt: on

APIS: dict[int, Api] = {row.key: row for row in _ROWS}
BY_NAME: dict[str, Api] = {row.name: row for row in _ROWS}
