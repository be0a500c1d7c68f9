"""`ottla groups` against a node with groups of both protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import here, running
from tests.compatibility.groups import plays
from tests.compatibility.groups.stage import Stage
from tests.compatibility.wire import address_of


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("node")
    with running("up", "--port", "0", "--data", str(folder), "--set", "group.initial.rebalance.delay.ms=0") as (_, found):
        yield found


@pytest.fixture
def stage(bootstrap: str) -> Iterator[Stage]:
    """A topic of two partitions with ten records in each, and the name of a group."""
    made = Stage(address_of(bootstrap))
    lines = "".join(f"{number}\n" for number in range(10))
    for partition in (0, 1):
        done = here("produce", made.topic, "--partition", str(partition), stdin=lines, bootstrap=bootstrap)
        assert done.returncode == 0, done.stderr
    yield made
    made.close()


def rows(bootstrap: str, *arguments: str) -> list[dict[str, Any]]:
    done = here("groups", *arguments, "--json", bootstrap=bootstrap)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def commit(stage: Stage, *offsets: int) -> None:
    for partition, offset in enumerate(offsets):
        stage.ask("ann", plays.commit(stage, partition, offset), 9)


def committed(bootstrap: str, stage: Stage) -> list[int | None]:
    return [row["committed"] for row in rows(bootstrap, "describe", stage.group)]


def test_list_filters_by_state_and_type(bootstrap: str, stage: Stage) -> None:
    commit(stage, 1)

    def listed(*filters: str) -> list[dict[str, Any]]:
        return [row for row in rows(bootstrap, "list", *filters) if row["group"] == stage.group]

    assert listed() == [{"group": stage.group, "type": "classic", "state": "Empty", "protocol_type": ""}]
    assert listed("--state", "Stable") == []
    assert len(listed("--state", "Empty", "--type", "classic")) == 1
    assert listed("--type", "consumer") == []


def test_describe_shows_offsets_lag_and_who_has_what(bootstrap: str, stage: Stage) -> None:
    plays.see_topic(stage)
    commit(stage, 4)
    stage.ask("ann", plays.consume(stage, plays.ANN), 1)
    first, second = rows(bootstrap, "describe", stage.group)
    assert (first["committed"], first["log_end"], first["lag"], first["client_id"]) == (4, 10, 6, "ann")
    assert (second["committed"], second["lag"], second["member"]) == (None, None, plays.ANN)
    assert first["host"] == "/127.0.0.1"
    [member] = rows(bootstrap, "describe", stage.group, "--members")
    assert member["partitions"] == [f"{stage.topic}-0", f"{stage.topic}-1"]
    [summary] = rows(bootstrap, "describe", stage.group, "--summary")
    assert (summary["state"], summary["type"], summary["members"], summary["lag"]) == ("Stable", "consumer", 1, 6)
    table = here("groups", "describe", stage.group, bootstrap=bootstrap).stdout.splitlines()
    assert table[0].split() == ["GROUP", "TOPIC", "PARTITION", "COMMITTED", "LOG-END", "LAG", "MEMBER", "HOST", "CLIENT-ID"]


@pytest.mark.parametrize(
    ("where", "new"),
    [
        (["--to", "earliest"], [0, 0]),
        (["--to", "latest"], [10, 10]),
        (["--to", "1d"], [0, 0]),
        (["--to", "2999-01-01"], [10, 10]),
        (["--to-offset", "5"], [5, 5]),
        (["--to-offset", "500"], [10, 10]),
        (["--shift-by", "2"], [6, 9]),
        (["--shift-by", "-5"], [0, 2]),
        (["--to-current"], [4, 7]),
    ],
)
def test_reset_offsets_goes_where_it_is_told(bootstrap: str, stage: Stage, where: list[str], new: list[int]) -> None:
    commit(stage, 4, 7)
    planned = rows(bootstrap, "reset-offsets", stage.group, "--all-topics", "--dry-run", *where)
    assert [(row["old"], row["new"]) for row in planned] == list(zip([4, 7], new))
    assert committed(bootstrap, stage) == [4, 7], "a dry run changes nothing"
    rows(bootstrap, "reset-offsets", stage.group, "--all-topics", *where)
    assert committed(bootstrap, stage) == new


def test_reset_offsets_takes_single_partitions_and_groups_that_are_not_there_yet(bootstrap: str, stage: Stage) -> None:
    rows(bootstrap, "reset-offsets", stage.group, "--topic", f"{stage.topic}:1", "--to-offset", "3")
    assert [(row["partition"], row["committed"]) for row in rows(bootstrap, "describe", stage.group)] == [(1, 3)]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--all-topics"], 2, "say where to"),
        (["--to", "earliest"], 2, "say which topics"),
        (["--all-topics", "--to", "earliest"], 1, "has committed for no topic yet"),
        (["--topic", "T:9", "--to", "earliest"], 1, "has no partition 9"),
        (["--topic", "T:x", "--to", "earliest"], 2, "is not TOPIC"),
        (["--topic", "T", "--shift-by", "1"], 1, "nothing to shift from"),
        (["--topic", "no-such-topic", "--to", "earliest"], 1, "no-such-topic"),
    ],
)
def test_reset_offsets_refuses_in_one_sentence(bootstrap: str, stage: Stage, arguments: list[str], code: int, says: str) -> None:
    told = [argument.replace("T", stage.topic) if argument.startswith("T") else argument for argument in arguments]
    done = here("groups", "reset-offsets", stage.group, *told, bootstrap=bootstrap)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_group_with_members_is_neither_reset_nor_deleted(bootstrap: str, stage: Stage) -> None:
    ann, bob = plays.become_stable(stage)
    done = here("groups", "reset-offsets", stage.group, "--topic", stage.topic, "--to", "earliest", bootstrap=bootstrap)
    assert (done.returncode, "is Stable with 2 members" in done.stderr) == (1, True)
    assert here("groups", "delete", stage.group, bootstrap=bootstrap).returncode == 1
    stage.ask("eve", plays.leave(stage, (ann, None), (bob, None)), 5)
    assert here("groups", "delete", stage.group, bootstrap=bootstrap).stdout == f"deleted {stage.group}\n"
    assert here("groups", "describe", stage.group, bootstrap=bootstrap).returncode == 1


def test_delete_forgets_the_offsets_of_one_topic(bootstrap: str, stage: Stage) -> None:
    commit(stage, 4, 7)
    done = here("groups", "delete", stage.group, "--topic", f"{stage.topic}:0", bootstrap=bootstrap)
    assert done.stdout == f"deleted offsets of {stage.group}\n"
    assert [(row["partition"], row["committed"]) for row in rows(bootstrap, "describe", stage.group)] == [(1, 7)]
