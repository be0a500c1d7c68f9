"""The ledger's topic: a decision that was acknowledged is on as many brokers as a transaction's own log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ottla import sync
from ottla.client.admin.types import TopicDescription
from ottla.embedded.cluster import EmbeddedCluster
from ottla.model.errors import ErrorCode
from ottla.spark.ledger import PARTITIONS, REPLICAS, Entry, Ledger
from ottla.spark.topics import LEDGER
from tests.compatibility.wire import wait_until

QUICK_FENCING = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"}
ONCE: Any = {"acks": "all", "enable_idempotence": False, "retries": 0}  # what the broker says first is what is raised
DONE = Entry(True, 1, ())


@pytest.fixture
def five() -> Iterator[EmbeddedCluster]:
    """So many that two may die and the controllers still agree on who is left."""
    with EmbeddedCluster(5, settings=QUICK_FENCING) as cluster:
        yield cluster


def described(bootstrap: str) -> tuple[TopicDescription, dict[str, str | None]]:
    with sync.Admin(bootstrap_servers=bootstrap) as admin:
        return admin.describe_topic(LEDGER), {name: entry.value for name, entry in admin.topic_configs(LEDGER).items()}


def test_a_decision_that_only_one_of_three_replicas_has_is_not_acknowledged(five: EmbeddedCluster) -> None:
    ledger = Ledger({"bootstrap_servers": five.bootstrap})
    sync.run(ledger.find("query", 0))
    sync.run(ledger.write("query", 0, DONE))
    topic, configs = described(five.bootstrap)
    assert {len(part.replicas) for part in topic.partitions} == {REPLICAS}
    assert configs["min.insync.replicas"] == "2"
    part = topic.partitions[0]
    first, second = (replica for replica in part.replicas if replica != part.leader)
    alive = five.node(part.leader).bootstrap

    def are_in_sync(count: int) -> bool:
        return len(described(alive)[0].partitions[0].in_sync_replicas) == count

    with sync.Producer(bootstrap_servers=alive, **ONCE) as producer:
        five.node(first).kill()
        wait_until("two in sync", lambda: are_in_sync(2))
        producer.send(LEDGER, b"", key=b"other/0", partition=0).result()  # one may always be away
        five.node(second).kill()
        wait_until("one in sync", lambda: are_in_sync(1))
        with pytest.raises(Exception, match=ErrorCode.NOT_ENOUGH_REPLICAS.name):
            producer.send(LEDGER, b"", key=b"other/1", partition=0).result()


def test_a_cluster_of_one_has_a_ledger_of_one_replica() -> None:
    with EmbeddedCluster(1) as cluster:
        ledger = Ledger({"bootstrap_servers": cluster.bootstrap})
        assert sync.run(ledger.find("query", 0)) is None
        sync.run(ledger.write("query", 0, DONE))
        assert sync.run(ledger.find("query", 0)) == DONE
        topic, configs = described(cluster.bootstrap)
    assert [len(part.replicas) for part in topic.partitions] == [1] * PARTITIONS
    assert configs["min.insync.replicas"] == "1"
