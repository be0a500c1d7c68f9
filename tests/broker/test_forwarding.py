"""What only the controller can decide is the same request, in the same version, whichever broker a client asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.embedded.cluster import EmbeddedCluster
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from tests.compatibility.wire import Wire, address_of, wait_until

NODES = (1, 2, 3)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3) as running:
        yield running


@pytest.fixture(params=NODES)
def wire(cluster: EmbeddedCluster, request: pytest.FixtureRequest) -> Iterator[Wire]:
    with Wire(address_of(cluster.node(request.param).bootstrap)) as made:
        yield made


def create(wire: Wire, name: str, version: int) -> None:
    row = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    answer = wire.ask(CreateTopicsRequest(topics=[row], timeout_ms=10_000), version)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [(name, 0)]


def known(wire: Wire, name: str) -> bool:
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    return all(not topic.error_code and topic.partitions for topic in wire.ask(asked, 8).topics)


@pytest.mark.parametrize("version", DeleteTopicsRequest.VERSIONS)
def test_topics_are_deleted_by_name_in_every_version(wire: Wire, version: int) -> None:
    name = f"gone-{version}"
    create(wire, name, CreateTopicsRequest.VERSIONS.first)
    if version < 6:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
    else:
        request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=name)], timeout_ms=10_000)
    answer = wire.ask(request, version)
    assert [(topic.name, topic.error_code) for topic in answer.responses] == [(name, 0)]
    wait_until(f"{name} is gone", lambda: not known(wire, name))


@pytest.mark.parametrize("version", CreatePartitionsRequest.VERSIONS)
def test_partitions_are_added_in_every_version(wire: Wire, version: int) -> None:
    name = f"wider-{version}-{wire.socket.getpeername()[1]}"
    create(wire, name, CreateTopicsRequest.VERSIONS.last)
    row = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=2, assignments=None)
    answer = wire.ask(CreatePartitionsRequest(topics=[row], timeout_ms=10_000), version)
    assert [(topic.name, topic.error_code) for topic in answer.results] == [(name, 0)]
