"""What may be asked of a shard, what it answers, and what a decision may know of the world."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.model.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.model.machine import Ticket
from ottla.transactions.producer_ids import ProducerIds
from ottla.transactions.states import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

NO_TICKET: Ticket = -1
# The timers of a shard.
ABORT_TIMED_OUT = "abort-timed-out"
REMOVE_EXPIRED = "remove-expired"


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """With Kafka's names and defaults."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 24 * 3600 * 1000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_two_phase_commit_enable: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """Given with every request: the moment, who waits, the feature level in force, and where producer ids come from."""

    now_ms: int
    ticket: Ticket = NO_TICKET
    transaction_version: int = 2
    producer_ids: ProducerIds = field(default_factory=ProducerIds)


# Requests ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Answered by `ProducerIdReply`. With an expected id and epoch, a producer asks to go on after an error (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    expected_producer_id: int = NO_PRODUCER_ID
    expected_producer_epoch: int = NO_PRODUCER_EPOCH
    enable_two_phase_commit: bool = False
    keep_prepared_transaction: bool = False


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Answered by an `ErrorCode`. `transaction_version` is 2 if a broker adds for a client that bumps its epoch at each end."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    transaction_version: int = 0


@dataclass(frozen=True, slots=True)
class VerifyPartitions:
    """Answered by a dictionary of partition to `ErrorCode`: whether each is part of the ongoing transaction (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Answered by `ProducerIdReply`: with version 2, the id and epoch of the next transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    transaction_version: int = 0


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """From the shell: every partition of these `Markers` has its marker, or no longer exists."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class DescribeTransaction:
    """Answered by DescribeTransactionsResponse.TransactionState."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class ListTransactions:
    """Answered by a ListTransactionsResponse over this shard; the shell joins those of all shards."""

    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[int, ...] = ()
    duration_filter_ms: int = -1
    transactional_id_pattern: str | None = None


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A timer of this machine has run out; `key` is one of the two above."""

    key: str


# Outcomes ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProducerIdReply:
    error: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class Markers:
    """An effect: write COMMIT or ABORT for this producer into each partition. The shell adds the coordinator's epoch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: frozenset[TopicPartition]
    transaction_version: int
