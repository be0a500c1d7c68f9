"""Every setting ottla knows, with Kafka's names, kinds, defaults and limits: of topics, of brokers and of groups.

One table is the truth for `server.properties`, `--set`, CreateTopics, AlterConfigs and DescribeConfigs. A topic's value falls
back to the broker setting that is its synonym, and from there to the default; `effective` walks that chain.

Those that are there because tools and files for Kafka name them, and do nothing, say so: "Accepted for Kafka's sake"
(`tests/broker/test_settings.py` finds any other that nobody reads). A broker setting that is `dynamic` acts from the moment at
which the broker hears of the change, but for those of its listeners, which are read at the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1


class Kind(IntEnum):
    """The types of DescribeConfigs, with Kafka's codes."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_RANGES = {Kind.INT: (-(2**31), INT_MAX), Kind.SHORT: (-(2**15), 2**15 - 1), Kind.LONG: (-(2**63), LONG_MAX)}


class InvalidSetting(ValueError):
    """The sentence is Kafka's own, because tools show it to people."""


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: Kind
    default: Any  # None: unset
    meaning: str
    least: float | None = None
    most: float | None = None
    one_of: tuple[str, ...] = ()
    synonyms: tuple[tuple[str, int], ...] = ()  # broker settings it falls back to, each with the factor to this unit
    dynamic: str = "read-only"  # or "per-broker", "cluster-wide": how a broker setting may be changed while it runs

    def parse(self, text: str) -> Any:
        """The value that `text` stands for. Raises InvalidSetting."""
        value = self._convert(text.strip())
        self._check(value)
        return value

    def _convert(self, text: str) -> Any:
        if self.kind is Kind.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._invalid(text, "Expected value to be either true or false")
            return text.lower() == "true"
        if self.kind in _RANGES:
            least, most = _RANGES[self.kind]
            try:
                number = int(text)
            except ValueError:
                raise self._invalid(text, f"Not a number of type {self.kind.name}") from None
            if not least <= number <= most:
                raise self._invalid(text, f"Not a number of type {self.kind.name}")
            return number
        if self.kind is Kind.DOUBLE:
            try:
                return float(text)
            except ValueError:
                raise self._invalid(text, "Not a number of type DOUBLE") from None
        if self.kind is Kind.LIST:
            return tuple(part.strip() for part in text.split(",")) if text else ()
        return text

    def _check(self, value: Any) -> None:
        if self.least is not None and value < self.least:
            raise self._invalid(value, f"Value must be at least {_plain(self.least)}")
        if self.most is not None and value > self.most:
            raise self._invalid(value, f"Value must be no more than {_plain(self.most)}")
        if not self.one_of:
            return
        for item in value if self.kind is Kind.LIST else (value,):
            if item not in self.one_of:
                raise self._invalid(item, f"String must be one of: {', '.join(self.one_of)}")

    def _invalid(self, value: Any, reason: str) -> InvalidSetting:
        return InvalidSetting(f"Invalid value {value} for configuration {self.name}: {reason}")

    def text(self, value: Any) -> str | None:
        """The value as DescribeConfigs prints it."""
        if value is None:
            return None
        if self.kind is Kind.BOOLEAN:
            return "true" if value else "false"
        if self.kind is Kind.LIST:
            return ",".join(value)
        return str(value)


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


B, S, N, H, L, D, A = Kind.BOOLEAN, Kind.STRING, Kind.INT, Kind.SHORT, Kind.LONG, Kind.DOUBLE, Kind.LIST
_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_DAY = 86_400_000
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _broker(*names: str) -> tuple[tuple[str, int], ...]:
    """Synonyms in the order they are asked; `hours` and `minutes` in a name say what their number counts."""
    return tuple((name, 3_600_000 if name.endswith("hours") else 60_000 if name.endswith("minutes") else 1) for name in names)


# fmt: off
_TOPIC = (
    Setting("cleanup.policy", A, ("delete",), "What happens to old records: delete them, compact to the last of each key, or both.", one_of=("compact", "delete"), synonyms=_broker("log.cleanup.policy")),
    Setting("compression.type", S, "producer", "The codec records are kept in; producer keeps what the producer chose.", one_of=_CODECS, synonyms=_broker("compression.type")),
    Setting("compression.gzip.level", N, -1, "Effort of gzip, 1 to 9, or -1 for its own default.", least=-1, most=9, synonyms=_broker("compression.gzip.level")),
    Setting("compression.lz4.level", N, 9, "Effort of lz4, 1 to 17.", least=1, most=17, synonyms=_broker("compression.lz4.level")),
    Setting("compression.zstd.level", N, 3, "Effort of zstd, up to 22.", least=-131072, most=22, synonyms=_broker("compression.zstd.level")),
    Setting("delete.retention.ms", L, _DAY, "How long a tombstone stays readable in a compacted log.", least=0, synonyms=_broker("log.cleaner.delete.retention.ms")),
    Setting("file.delete.delay.ms", L, 60_000, "How long a deleted segment's file stays on disk.", least=0, synonyms=_broker("log.segment.delete.delay.ms")),
    Setting("flush.messages", L, LONG_MAX, "Sync to disk after this many records; replication usually makes this needless.", least=1, synonyms=_broker("log.flush.interval.messages")),
    Setting("flush.ms", L, LONG_MAX, "Sync to disk after this long.", least=0, synonyms=_broker("log.flush.interval.ms", "log.flush.scheduler.interval.ms")),
    Setting("follower.replication.throttled.replicas", A, (), "Accepted for Kafka's sake; replication is not slowed down."),
    Setting("index.interval.bytes", N, 4096, "Bytes of log between two index entries.", least=0, synonyms=_broker("log.index.interval.bytes")),
    Setting("leader.replication.throttled.replicas", A, (), "Accepted for Kafka's sake; replication is not slowed down."),
    Setting("local.retention.bytes", L, -2, "Accepted for Kafka's sake; there is no tiered storage yet.", least=-2, synonyms=_broker("log.local.retention.bytes")),
    Setting("local.retention.ms", L, -2, "Accepted for Kafka's sake; there is no tiered storage yet.", least=-2, synonyms=_broker("log.local.retention.ms")),
    Setting("max.compaction.lag.ms", L, LONG_MAX, "A record is compacted at the latest after this long.", least=1, synonyms=_broker("log.cleaner.max.compaction.lag.ms")),
    Setting("max.message.bytes", N, 1_048_588, "The largest record batch taken, compressed.", least=0, synonyms=_broker("message.max.bytes")),
    Setting("message.timestamp.after.max.ms", L, 3_600_000, "How far in the future a record's timestamp may lie.", least=0, synonyms=_broker("log.message.timestamp.after.max.ms")),
    Setting("message.timestamp.before.max.ms", L, LONG_MAX, "How far in the past a record's timestamp may lie.", least=0, synonyms=_broker("log.message.timestamp.before.max.ms")),
    Setting("message.timestamp.type", S, "CreateTime", "Whether a record's timestamp is the producer's or the moment of its append.", one_of=("CreateTime", "LogAppendTime"), synonyms=_broker("log.message.timestamp.type")),
    Setting("min.cleanable.dirty.ratio", D, 0.5, "The part of a log that must be new before it is compacted again.", least=0, most=1, synonyms=_broker("log.cleaner.min.cleanable.ratio")),
    Setting("min.compaction.lag.ms", L, 0, "A record is not compacted before it is this old.", least=0, synonyms=_broker("log.cleaner.min.compaction.lag.ms")),
    Setting("min.insync.replicas", N, 1, "With acks=all, how many replicas must have a record before it is acknowledged.", least=1, synonyms=_broker("min.insync.replicas")),
    Setting("preallocate", B, False, "Accepted for Kafka's sake; files grow as they are written.", synonyms=_broker("log.preallocate")),
    Setting("remote.log.copy.disable", B, False, "Accepted for Kafka's sake; there is no tiered storage yet."),
    Setting("remote.log.delete.on.disable", B, False, "Accepted for Kafka's sake; there is no tiered storage yet."),
    Setting("remote.storage.enable", B, False, "Whether old segments move to tiered storage."),
    Setting("retention.bytes", L, -1, "Size of a partition past which its oldest segments are deleted; -1 is without limit.", synonyms=_broker("log.retention.bytes")),
    Setting("retention.ms", L, 7 * _DAY, "Age past which segments are deleted; -1 keeps them for ever.", least=-1, synonyms=_broker("log.retention.ms", "log.retention.minutes", "log.retention.hours")),
    Setting("segment.bytes", N, 1 << 30, "Size at which a new segment begins.", least=1 << 20, synonyms=_broker("log.segment.bytes")),
    Setting("segment.index.bytes", N, 10 << 20, "The largest index of a segment.", least=4, synonyms=_broker("log.index.size.max.bytes")),
    Setting("segment.jitter.ms", L, 0, "Up to this much is taken off segment.ms at random, so that segments do not all roll at once.", least=0, synonyms=_broker("log.roll.jitter.ms", "log.roll.jitter.hours")),
    Setting("segment.ms", L, 7 * _DAY, "Age at which a new segment begins.", least=1, synonyms=_broker("log.roll.ms", "log.roll.hours")),
    Setting("unclean.leader.election.enable", B, False, "Whether a replica that is behind may lead when no other is left, losing records.", synonyms=_broker("unclean.leader.election.enable")),
)

_BROKER = (
    Setting("add.partitions.to.txn.retry.backoff.max.ms", N, 100, "How long adding a partition waits for the transaction before it.", least=0),
    Setting("add.partitions.to.txn.retry.backoff.ms", N, 20, "Pause between two attempts to add a partition to a transaction.", least=1),
    Setting("advertised.listeners", A, None, "What clients are told to connect to; unset means listeners.", dynamic="per-broker"),
    Setting("auto.create.topics.enable", B, True, "Whether a request for an unknown topic creates it."),
    Setting("auto.leader.rebalance.enable", B, True, "Whether leadership returns to preferred replicas by itself."),
    Setting("background.threads", N, 10, "Accepted for Kafka's sake; ottla has one event loop.", least=1, dynamic="cluster-wide"),
    Setting("broker.heartbeat.interval.ms", N, 2000, "Time between a broker's heartbeats to the controller."),
    Setting("broker.id", N, -1, "The older name of node.id."),
    Setting("broker.rack", S, None, "Where the broker stands; replicas are spread over racks."),
    Setting("broker.session.timeout.ms", N, 9000, "A broker silent for this long is fenced."),
    Setting("compression.gzip.level", N, -1, "See the topic setting.", least=-1, most=9, dynamic="cluster-wide"),
    Setting("compression.lz4.level", N, 9, "See the topic setting.", least=1, most=17, dynamic="cluster-wide"),
    Setting("compression.type", S, "producer", "See the topic setting.", one_of=_CODECS, dynamic="cluster-wide"),
    Setting("compression.zstd.level", N, 3, "See the topic setting.", least=-131072, most=22, dynamic="cluster-wide"),
    Setting("connections.max.idle.ms", L, 600_000, "A connection silent for this long is closed; -1 keeps it."),
    Setting("controlled.shutdown.enable", B, True, "Whether a stopping broker first hands its leaderships on."),
    Setting("controller.listener.names", A, None, "Which listeners are the controllers'."),
    Setting("controller.quorum.append.linger.ms", N, 25, "Accepted for Kafka's sake; the metadata leader appends at once.", least=0),
    Setting("controller.quorum.bootstrap.servers", A, (), "Where to find the quorum."),
    Setting("controller.quorum.election.backoff.max.ms", N, 1000, "Accepted for Kafka's sake; waits between elections follow from the election's time-out.", least=0),
    Setting("controller.quorum.election.timeout.ms", N, 1000, "How long an election may take.", least=0),
    Setting("controller.quorum.fetch.max.bytes", N, 1 << 20, "Accepted for Kafka's sake; a metadata fetch brings up to 8 MB.", least=1),
    Setting("controller.quorum.fetch.snapshot.max.bytes", N, 1 << 20, "Accepted for Kafka's sake; a snapshot fetch brings up to 8 MB.", least=1),
    Setting("controller.quorum.fetch.timeout.ms", N, 2000, "A leader not heard of for this long is given up.", least=0),
    Setting("controller.quorum.request.timeout.ms", N, 2000, "How long a quorum request may take.", least=0),
    Setting("controller.quorum.retry.backoff.ms", N, 20, "Wait before a quorum request is sent again.", least=0),
    Setting("controller.quorum.voters", A, (), "The voters, as id@host:port."),
    Setting("default.replication.factor", N, 1, "Replicas of a topic that does not say."),
    Setting("delete.topic.enable", B, True, "Whether topics may be deleted."),
    Setting("fetch.max.bytes", N, 55 << 20, "The most one fetch returns.", least=1024),
    Setting("group.consumer.assignment.interval.ms", N, 1000, "The least time between two new target assignments of a group.", least=0, dynamic="cluster-wide"),
    Setting("group.consumer.assignors", A, ("uniform", "range"), "The assignors on the server, the default first."),
    Setting("group.consumer.heartbeat.interval.ms", N, 5000, "Heartbeat interval of consumer groups.", least=1),
    Setting("group.consumer.max.assignment.interval.ms", N, 15_000, "The most a group may set.", least=0),
    Setting("group.consumer.max.heartbeat.interval.ms", N, 15_000, "The most a group may set.", least=1),
    Setting("group.consumer.max.session.timeout.ms", N, 60_000, "The most a group may set.", least=1),
    Setting("group.consumer.max.size", N, INT_MAX, "The most members of a consumer group.", least=1),
    Setting("group.consumer.migration.policy", S, "bidirectional", "Whether groups may change protocol while members are in them."),
    Setting("group.consumer.min.assignment.interval.ms", N, 0, "The least a group may set.", least=0),
    Setting("group.consumer.min.heartbeat.interval.ms", N, 5000, "The least a group may set.", least=1),
    Setting("group.consumer.min.session.timeout.ms", N, 45_000, "The least a group may set.", least=1),
    Setting("group.consumer.regex.refresh.interval.ms", N, 600_000, "Accepted for Kafka's sake; regular expressions are matched anew when topics change.", least=10_000),
    Setting("group.consumer.session.timeout.ms", N, 45_000, "A member silent for this long is removed.", least=1),
    Setting("group.coordinator.rebalance.protocols", A, ("classic", "consumer"), "Accepted for Kafka's sake; classic and consumer groups are served.", one_of=("consumer", "classic", "share", "streams")),
    Setting("group.initial.rebalance.delay.ms", N, 3000, "How long an empty group waits for more members before its first rebalance."),
    Setting("group.max.session.timeout.ms", N, 1_800_000, "The longest session timeout a member may ask for."),
    Setting("group.max.size", N, INT_MAX, "The most members of a classic group.", least=1),
    Setting("group.min.session.timeout.ms", N, 6000, "The shortest session timeout a member may ask for."),
    Setting("initial.broker.registration.timeout.ms", N, 60_000, "How long a broker tries to register before it gives up."),
    Setting("inter.broker.listener.name", S, None, "The listener brokers use among themselves."),
    Setting("leader.imbalance.check.interval.seconds", L, 300, "How often preferred leaders are restored.", least=1),
    Setting("listener.security.protocol.map", S, "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", "Which security each listener has.", dynamic="per-broker"),
    Setting("listeners", A, ("PLAINTEXT://:9092",), "Where the node listens, as NAME://host:port.", dynamic="per-broker"),
    Setting("log.cleaner.backoff.ms", L, 15_000, "Pause of the cleaner when there is nothing to clean.", least=0, dynamic="cluster-wide"),
    Setting("log.cleaner.dedupe.buffer.size", L, 128 << 20, "Memory for the keys of one cleaning.", dynamic="cluster-wide"),
    Setting("log.cleaner.delete.retention.ms", L, _DAY, "See delete.retention.ms of topics.", least=0, dynamic="cluster-wide"),
    Setting("log.cleaner.enable", B, True, "Whether logs are compacted at all."),
    Setting("log.cleaner.max.compaction.lag.ms", L, LONG_MAX, "See the topic setting.", least=1, dynamic="cluster-wide"),
    Setting("log.cleaner.min.cleanable.ratio", D, 0.5, "See min.cleanable.dirty.ratio of topics.", least=0, most=1, dynamic="cluster-wide"),
    Setting("log.cleaner.min.compaction.lag.ms", L, 0, "See the topic setting.", least=0, dynamic="cluster-wide"),
    Setting("log.cleaner.threads", N, 1, "Accepted for Kafka's sake; one log is compacted at a time.", least=0, dynamic="cluster-wide"),
    Setting("log.cleanup.policy", A, ("delete",), "See cleanup.policy of topics.", one_of=("compact", "delete"), dynamic="cluster-wide"),
    Setting("log.dir", A, ("ottla-data",), "Where the data lies, if log.dirs does not say."),
    Setting("log.dirs", A, None, "Where the data lies."),
    Setting("log.flush.interval.messages", L, LONG_MAX, "See flush.messages of topics.", least=1, dynamic="cluster-wide"),
    Setting("log.flush.interval.ms", L, None, "See flush.ms of topics.", dynamic="cluster-wide"),
    Setting("log.flush.offset.checkpoint.interval.ms", N, 60_000, "How often the recovery points are written down.", least=0),
    Setting("log.flush.scheduler.interval.ms", L, LONG_MAX, "How often logs are looked at for flushing."),
    Setting("log.flush.start.offset.checkpoint.interval.ms", N, 60_000, "How often the log start offsets are written down.", least=0),
    Setting("log.index.interval.bytes", N, 4096, "See the topic setting.", least=0, dynamic="cluster-wide"),
    Setting("log.index.size.max.bytes", N, 10 << 20, "See segment.index.bytes of topics.", least=4, dynamic="cluster-wide"),
    Setting("log.local.retention.bytes", L, -2, "Accepted for Kafka's sake; there is no tiered storage yet.", least=-2, dynamic="cluster-wide"),
    Setting("log.local.retention.ms", L, -2, "Accepted for Kafka's sake; there is no tiered storage yet.", least=-2, dynamic="cluster-wide"),
    Setting("log.message.timestamp.after.max.ms", L, 3_600_000, "See the topic setting.", least=0, dynamic="cluster-wide"),
    Setting("log.message.timestamp.before.max.ms", L, LONG_MAX, "See the topic setting.", least=0, dynamic="cluster-wide"),
    Setting("log.message.timestamp.type", S, "CreateTime", "See the topic setting.", one_of=("CreateTime", "LogAppendTime"), dynamic="cluster-wide"),
    Setting("log.preallocate", B, False, "Accepted for Kafka's sake; files grow as they are written.", dynamic="cluster-wide"),
    Setting("log.retention.bytes", L, -1, "See the topic setting.", dynamic="cluster-wide"),
    Setting("log.retention.check.interval.ms", L, 300_000, "How often retention is applied.", least=1),
    Setting("log.retention.hours", N, 168, "See retention.ms of topics; the coarsest of three names."),
    Setting("log.retention.minutes", N, None, "See retention.ms of topics; goes before hours."),
    Setting("log.retention.ms", L, None, "See retention.ms of topics; goes before minutes and hours.", dynamic="cluster-wide"),
    Setting("log.roll.hours", N, 168, "See segment.ms of topics.", least=1),
    Setting("log.roll.jitter.hours", N, 0, "See segment.jitter.ms of topics.", least=0),
    Setting("log.roll.jitter.ms", L, None, "See segment.jitter.ms of topics.", dynamic="cluster-wide"),
    Setting("log.roll.ms", L, None, "See segment.ms of topics.", dynamic="cluster-wide"),
    Setting("log.segment.bytes", N, 1 << 30, "See the topic setting.", least=1 << 20, dynamic="cluster-wide"),
    Setting("log.segment.delete.delay.ms", L, 60_000, "See file.delete.delay.ms of topics.", least=0, dynamic="cluster-wide"),
    Setting("max.connections", N, INT_MAX, "The most connections of clients; the brokers' own listener, where they have one, is not counted.", least=0, dynamic="cluster-wide"),
    Setting("max.connections.per.ip", N, INT_MAX, "The most connections of clients from one address.", least=0, dynamic="cluster-wide"),
    Setting("max.incremental.fetch.session.cache.slots", N, 1000, "The most fetch sessions kept.", least=0),
    Setting("max.request.partition.size.limit", N, 2000, "The most partitions one DescribeTopicPartitions returns.", least=1),
    Setting("message.max.bytes", N, 1_048_588, "See max.message.bytes of topics.", least=0, dynamic="cluster-wide"),
    Setting("metadata.log.dir", S, None, "Where the metadata log lies, if not with the other logs."),
    Setting("metadata.log.max.record.bytes.between.snapshots", L, 20 << 20, "Metadata bytes after which a snapshot is made.", least=1),
    Setting("metadata.log.max.snapshot.interval.ms", L, 3_600_000, "Time after which a snapshot is made.", least=0),
    Setting("metadata.log.segment.bytes", N, 1 << 30, "Size at which a new metadata segment begins.", least=8 << 20),
    Setting("metadata.log.segment.ms", L, 7 * _DAY, "Age at which a new metadata segment begins."),
    Setting("metadata.max.idle.interval.ms", N, 500, "An idle metadata leader writes a no-op this often; 0 never.", least=0),
    Setting("metadata.max.retention.bytes", L, 100 << 20, "Accepted for Kafka's sake; what a snapshot stands for goes when the next is made."),
    Setting("metadata.max.retention.ms", L, 7 * _DAY, "Accepted for Kafka's sake; what a snapshot stands for goes when the next is made."),
    Setting("min.insync.replicas", N, 1, "See the topic setting.", least=1, dynamic="cluster-wide"),
    Setting("node.id", N, None, "The number of this node in its cluster.", least=0),
    Setting("num.io.threads", N, 8, "Accepted for Kafka's sake; ottla has one event loop.", least=1, dynamic="cluster-wide"),
    Setting("num.network.threads", N, 3, "Accepted for Kafka's sake; ottla has one event loop.", least=1, dynamic="cluster-wide"),
    Setting("num.partitions", N, 1, "Partitions of a topic that does not say.", least=1),
    Setting("num.recovery.threads.per.data.dir", N, 2, "Accepted for Kafka's sake; logs are recovered one after the other.", least=1, dynamic="cluster-wide"),
    Setting("num.replica.fetchers", N, 1, "Accepted for Kafka's sake; a node has one connection to each leader that it follows.", least=1, dynamic="cluster-wide"),
    Setting("offset.metadata.max.bytes", N, 4096, "The most metadata a committed offset may carry."),
    Setting("offsets.commit.timeout.ms", N, 5000, "How long a commit waits for the replicas.", least=1),
    Setting("offsets.retention.check.interval.ms", L, 600_000, "How often old offsets are looked for.", least=1),
    Setting("offsets.retention.minutes", N, 10_080, "How long the offsets of a group without members are kept.", least=1),
    Setting("offsets.topic.num.partitions", N, 50, "Partitions of __consumer_offsets.", least=1),
    Setting("offsets.topic.replication.factor", H, 3, "Replicas of __consumer_offsets.", least=1),
    Setting("offsets.topic.segment.bytes", N, 100 << 20, "Segment size of __consumer_offsets.", least=1),
    Setting("process.roles", A, None, "What this node is: broker, controller or both.", one_of=("broker", "controller")),
    Setting("producer.id.expiration.ms", N, _DAY, "How long an idle producer is remembered.", least=1, dynamic="cluster-wide"),
    Setting("queued.max.requests", N, 500, "The most requests of one connection that wait; it is read no further until they are fewer.", least=1),
    Setting("replica.fetch.backoff.ms", N, 1000, "Pause of a follower after an error.", least=0),
    Setting("replica.fetch.max.bytes", N, 1 << 20, "The most a follower fetches of one partition at once.", least=0),
    Setting("replica.fetch.min.bytes", N, 1, "The least a follower waits for."),
    Setting("replica.fetch.response.max.bytes", N, 10 << 20, "The most a follower fetches at once.", least=0),
    Setting("replica.fetch.wait.max.ms", N, 500, "The longest a follower's fetch waits."),
    Setting("replica.high.watermark.checkpoint.interval.ms", L, 5000, "How often high watermarks are written down."),
    Setting("replica.lag.time.max.ms", L, 30_000, "A follower behind for this long leaves the in-sync set."),
    Setting("replica.selector.class", S, None, "How a consumer's closest replica is found; without it everybody reads from leaders.", one_of=(RACK_AWARE, "org.apache.kafka.common.replica.LeaderSelector")),
    Setting("replica.socket.timeout.ms", N, 30_000, "How long a follower's request may take."),
    Setting("request.timeout.ms", N, 30_000, "How long a node's request to another may take."),
    Setting("socket.listen.backlog.size", N, 50, "Accepted for Kafka's sake; 1,024 connections may wait to be accepted.", least=1),
    Setting("socket.receive.buffer.bytes", N, 102_400, "Accepted for Kafka's sake; the system sizes the buffers of a connection."),
    Setting("socket.request.max.bytes", N, 100 << 20, "The largest request taken.", least=1),
    Setting("socket.send.buffer.bytes", N, 102_400, "Accepted for Kafka's sake; the system sizes the buffers of a connection."),
    Setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", N, 10_000, "How often timed-out transactions are looked for.", least=1),
    Setting("transaction.max.timeout.ms", N, 900_000, "The longest timeout a transaction may have.", least=1),
    Setting("transaction.partition.verification.enable", B, True, "Whether a partition asks the coordinator before it takes transactional records.", dynamic="cluster-wide"),
    Setting("transaction.remove.expired.transaction.cleanup.interval.ms", N, 3_600_000, "How often expired transactional ids are looked for.", least=1),
    Setting("transaction.state.log.min.isr", N, 2, "min.insync.replicas of __transaction_state.", least=1),
    Setting("transaction.state.log.num.partitions", N, 50, "Partitions of __transaction_state.", least=1),
    Setting("transaction.state.log.replication.factor", H, 3, "Replicas of __transaction_state.", least=1),
    Setting("transaction.state.log.segment.bytes", N, 100 << 20, "Segment size of __transaction_state.", least=1),
    Setting("transactional.id.expiration.ms", N, 7 * _DAY, "How long an idle transactional id is remembered.", least=1),
    Setting("unclean.leader.election.enable", B, False, "See the topic setting.", dynamic="cluster-wide"),
)

_GROUP = (
    Setting("consumer.assignment.interval.ms", N, 1000, "The least time between two new target assignments.", least=0, synonyms=_broker("group.consumer.assignment.interval.ms")),
    Setting("consumer.heartbeat.interval.ms", N, 5000, "How often members of this group send heartbeats.", least=1, synonyms=_broker("group.consumer.heartbeat.interval.ms")),
    Setting("consumer.session.timeout.ms", N, 45_000, "A member silent for this long is removed.", least=1, synonyms=_broker("group.consumer.session.timeout.ms")),
)
# fmt: on

TOPIC_SETTINGS: dict[str, Setting] = {row.name: row for row in _TOPIC}
BROKER_SETTINGS: dict[str, Setting] = {row.name: row for row in _BROKER}
GROUP_SETTINGS: dict[str, Setting] = {row.name: row for row in _GROUP}


def synonym_chain(setting: Setting, broker: Mapping[str, Any]) -> Iterator[tuple[str, Any, int]]:
    """The broker settings behind a topic or group setting that are set, the strongest first: name, value, factor."""
    for name, factor in setting.synonyms:
        if broker.get(name) is not None:
            yield name, broker[name], factor


def effective(setting: Setting, own: Mapping[str, str], broker: Mapping[str, Any]) -> Any:
    """The value in force: the topic's or group's own, or its broker synonym's, or the default.

    `own` is text as the metadata log keeps it; `broker` holds parsed values. Text that no longer parses (written by a newer
    version) falls back as if it were absent, because applying metadata must not fail.
    """
    if setting.name in own:
        try:
            return setting.parse(own[setting.name])
        except InvalidSetting:
            pass
    for _, value, factor in synonym_chain(setting, broker):
        return value * factor if factor != 1 and value >= 0 else value
    return setting.default
