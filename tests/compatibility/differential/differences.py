"""Where ottla answers otherwise than Apache Kafka 4.3 on purpose, each with its reason. Printed into docs/COMPATIBILITY.md.

A rule matches a whole difference: the question (`what was asked | API`), the path in the answer, and, if given, what ottla says.
A rule that no difference needs any more is an error, so that this list can only shrink by itself.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ottla.protocol.apis import APIS


class Accepted(NamedTuple):
    question: str  # a regular expression over `what was asked | API`
    path: str  # a regular expression over the path in the answer
    reason: str
    ours: Any = ...  # what ottla says, where that matters

    def matches(self, question: str, path: str, ours: Any) -> bool:
        fits = re.fullmatch(self.question, question) and re.fullmatch(self.path, path)
        return bool(fits) and (self.ours is ... or ours == self.ours)


def _keys(*names: str) -> str:
    return "|".join(str(key) for key, api in APIS.items() if api.name in names)


_UNDECLARED = "|".join(str(key) for key in range(38, 100) if key not in APIS)
_PACKED_BADLY = r"(gzip|snappy|lz4|zstd) (that is none|with a byte changed in its middle|of nothing|that ends early)"
_HELLO = r"a client says hello \| ApiVersions"

ACCEPTED = (
    Accepted(
        r".*",
        r".*error_message",
        "Error messages are ottla's own words, and say something in places where Kafka says nothing. Codes are Kafka's.",
    ),
    Accepted(
        _HELLO,
        rf"api_keys\[({_UNDECLARED})\]",
        "Delegation tokens, share groups and streams groups are not served.",
        "absent",
    ),
    Accepted(
        _HELLO,
        rf"api_keys\[({_keys('SaslHandshake', 'SaslAuthenticate', 'DescribeAcls', 'CreateAcls', 'DeleteAcls')})\]",
        "SASL and ACLs are not served yet.",
        "absent",
    ),
    Accepted(
        _HELLO,
        rf"api_keys\[({_keys('DescribeUserScramCredentials', 'AlterUserScramCredentials', 'DescribeClientQuotas')})\]",
        "Users and quotas are not served yet.",
        "absent",
    ),
    Accepted(
        _HELLO,
        rf"api_keys\[({_keys('AlterReplicaLogDirs')})\]",
        "A node has one log directory, so there is none to move a replica to.",
        "absent",
    ),
    Accepted(
        _HELLO,
        rf"api_keys\[({_keys('AddRaftVoter', 'RemoveRaftVoter')})\]",
        "The voters of the metadata quorum are those of the properties file.",
        "absent",
    ),
    Accepted(
        _HELLO,
        r"(supported|finalized)_features\[(kraft|share|streams)\.version\]",
        "Only features that are served are advertised: no share or streams groups, no quorum whose voters change.",
        "absent",
    ),
    Accepted(
        r"by neither id nor name \| Metadata",
        r"brokers\[0\]|cluster_id|controller_id|error_code|topics\[\]",
        "A topic that is neither named nor identified is left out of the answer, where Kafka fails with UNKNOWN_SERVER_ERROR.",
    ),
    Accepted(
        r"the first answer says it is being made \| Metadata",
        r"",
        "A topic that a Metadata request creates is answered for once it exists, so a client need not ask again.",
    ),
    Accepted(
        r"a name that is none \| DescribeTopicPartitions",
        r"topics\[.*\]\.error_code",
        "A name that cannot be a topic's is INVALID_TOPIC_EXCEPTION, where Kafka fails with UNKNOWN_SERVER_ERROR.",
        "INVALID_TOPIC_EXCEPTION",
    ),
    Accepted(
        r".* \| (GetTelemetrySubscriptions|PushTelemetry)",
        r"error_code",
        "Client telemetry is declined: ottla has no plugin that would take it.",
        "UNSUPPORTED_VERSION",
    ),
    Accepted(
        r".* \| GetTelemetrySubscriptions",
        r"accepted_compression_types|delta_temporality|push_interval_ms|telemetry_max_bytes",
        "Whoever is declined is told no more.",
    ),
    Accepted(
        r"null \| Produce",
        r"",
        "Null instead of a record batch is INVALID_RECORD, where Kafka never answers.",
    ),
    Accepted(
        r"a huge length \| Produce",
        r".*error_code",
        "A batch that claims 2 GB is INVALID_RECORD like any batch that is cut short, where Kafka fails with UNKNOWN_SERVER_ERROR.",
        "INVALID_RECORD",
    ),
    Accepted(
        r"a strange codec \| Produce",
        r".*(error_code|log_start_offset)",
        "A codec that does not exist is UNSUPPORTED_COMPRESSION_TYPE, where Kafka fails with UNKNOWN_SERVER_ERROR.",
    ),
    Accepted(
        rf"{_PACKED_BADLY}, (compacted|stored plain) \| Produce",
        r"responses\[.*\]\.partition_responses\[0\]\.error_code",
        "Where the topic demands that records are unpacked, those that cannot be are INVALID_RECORD, where Kafka mostly fails with "
        "UNKNOWN_SERVER_ERROR.",
        "INVALID_RECORD",
    ),
    Accepted(
        rf"{_PACKED_BADLY}, as it is \| Produce",
        r"responses\[as-it-is\]\.partition_responses\[0\]\.(error_code|base_offset)",
        "Compressed records are not unpacked unless the topic demands it (design: the data path is bytes), so bytes that cannot be "
        "unpacked are kept as they came and found by the reader; Kafka unpacks every batch and mostly fails with UNKNOWN_SERVER_ERROR.",
    ),
    Accepted(
        r"a strange isolation level \| Fetch",
        r"error_code|responses\[0\](\.partitions\[0\]\.(aborted_transactions|error_code|high_watermark|last_stable_offset|log_start_offset|records\.batches\[\d\]))?",
        "An isolation level that does not exist reads what is not committed, where Kafka fails with UNKNOWN_SERVER_ERROR.",
    ),
    Accepted(
        r"none \| AddPartitionsToTxn",
        r"",
        "A request of no transactions is answered with no results, where Kafka never answers.",
    ),
    Accepted(
        r"an absent group \| DescribeConfigs",
        r"results\[nobody\]\.configs\[(share|streams)\..*\]",
        "Settings of share and streams groups are not there, as these groups are not.",
        "absent",
    ),
    Accepted(
        r"a strange operation \| IncrementalAlterConfigs",
        r".*error_code",
        "An operation that does not exist is INVALID_REQUEST, where Kafka fails with UNKNOWN_SERVER_ERROR.",
        "INVALID_REQUEST",
    ),
)


def accepted(question: str, path: str, ours: Any) -> Accepted | None:
    return next((rule for rule in ACCEPTED if rule.matches(question, path, ours)), None)
