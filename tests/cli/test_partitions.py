"""`ottla brokers`, `quorum` and `partitions` against three brokers: replicas move while records stay, leaders come back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ottla.embedded.cluster import EmbeddedCluster
from tests.cli.processes import here


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
