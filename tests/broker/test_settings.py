"""Every setting acts, or says of itself that it does not; what changes at run time acts on the next request."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla
from ottla.embedded.cluster import EmbeddedCluster
from ottla.metadata.configs import Operation
from ottla.metadata.image import BROKER
from ottla.model.errors import ErrorCode
from ottla.model.settings import BROKER_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS
from ottla.protocol.messages.configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.versions import ApiVersionsRequest
from ottla.records.builder import build_batch
from ottla.records.record import Record
from tests.compatibility.wire import Closed, Wire, address_of, wait_until

SOURCE = Path(ottla.__file__).parent
WITHOUT_EFFECT = "Accepted for Kafka's sake"


def _named_in_code() -> tuple[set[str], list[re.Pattern[str]]]:
    """All strings in the code of a node, and patterns of those that are put together."""
    names: set[str] = set()
    patterns: list[re.Pattern[str]] = []
    for path in (each for folder in ("broker", "metadata", "storage") for each in (SOURCE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in node.values]
                if sum(part.count(r"\.") for part in parts) >= 2:  # of several words, as settings are
                    patterns.append(re.compile("".join(parts)))
    return names, patterns


def test_a_setting_that_nobody_reads_says_so_itself() -> None:
    names, patterns = _named_in_code()
    settings = [*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values(), *GROUP_SETTINGS.values()]
    acting = {s.name for s in settings if s.name in names or any(pattern.fullmatch(s.name) for pattern in patterns)}
    acting |= {name for s in settings if s.name in acting for name, _ in s.synonyms}
    assert {s.name for s in settings} - acting == {s.name for s in settings if s.meaning.startswith(WITHOUT_EFFECT)}


# Over the wire: one node answers a change only once it acts ------------------------------------------------------------------

ALL_BROKERS, ONLY_BROKER = "", "1"


def change(wire: Wire, name: str, value: int | None, broker: str = ALL_BROKERS) -> None:
    """None takes back what was set."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    text, operation = (None, Operation.DELETE) if value is None else (str(value), Operation.SET)
    config = resource.AlterableConfig(name=name, config_operation=operation, value=text)
    rows = [resource(resource_type=BROKER, resource_name=broker, configs=[config])]
    [answer] = wire.ask(IncrementalAlterConfigsRequest(resources=rows), 1).responses
    assert answer.error_code == 0, answer


def produce(wire: Wire, topic: str, size: int) -> ErrorCode:
    records = build_batch([Record(0, 0, None, bytes(size), ())])
    partition = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=records)
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])]
    answer = wire.ask(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics), 9)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1) as cluster:
        yield cluster


@pytest.fixture
def wire(cluster: EmbeddedCluster) -> Iterator[Wire]:
    with Wire(address_of(cluster.bootstrap)) as wire:
        yield wire


@pytest.fixture
def topic(wire: Wire, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)[:200].replace("[", "-").replace("]", "")
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
    wait_until("the topic has a leader", lambda: wire.ask(asked, 8).topics[0].error_code == 0)
    return name


@pytest.mark.parametrize("broker", [ALL_BROKERS, ONLY_BROKER])
def test_the_largest_batch_changes_for_the_next_produce_and_back_again(wire: Wire, topic: str, broker: str) -> None:
    assert produce(wire, topic, 1000) is ErrorCode.NONE
    change(wire, "message.max.bytes", 500, broker)
    assert produce(wire, topic, 1000) is ErrorCode.MESSAGE_TOO_LARGE
    assert produce(wire, topic, 100) is ErrorCode.NONE
    change(wire, "message.max.bytes", 2000, broker)
    assert produce(wire, topic, 1000) is ErrorCode.NONE
    assert produce(wire, topic, 3000) is ErrorCode.MESSAGE_TOO_LARGE
    change(wire, "message.max.bytes", None, broker)
    assert produce(wire, topic, 3000) is ErrorCode.NONE


def is_let_in(cluster: EmbeddedCluster) -> bool:
    try:
        with Wire(address_of(cluster.bootstrap)) as another:
            another.ask(ApiVersionsRequest(), 0)
        return True
    except Closed:
        return False


@pytest.mark.parametrize("name", ["max.connections", "max.connections.per.ip"])
def test_a_connection_too_many_is_closed_and_those_that_are_there_stay(cluster: EmbeddedCluster, wire: Wire, name: str) -> None:
    change(wire, name, 1)
    assert not is_let_in(cluster)
    change(wire, name, 100)
    assert is_let_in(cluster)
    change(wire, name, 0)
    assert not is_let_in(cluster)
    change(wire, name, None)
    assert is_let_in(cluster)


def test_a_silent_connection_is_closed() -> None:
    with EmbeddedCluster(1, settings={"connections.max.idle.ms": "300"}) as cluster:
        with Wire(address_of(cluster.bootstrap)) as wire:
            wire.ask(ApiVersionsRequest(), 0)
            with pytest.raises(Closed):
                wire.read_frame()
        assert is_let_in(cluster)
