"""Every play, word for word: ottla must say what Apache Kafka 4.3 said when the transcripts were written down.

With `-m kafka` Kafka itself is asked again. `python -m tests.compatibility.groups.test_plays [PLAY…]` writes plays down anew.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compatibility.groups import migrations, plays, refusals
from tests.compatibility.groups.stage import Stage
from tests.compatibility.kafka import KafkaPeer
from tests.compatibility.node import OttlaNode

TRANSCRIPTS = Path(__file__).parent / "transcripts"
PLAYS = [*plays.PLAYS, *refusals.PLAYS, *migrations.PLAYS]


def perform(address: tuple[str, int], play: Callable[[Stage], None]) -> str:
    stage = Stage(address)
    try:
        play(stage)
    finally:
        stage.close()
    return "\n".join(stage.script) + "\n"


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__)
def test_a_play_goes_as_it_goes_with_kafka(system: KafkaPeer | OttlaNode, play: Callable[[Stage], None]) -> None:
    assert perform(system.address, play) == (TRANSCRIPTS / f"{play.__name__}.txt").read_text()


if __name__ == "__main__":
    TRANSCRIPTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, KafkaPeer(Path(folder)) as kafka:
        for written in [play for play in PLAYS if play.__name__ in sys.argv[1:] or not sys.argv[1:]]:
            (TRANSCRIPTS / f"{written.__name__}.txt").write_text(perform(kafka.address, written))
