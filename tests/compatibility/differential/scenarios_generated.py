"""Requests that nobody thought of: made at random, from a seed, out of values that mean something to the field they are in.

The topics and records they speak of are made first, and the same for both systems. What changes a cluster is only asked in the form
that validates, so that no later answer depends on how soon a change was heard of; Produce and DeleteRecords do change their partition.
A question is named by its number; `python -m tests.compatibility.differential.scenarios_generated` prints the requests.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from typing import Any

from ottla.protocol.apis import BY_NAME
from ottla.protocol.schema import Field, Struct
from ottla.records.compression import GZIP, ZSTD
from tests.compatibility.differential.records import T0, batch, produce
from tests.compatibility.differential.talk import Talk
from tests.compatibility.wire import wait_until

PER_VERSION = 6
SEED = 1
READS = (
    "Metadata", "DescribeTopicPartitions", "DescribeCluster", "ListOffsets", "OffsetForLeaderEpoch", "DescribeConfigs",
    "DescribeLogDirs", "DescribeProducers", "Fetch", "DescribeQuorum", "ListConfigResources", "ListPartitionReassignments",
)  # fmt: skip
WRITES = ("Produce", "DeleteRecords")
CHECKS = (
    "CreateTopics", "CreatePartitions", "AlterConfigs", "IncrementalAlterConfigs", "AlterPartitionReassignments", "ElectLeaders",
    "UpdateFeatures", "AlterClientQuotas",
)  # fmt: skip
# Of groups without members: offsets that somebody commits, and what they answer to strangers.
GROUPS = (
    "FindCoordinator", "OffsetCommit", "OffsetFetch", "Heartbeat", "SyncGroup", "LeaveGroup", "DescribeGroups",
    "ConsumerGroupDescribe", "OffsetDelete", "DeleteGroups",
)  # fmt: skip
TRANSACTIONS = (
    "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "DescribeTransactions",
    "ListTransactions",
)  # fmt: skip
# From which version an API may be asked here: before, it creates topics, or cannot only validate.
FROM_VERSION = {"Metadata": 4, "UpdateFeatures": 1}

_good = batch(b"a", b"b")
_SETTINGS = ("retention.ms", "cleanup.policy", "segment.bytes", "compression.type", "min.insync.replicas", "no.such.setting")
_VALUES = ("1000000", "compact", "delete", "gzip", "-1", "0", "", "true", None)
# Field, or its struct and it → what it may be. These stand for the topics, groups and transactions of the scenario.
NAMES, IDS, GROUP_IDS, TRANSACTIONAL_IDS = object(), object(), object(), object()
POOLS: dict[str, Any] = {
    "name": NAMES, "topic": NAMES, "topic_name": NAMES, "resource_name": NAMES, "topic_names": NAMES,
    "topic_id": IDS,
    "partition": (0, 1, 2, 9, -1), "partition_index": (0, 1, 2, 9, -1), "index": (0, 1, 2, 9, -1), "partitions": (0, 1, 9),
    "partition_indexes": (0, 1, 9),
    "fetch_offset": (0, 1, 3, 5, 8, -1, 100), "offset": (0, 1, 2, -1, -2, 100),
    "timestamp": (-1, -2, -3, -4, -5, T0, T0 + 1, T0 + 10_500, T0 + 99_000),
    "current_leader_epoch": (-1, 0, 1), "leader_epoch": (-1, 0, 1), "last_fetched_epoch": (-1, 0),
    "partition_max_bytes": (1, 200, 1 << 20), "max_bytes": (1, 300, 1 << 20), "min_bytes": (0, 1), "max_wait_ms": (0,),
    "isolation_level": (0, 1), "session_id": (0,), "session_epoch": (-1,), "replica_id": (-1,), "log_start_offset": (-1,),
    "forgotten_topics_data": (), "rack_id": ("",), "cluster_id": (None,), "replica_state": None, "high_watermark": (2**63 - 1,),
    "replica_directory_id": (bytes(16),),
    "acks": (-1, 1, -1, 2), "timeout_ms": (30_000,), "transactional_id": (None,),
    "records": (_good, batch(b"z", codec=GZIP), batch(b"z" * 50, codec=ZSTD), batch(None, key=None), b"", _good[:-3], _good + _good),
    "num_partitions": (-1, 0, 1, 3), "replication_factor": (-1, 0, 1, 2), "count": (1, 2, 3, 5, -1), "broker_ids": (1, 7),
    "validate_only": (True,), "allow_auto_topic_creation": (False,), "response_partition_limit": (0, 1, 2, 2000),
    "resource_type": (2, 2, 2, 4, 77), "configuration_keys": _SETTINGS, "value": _VALUES, "config_operation": (0, 1, 2, 3),
    "endpoint_type": (1, 1, 2), "CreatableTopicConfig.name": _SETTINGS, "AlterableConfig.name": _SETTINGS,
    "resource_types": (2, 2, 4, 8, 16, 77), "replicas": (1, 1, 7, -1), "election_type": (0, 0, 1, 7),
    "feature": ("metadata.version", "group.version", "transaction.version", "no.such.feature", ""),
    "max_version_level": (0, 1, 2, 7, 29, 999, -1), "upgrade_type": (1, 1, 2, 3, 7),
    "entity_type": ("user", "client-id", "ip", "planet"), "entity_name": (None, "a", "b", "", "127.0.0.1"),
    "key": GROUP_IDS, "OpData.key": ("producer_byte_rate", "request_percentage", "connection_creation_rate", "no.such.key"),
    "OpData.value": (1.0, 0.0, -1.0, 0.5, 1e12),
    "group_id": GROUP_IDS, "groups_names": GROUP_IDS, "group_ids": GROUP_IDS, "coordinator_keys": GROUP_IDS,
    "DescribeGroupsRequest.groups": GROUP_IDS, "key_type": (0, 0, 1, 9),
    "generation_id_or_member_epoch": (-1, -1, -1, 0, 5), "generation_id": (-1, 0, 5), "member_epoch": (-1, -1, 0, 5),
    "member_id": ("", "", "", "m"), "group_instance_id": (None, None, "i"), "retention_time_ms": (-1,),
    "committed_offset": (0, 1, 100, -1), "committed_leader_epoch": (-1, 0), "committed_metadata": ("", "noted", None, "x" * 4097),
    "protocol_type": ("consumer", "connect", None), "protocol_name": ("range", None), "assignments": (),
    "transactional_ids": TRANSACTIONAL_IDS, "v3_and_below_transactional_id": TRANSACTIONAL_IDS,
    "AddPartitionsToTxnTransaction.transactional_id": TRANSACTIONAL_IDS,
    "AddOffsetsToTxnRequest.transactional_id": TRANSACTIONAL_IDS, "TxnOffsetCommitRequest.transactional_id": TRANSACTIONAL_IDS,
    "EndTxnRequest.transactional_id": TRANSACTIONAL_IDS, "InitProducerIdRequest.transactional_id": TRANSACTIONAL_IDS,
    "transaction_timeout_ms": (60_000, 60_000, 1, 0, -1, 2**31 - 1), "producer_id": (-1, -1, 5, 987_654), "producer_epoch": (-1, -1, 0, 3),
    "v3_and_below_producer_id": (5, 987_654), "v3_and_below_producer_epoch": (0, 3), "verify_only": (True,),
    "producer_id_filters": (987_654, 987_655), "state_filters": ("Ongoing", "Empty", "Sleeping"), "duration_filter": (-1, 0, 10**9),
    "transactional_id_pattern": (None, "no-such-.*", "["),
}  # fmt: skip
_NAMING = (
    "name", "topic", "topic_name", "topic_id", "resource_name", "partition", "partition_index", "index", "entity_type", "feature", "key",
    "group_id", "transactional_id", "member_id",
)  # fmt: skip


def _pool(owner: type[Struct], name: str, otherwise: Any = None) -> Any:
    return POOLS.get(f"{owner.__name__}.{name}", POOLS.get(name, otherwise))


class Generator:
    """Values for the fields of one version of a declaration."""

    def __init__(self, seed: str, names: list[str], ids: list[bytes], groups: list[str], transactions: list[str | None]) -> None:
        self._chance = random.Random(seed)
        self._own = {NAMES: names, IDS: ids, GROUP_IDS: groups, TRANSACTIONAL_IDS: transactions}

    def fields(self, struct_: type[Struct], version: int) -> dict[str, Any]:
        return {
            name: self._value(struct_, name, field, version)
            for name, field in struct_.__fields__.items()
            if version in field.versions and _pool(struct_, name, ...) is not None
        }

    def _value(self, owner: type[Struct], name: str, field: Field, version: int) -> Any:
        if field.is_array:
            if version in field.nullable and self._chance.random() < 0.15:
                return None
            if _pool(owner, name) == ():
                return []
            amount = self._chance.choice((1, 2) if name == "transactions" else (0, 1, 1, 1, 2, 2))  # Kafka never answers to none
            return _distinct([self._one(owner, name, field, version) for _ in range(amount)])
        return self._one(owner, name, field, version)

    def _one(self, owner: type[Struct], name: str, field: Field, version: int) -> Any:
        if isinstance(field.kind, type):
            may_be_null = version in field.nullable and not field.is_array
            return None if may_be_null and self._chance.random() < 0.4 else self.fields(field.kind, version)
        pool = _pool(owner, name)
        if not isinstance(pool, tuple) and pool in self._own:
            pool = self._own[pool]
        if pool is None:
            return self._chance.random() < 0.5 if field.kind == "bool" else field.default
        return self._chance.choice([value for value in pool if value is not None or version in field.nullable])


def _distinct(rows: list[Any]) -> list[Any]:
    """Without what names the same thing twice: no client does, and Kafka answers by the order of a hash map."""
    kept = {}
    for row in rows:
        key = next((row[name] for name in _NAMING if name in row), None) if isinstance(row, dict) else row
        kept[key] = row
    return list(kept.values())


def play_generated(talk: Talk, apis: tuple[str, ...], seed: int = SEED, amount: int = PER_VERSION) -> None:
    names = [talk.create(talk.topic("one"), 2), talk.create(talk.topic("two"), 1, max_message_bytes="100000")]
    groups, transactions = (
        [talk.topic("group a"), talk.topic("group b")],
        [talk.topic("transaction a"), talk.topic("transaction b")],
    )
    if set(apis) & set(GROUPS + TRANSACTIONS):
        _wait_for_coordinators(talk, groups, transactions)
    for index in range(4):
        produce(talk, names[index % 2], batch(b"a", b"b" * 100, at=T0 + index * 10_000))
    ids = [talk.topic_id(name) for name in names] + [b"no such topic id"]
    pool = [*names, *names, talk.topic("absent"), "a/b", ""]
    talk.own("a/b", "")
    for api in apis:
        for version in talk.versions(api):
            if version < FROM_VERSION.get(api, 0):
                continue
            for number in range(amount):
                # One bad name fails a whole DescribeTopicPartitions in Kafka, and tells nothing more.
                known = pool[:-2] if api == "DescribeTopicPartitions" else pool
                seeded = f"{seed} {api} {version} {number}"
                generator = Generator(seeded, known, ids, [*groups, *groups, ""], [*transactions, *transactions, "", None])
                fields = generator.fields(BY_NAME[api].request, version)
                if api == "DescribeTopicPartitions" and not fields["topics"]:
                    fields |= {"response_partition_limit": 2000, "cursor": None}  # a page of everything depends on everything
                talk.ask(f"generated {number}", api, version, only_own=api != "DescribeCluster", **fields)


def _wait_for_coordinators(talk: Talk, groups: list[str], transactions: list[str]) -> None:
    """The first question makes the internal topics, and a shard must be loaded before it says what it knows."""
    for kind, keys in ((0, groups), (1, transactions)):
        for key in keys:
            wait_until("a coordinator", partial(_is_found, talk, key, kind))
    for group in groups:
        wait_until("its shard", lambda group=group: _is_loaded(talk.quietly("Heartbeat", 3, group_id=group, member_id="m")))
    wait_until("a producer id", lambda: not talk.quietly("InitProducerId", 4, transactional_id=None).error_code)
    for name in transactions:
        end = {"transactional_id": name, "producer_id": 5, "producer_epoch": 0, "committed": True}
        wait_until("its shard", lambda end=end: _is_loaded(talk.quietly("EndTxn", 3, **end)))


def _is_found(talk: Talk, key: str, kind: int) -> bool:
    return not talk.quietly("FindCoordinator", 2, key=key, key_type=kind).error_code


def _is_loaded(answer: Any) -> bool:
    return answer.error_code not in (14, 15, 16)


def generated_reads(talk: Talk) -> None:
    play_generated(talk, READS)


def generated_writes(talk: Talk) -> None:
    play_generated(talk, WRITES)


def generated_checks(talk: Talk) -> None:
    play_generated(talk, CHECKS)


def generated_groups(talk: Talk) -> None:
    play_generated(talk, GROUPS)


def generated_transactions(talk: Talk) -> None:
    play_generated(talk, TRANSACTIONS)


SCENARIOS = (generated_reads, generated_writes, generated_checks, generated_groups, generated_transactions)


def main() -> None:
    for api in READS + WRITES + CHECKS + GROUPS + TRANSACTIONS:
        for version in BY_NAME[api].versions:
            for number in range(PER_VERSION):
                generator = Generator(
                    f"{SEED} {api} {version} {number}",
                    ["one", "two", "one", "two", "absent", "a/b", ""],
                    [b"1" * 16] * 3,
                    ["group a", "group b"] * 2 + [""],
                    [*["transaction a", "transaction b"] * 2, "", None],
                )
                sys.stdout.write(f"{api} v{version} {number}: {generator.fields(BY_NAME[api].request, version)}\n")


if __name__ == "__main__":
    main()
