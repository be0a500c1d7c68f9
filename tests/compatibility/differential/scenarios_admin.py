"""Scenarios about the rest that one node serves: leaders, moves, quotas, features, and groups and transactions nobody knows."""

from __future__ import annotations

from typing import Any

from tests.compatibility.differential.talk import Talk
from tests.compatibility.wire import wait_until

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def elect_leaders(talk: Talk) -> None:
    topic = talk.create(talk.topic("one"), 2)
    for version in talk.versions("ElectLeaders"):

        def elect(what: str, partitions: list[dict[str, Any]] | None, version: int = version, **more: Any) -> None:
            talk.ask(what, "ElectLeaders", version, topic_partitions=partitions, timeout_ms=30000, **more)

        elect("who leads already", [{"topic": topic, "partitions": [0, 1]}])
        elect("a strange partition", [{"topic": topic, "partitions": [9]}])
        elect("an absent topic", [{"topic": talk.topic("absent", version), "partitions": [0]}])
        elect("nothing", [])
        if version >= 1:
            elect("unclean, though there is a leader", [{"topic": topic, "partitions": [0]}], election_type=1)
            elect("a strange election", [{"topic": topic, "partitions": [0]}], election_type=7)


def reassignments(talk: Talk) -> None:
    topic = talk.create(talk.topic("one"), 2)
    for version in talk.versions("AlterPartitionReassignments"):
        for what, replicas in {
            "where it is": [1], "to a strange broker": [7], "nowhere": [], "twice to one": [1, 1], "cancel none": None, "negative": [-1],
        }.items():  # fmt: skip
            rows = [{"name": topic, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
            talk.ask(what, "AlterPartitionReassignments", version, topics=rows, timeout_ms=30000)
        rows = [{"name": topic, "partitions": [{"partition_index": 9, "replicas": [1]}]}]
        talk.ask("a strange partition", "AlterPartitionReassignments", version, topics=rows, timeout_ms=30000)
        rows = [{"name": talk.topic("absent", version), "partitions": [{"partition_index": 0, "replicas": [1]}]}]
        talk.ask("an absent topic", "AlterPartitionReassignments", version, topics=rows, timeout_ms=30000)
        talk.ask("nothing", "AlterPartitionReassignments", version, topics=[], timeout_ms=30000)
    talk.ask("none under way", "ListPartitionReassignments", 0, topics=None)
    talk.ask("none of a topic", "ListPartitionReassignments", 0, topics=[{"name": topic, "partition_indexes": [0, 1, 9]}])


def client_quotas(talk: Talk) -> None:
    for version in talk.versions("AlterClientQuotas"):

        def alter(
            what: str,
            entity: list[tuple[str, str | None]],
            ops: list[tuple[str, float, bool]],
            version: int = version,
            **more: Any,
        ) -> None:
            rows = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
            changes = [{"key": key, "value": value, "remove": remove} for key, value, remove in ops]
            talk.ask(what, "AlterClientQuotas", version, entries=[{"entity": rows, "ops": changes}], **more)

        rate = [("producer_byte_rate", 1000.0, False)]
        alter("only validated", [("client-id", "c")], rate, validate_only=True)
        alter("set", [("client-id", "c")], rate)
        alter("taken back", [("client-id", "c")], [("producer_byte_rate", 0.0, True)])
        alter("user and client", [("user", "u"), ("client-id", "c")], rate, validate_only=True)
        alter("the default user", [("user", None)], rate, validate_only=True)
        alter("a strange key", [("client-id", "c")], [("no.such.key", 1.0, False)])
        alter("a strange entity", [("planet", "mars")], rate)
        alter("no entity", [], rate)
        alter("a negative rate", [("client-id", "c")], [("producer_byte_rate", -1.0, False)])
        alter("no change", [("client-id", "c")], [])
        talk.ask("nothing", "AlterClientQuotas", version, entries=[])


def update_features(talk: Talk) -> None:
    for version in talk.versions("UpdateFeatures"):

        def update(what: str, feature: str, level: int, version: int = version, upgrade: int = UPGRADE) -> None:
            row: dict[str, Any] = {"feature": feature, "max_version_level": level}
            row |= {"upgrade_type": upgrade} if version >= 1 else {}
            dry = {"validate_only": True} if version >= 1 else {}
            if version >= 1:  # before, there is no way only to validate
                talk.ask(what, "UpdateFeatures", version, feature_updates=[row], timeout_ms=30000, **dry)

        update("a strange feature", "no.such.feature", 1)
        update("a level too high", "metadata.version", 999)
        update("a level of 0", "metadata.version", 0)
        update("a negative level", "metadata.version", -1)
        update("a downgrade called upgrade", "metadata.version", 7)
        update("no name", "", 1)
        update("a strange feature taken back", "no.such.feature", 0)
        update("a strange kind of upgrade", "metadata.version", 999, upgrade=7)


def unknown_groups(talk: Talk) -> None:
    """What a coordinator says of groups and members it has never heard of."""
    topic = talk.create(talk.topic("one"))
    wait_until("a coordinator", lambda: not talk.quietly("FindCoordinator", 2, key="x").error_code)
    settled = {"group": "nobody", "group_id": "nobody"}
    wait_until(
        "the group's shard", lambda: talk.quietly("Heartbeat", 3, group_id="nobody", member_id="m").error_code not in (14, 15, 16)
    )
    for api, fields in {
        "Heartbeat": {"group_id": "nobody", "generation_id": 1, "member_id": "m"},
        "SyncGroup": {"group_id": "nobody", "generation_id": 1, "member_id": "m"},
        "DescribeGroups": {"groups": ["nobody", ""]},
        "DeleteGroups": {"groups_names": ["nobody", ""]},
        "ConsumerGroupDescribe": {"group_ids": ["nobody", ""]},
    }.items():
        for version in talk.versions(api):
            talk.ask("an unknown group", api, version, **fields)
    for version in talk.versions("LeaveGroup"):
        who: dict[str, Any] = {"member_id": "m"} if version < 3 else {"members": [{"member_id": "m"}]}
        talk.ask("an unknown group", "LeaveGroup", version, group_id="nobody", **who)
    for version in talk.versions("OffsetFetch"):
        rows = [{"name": topic, "partition_indexes": [0]}]
        if version < 8:
            talk.ask("an unknown group", "OffsetFetch", version, group_id="nobody", topics=rows)
        elif version < 10:
            talk.ask("an unknown group", "OffsetFetch", version, groups=[{"group_id": "nobody", "topics": rows}])
    for version in range(2, 10):
        rows = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}]
        member = {"group_id": settled["group_id"], "generation_id_or_member_epoch": 5, "member_id": "m"}
        talk.ask("a commit of an unknown member", "OffsetCommit", version, topics=rows, **member)
    talk.ask(
        "an unknown group", "OffsetDelete", 0, group_id="nobody", topics=[{"name": topic, "partitions": [{"partition_index": 0}]}]
    )
    for version in talk.versions("ConsumerGroupHeartbeat"):
        beat = {"group_id": "nobody", "member_id": "m" * 22, "member_epoch": 3}
        talk.ask("an unknown group", "ConsumerGroupHeartbeat", version, **beat)
        talk.ask("no group id", "ConsumerGroupHeartbeat", version, group_id="", member_id="m", member_epoch=0)


def unknown_members(talk: Talk) -> None:
    """The same of members that want to join, of what is known by topic ids, and of lists."""
    topic_id = talk.topic_id(talk.create(talk.topic("one")))
    wait_until("a coordinator", lambda: not talk.quietly("FindCoordinator", 2, key="x").error_code)
    wait_until(
        "the group's shard", lambda: talk.quietly("Heartbeat", 3, group_id="nobody", member_id="m").error_code not in (14, 15, 16)
    )
    join: dict[str, Any] = {"group_id": "nobody", "session_timeout_ms": 10_000, "member_id": "m", "protocol_type": "consumer"}
    join["protocols"] = [{"name": "range", "metadata": b""}]
    for version in talk.versions("JoinGroup"):
        talk.ask("an unknown member", "JoinGroup", version, **join)
        talk.ask("no group id", "JoinGroup", version, **(join | {"group_id": ""}))
        talk.ask("too short a session", "JoinGroup", version, **(join | {"session_timeout_ms": 1}))
        talk.ask("too long a session", "JoinGroup", version, **(join | {"session_timeout_ms": 2**31 - 1}))
    for version in talk.versions("ListGroups"):
        answer = talk.quietly("ListGroups", version)
        talk.note("no error", "ListGroups", version, answer.error_code)
        if version >= 4:
            talk.ask("in a state that does not exist", "ListGroups", version, states_filter=["Sleeping"])
        if version >= 5:
            talk.ask("of a kind that does not exist", "ListGroups", version, types_filter=["flock"])
    for what, wanted in {"a commit by topic id": topic_id, "a commit by a strange id": b"no such topic id"}.items():
        rows = [{"topic_id": wanted, "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}]
        talk.ask(what, "OffsetCommit", 10, group_id="nobody", generation_id_or_member_epoch=5, member_id="m", topics=rows)
        asked = [{"group_id": "nobody", "topics": [{"topic_id": wanted, "partition_indexes": [0]}]}]
        talk.ask(what.replace("commit", "look"), "OffsetFetch", 10, groups=asked)
    talk.ask(
        "a strange feature",
        "UpdateFeatures",
        0,
        feature_updates=[{"feature": "no.such", "max_version_level": 1}],
        timeout_ms=30000,
    )
    talk.ask("an unknown broker", "UnregisterBroker", 0, broker_id=99)


def unknown_transactions(talk: Talk) -> None:
    """What a coordinator says of transactions it has never heard of."""
    topic = talk.create(talk.topic("one"))
    known = {"producer_id": 5, "producer_epoch": 0}
    wait_until("a coordinator", lambda: not talk.quietly("FindCoordinator", 2, key="nobody", key_type=1).error_code)
    end = {"transactional_id": "nobody", **known, "committed": True}
    wait_until("the shard", lambda: talk.quietly("EndTxn", 3, **end).error_code not in (14, 15, 16))
    for version in talk.versions("EndTxn"):
        talk.ask("an unknown transaction", "EndTxn", version, **end)
        talk.ask("no transactional id", "EndTxn", version, **(end | {"transactional_id": ""}))
    for version in talk.versions("AddOffsetsToTxn"):
        talk.ask("an unknown transaction", "AddOffsetsToTxn", version, transactional_id="nobody", group_id="g", **known)
    for version in range(4):
        ids = {"v3_and_below_transactional_id": "nobody", "v3_and_below_producer_id": 5, "v3_and_below_producer_epoch": 0}
        rows = [{"name": topic, "partitions": [0]}]
        talk.ask("an unknown transaction", "AddPartitionsToTxn", version, v3_and_below_topics=rows, **ids)
    for version in (4, 5):
        rows = [
            {"transactional_id": "nobody", **known, "verify_only": verify, "topics": [{"name": topic, "partitions": [0]}]}
            for verify in (True,)
        ]
        talk.ask("verified", "AddPartitionsToTxn", version, transactions=rows)
        talk.ask("none", "AddPartitionsToTxn", version, transactions=[])
    for version in talk.versions("TxnOffsetCommit"):
        offsets = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}]
        talk.ask("an empty group", "TxnOffsetCommit", version, transactional_id="nobody", group_id="", topics=offsets, **known)
    for version in talk.versions("WriteTxnMarkers"):
        talk.ask("no markers", "WriteTxnMarkers", version, markers=[])
        places = [{"name": talk.topic("absent", version), "partition_indexes": [0]}]
        marker = {
            "producer_id": 987_654,
            "producer_epoch": 0,
            "transaction_result": True,
            "coordinator_epoch": 0,
            "topics": places,
        }
        talk.ask("to an absent topic", "WriteTxnMarkers", version, markers=[marker])
    talk.ask("an unknown transaction", "DescribeTransactions", 0, transactional_ids=["nobody", ""])
    for version in talk.versions("ListTransactions"):
        talk.ask("of a producer nobody knows", "ListTransactions", version, producer_id_filters=[987_654])
        talk.ask("in a strange state", "ListTransactions", version, state_filters=["Sleeping"], producer_id_filters=[987_654])


SCENARIOS = (elect_leaders, reassignments, client_quotas, update_features, unknown_groups, unknown_members, unknown_transactions)
