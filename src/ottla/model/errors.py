"""Kafka's error codes, and the exceptions that carry them.

Three kinds of failure, never mixed: a code in a reply (`ApiError`), a peer that broke the protocol (`ProtocolError`, which
closes that connection), and an invariant of ours that broke (an assertion, which stops the node).
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133

    @property
    def meaning(self) -> str:
        """One line: what it means and what to do."""
        return _MEANINGS[self.name]

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, as Kafka's clients judge it."""
        return self in _RETRIABLE

    @property
    def stale_metadata(self) -> bool:
        """Whether the sender should refresh its view of the cluster before it tries again."""
        return self in _STALE_METADATA


_RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)

_STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)

# Our own words. The table is a constant, so importing it costs next to nothing.
_MEANINGS = {
    "UNKNOWN_SERVER_ERROR": "The broker failed in a way it has no code for; its log has the cause.",
    "NONE": "No error.",
    "OFFSET_OUT_OF_RANGE": "The partition has no record at that offset (deleted, or not written yet); seek to one between its start and end, or set auto_offset_reset.",
    "CORRUPT_MESSAGE": "The record batch arrived damaged, or a compacted topic got a record without a key; send it again, and give it a key.",
    "UNKNOWN_TOPIC_OR_PARTITION": "This broker does not have that topic or partition; check the name, or create it.",
    "INVALID_FETCH_SIZE": "The fetch asked for a size that makes no sense; use a positive number of bytes.",
    "LEADER_NOT_AVAILABLE": "The partition has no leader at the moment; an election is under way, so try again.",
    "NOT_LEADER_OR_FOLLOWER": "This broker no longer leads or holds the partition; refresh the metadata and ask its leader.",
    "REQUEST_TIMED_OUT": "The broker could not finish in the time the request allowed; try again, or allow more.",
    "BROKER_NOT_AVAILABLE": "That broker is not there now; wait for it, or ask another.",
    "REPLICA_NOT_AVAILABLE": "This broker has no usable replica of the partition; refresh the metadata.",
    "MESSAGE_TOO_LARGE": "The record or batch is larger than the topic takes; send less at once, or raise max.message.bytes.",
    "STALE_CONTROLLER_EPOCH": "The request comes from a controller that has been replaced.",
    "OFFSET_METADATA_TOO_LARGE": "The note stored with the committed offset is too long; shorten it.",
    "NETWORK_EXCEPTION": "The connection broke before the answer came; whether the request was served is not known.",
    "COORDINATOR_LOAD_IN_PROGRESS": "The coordinator is still reading its log; try again in a moment.",
    "COORDINATOR_NOT_AVAILABLE": "There is no coordinator for this group or transactional id right now; look it up again.",
    "NOT_COORDINATOR": "Another broker coordinates this group or transactional id; look it up again.",
    "INVALID_TOPIC_EXCEPTION": "That is not a legal topic name, or the topic may not be touched; use letters, digits, '.', '_' and '-', at most 249.",
    "RECORD_LIST_TOO_LARGE": "The batch is larger than a segment of the topic; send less at once, or raise segment.bytes.",
    "NOT_ENOUGH_REPLICAS": "Fewer replicas are in sync than min.insync.replicas asks for, so nothing was written; bring brokers back.",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "The record was written, but too few replicas are in sync to count it as safe; retry, idempotently.",
    "INVALID_REQUIRED_ACKS": "acks must be 0, 1 or all.",
    "ILLEGAL_GENERATION": "The group has rebalanced since; rejoin before committing or heartbeating.",
    "INCONSISTENT_GROUP_PROTOCOL": "The members of the group share no assignment strategy (or protocol type); give them one in common.",
    "INVALID_GROUP_ID": "The group id is empty or of another kind of group; choose another.",
    "UNKNOWN_MEMBER_ID": "The coordinator does not know this member, perhaps because it was silent too long; join again.",
    "INVALID_SESSION_TIMEOUT": "session_timeout_ms is outside what the broker allows (group.min/max.session.timeout.ms).",
    "REBALANCE_IN_PROGRESS": "The group is rebalancing; rejoin, then try again.",
    "INVALID_COMMIT_OFFSET_SIZE": "The offset to commit is too large to store; shorten its metadata.",
    "TOPIC_AUTHORIZATION_FAILED": "This user may not do that with the topic; ask for an ACL.",
    "GROUP_AUTHORIZATION_FAILED": "This user may not use that group; ask for an ACL.",
    "CLUSTER_AUTHORIZATION_FAILED": "This user may not do that in this cluster; ask for an ACL.",
    "INVALID_TIMESTAMP": "The record's timestamp is further from the broker's clock than the topic allows; check the clock.",
    "UNSUPPORTED_SASL_MECHANISM": "The broker does not offer that sasl_mechanism.",
    "ILLEGAL_SASL_STATE": "That request cannot come at this point of the log-in.",
    "UNSUPPORTED_VERSION": "The two ends have no version of this request in common; upgrade the older.",
    "TOPIC_ALREADY_EXISTS": "There is a topic of that name already, or one that differs only in '.' and '_'.",
    "INVALID_PARTITIONS": "That number of partitions is not possible; it must be positive, and a topic never shrinks.",
    "INVALID_REPLICATION_FACTOR": "The replication factor must be at least 1 and at most the number of brokers.",
    "INVALID_REPLICA_ASSIGNMENT": "The list of replicas is not possible: unknown brokers, duplicates, or lists of unequal length.",
    "INVALID_CONFIG": "That setting or value is not possible; the message says which.",
    "NOT_CONTROLLER": "Another node is the controller now; refresh the metadata.",
    "INVALID_REQUEST": "The request contradicts itself or breaks the protocol's rules; the broker's log says how.",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": "The record format is too old for what was asked; write with format 2.",
    "POLICY_VIOLATION": "The cluster's policy forbids this.",
    "OUT_OF_ORDER_SEQUENCE_NUMBER": "A batch of this idempotent producer is missing before this one; records may be lost, so check and start a new producer.",
    "DUPLICATE_SEQUENCE_NUMBER": "The broker has this batch already; nothing was written twice.",
    "INVALID_PRODUCER_EPOCH": "A newer producer has taken this producer's id over; close this one.",
    "INVALID_TXN_STATE": "The transaction is not in a state that allows this; begin, send, then commit or abort.",
    "INVALID_PRODUCER_ID_MAPPING": "The transactional id belongs to another producer id now; start a new producer.",
    "INVALID_TRANSACTION_TIMEOUT": "transaction_timeout_ms is larger than the broker allows (transaction.max.timeout.ms).",
    "CONCURRENT_TRANSACTIONS": "The previous transaction of this id is still being finished; try again in a moment.",
    "TRANSACTION_COORDINATOR_FENCED": "The transaction coordinator has been replaced by a newer one.",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "This user may not use that transactional id; ask for an ACL.",
    "SECURITY_DISABLED": "The cluster has no authorizer, so there are no ACLs to read or write.",
    "OPERATION_NOT_ATTEMPTED": "Another part of the same request failed first, so this part was not tried.",
    "KAFKA_STORAGE_ERROR": "The broker's disk refuses writes; another broker in sync takes over, if there is one.",
    "LOG_DIR_NOT_FOUND": "The broker has no such log directory.",
    "SASL_AUTHENTICATION_FAILED": "User name or password is wrong.",
    "UNKNOWN_PRODUCER_ID": "The broker has forgotten this producer, because all its records are gone; start its sequence anew.",
    "REASSIGNMENT_IN_PROGRESS": "The partition is being moved; wait until that is done, or cancel it.",
    "DELEGATION_TOKEN_AUTH_DISABLED": "Delegation tokens are switched off.",
    "DELEGATION_TOKEN_NOT_FOUND": "There is no such delegation token.",
    "DELEGATION_TOKEN_OWNER_MISMATCH": "Only the owner or a renewer may do that with the token.",
    "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED": "Delegation tokens cannot be managed over this connection; use TLS with a log-in that is not itself a token.",
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED": "This user may not use that delegation token.",
    "DELEGATION_TOKEN_EXPIRED": "The delegation token has expired; get a new one.",
    "INVALID_PRINCIPAL_TYPE": "That kind of principal is not known.",
    "NON_EMPTY_GROUP": "The group still has members; stop them first.",
    "GROUP_ID_NOT_FOUND": "There is no such group.",
    "FETCH_SESSION_ID_NOT_FOUND": "The broker has dropped this fetch session; start a new one.",
    "INVALID_FETCH_SESSION_EPOCH": "The fetch session is out of step; start a new one.",
    "LISTENER_NOT_FOUND": "The leader has no listener of this kind; check the brokers' advertised.listeners.",
    "TOPIC_DELETION_DISABLED": "The cluster does not allow topics to be deleted (delete.topic.enable).",
    "FENCED_LEADER_EPOCH": "The request names an older leader epoch than the broker's; refresh the metadata.",
    "UNKNOWN_LEADER_EPOCH": "The request names a newer leader epoch than the broker knows yet; try again in a moment.",
    "UNSUPPORTED_COMPRESSION_TYPE": "The request's version cannot carry that codec; use another or upgrade.",
    "STALE_BROKER_EPOCH": "The broker has been registered anew since; it must use its new epoch.",
    "OFFSET_NOT_AVAILABLE": "The new leader does not know yet how far the log is committed; try again in a moment.",
    "MEMBER_ID_REQUIRED": "The coordinator has given this member an id; join again with it.",
    "PREFERRED_LEADER_NOT_AVAILABLE": "The preferred leader is not alive or not in sync; bring it back first.",
    "GROUP_MAX_SIZE_REACHED": "The group has as many members as the broker allows (group.max.size).",
    "FENCED_INSTANCE_ID": "Another member with the same group_instance_id has joined; only one may run.",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE": "No replica may lead the partition now; bring one that is in sync back.",
    "ELECTION_NOT_NEEDED": "The right broker leads already.",
    "NO_REASSIGNMENT_IN_PROGRESS": "The partition is not being moved.",
    "GROUP_SUBSCRIBED_TO_TOPIC": "The group still subscribes to the topic, so its offsets cannot be deleted; stop the members first.",
    "INVALID_RECORD": "A record does not pass the topic's rules (a compacted topic needs keys, for one); the message says which.",
    "UNSTABLE_OFFSET_COMMIT": "Offsets of an open transaction stand above; try again once it has ended.",
    "THROTTLING_QUOTA_EXCEEDED": "The quota for changes is used up; wait for the time the answer names.",
    "PRODUCER_FENCED": "A newer producer with the same transactional id has started; close this one.",
    "RESOURCE_NOT_FOUND": "There is no such user, credential or resource.",
    "DUPLICATE_RESOURCE": "The same user or resource stands twice in the request.",
    "UNACCEPTABLE_CREDENTIAL": "The credential is too weak, too strong or empty.",
    "INCONSISTENT_VOTER_SET": "The node is not a voter of this quorum, or the voters disagree about who is; check controller.quorum settings.",
    "INVALID_UPDATE_VERSION": "The update rests on an older version than the controller's; read it again first.",
    "FEATURE_UPDATE_FAILED": "The feature could not be set to that level; the message says why.",
    "PRINCIPAL_DESERIALIZATION_FAILURE": "The forwarded principal cannot be read; brokers and controllers must agree on its builder.",
    "SNAPSHOT_NOT_FOUND": "The snapshot is gone; fetch a newer one.",
    "POSITION_OUT_OF_RANGE": "That position lies past the end of the snapshot.",
    "UNKNOWN_TOPIC_ID": "The broker does not know that topic id yet, or any more; refresh the metadata.",
    "DUPLICATE_BROKER_REGISTRATION": "Another live broker has this id; give each its own node.id.",
    "BROKER_ID_NOT_REGISTERED": "No broker of that id is registered.",
    "INCONSISTENT_TOPIC_ID": "The topic was deleted and made again; refresh the metadata.",
    "INCONSISTENT_CLUSTER_ID": "The request is meant for another cluster; check the address.",
    "TRANSACTIONAL_ID_NOT_FOUND": "There is no such transactional id.",
    "FETCH_SESSION_TOPIC_ID_ERROR": "The fetch session mixes topic names and ids; start a new one.",
    "INELIGIBLE_REPLICA": "The replica may not join the in-sync set: its broker is fenced or shutting down.",
    "NEW_LEADER_ELECTED": "The change to the in-sync set was made and led to a new leader; refresh.",
    "OFFSET_MOVED_TO_TIERED_STORAGE": "The records at that offset lie in tiered storage now.",
    "FENCED_MEMBER_EPOCH": "The coordinator has fenced this member; give the partitions up and join again.",
    "UNRELEASED_INSTANCE_ID": "Another member holds this group_instance_id and has not left.",
    "UNSUPPORTED_ASSIGNOR": "The broker has no such assignor (group.consumer.assignors).",
    "STALE_MEMBER_EPOCH": "The member has a newer epoch by now; use that of its last heartbeat.",
    "MISMATCHED_ENDPOINT_TYPE": "A controller was asked where a broker should be, or the reverse; check the address.",
    "UNSUPPORTED_ENDPOINT_TYPE": "This endpoint cannot describe that kind of node.",
    "UNKNOWN_CONTROLLER_ID": "No controller of that id is known.",
    "UNKNOWN_SUBSCRIPTION_ID": "The telemetry subscription has changed; ask for it again.",
    "TELEMETRY_TOO_LARGE": "The metrics pushed are larger than the broker takes.",
    "INVALID_REGISTRATION": "The controller refuses the registration: features, directories or listeners do not fit.",
    "TRANSACTION_ABORTABLE": "The transaction cannot go on; abort it and begin again.",
    "INVALID_RECORD_STATE": "The record is not in a state that can be acknowledged.",
    "SHARE_SESSION_NOT_FOUND": "The broker has dropped this share session; start a new one.",
    "INVALID_SHARE_SESSION_EPOCH": "The share session is out of step; start a new one.",
    "FENCED_STATE_EPOCH": "The share group's state has a newer epoch.",
    "INVALID_VOTER_KEY": "The voter's id or directory id is not that of the node that answered.",
    "DUPLICATE_VOTER": "That node is a voter already.",
    "VOTER_NOT_FOUND": "That node is not a voter.",
    "INVALID_REGULAR_EXPRESSION": "The pattern is not a regular expression that RE2 can read.",
    "REBOOTSTRAP_REQUIRED": "The client must begin again at its bootstrap servers.",
    "STREAMS_INVALID_TOPOLOGY": "The streams topology is not valid.",
    "STREAMS_INVALID_TOPOLOGY_EPOCH": "The streams topology's epoch is not valid.",
    "STREAMS_TOPOLOGY_FENCED": "The streams topology is older than the group's.",
    "SHARE_SESSION_LIMIT_REACHED": "The broker has as many share sessions as it allows; try again later.",
}


class OttlaError(Exception):
    """The root of everything ottla raises on purpose."""


class ProtocolError(OttlaError):
    """The peer sent bytes that are not the Kafka protocol; its connection is closed."""


class ApiError(OttlaError):
    """A request was understood and refused: a Kafka error code and a sentence."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(f"{code.name}: {message or code.meaning}")
        self.code = code
        self.message = message

    @property
    def retriable(self) -> bool:
        return self.code.retriable
