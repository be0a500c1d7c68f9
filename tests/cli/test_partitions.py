"""`ottla brokers`, `quorum` and `partitions` against three brokers: replicas move while records stay, leaders come back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ottla.embedded.cluster import EmbeddedCluster
from tests.cli.processes import here
from tests.compatibility.wire import wait_until


def _rows(bootstrap: str, *arguments: str) -> list[dict[str, Any]]:
    done = here(*arguments, "--json", bootstrap=bootstrap)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_a_partition_moves_and_its_leader_comes_back(ottla_cluster: Callable[..., EmbeddedCluster]) -> None:
    bootstrap = ottla_cluster(3).bootstrap
    assert [row["broker"] for row in _rows(bootstrap, "brokers")] == [1, 2, 3]
    assert sorted(row["role"] for row in _rows(bootstrap, "quorum")) == ["leader", "voter", "voter"]
    assert (
        here("topics", "create", "moving", "--partitions", "1", "--replication-factor", "1", bootstrap=bootstrap).returncode == 0
    )
    assert here("produce", "moving", stdin="one\ntwo\n", bootstrap=bootstrap).returncode == 0
    [before] = _rows(bootstrap, "topics", "describe", "moving")[0]["partitions"]
    target = [str(broker) for broker in (1, 2, 3) if broker not in before["replicas"]]
    moved = here("partitions", "reassign", "moving", "0", *target, bootstrap=bootstrap)
    assert "the move is done" in moved.stdout, moved.stderr
    [after] = _rows(bootstrap, "topics", "describe", "moving")[0]["partitions"]
    assert [str(broker) for broker in after["replicas"]] == target
    assert _rows(bootstrap, "partitions", "list") == []
    read = here("consume", "moving", "--from", "earliest", "--max", "2", bootstrap=bootstrap)
    assert read.stdout.splitlines() == ["one", "two"]
    outcome = _rows(bootstrap, "partitions", "elect", "moving")
    assert [row["outcome"] for row in outcome] in (["elected"], ["led already"])


def test_a_move_to_an_unknown_broker_is_refused(ottla_cluster: Callable[..., EmbeddedCluster]) -> None:
    bootstrap = ottla_cluster(1).bootstrap
    assert here("topics", "create", "staying", bootstrap=bootstrap).returncode == 0
    refused = here("partitions", "reassign", "staying", "0", "9", bootstrap=bootstrap)
    assert refused.returncode == 1
    assert refused.stderr.startswith("ottla: ")
    assert here("partitions", "reassign", "staying", "0", bootstrap=bootstrap).returncode == 2


def test_a_move_that_cannot_end_is_called_off_and_everything_is_as_before(ottla_cluster: Callable[..., EmbeddedCluster]) -> None:
    cluster = ottla_cluster(3)
    bootstrap = cluster.bootstrap
    assert here("topics", "create", "moving", "--replicas", "1:2", bootstrap=bootstrap).returncode == 0
    assert here("produce", "moving", stdin="one\n", bootstrap=bootstrap).returncode == 0
    cluster.node(3).kill()
    begun = here("partitions", "reassign", "moving", "0", "3", "2", "--no-wait", bootstrap=bootstrap)
    assert "the move is under way" in begun.stdout, begun.stderr
    assert _rows(bootstrap, "partitions", "list") == [
        {"topic": "moving", "partition": 0, "replicas": [3, 2, 1], "adding": [3], "removing": [1]}
    ]
    assert here("produce", "moving", stdin="two\n", bootstrap=bootstrap).returncode == 0
    called_off = here("partitions", "reassign", "moving", "0", "--cancel", bootstrap=bootstrap)
    assert (called_off.returncode, called_off.stdout) == (0, "moving-0: the move is called off\n"), called_off.stderr
    assert _rows(bootstrap, "partitions", "list") == []

    def as_before() -> bool:
        [row] = _rows(bootstrap, "topics", "describe", "moving")[0]["partitions"]
        return (row["leader"], sorted(row["replicas"]), sorted(row["in_sync"])) == (1, [1, 2], [1, 2])

    wait_until("everything as before", as_before)
    read = here("consume", "moving", "--from", "earliest", "--max", "2", bootstrap=bootstrap)
    assert read.stdout.splitlines() == ["one", "two"]
    again = here("partitions", "reassign", "moving", "0", "--cancel", bootstrap=bootstrap)
    assert again.returncode == 1
    assert again.stderr.startswith("ottla: NO_REASSIGNMENT_IN_PROGRESS")
