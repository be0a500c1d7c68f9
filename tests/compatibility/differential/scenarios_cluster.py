"""Scenarios about the cluster: versions, metadata, telemetry, the quorum."""

from __future__ import annotations

from tests.compatibility.differential.talk import Talk
from tests.compatibility.wire import wait_until

NO_ID = bytes(16)
STRANGE_ID = b"no such topic id"


def api_versions(talk: Talk) -> None:
    for version in talk.versions("ApiVersions"):
        talk.ask("a client says hello", "ApiVersions", version, client_software_name="judge", client_software_version="1.0")
    for name, value in {"empty": "", "strange": "a b!", "dashes": "-a-"}.items():
        for version in (3, 4):
            talk.ask(f"{name} software name", "ApiVersions", version, client_software_name=value, client_software_version="1")
            talk.ask(f"{name} software version", "ApiVersions", version, client_software_name="a", client_software_version=value)


def metadata(talk: Talk) -> None:
    for version in talk.versions("Metadata"):
        one, two = talk.create(talk.topic("one", version)), talk.create(talk.topic("two", version), 3)

        def names(*wanted: str) -> list[dict[str, object]]:
            return [{"name": name} for name in wanted]

        still = {"allow_auto_topic_creation": False} if version >= 4 else {}
        talk.ask("two topics", "Metadata", version, topics=names(one, two), **still)
        talk.ask("every topic", "Metadata", version, only_own=True, topics=[] if version == 0 else None, **still)
        talk.ask("no topic", "Metadata", version, only_own=True, topics=[], **still)
        if version >= 4:
            absent = talk.topic("absent", version)
            talk.ask("an absent topic", "Metadata", version, topics=names(absent, one), **still)
            talk.ask("names that are no names", "Metadata", version, topics=names("", ".", "..", "a/b", "x" * 250), **still)
            made = talk.topic("made by asking", version)
            talk.ask("a name with spaces is not created", "Metadata", version, topics=names(made))
            talk.ask("the same topic twice", "Metadata", version, topics=names(one, one), **still)
        if version >= 8:
            flags = {"include_topic_authorized_operations": True}
            if version <= 10:
                flags["include_cluster_authorized_operations"] = True
            talk.ask("with operations", "Metadata", version, topics=names(one), **still, **flags)
        if version >= 10:
            by_id = [{"topic_id": talk.topic_id(one), "name": None}]
            talk.ask("by id", "Metadata", version, topics=by_id, **still)
            talk.ask("by a strange id", "Metadata", version, topics=[{"topic_id": STRANGE_ID, "name": None}], **still)
            talk.ask("by neither id nor name", "Metadata", version, topics=[{"topic_id": NO_ID, "name": None}], **still)
            both = [{"topic_id": talk.topic_id(one), "name": one}]
            talk.ask("by id and name", "Metadata", version, topics=both, **still)


def auto_creation(talk: Talk) -> None:
    for version in (1, 4, 9, 12, 13):
        name = talk.topic("auto", version)
        first = talk.quietly("Metadata", version, topics=[{"name": name}])
        talk.note("the first answer says it is being made", "Metadata", version, first.topics[0].error_code in (3, 5))
        talk.wait_for(name, 1)
        talk.ask("then it is there", "Metadata", version, topics=[{"name": name}])


def describe_cluster(talk: Talk) -> None:
    for version in talk.versions("DescribeCluster"):
        talk.ask("plain", "DescribeCluster", version)
        talk.ask("with operations", "DescribeCluster", version, include_cluster_authorized_operations=True)
        if version >= 1:
            talk.ask("controllers, asked of a broker", "DescribeCluster", version, endpoint_type=2)
            talk.ask("an endpoint type that is none", "DescribeCluster", version, endpoint_type=7)
        if version >= 2:
            talk.ask("with fenced brokers", "DescribeCluster", version, include_fenced_brokers=True)


def describe_topic_partitions(talk: Talk) -> None:
    one, two = talk.create(talk.topic("one"), 2), talk.create(talk.topic("two"), 3)
    both = [{"name": two}, {"name": one}]
    api = "DescribeTopicPartitions"
    talk.ask("two topics", api, 0, topics=both)
    talk.ask("every topic", api, 0, only_own=True)
    talk.ask("an absent topic", api, 0, topics=[{"name": talk.topic("absent")}])
    talk.ask("a name that is none", api, 0, topics=[{"name": "a/b"}, {"name": ""}])
    for limit in (-1, 0, 1, 2, 3, 4, 5):
        talk.ask(f"at most {limit} partitions", api, 0, topics=both, response_partition_limit=limit)
    for index in (-1, 0, 1, 2, 9):
        talk.ask(f"from partition {index}", api, 0, topics=both, cursor={"topic_name": one, "partition_index": index})
    talk.ask("from an absent topic", api, 0, topics=both, cursor={"topic_name": talk.topic("one-absent"), "partition_index": 0})


def telemetry(talk: Talk) -> None:
    talk.ask("a client without an id", "GetTelemetrySubscriptions", 0)
    talk.ask("a client with an id", "GetTelemetrySubscriptions", 0, client_instance_id=STRANGE_ID)
    talk.ask("a push without a subscription", "PushTelemetry", 0, client_instance_id=STRANGE_ID, subscription_id=5)


def describe_quorum(talk: Talk) -> None:
    for version in talk.versions("DescribeQuorum"):
        strange = [{"topic_name": "strange", "partitions": [{"partition_index": 0}]}]
        talk.ask("a topic without a quorum", "DescribeQuorum", version, topics=strange)
        talk.ask("nothing", "DescribeQuorum", version, topics=[])


def find_coordinator(talk: Talk) -> None:
    for kind in (0, 1):  # the first question makes the internal topic; later ones find it led
        wait_until("a coordinator", lambda kind=kind: not talk.quietly("FindCoordinator", 2, key="x", key_type=kind).error_code)
    for version in talk.versions("FindCoordinator"):
        if version < 4:
            talk.ask("of a group", "FindCoordinator", version, key="x")
            if version:
                talk.ask("of a transaction", "FindCoordinator", version, key="x", key_type=1)
            talk.ask("a strange key type", "FindCoordinator", version, key="x", **({"key_type": 9} if version else {}))
            continue
        talk.ask("a strange key type", "FindCoordinator", version, key_type=9, coordinator_keys=["x"])
        talk.ask("of groups", "FindCoordinator", version, key_type=0, coordinator_keys=["x", "y"])
        talk.ask("of a transaction", "FindCoordinator", version, key_type=1, coordinator_keys=["x"])
        talk.ask("no keys", "FindCoordinator", version, key_type=0, coordinator_keys=[])
        talk.ask("an empty key", "FindCoordinator", version, key_type=0, coordinator_keys=[""])


SCENARIOS = (
    api_versions, metadata, auto_creation, describe_cluster, describe_topic_partitions, telemetry, describe_quorum, find_coordinator,
)  # fmt: skip
