"""`ottla transactions` against a node with a transaction that hangs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import ottla, running
from tests.compatibility.transactions import Conversation
from tests.compatibility.wire import address_of


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("node")
    with running("up", "--port", "0", "--data", str(folder)) as (_, found):
        yield found


@pytest.fixture
def hanging(bootstrap: str, request: pytest.FixtureRequest) -> Iterator[Conversation]:
    """Its producer has written a record and is gone."""
    name = request.node.name.removeprefix("test_")[:40]
    talk = Conversation(address_of(bootstrap), name, f"id-{name}")
    talk.init()
    assert talk.produce("hangs", version=12) == "NONE"
    yield talk
    talk.close()


def rows(bootstrap: str, *arguments: str) -> list[dict[str, object]]:
    done = ottla("transactions", *arguments, "--json", bootstrap=bootstrap)
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_list_finds_the_open_one(bootstrap: str, hanging: Conversation) -> None:
    [row] = rows(bootstrap, "list", "--open", "--pattern", hanging.transactional_id)
    assert row == {"id": hanging.transactional_id, "state": "Ongoing", "producer_id": hanging.identity[0]}
    assert rows(bootstrap, "list", "--state", "PrepareCommit") == []
    assert rows(bootstrap, "list", "--open", "--longer-than", "3600") == []
    assert ottla("transactions", "list", bootstrap=bootstrap).stdout.splitlines()[0].split() == ["ID", "STATE", "PRODUCER-ID"]


def test_describe_names_partitions_and_producers(bootstrap: str, hanging: Conversation) -> None:
    [row] = rows(bootstrap, "describe", hanging.transactional_id)
    assert (row["state"], row["partitions"], row["timeout_ms"]) == ("Ongoing", [f"{hanging.topic}-0"], 60_000)
    [producer] = rows(bootstrap, "describe", "--topic", hanging.topic, "--partition", "0")
    assert (producer["producer_id"], producer["transaction_start_offset"]) == (hanging.identity[0], 0)


def test_abort_by_id_ends_it_and_fences_its_producer(bootstrap: str, hanging: Conversation) -> None:
    [row] = rows(bootstrap, "abort", hanging.transactional_id, "--yes")
    assert row["aborted"] == hanging.transactional_id
    assert hanging.read() == []
    assert hanging.produce("zombie", version=12) == "INVALID_PRODUCER_EPOCH"
    again = ottla("transactions", "abort", hanging.transactional_id, "--yes", bootstrap=bootstrap)
    assert again.returncode == 1
    assert "no open transaction" in again.stderr


def test_abort_by_place_writes_the_marker(bootstrap: str, hanging: Conversation) -> None:
    place = ("--topic", hanging.topic, "--partition", "0", "--start-offset")
    wrong = ottla("transactions", "abort", *place, "5", "--yes", bootstrap=bootstrap)
    assert wrong.returncode == 1
    assert "open ones begin at 0" in wrong.stderr
    [row] = rows(bootstrap, "abort", *place, "0", "--yes")
    assert row["aborted"] == f"{hanging.topic}-0@0"
    assert hanging.producers()[0][3] == -1


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe",),
        ("describe", "x", "--topic", "t", "--partition", "0"),
        ("describe", "--topic", "t"),
        ("abort", "--yes"),
        ("abort", "x", "--topic", "t", "--yes"),
        ("abort", "--topic", "t", "--partition", "0", "--yes"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(arguments: tuple[str, ...]) -> None:
    assert ottla("transactions", *arguments).returncode == 2


@pytest.mark.parametrize("arguments", [("describe", "nobody"), ("abort", "nobody", "--yes"), ("list", "--pattern", "(")])
def test_what_is_not_there_is_one_sentence(bootstrap: str, arguments: tuple[str, ...]) -> None:
    done = ottla("transactions", *arguments, bootstrap=bootstrap)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("ottla: ")
