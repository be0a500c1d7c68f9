"""Every code block of the documentation is run, and prints what the page says."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.docs.runner import PageRun, blocks, expect

ROOT = Path(__file__).resolve().parents[2]
# These are prose about the code, figures, and pages with tests of their own (test_tools.py, test_three_machines.py).
PROSE = {"SIMULATION.md", "ARCHITECTURE.md", "COMPATIBILITY.md", "BENCHMARKS.md", "API.md"}
NOT_RUN = PROSE | {"kafka-tools.md", "three-machines.md"}
ON_SPARK = {"spark.md", "pipelines.md"}
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name not in NOT_RUN)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.spark if page.name in ON_SPARK else (), id=page.stem) for page in PAGES],
)
def test_every_block_of_the_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    assert blocks(page), f"{page.name} shows no code"
    with contextlib.ExitStack() as stack:
        PageRun(tmp_path, stack).run(page)


def test_links_between_pages_lead_somewhere() -> None:
    import re

    for page in [*PAGES, ROOT / "README.md", ROOT / "docs" / "kafka-tools.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_a_page_that_promises_other_output_fails() -> None:
    expect("a …\nc", "a b\nb\nc\n")
    for wanted in ("c\na b", "a", "d"):
        with pytest.raises(AssertionError):
            expect(wanted, "a b\nb\nc\n")
