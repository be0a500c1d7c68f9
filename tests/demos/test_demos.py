"""Every demo, played as a user plays it, without a terminal: it proves its own claims and ends by itself."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli.demo import DEMOS
from ottla.cli.main import root
from tests.cli.processes import ottla
from tests.docs.runner import blocks

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.spark] if name == "orders" else []) for name in DEMOS])
def test_the_demo_proves_what_it_tells(name: str) -> None:
    done = ottla("demo", name, limit_s=300.0)  # each ends by itself long before
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✘" not in done.stdout
    assert done.stdout.rstrip().endswith("claims hold.")
    assert "Traceback" not in done.stderr
    if name == "orders":
        assert claims_of_readme() <= {_without_numbers(line) for line in done.stdout.splitlines()}


def claims_of_readme() -> set[str]:
    """The proof that README.md shows."""
    (shown,) = [block.text for block in blocks(README) if "The proof" in block.text]
    claims = {_without_numbers(line) for line in shown.splitlines() if line.startswith(("✔", "All "))}
    assert len(claims) >= 6
    return claims


def _without_numbers(line: str) -> str:
    return re.sub(r"[\d,.]+", "N", line)


def test_only_a_demo_that_can_go_on_is_kept_running() -> None:
    done = ottla("demo", "failover", "--keep")
    assert done.returncode == 2
    assert "--keep is for orders" in done.stderr


def test_they_are_listed() -> None:
    done = ottla("demo", "--list")
    assert done.returncode == 0
    for name in DEMOS:
        assert name in done.stdout


async def test_a_claim_that_does_not_hold_fails_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    from ottla.cli.demos.stage import Stage

    async def never() -> bool:
        return False

    stage = Stage()
    stage.check("two and two are five", False, found=4)
    assert await stage.wait_for("something that never happens", never, 0.01) is False
    assert stage.end() == 1
    shown = capsys.readouterr().out
    assert "✘ two and two are five (found 4)" in shown
    assert "2 of 2 claims did not hold." in shown


def test_a_slow_demo_pauses_before_each_scene_and_ends_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.cli.demos import stage

    monkeypatch.setattr(stage, "SLOW_S", 0.05)
    done = {}
    for slow in (False, True):
        began = time.monotonic()
        done[slow] = CliRunner().invoke(root, ["demo", "first-log", *(["--slow"] if slow else [])], standalone_mode=False)
        assert done[slow].exception is None
        assert done[slow].return_value == 0
    scenes = done[True].stdout.count("\n── ")
    assert scenes == done[False].stdout.count("\n── ") > 2
    assert time.monotonic() - began >= scenes * 0.05
