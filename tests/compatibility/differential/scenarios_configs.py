"""Scenarios about settings and log directories."""

from __future__ import annotations

from typing import Any

from tests.compatibility.differential.records import batch, produce
from tests.compatibility.differential.talk import Talk
from tests.compatibility.wire import wait_until

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe_configs(talk: Talk) -> None:
    api = "DescribeConfigs"
    for version in talk.versions(api):
        name = talk.topic("one", version)
        talk.create(name, segment_bytes="2000000", cleanup_policy="compact")

        def describe(what: str, kind: int, name: str, keys: list[str] | None = None, version: int = version, **more: Any) -> None:
            resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
            talk.ask(what, api, version, resources=[resource], **more)

        describe("a topic, everything", TOPIC, name)
        describe("a topic, with synonyms", TOPIC, name, include_synonyms=True)
        describe("a topic, two settings", TOPIC, name, ["retention.ms", "cleanup.policy"])
        describe("a topic, no settings", TOPIC, name, [])
        describe("a topic, a strange setting", TOPIC, name, ["no.such.setting"])
        if version >= 3:
            describe("a topic, explained", TOPIC, name, ["retention.ms"], include_documentation=True)
        describe("an absent topic", TOPIC, talk.topic("absent", version))
        describe("a topic with a bad name", TOPIC, "a/b")
        keys = ["log.retention.ms", "log.retention.hours", "log.segment.bytes", "num.partitions", "message.max.bytes", "node.id"]
        describe("the broker, some settings", BROKER, "1", keys, include_synonyms=True)
        describe("every broker's default", BROKER, "", keys)
        describe("another broker", BROKER, "7")
        describe("a broker that is no number", BROKER, "x")
        describe("an absent group", GROUP, "nobody")
        describe("no group", GROUP, "")
        describe("client metrics without a name", CLIENT_METRICS, "")
        describe("a strange kind", 77, "x")
        describe("kind 0", 0, "x")
        talk.ask("nothing", api, version, resources=[])


def incremental_alter_configs(talk: Talk) -> None:
    api = "IncrementalAlterConfigs"
    for version in talk.versions(api):
        name = talk.create(talk.topic("one", version))

        def alter(
            what: str,
            *changes: tuple[str, int, str | None],
            kind: int = TOPIC,
            resource: str = name,
            version: int = version,
            **more: Any,
        ) -> None:
            configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
            resources = [{"resource_type": kind, "resource_name": resource, "configs": configs}]
            talk.ask(what, api, version, resources=resources, **more)

        alter("set", ("retention.ms", SET, "1000000"))
        alter("set, only validated", ("retention.ms", SET, "5"), validate_only=True)
        alter("set and delete", ("retention.bytes", SET, "1000000"), ("retention.ms", DELETE, None))
        alter("append", ("cleanup.policy", APPEND, "compact"))
        alter("append again", ("cleanup.policy", APPEND, "compact"))
        alter("subtract", ("cleanup.policy", SUBTRACT, "delete"))
        alter("append to a number", ("retention.ms", APPEND, "5"))
        alter("set to nothing", ("retention.ms", SET, None))
        alter("delete what is not set", ("segment.ms", DELETE, None))
        alter("a strange setting", ("no.such.setting", SET, "1"))
        alter("delete a strange setting", ("no.such.setting", DELETE, None))
        alter("no number", ("retention.ms", SET, "soon"))
        alter("below its limit", ("segment.bytes", SET, "-5"))
        alter("a strange operation", ("retention.ms", 9, "5"))
        alter("the same twice", ("retention.ms", SET, "5"), ("retention.ms", SET, "6"))
        alter("nothing to change")
        alter("an absent topic", ("retention.ms", SET, "5"), resource=talk.topic("absent", version))
        alter("a bad name", ("retention.ms", SET, "5"), resource="a/b")
        alter("a strange kind", ("retention.ms", SET, "5"), kind=77, resource="x")
        alter("another broker", ("log.retention.ms", SET, "5000000"), kind=BROKER, resource="7")
        alter("a broker that is no number", ("log.retention.ms", SET, "5000000"), kind=BROKER, resource="x")
        alter("a broker's fixed setting", ("node.id", SET, "7"), kind=BROKER, resource="1")
        alter("a broker's setting", ("log.retention.ms", SET, "777777777"), kind=BROKER, resource="1")
        keys = [{"resource_type": BROKER, "resource_name": "1", "configuration_keys": ["log.retention.ms"]}]
        _wait_for_value(talk, keys, "777777777")
        talk.ask("the broker's setting is there", "DescribeConfigs", version + 1, resources=keys, include_synonyms=True)
        alter("a broker's setting, deleted", ("log.retention.ms", DELETE, None), kind=BROKER, resource="1")
        _wait_for_value(talk, keys, None)
        again = [{"resource_type": TOPIC, "resource_name": name, "configs": []}] * 2
        talk.ask("the same resource twice", api, version, resources=again)
        keys = [{"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}]
        talk.ask("what came of it", "DescribeConfigs", version + 3, resources=keys)


def _wait_for_value(talk: Talk, resources: list[dict[str, Any]], value: str | None) -> None:
    """A broker hears of its own settings through the metadata log, after the answer."""

    def seen() -> bool:
        [result] = talk.quietly("DescribeConfigs", 4, resources=resources).results
        return bool(result.configs[0].value == value)

    wait_until(f"a setting being {value}", seen)


def alter_configs(talk: Talk) -> None:
    api = "AlterConfigs"
    for version in talk.versions(api):
        name = talk.create(talk.topic("one", version))

        def alter(what: str, resource: str, changes: dict[str, str | None], version: int = version, **more: Any) -> None:
            configs = [{"name": key, "value": value} for key, value in changes.items()]
            resources = [{"resource_type": TOPIC, "resource_name": resource, "configs": configs}]
            talk.ask(what, api, version, resources=resources, **more)

        alter("only validated", name, {"retention.ms": "5000"}, validate_only=True)
        alter("two settings replace all", name, {"retention.bytes": "5000000", "segment.bytes": "3000000"})
        alter("a strange setting", name, {"no.such.setting": "1"})
        alter("no number", name, {"retention.ms": "soon"})
        alter("set to nothing", name, {"retention.ms": None})
        alter("an absent topic", talk.topic("absent", version), {"retention.ms": "5"})
        keys = [{"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}]
        one_key = [{"resource_type": TOPIC, "resource_name": name, "configuration_keys": ["retention.bytes"]}]
        _wait_for_value(talk, one_key, "5000000")
        talk.ask("what came of it", "DescribeConfigs", version + 1, resources=keys)
        alter("no settings at all", name, {})
        _wait_for_value(talk, one_key, "-1")
        talk.ask("then all is as at first", "DescribeConfigs", version + 2, resources=keys)


def list_config_resources(talk: Talk) -> None:
    talk.ask("client metrics", "ListConfigResources", 0)
    talk.create(talk.topic("one"))
    talk.ask("all kinds", "ListConfigResources", 1, only_own=True)
    for kind in (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP):
        own = kind in (TOPIC, GROUP)
        answer = talk.quietly("ListConfigResources", 1, resource_types=[kind])
        shown = [one for one in answer.config_resources if not own or one.resource_name.startswith(talk.scenario)]
        talk.note(f"kind {kind}", "ListConfigResources", 1, {"error": answer.error_code, "count": len(shown)})
    talk.ask("a strange kind", "ListConfigResources", 1, resource_types=[77])


def log_dirs(talk: Talk) -> None:
    for version in talk.versions("DescribeLogDirs"):
        name = talk.create(talk.topic("one", version), 2)
        produce(talk, name, batch(b"a", b"b"))
        whole = [{"topic": name, "partitions": [0, 1]}]
        talk.ask("one topic", "DescribeLogDirs", version, topics=whole)
        talk.ask("one partition", "DescribeLogDirs", version, topics=[{"topic": name, "partitions": [0]}])
        talk.ask("a strange partition", "DescribeLogDirs", version, topics=[{"topic": name, "partitions": [7]}])
        talk.ask(
            "an absent topic", "DescribeLogDirs", version, topics=[{"topic": talk.topic("absent", version), "partitions": [0]}]
        )
        talk.ask("everything", "DescribeLogDirs", version, only_own=True, topics=None)
        talk.ask("nothing", "DescribeLogDirs", version, topics=[])


SCENARIOS = (describe_configs, incremental_alter_configs, alter_configs, list_config_resources, log_dirs)
