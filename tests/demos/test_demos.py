"""Every demo, played as a user plays it, without a terminal: it proves its own claims and ends by itself."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from ottla import sync
from ottla.cli.demo import DEMOS
from ottla.cli.main import root
from tests.cli.processes import environment, ottla
from tests.compatibility.wire import wait_until
from tests.docs.runner import blocks

README = Path(__file__).resolve().parents[2] / "README.md"
LIMIT_S = 120.0  # each ends by itself long before
TABLE = "PRODUCT ORDERS REVENUE"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.spark] if name == "orders" else []) for name in DEMOS])
def test_the_demo_proves_what_it_tells(name: str) -> None:
    done = ottla("demo", name, limit_s=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✘" not in done.stdout
    assert done.stdout.rstrip().endswith("claims hold.")
    assert "Traceback" not in done.stderr
    if name == "orders":
        assert claims_of_readme() <= {_without_numbers(line) for line in done.stdout.splitlines()}
        before_the_proof, _, _ = done.stdout.partition("── The proof")
        shown = tables(before_the_proof)
        assert len(set(shown)) > 1, shown


def tables(text: str) -> list[tuple[str, ...]]:
    """The rows of each table of revenue."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    starts = [number + 1 for number, line in enumerate(lines) if line == TABLE]
    return [tuple(itertools.takewhile(re.compile(r"\w+ \d+ [\d.]+").fullmatch, lines[start:])) for start in starts]


@pytest.mark.spark
def test_a_demo_that_is_kept_serves_on_after_its_proof_until_ctrl_c(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w") as output, (tmp_path / "complaints").open("w") as complaints:
        process = subprocess.Popen(
            [sys.executable, "-m", "ottla", "demo", "--keep"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=complaints,
            env=environment(),
            start_new_session=True,
            # A shell that puts this suite into the background makes its children deaf to Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    said = (tmp_path / "said").read_text

    def goes_on() -> list[str]:
        return re.findall(r"^\$ ottla consume orders-priced .*--bootstrap (\S+)$", said(), re.MULTILINE)

    def is_alive() -> bool:
        return process.poll() is None

    try:
        [bootstrap] = wait_until("what to type in another terminal", goes_on, limit_s=LIMIT_S, alive=is_alive)
        assert "claims hold." in said()
        proved = len(tables(said()))
        with sync.Admin(bootstrap_servers=bootstrap) as admin:

            def priced() -> int:
                places = [("orders-priced", number) for number in range(3)]
                return sum(admin.latest_offsets(places, isolation_level="read_committed").values())

            before = priced()
            wait_until("more orders, priced", lambda: priced() > before, limit_s=LIMIT_S, alive=is_alive)
        wait_until("the table once more", lambda: len(tables(said())) > proved, limit_s=LIMIT_S, alive=is_alive)
        family = psutil.Process(process.pid).children(recursive=True)
        assert family, "Spark is not there"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: whoever is in the foreground hears it, the JVM too
        assert process.wait(LIMIT_S) == 0
        assert "Traceback" not in said() + (tmp_path / "complaints").read_text()
        _, left = psutil.wait_procs(family, LIMIT_S)
        assert not left, left
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


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
