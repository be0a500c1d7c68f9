"""What Kafka answered, kept: so that every test run judges ottla by Kafka, and a run with Kafka judges what was kept.

python -m tests.compatibility.differential.transcripts [SCENARIO …]      # ask Apache Kafka 4.3 anew and keep its answers
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ottla.protocol.schema import Versions
from tests.compatibility.differential import (
    scenarios_admin,
    scenarios_cluster,
    scenarios_configs,
    scenarios_data,
    scenarios_generated,
    scenarios_topics,
)
from tests.compatibility.differential.talk import Talk, Tree

FOLDER = Path(__file__).with_name("transcripts")
SHARED = "shared list"
LONG = 8  # members from which a list is worth keeping only once
Notes = dict[str, dict[int, Tree]]
SCENARIOS: dict[str, Callable[[Talk], None]] = {
    scenario.__name__: scenario
    for module in (scenarios_cluster, scenarios_topics, scenarios_data, scenarios_configs, scenarios_admin, scenarios_generated)
    for scenario in module.SCENARIOS
}


def play(name: str, address: tuple[str, int]) -> Notes:
    """Have one scenario with one system. The notes of a scenario that broke off say where."""
    talk = Talk(name, address)
    try:
        SCENARIOS[name](talk)
    finally:
        talk.close()
    return talk.notes


def keep(name: str, notes: Notes) -> None:
    """One line for each question and range of versions with the same answer. Long lists that come again are kept once."""
    shared: dict[str, str] = {}
    lines = [
        f"{json.dumps(f'{question} | {versions}')}: {json.dumps(_shorten(tree, shared))}"
        for question, answers in notes.items()
        for versions, tree in _ranges(answers)
    ]
    lines = [f"{json.dumps(label)}: {text}" for text, label in shared.items()] + lines
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _shorten(tree: Tree, shared: dict[str, str]) -> Tree:
    if isinstance(tree, list) and len(tree) >= LONG:
        return {SHARED: shared.setdefault(json.dumps(tree), f"{SHARED} {len(shared)}")}
    if isinstance(tree, list):
        return [_shorten(one, shared) for one in tree]
    return {key: _shorten(one, shared) for key, one in tree.items()} if isinstance(tree, dict) else tree


def _lengthen(tree: Tree, stored: dict[str, Tree]) -> Tree:
    if isinstance(tree, dict) and SHARED in tree:
        return stored[tree[SHARED]]
    if isinstance(tree, list):
        return [_lengthen(one, stored) for one in tree]
    return {key: _lengthen(one, stored) for key, one in tree.items()} if isinstance(tree, dict) else tree


def _ranges(answers: dict[int, Tree]) -> Iterator[tuple[Versions, Tree]]:
    started: tuple[int, int, Tree] | None = None
    for version, tree in sorted(answers.items()):
        if started and started[1] == version - 1 and started[2] == tree:
            started = (started[0], version, tree)
            continue
        if started:
            yield Versions(started[0], started[1]), started[2]
        started = (version, version, tree)
    if started:
        yield Versions(started[0], started[1]), started[2]


def kept(name: str) -> Notes:
    notes: Notes = {}
    stored = json.loads((FOLDER / f"{name}.json").read_text())
    for key, tree in stored.items():
        question, _, versions = key.rpartition(" | ")
        if question:
            whole = _lengthen(tree, stored)
            notes.setdefault(question, {}).update(dict.fromkeys(Versions.parse(versions), whole))
    return notes


def _members(trees: list[Any]) -> dict[str, Any]:
    """Members by what tells them apart, so that one that is missing does not shift all others."""
    named: dict[str, Any] = {}
    for index, tree in enumerate(trees):
        parts = [str(tree[field]) for field in ("name", "resource_name", "api_key") if isinstance(tree.get(field), str | int)]
        label = parts[0] if parts else str(index)
        named[f"{label}#{index}" if label in named else label] = tree
    return named


def walk(theirs: Tree, ours: Tree, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two trees differ: path, what Kafka said, what ottla said. A member that one side lacks is one difference."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in theirs | ours:
            yield from walk(theirs.get(name, "absent"), ours.get(name, "absent"), f"{path}.{name}" if path else name)
    elif isinstance(theirs, list) and isinstance(ours, list) and any(isinstance(one, dict) for one in theirs + ours):
        left, right = _members(theirs), _members(ours)
        for label in left | right:
            yield from walk(left.get(label, "absent"), right.get(label, "absent"), f"{path}[{label}]")
    elif theirs != ours:
        yield path, theirs, ours


def compare(expected: Notes, seen: Notes) -> Iterator[tuple[str, int, str, Any, Any]]:
    """Every difference: question, version, path, what Kafka said, what ottla said."""
    for question in expected | seen:
        for version in sorted(set(expected.get(question, {})) | set(seen.get(question, {}))):
            left = expected.get(question, {}).get(version, "not asked")
            right = seen.get(question, {}).get(version, "not asked")
            for path, theirs, ours in walk(left, right):
                yield question, version, path, theirs, ours


def main(names: list[str]) -> None:
    from tests.compatibility.kafka import KafkaPeer

    with tempfile.TemporaryDirectory() as folder, KafkaPeer(Path(folder), first_id=1) as kafka:
        for name in names or SCENARIOS:
            notes = play(name, kafka.address)
            keep(name, notes)
            print(
                f"{name}: {sum(map(len, notes.values()))} answers, {(FOLDER / f'{name}.json').stat().st_size} bytes", flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])
