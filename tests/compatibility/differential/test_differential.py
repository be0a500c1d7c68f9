"""For every API and version served: the same questions to Apache Kafka 4.3 and to ottla in the same state, the answers field by field.

Kafka's answers are kept in `transcripts/`, so ottla is judged in every test run; where Kafka is at hand, what is kept is judged
too. `python -m tests.compatibility.differential.transcripts` asks Kafka anew.
"""

from __future__ import annotations

import os
from collections import defaultdict

import pytest

from ottla.broker import handlers
from ottla.broker.dispatch import served_by
from tests.compatibility.differential.differences import ACCEPTED, Accepted, accepted
from tests.compatibility.differential.scenarios_generated import CHECKS, READS, WRITES, play_generated
from tests.compatibility.differential.talk import Talk
from tests.compatibility.differential.transcripts import SCENARIOS, Notes, compare, kept, play
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.node import OttlaNode

VERSIONS = "<versions>"
_used: set[Accepted] = set()
_played: set[str] = set()


def _report(expected: Notes, seen: Notes) -> list[str]:
    """The differences that are not accepted, one line for all versions that share one."""
    lines: dict[str, list[int]] = defaultdict(list)
    for question, version, path, theirs, ours in compare(expected, seen):
        rule = accepted(question, path, ours)
        if rule:
            _used.add(rule)
        else:
            lines[
                f"{question} v{VERSIONS}: {path or 'the answer'}: Kafka {str(theirs)[:200]!r}, ottla {str(ours)[:200]!r}"
            ].append(version)
    return [line.replace(VERSIONS, f"{versions[0]}-{versions[-1]}") for line, versions in lines.items()]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ottla_answers_as_kafka_did(scenario: str, ottla_node: OttlaNode) -> None:
    differences = _report(kept(scenario), play(scenario, ottla_node.address))
    _played.add(scenario)
    assert not differences, "\n".join([f"{len(differences)} differences:", *differences])


def test_every_accepted_difference_is_still_one() -> None:
    if _played != set(SCENARIOS):
        pytest.skip("not all scenarios were played")
    unused = [rule for rule in ACCEPTED if rule not in _used]
    assert not unused


def test_no_difference_is_accepted_wherever_it_is() -> None:
    assert not [rule for rule in ACCEPTED if rule.path == ".*"]


def test_every_api_and_version_that_a_broker_serves_is_asked() -> None:
    handlers.load()
    asked: dict[str, set[int]] = defaultdict(set)
    for scenario in SCENARIOS:
        for question, answers in kept(scenario).items():
            asked[question.rpartition(" | ")[2]] |= set(answers)
    for served in served_by("broker").values():
        missing = set(served.api.versions) - asked[served.api.name]
        assert not missing, f"{served.api.name} {sorted(missing)}"


@pytest.mark.kafka
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kafka_still_answers_as_it_did(scenario: str, kafka_peer: KafkaPeer) -> None:
    differences = [str(difference) for difference in compare(kept(scenario), play(scenario, kafka_peer.address))]
    assert not differences, "\n".join(differences)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_other_seeds_find_no_other_differences(seed: int, kafka_peer: KafkaPeer, ottla_node: OttlaNode) -> None:
    """Not kept: asked of both, now. `OTTLA_SEED` tries another."""
    chosen = int(os.environ.get("OTTLA_SEED", seed))
    answers = []
    for system in (kafka_peer, ottla_node):
        talk = Talk(f"seed-{chosen}-{seed}", system.address)
        play_generated(talk, READS + CHECKS + WRITES, chosen, 30)
        talk.close()
        answers.append(talk.notes)
    differences = _report(*answers)
    assert not differences, "\n".join([f"{len(differences)} differences:", *differences])
