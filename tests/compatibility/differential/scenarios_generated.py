"""Requests that nobody thought of: made at random, from a seed, out of values that mean something to the field they are in.

The topics and records they speak of are made first, and the same for both systems. What changes a cluster is only asked in the form
that validates, so that no later answer depends on how soon a change was heard of; Produce and DeleteRecords do change their partition.
A question is named by its number; `python -m tests.compatibility.differential.scenarios_generated` prints the requests.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from ottla.protocol.apis import BY_NAME
from ottla.protocol.schema import Field, Struct
from ottla.records.compression import GZIP, ZSTD
from tests.compatibility.differential.records import T0, batch, produce
from tests.compatibility.differential.talk import Talk

PER_VERSION = 6
SEED = 1
READS = (
    "Metadata", "DescribeTopicPartitions", "DescribeCluster", "ListOffsets", "OffsetForLeaderEpoch", "DescribeConfigs",
    "DescribeLogDirs", "DescribeProducers", "Fetch",
)  # fmt: skip
WRITES = ("Produce", "DeleteRecords")
CHECKS = ("CreateTopics", "CreatePartitions", "AlterConfigs", "IncrementalAlterConfigs")

_good = batch(b"a", b"b")
_SETTINGS = ("retention.ms", "cleanup.policy", "segment.bytes", "compression.type", "min.insync.replicas", "no.such.setting")
_VALUES = ("1000000", "compact", "delete", "gzip", "-1", "0", "", "true", None)
# Field → what it may be. `NAMES` and `IDS` stand for the topics of the scenario.
NAMES, IDS = object(), object()
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
    "endpoint_type": (1, 1, 2),
}  # fmt: skip
_PARTITIONS = ("partition", "partition_index", "index")
SETTING_HOLDERS = ("CreatableTopicConfig", "AlterableConfig")  # structs whose `name` is a setting's


class Generator:
    """Values for the fields of one version of a declaration."""

    def __init__(self, seed: str, names: list[str], ids: list[bytes]) -> None:
        self._chance = random.Random(seed)
        self._names = names
        self._ids = ids

    def fields(self, struct_: type[Struct], version: int) -> dict[str, Any]:
        return {
            name: self._value(struct_, name, field, version)
            for name, field in struct_.__fields__.items()
            if version in field.versions and POOLS.get(name, ...) is not None
        }

    def _value(self, owner: type[Struct], name: str, field: Field, version: int) -> Any:
        if field.is_array:
            if version in field.nullable and self._chance.random() < 0.15:
                return None
            if POOLS.get(name) == ():
                return []
            return _distinct([self._one(owner, name, field, version) for _ in range(self._chance.choice((0, 1, 1, 1, 2, 2)))])
        return self._one(owner, name, field, version)

    def _one(self, owner: type[Struct], name: str, field: Field, version: int) -> Any:
        if isinstance(field.kind, type):
            may_be_null = version in field.nullable and not field.is_array
            return None if may_be_null and self._chance.random() < 0.4 else self.fields(field.kind, version)
        pool = _SETTINGS if name == "name" and owner.__name__ in SETTING_HOLDERS else POOLS.get(name)
        if pool is NAMES:
            return self._chance.choice(self._names)
        if pool is IDS:
            return self._chance.choice(self._ids)
        if pool is None:
            return self._chance.random() < 0.5 if field.kind == "bool" else field.default
        return self._chance.choice(pool)


def _distinct(rows: list[Any]) -> list[Any]:
    """Without what names the same thing twice: no client does, and Kafka answers by the order of a hash map."""
    kept = {}
    for row in rows:
        key = (
            next((row[name] for name in ("name", "topic", "topic_id", "resource_name", *_PARTITIONS) if name in row), None)
            if isinstance(row, dict)
            else row
        )
        kept[key] = row
    return list(kept.values())


def play_generated(talk: Talk, apis: tuple[str, ...], seed: int = SEED, amount: int = PER_VERSION) -> None:
    names = [talk.create(talk.topic("one"), 2), talk.create(talk.topic("two"), 1, max_message_bytes="100000")]
    for index in range(4):
        produce(talk, names[index % 2], batch(b"a", b"b" * 100, at=T0 + index * 10_000))
    ids = [talk.topic_id(name) for name in names] + [b"no such topic id"]
    pool = [*names, *names, talk.topic("absent"), "a/b", ""]
    for api in apis:
        for version in talk.versions(api):
            if api == "Metadata" and version < 4:
                continue  # these create what they ask for
            for number in range(amount):
                # One bad name fails a whole DescribeTopicPartitions in Kafka, and tells nothing more.
                known = pool[:-2] if api == "DescribeTopicPartitions" else pool
                generator = Generator(f"{seed} {api} {version} {number}", known, ids)
                fields = generator.fields(BY_NAME[api].request, version)
                if api == "DescribeTopicPartitions" and not fields["topics"]:
                    fields |= {"response_partition_limit": 2000, "cursor": None}  # a page of everything depends on everything
                talk.ask(f"generated {number}", api, version, only_own=api != "DescribeCluster", **fields)


def generated_reads(talk: Talk) -> None:
    play_generated(talk, READS)


def generated_writes(talk: Talk) -> None:
    play_generated(talk, WRITES)


def generated_checks(talk: Talk) -> None:
    play_generated(talk, CHECKS)


SCENARIOS = (generated_reads, generated_writes, generated_checks)


def main() -> None:
    for api in READS + WRITES + CHECKS:
        for version in BY_NAME[api].versions:
            for number in range(PER_VERSION):
                generator = Generator(
                    f"{SEED} {api} {version} {number}", ["one", "two", "one", "two", "absent", "a/b", ""], [b"1" * 16] * 3
                )
                sys.stdout.write(f"{api} v{version} {number}: {generator.fields(BY_NAME[api].request, version)}\n")


if __name__ == "__main__":
    main()
