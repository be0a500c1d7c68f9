"""The peer itself: a real Apache Kafka 4.3 that our own codec can talk to, and its tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.protocol.messages.metadata import DescribeClusterRequest
from tests.compatibility.kafka import KafkaPeer, run_tool
from tests.compatibility.wire import ask

pytestmark = pytest.mark.kafka


def test_the_peer_answers_our_codec_and_its_own_tools(kafka_peer: KafkaPeer, topic: str) -> None:
    cluster = ask(kafka_peer.address, DescribeClusterRequest(), 1)
    assert cluster.cluster_id == kafka_peer.cluster_id
    done = run_tool("TopicCommand", "--bootstrap-server", kafka_peer.bootstrap, "--create", "--topic", topic)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"Created topic {topic}.\n", "")


@pytest.mark.slow
def test_a_cluster_of_three_loses_a_node_and_takes_it_back(tmp_path: Path) -> None:
    with KafkaPeer(tmp_path, nodes=3) as kafka:
        assert len(ask(kafka.address, DescribeClusterRequest(), 1).brokers) == 3
        kafka.kill_node(2)
        kafka.start_node(2)
        kafka.wait_ready()
