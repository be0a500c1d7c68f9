"""One side of the differential test: a scenario asks, and every answer is written down in a form in which two systems can be compared.

A scenario is a function of a `Talk`. It asks each API in every version with plain values (dicts and lists become the structs of
the declaration), and the talk notes the answer as a tree in which what must differ between two systems has a name instead of a
value: topic ids, producer ids, session ids, ports, the cluster id, the time of an append, the words of an error message. Topic
names are made unique per version and shown without what makes them so; arrays whose order is no promise are sorted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from ottla.model.errors import ErrorCode
from ottla.protocol.apis import BY_NAME
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.schema import Message, Struct
from ottla.records.batch import HEADER_SIZE, headers
from tests.compatibility.wire import Closed, Wire, wait_until

Tree = Any
PATIENCE_S = 6.0  # after this there is no answer: Kafka leaves some broken requests without one
UNSORTED = {"node_endpoints", "batches"}
NAMED = {  # field → what stands for any value of it that carries no meaning
    "port": "PORT",
    "cluster_id": "CLUSTER",
    "log_dir": "DIRECTORY",
    "total_bytes": "BYTES",
    "usable_bytes": "BYTES",
    "finalized_features_epoch": "EPOCH",
    "client_instance_id": "CLIENT INSTANCE",
    "subscription_id": "SUBSCRIPTION",
    "start_timestamp_ms": "TIME",
    "last_timestamp": "TIME",
}


def build(struct_: type[Struct], plain: dict[str, Any]) -> Any:
    """A value of a declaration from dicts and lists. Fields that are left out have their default."""
    unknown = set(plain) - set(struct_.__fields__)
    assert not unknown, f"{struct_.__qualname__} has no field {unknown}"
    return struct_(**{name: _built(struct_.__fields__[name].kind, value) for name, value in plain.items()})


def _built(kind: Any, value: Any) -> Any:
    if isinstance(kind, type) and isinstance(value, list):
        return [_built(kind, one) for one in value]
    return build(kind, value) if isinstance(kind, type) and isinstance(value, dict) else value


def _by_topic(trees: list[Any]) -> list[Any]:
    """Kafka's Fetch may name a topic again for those of its partitions that went wrong."""
    merged: dict[Any, Any] = {}
    for tree in trees:
        if "topic" not in tree:
            return trees
        kept = merged.setdefault((tree["topic"], tree["topic_id"]), tree)
        if kept is not tree:
            kept["partitions"] = sorted(kept["partitions"] + tree["partitions"], key=repr)
    return list(merged.values())


class Talk:
    """A conversation with one system. `notes` is what it said: (what was asked, API) → version → tree."""

    def __init__(self, scenario: str, address: tuple[str, int]) -> None:
        self.scenario = scenario
        self.address = address
        self.notes: dict[str, dict[int, Tree]] = {}
        self._wire = Wire(address, timeout_s=PATIENCE_S)
        self._only_own = False
        self._version = 0
        self._own: set[str] = set()  # the topics of the version that is being asked about
        self._names: dict[str, str] = {}
        self._ids: dict[bytes, str] = {}
        self._producers: dict[int, str] = {}
        self._sessions: dict[int, str] = {}

    def close(self) -> None:
        self._wire.close()

    def versions(self, api: str) -> Iterator[int]:
        yield from BY_NAME[api].versions

    def topic(self, name: str, version: int = 0) -> str:
        """A name that no other scenario or version uses, shown as `name`."""
        if version != self._version:
            self._version, self._own = version, set()
        real = f"{self.scenario}.{name}.v{version}"
        self._own.add(real)
        self._names[real] = name
        return real

    def own(self, *names: str) -> None:
        """Names that are nobody's are asked for as well: what is said of them counts."""
        self._own.update(names)

    def ask(self, what: str, api: str, version: int, *, only_own: bool = False, **fields: Any) -> Any:
        """Ask and note the answer; returns it as it came, or nothing if the connection was closed instead.

        `only_own`: leave topics of other scenarios and versions out of an answer about everything.
        """
        self._only_own = only_own
        try:
            answer = self.quietly(api, version, **fields)
            self.note(what, api, version, "connection closed" if answer is None else self._tree(answer))
        except TimeoutError:
            answer = None
            self.note(what, api, version, "no answer")
            self._reconnect()
        return answer

    def note(self, what: str, api: str, version: int, tree: Tree) -> None:
        seen = self.notes.setdefault(f"{what} | {api}", {})
        assert version not in seen, f"{self.scenario}: {what} | {api} v{version} is asked twice"
        seen[version] = tree

    def quietly(self, api: str, version: int, **fields: Any) -> Any:
        request: Message = build(BY_NAME[api].request, fields)
        try:
            return self._wire.ask(request, version)
        except Closed:
            self._reconnect()
            return None

    def _reconnect(self) -> None:
        self._wire.close()
        self._wire = Wire(self.address, timeout_s=PATIENCE_S)

    def tell(self, api: str, version: int, **fields: Any) -> None:
        """Send a request that has no answer (acks=0)."""
        self._wire.tell(build(BY_NAME[api].request, fields), version)

    def create(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Have a topic, without a note, and wait until its leaders are known."""
        configs = {"retention_ms": "-1"} | configs  # the records of scenarios are years old
        entries = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": entries}
        made = self.quietly("CreateTopics", 5, topics=[topic])
        assert made.topics[0].error_code == ErrorCode.NONE, made
        self.wait_for(name, partitions)
        return name

    def wait_for(self, name: str, partitions: int) -> None:
        """A controller's answer may come before the broker has heard of the topic, and leads it."""

        def led() -> bool:
            probe = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
            [topic] = self._wire.ask(probe, 12).topics
            if topic.error_code or len(topic.partitions) < partitions or any(p.leader_id < 0 for p in topic.partitions):
                return False
            self._ids[topic.topic_id] = f"id of {self._shown(name)}"
            ends = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
            [answer] = self.quietly("ListOffsets", 5, replica_id=-1, topics=[{"name": name, "partitions": ends}]).topics
            return all(partition.error_code == ErrorCode.NONE for partition in answer.partitions)

        wait_until(f"{name} being led", led)

    def wait_gone(self, name: str) -> None:
        def gone() -> bool:
            probe = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
            return bool(self._wire.ask(probe, 12).topics[0].error_code)

        wait_until(f"{name} being gone", gone)

    def topic_id(self, name: str) -> bytes:
        probe = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        topic_id: bytes = self._wire.ask(probe, 12).topics[0].topic_id
        self._ids[topic_id] = f"id of {self._shown(name)}"
        return topic_id

    def _shown(self, text: str) -> str:
        for real in sorted(self._names, key=len, reverse=True):  # v1 is the beginning of v10
            text = text.replace(real, self._names[real])
        return text

    def _tree(self, value: Any) -> Tree:
        if isinstance(value, Struct):
            name = getattr(value, "name", None) or getattr(value, "topic_name", None)
            if getattr(value, "topic_id", None) and isinstance(name, str) and value.topic_id != bytes(16):  # type: ignore[attr-defined]
                self._ids.setdefault(value.topic_id, f"id of {self._shown(name)}")  # type: ignore[attr-defined]
            return {field: self._leaf(field, getattr(value, field)) for field in value.__fields__}
        if isinstance(value, bytes | memoryview):
            return bytes(value).hex()
        return self._shown(value) if isinstance(value, str) else value

    def _leaf(self, field: str, value: Any) -> Tree:
        if field == "records":
            return None if value is None else {"batches": self._batches(value)}
        if isinstance(value, list):
            trees = [self._tree(one) for one in value if not self._is_foreign(one)]
            if field == "responses":
                trees = _by_topic(trees)
            return trees if field in UNSORTED else sorted(trees, key=repr)
        if field == "error_code":
            return ErrorCode(value).name
        if field.endswith(("error_message", "documentation")):
            return "WORDS" if value else value
        if field == "topic_id":
            return "no id" if value == bytes(16) else self._ids.get(value, "unknown id")
        if field == "producer_id" and value >= 0:
            return self._producers.setdefault(value, f"producer {len(self._producers)}")
        if field == "session_id" and value > 0:
            return self._sessions.setdefault(value, f"session {len(self._sessions)}")
        if field == "log_append_time_ms" and value > 0:
            return "TIME"
        return NAMED[field] if field in NAMED and value not in (-1, None) else self._tree(value)

    def _is_foreign(self, value: Any) -> bool:
        if not self._only_own or not isinstance(value, Struct):
            return False
        fields = ("name", "topic", "topic_name", "resource_name", "transactional_id")
        names = [getattr(value, field) for field in fields if field in value.__fields__]
        return bool(names) and isinstance(names[0], str) and names[0] not in self._own

    def _batches(self, data: Any) -> list[Tree]:
        trees = []
        for position, header in headers(data):
            body = bytes(data[position + HEADER_SIZE : position + header.size])
            tree = header._asdict() | {"body": hashlib.sha256(body).hexdigest()[:12]}
            del tree["crc"]  # covers what differs; each reader of ours checks it
            if header.producer_id >= 0:
                tree["producer_id"] = self._producers.setdefault(header.producer_id, f"producer {len(self._producers)}")
            if header.is_log_append_time:
                tree["max_timestamp"] = "TIME"
            trees.append(tree)
        return trees
