"""Scenarios about topics: made, widened, emptied, deleted."""

from __future__ import annotations

from typing import Any

from tests.compatibility.differential.records import batch, produce
from tests.compatibility.differential.talk import Talk

BAD_NAMES = {"empty": "", "dot": ".", "two dots": "..", "slash": "a/b", "space": "a b", "unicode": "ø", "250 letters": "x" * 250}


def _topic(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": factor, **more}


def create_topics(talk: Talk) -> None:
    api = "CreateTopics"
    for version in talk.versions(api):

        def create(what: str, *topics: dict[str, Any], version: int = version, **more: Any) -> None:
            talk.ask(what, api, version, topics=list(topics), timeout_ms=30000, **more)

        plain = talk.topic("plain", version)
        create("one topic", _topic(plain))
        create("the same again", _topic(plain))
        create("three partitions and settings", _topic(
            talk.topic("rich", version), 3, configs=[{"name": "cleanup.policy", "value": "compact"}, {"name": "segment.bytes", "value": "2000000"}]
        ))  # fmt: skip
        create("only validated", _topic(talk.topic("dry", version), 2), validate_only=True)
        create("only validated, but exists", _topic(plain), validate_only=True)
        for what, name in BAD_NAMES.items():
            create(f"name: {what}", _topic(name))
        create("name: 249 letters, validated", _topic(f"{version}" * 249), validate_only=True)
        talk.create(talk.topic("a.b_c", version))
        create("a name that collides", _topic(talk.topic("a_b.c", version)))
        for partitions in (-2, -1, 0):
            create(f"{partitions} partitions", _topic(talk.topic(f"p{partitions}", version), partitions))
        for factor in (-2, -1, 0, 2):
            create(f"replication factor {factor}", _topic(talk.topic(f"f{factor}", version), 1, factor))
        _assignments(talk, version, create)
        _configs(talk, version, create)
        twice = _topic(talk.topic("twice", version))
        create("the same twice", twice, twice)
        create("one good, one bad", _topic(talk.topic("good", version)), _topic("a/b"))
        create("none")


def _assignments(talk: Talk, version: int, create: Any) -> None:
    for what, assignments in {
        "by hand": {0: [1], 1: [1]},
        "by hand, with a gap": {0: [1], 2: [1]},
        "by hand, a strange broker": {0: [7]},
        "by hand, a broker twice": {0: [1, 1]},
        "by hand, without brokers": {0: []},
        "by hand, uneven": {0: [1], 1: [1, 7]},
    }.items():
        rows = [{"partition_index": index, "broker_ids": brokers} for index, brokers in assignments.items()]
        create(what, _topic(talk.topic(what.replace(" ", "-").replace(",", ""), version), -1, -1, assignments=rows))
    rows = [{"partition_index": 0, "broker_ids": [1]}]
    create("by hand and by number", _topic(talk.topic("both", version), 1, 1, assignments=rows))


def _configs(talk: Talk, version: int, create: Any) -> None:
    for what, (name, value) in {
        "a strange setting": ("no.such.setting", "1"),
        "a setting that is no number": ("retention.ms", "soon"),
        "a setting below its limit": ("retention.ms", "-2"),
        "a setting without a value": ("retention.ms", None),
        "a strange policy": ("cleanup.policy", "burn"),
        "an empty policy": ("cleanup.policy", ""),
        "both policies": ("cleanup.policy", "compact,delete"),
        "more in sync than there are": ("min.insync.replicas", "3"),
        "a small segment": ("segment.bytes", "10"),
        "a strange codec": ("compression.type", "rar"),
        "uncompressed": ("compression.type", "uncompressed"),
    }.items():
        topic = talk.topic(what.replace(" ", "-"), version)
        create(what, _topic(topic, configs=[{"name": name, "value": value}]))


def delete_topics(talk: Talk) -> None:
    api = "DeleteTopics"
    for version in talk.versions(api):

        def delete(what: str, *names: str, version: int = version) -> None:
            if version >= 6:
                talk.ask(what, api, version, topics=[{"name": name} for name in names], timeout_ms=30000)
            else:
                talk.ask(what, api, version, topic_names=list(names), timeout_ms=30000)

        one, two, three = (talk.create(talk.topic(name, version)) for name in ("one", "two", "three"))
        delete("one topic", one)
        talk.wait_gone(one)
        delete("the same again", one)
        delete("a good and a bad one", two, talk.topic("absent", version))
        delete("the same twice", three, three)
        delete("a name that is none", "a/b")
        delete("none")
        if version >= 6:
            _delete_by_id(talk, version)


def _delete_by_id(talk: Talk, version: int) -> None:
    name = talk.create(talk.topic("by-id", version))
    topic_id = talk.topic_id(name)
    talk.ask("by id and name", "DeleteTopics", version, topics=[{"name": name, "topic_id": topic_id}], timeout_ms=30000)
    talk.ask("by neither", "DeleteTopics", version, topics=[{"name": None}], timeout_ms=30000)
    talk.ask(
        "by a strange id", "DeleteTopics", version, topics=[{"name": None, "topic_id": b"no such topic id"}], timeout_ms=30000
    )
    talk.ask("by id", "DeleteTopics", version, topics=[{"name": None, "topic_id": topic_id}], timeout_ms=30000)
    talk.wait_gone(name)
    talk.ask(
        "by the id of what is gone", "DeleteTopics", version, topics=[{"name": None, "topic_id": topic_id}], timeout_ms=30000
    )


def create_partitions(talk: Talk) -> None:
    api = "CreatePartitions"
    for version in talk.versions(api):
        name = talk.create(talk.topic("one", version), 2)

        def widen(what: str, count: int, assignments: Any = None, name: str = name, version: int = version, **more: Any) -> None:
            topic = {"name": name, "count": count, "assignments": assignments}
            talk.ask(what, api, version, topics=[topic], timeout_ms=30000, **more)

        widen("only validated", 3, validate_only=True)
        widen("one more", 3)
        talk.wait_for(name, 3)
        for count in (3, 2, 0, -1):
            widen(f"to {count} of 3", count)
        widen("by hand", 4, [{"broker_ids": [1]}])
        talk.wait_for(name, 4)
        widen("by hand, too many", 5, [{"broker_ids": [1]}, {"broker_ids": [1]}])
        widen("by hand, too few", 7, [{"broker_ids": [1]}])
        widen("by hand, a strange broker", 5, [{"broker_ids": [7]}])
        widen("by hand, a broker twice", 5, [{"broker_ids": [1, 1]}])
        widen("by hand, without brokers", 5, [{"broker_ids": []}])
        widen("an absent topic", 5, name=talk.topic("absent", version))
        widen("a name that is none", 5, name="a/b")
        topic = {"name": name, "count": 6, "assignments": None}
        talk.ask("the same twice", api, version, topics=[topic, topic], timeout_ms=30000)
        talk.ask("none", api, version, topics=[])


def delete_records(talk: Talk) -> None:
    api = "DeleteRecords"
    for version in talk.versions(api):
        name = talk.create(talk.topic("one", version), 2)
        for _ in range(3):
            produce(talk, name, batch(b"a", b"b", b"c"))

        def delete(what: str, offset: int, partition: int = 0, name: str = name, version: int = version) -> None:
            partitions = [{"partition_index": partition, "offset": offset}]
            talk.ask(what, api, version, topics=[{"name": name, "partitions": partitions}], timeout_ms=30000)

        delete("up to 4", 4)
        delete("up to 2, which is less", 2)
        delete("up to 10, which is beyond", 10)
        delete("up to -2", -2)
        delete("up to the end", -1)
        delete("an empty partition to its end", -1, 1)
        delete("a strange partition", 0, 9)
        delete("an absent topic", 0, name=talk.topic("absent", version))
        delete("a name that is none", 0, name="a/b")
        ends = [{"partition_index": 0, "timestamp": stamp} for stamp in (-2,)]
        talk.ask(
            "then the log starts later", "ListOffsets", version + 1, replica_id=-1, topics=[{"name": name, "partitions": ends}]
        )
        talk.ask("none", api, version, topics=[])


SCENARIOS = (create_topics, delete_topics, create_partitions, delete_records)
