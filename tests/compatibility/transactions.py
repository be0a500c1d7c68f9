"""A producer made of bare requests: it can be a zombie, a liar, or in a hurry, in any version of the protocol."""

from __future__ import annotations

import random
import time
from typing import Any

from ottla.model.errors import ErrorCode
from ottla.protocol.messages.coordinator import FindCoordinatorRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.topics import CreateTopicsRequest
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
)
from ottla.records.builder import build_batch
from ottla.records.record import Record, decode_batches
from tests.compatibility.wire import Wire, wait_until

READY_LIMIT_S = 30.0
NONE = ErrorCode.NONE.name
# The last: a busy Kafka that has just made its coordinator's topic may not find it when it verifies a record's transaction.
_PATIENCE = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)


def name_of(code: int) -> str:
    return ErrorCode(code).name


class Conversation:
    """One connection to a single node, which is leader and coordinator of everything. Producer ids are told by the order in
    which they appeared, so that the transcripts of two systems can be compared."""

    def __init__(self, address: tuple[str, int], topic: str, transactional_id: str) -> None:
        self.wire = Wire(address)
        self.topic = topic
        self.transactional_id = transactional_id
        self.known_ids: list[int] = []
        self.identity = (-1, -1)
        self.sequences: dict[tuple[int, int, int], int] = {}
        self._create_topic()
        for key_type, key in ((1, transactional_id), (0, "group")):
            wait_until("a coordinator", lambda key_type=key_type, key=key: self._found(key_type, key), limit_s=READY_LIMIT_S)

    def _create_topic(self) -> None:
        row = CreateTopicsRequest.CreatableTopic(name=self.topic, num_partitions=2, replication_factor=1)
        answer = self.wire.ask(CreateTopicsRequest(topics=[row], timeout_ms=30_000), 5)
        assert answer.topics[0].error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)
        wait_until("leaders of the topic", self._is_led, limit_s=READY_LIMIT_S)

    def _is_led(self) -> bool:
        row = DescribeProducersRequest.TopicRequest(name=self.topic, partition_indexes=[0, 1])
        [topic] = self.wire.ask(DescribeProducersRequest(topics=[row]), 0).topics
        return not any(partition.error_code for partition in topic.partitions)

    def _found(self, key_type: int, key: str) -> bool:
        return not self.wire.ask(FindCoordinatorRequest(key=key, key_type=key_type), 2).error_code

    def close(self) -> None:
        self.wire.close()

    def ordinal(self, producer_id: int) -> int:
        if producer_id < 0:
            return -1
        if producer_id not in self.known_ids:
            self.known_ids.append(producer_id)
        return self.known_ids.index(producer_id)

    # Requests; each returns what is comparable --------------------------------------------------------------------------------

    def init(
        self, timeout_ms: int = 60_000, expected: tuple[int, int] = (-1, -1), version: int = 5, keep: bool = True
    ) -> tuple[Any, ...]:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        answer = self._patiently(request, version)
        if not answer.error_code and keep:
            self.identity = (answer.producer_id, answer.producer_epoch)
        return name_of(answer.error_code), self.ordinal(answer.producer_id), answer.producer_epoch

    def add(
        self, *partitions: int, identity: tuple[int, int] | None = None, version: int = 3, topic: str | None = None
    ) -> list[str]:
        producer_id, epoch = identity or self.identity
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic or self.topic, partitions=list(partitions))],
        )
        answer = self._patiently(request, version)
        rows = [row for each in answer.results_by_topic_v3_and_below for row in each.results_by_partition]
        return [name_of(row.partition_error_code) for row in sorted(rows, key=lambda row: row.partition_index)]

    def add_offsets(self, identity: tuple[int, int] | None = None, version: int = 3, group: str = "group") -> str:
        producer_id, epoch = identity or self.identity
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id, producer_id=producer_id, producer_epoch=epoch, group_id=group
        )
        return name_of(self._patiently(request, version).error_code)

    def commit_offset(self, offset: int, identity: tuple[int, int] | None = None, version: int = 3, group: str = "group") -> str:
        producer_id, epoch = identity or self.identity
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[
                topic(
                    name=self.topic,
                    partitions=[
                        topic.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
                    ],
                )
            ],
        )
        answer = self._patiently(request, version)
        return name_of(answer.topics[0].partitions[0].error_code)

    def end(
        self, commit: bool, identity: tuple[int, int] | None = None, version: int = 4, settles: bool = True
    ) -> tuple[Any, ...]:
        producer_id, epoch = identity or self.identity
        request = EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=commit
        )
        answer = self._patiently(request, version)
        if not answer.error_code:
            if settles:
                self.settle()
            if version >= 5:
                self.identity = (answer.producer_id, answer.producer_epoch)
        told = (self.ordinal(answer.producer_id), answer.producer_epoch) if version >= 5 else ()
        return (name_of(answer.error_code), *told)

    def produce(
        self,
        value: str,
        partition: int = 0,
        identity: tuple[int, int] | None = None,
        version: int = 11,
        transactional_id: str | None = "",
    ) -> str:
        producer_id, epoch = identity or self.identity
        key = (producer_id, epoch, partition)
        sequence = self.sequences.get(key, 0)
        batch = build_batch(
            [Record(0, int(time.time() * 1000), None, value.encode())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        row = ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=self.transactional_id if transactional_id == "" else transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[ProduceRequest.TopicProduceData(name=self.topic, partition_data=[row])],
        )
        answer = self._patiently(request, version)
        code = answer.responses[0].partition_responses[0].error_code
        if not code:
            self.sequences[key] = sequence + 1
        return name_of(code)

    def describe(self) -> tuple[Any, ...]:
        [row] = self.wire.ask(DescribeTransactionsRequest(transactional_ids=[self.transactional_id]), 0).transaction_states
        topics = sorted(
            ("the topic" if topic.topic == self.topic else topic.topic, sorted(topic.partitions)) for topic in row.topics
        )
        return (
            name_of(row.error_code),
            row.transaction_state,
            self.ordinal(row.producer_id) if not row.error_code else None,
            row.producer_epoch,
            row.transaction_timeout_ms,
            str(topics),
        )

    def listed(self, *states: str) -> list[str]:
        answer = self.wire.ask(ListTransactionsRequest(state_filters=list(states)), 1)
        return [row.transaction_state for row in answer.transaction_states if row.transactional_id == self.transactional_id]

    def producers(self, partition: int = 0) -> list[tuple[Any, ...]]:
        row = DescribeProducersRequest.TopicRequest(name=self.topic, partition_indexes=[partition])
        [found] = self.wire.ask(DescribeProducersRequest(topics=[row]), 0).topics[0].partitions
        return [
            (self.ordinal(each.producer_id), each.producer_epoch, each.last_sequence, each.current_txn_start_offset)
            for each in found.active_producers
        ]

    def read(self, partition: int = 0, committed: bool = True) -> list[str]:
        """All that a consumer would be given, aborted records taken out as clients do it."""
        row = FetchRequest.FetchTopic.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            topics=[FetchRequest.FetchTopic(topic=self.topic, partitions=[row])],
        )
        answer = self.wire.ask(request, 12)
        data = answer.responses[0].partitions[0]
        aborted = sorted((each.first_offset, each.producer_id) for each in data.aborted_transactions or ())
        return _visible(bytes(data.records or b""), aborted if committed else [])

    def settle(self) -> None:
        """Until the markers of the last decision are written."""
        wait_until("the end of a transaction", lambda: not self.describe()[1].startswith("Prepare"), limit_s=READY_LIMIT_S)

    def _patiently(self, request: Any, version: int) -> Any:
        """Both systems may ask for patience while an end is under way; how often is their own affair."""
        deadline = time.monotonic() + READY_LIMIT_S
        while True:
            answer = self.wire.ask(request, version)
            if _code(answer) not in _PATIENCE or time.monotonic() > deadline:
                return answer
            time.sleep(0.005)


def _code(answer: Any) -> int:
    if hasattr(answer, "responses"):
        return int(answer.responses[0].partition_responses[0].error_code)
    if hasattr(answer, "results_by_topic_v3_and_below"):
        rows = [row.partition_error_code for each in answer.results_by_topic_v3_and_below for row in each.results_by_partition]
        return max(rows, default=0)
    if hasattr(answer, "topics"):
        return max((row.error_code for topic in answer.topics for row in topic.partitions), default=0)
    return int(answer.error_code)


def _visible(content: bytes, aborted: list[tuple[int, int]]) -> list[str]:
    values, open_aborts = [], set()
    for header, records in decode_batches(content):
        while aborted and aborted[0][0] <= header.last_offset:
            open_aborts.add(aborted.pop(0)[1])
        if header.is_control:
            open_aborts.discard(header.producer_id)
        elif header.producer_id not in open_aborts or not header.is_transactional:
            values += [bytes(record.value or b"").decode() for record in records]
    return values


def random_step(talk: Conversation, dice: random.Random, number: int) -> tuple[str, Any]:
    """Mostly right, sometimes late, early or somebody else."""
    producer_id, epoch = talk.identity
    identity = dice.choices(
        [(producer_id, epoch), (producer_id, epoch - 1), (producer_id, epoch + 1), (producer_id + 12345, epoch)], [12, 2, 1, 1]
    )[0]
    version_2 = dice.random() < 0.5
    act = dice.randrange(9)
    if act == 0:
        expected = dice.choice([(-1, -1), (-1, -1), identity, (producer_id, -1)])
        version = dice.choice([0, 3, 4, 5]) if expected == (-1, -1) else dice.choice([3, 4, 5])
        return f"init {version} {expected == (-1, -1)}", talk.init(expected=expected, version=version)
    if act in (1, 2):
        version = dice.choice([0, 1, 2, 3])
        partitions = dice.choice([(0,), (1,), (0, 1), (0, 7)])
        return f"add {version} {partitions}", talk.add(*partitions, identity=identity, version=version)
    if act in (3, 4):
        version = dice.choice([12, 9, 11]) if not version_2 else 12
        return f"produce {version}", talk.produce(f"value-{number}", dice.randrange(2), identity, version)
    if act == 5:
        return "add offsets", talk.add_offsets(identity, dice.choice([0, 1, 2, 3]))
    if act == 6:
        version = 5 if version_2 else dice.choice([3, 4])
        return f"commit offset {version}", talk.commit_offset(number, identity, version)
    version = 5 if version_2 else dice.choice([0, 1, 4])
    commit = dice.random() < 0.5
    return f"end {version} {commit}", talk.end(commit, identity, version)


def random_conversation(address: tuple[str, int], topic: str, transactional_id: str, seed: int, steps: int) -> list[str]:
    talk = Conversation(address, topic, transactional_id)
    dice = random.Random(seed)
    try:
        lines = [f"init: {talk.init()}"]
        for number in range(steps):
            what, result = random_step(talk, dice, number)
            lines.append(f"{number} {what}: {result} -> {talk.describe()[1:4]}, {talk.describe()[5]}")
        for partition in (0, 1):
            lines.append(f"committed {partition}: {talk.read(partition)}")
            lines.append(f"all {partition}: {talk.read(partition, committed=False)}")
            lines.append(f"producers {partition}: {sorted(talk.producers(partition))}")
        return lines
    finally:
        talk.close()
