"""Runs a page of documentation from top to bottom, as its reader would.

    ```sh        runs with bash in an empty folder, with `ottla` on the PATH; one that begins with `ottla up` is started and stays up
    ```python    runs in one namespace for the whole page, `await` allowed; one that begins with `# name.py` is saved as that file
    ```properties   begins with `# name.properties` and is saved as that file
    ```text      is what the block before it printed: every line, in order, where `…` stands for anything

The address `localhost:9092` on a page is wherever its broker listens here. Any other kind of block fails: nothing is left unchecked.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.cli.processes import environment, running

ADDRESS = "localhost:9092"
# Spark takes it from where its JVM was started, which other tests of this process share.
CHECKPOINT = '"checkpointLocation", "checkpoint"'
BLOCK_LIMIT_S = 240.0  # a start of Spark and a run of a pipeline, on a busy machine


class Block(NamedTuple):
    line: int
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    found, lines = [], page.read_text().splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if line.startswith("```"):
            if start is None:
                start = number
            else:
                found.append(Block(start + 1, lines[start][3:].strip(), "\n".join(lines[start + 1 : number])))
                start = None
    assert start is None, f"{page.name}:{start}: a block is not closed"
    return found


class PageRun:
    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._bootstrap: str | None = None
        self._namespace: dict[str, Any] = {"__name__": "__page__"}
        self._printed = ""
        scripts = folder / ".bin"
        scripts.mkdir()
        for name, module in (("ottla", "ottla"), ("pytest", "pytest -p ottla.embedded.pytest_plugin"), ("python", None)):
            arguments = f'-m {module} "$@"' if module else '"$@"'
            (scripts / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}\n')
            (scripts / name).chmod(0o755)
        self._scripts = scripts

    def run(self, page: Path) -> None:
        for block in blocks(page):
            try:
                self._block(block)
            except AssertionError as error:
                raise AssertionError(f"{page.name}:{block.line}: {error}") from None

    def _block(self, block: Block) -> None:
        text = block.text if self._bootstrap is None else block.text.replace(ADDRESS, self._bootstrap)
        text = text.replace(CHECKPOINT, CHECKPOINT.replace('checkpoint"', f'{self.folder}/checkpoint"'))
        name = re.match(r"# ([\w-]+\.\w+)\n", text)
        if block.kind in ("python", "properties") and name:
            (self.folder / name[1]).write_text(text)
        elif block.kind == "sh" and text.startswith("ottla up"):
            self._up(text)
        elif block.kind == "sh":
            self._shell(text)
        elif block.kind == "python":
            self._python(text)
        elif block.kind == "text":
            expect(text if self._bootstrap is None else text.replace(ADDRESS, self._bootstrap), self._printed)
        else:
            raise AssertionError(f"a block of kind {block.kind!r} is run by nobody")

    def _up(self, text: str) -> None:
        (line,) = [line for line in text.splitlines() if line and not line.startswith("#")]
        arguments = [*line.split("#")[0].split()[1:], "--port", "0", "--data", str(self.folder / "ottla-data")]
        _, self._bootstrap = self._stack.enter_context(running(*arguments))
        self._printed = f"ready bootstrap={self._bootstrap}\n"

    def _shell(self, text: str) -> None:
        own = environment(self._bootstrap) | {
            "PATH": f"{self._scripts}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder),
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BLOCK_LIMIT_S,
            check=False,
        )
        self._printed = done.stdout
        assert done.returncode == 0, f"it ended with {done.returncode}:\n{done.stdout}"

    def _python(self, text: str) -> None:
        output = io.StringIO()
        code = compile(text, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

        async def run() -> None:
            with contextlib.redirect_stdout(output):
                result = eval(code, self._namespace)
                if inspect.isawaitable(result):
                    async with asyncio.timeout(BLOCK_LIMIT_S):
                        await result

        asyncio.run(run())
        self._printed = output.getvalue()


def expect(wanted: str, printed: str) -> None:
    """Every wanted line is among the printed ones, in the same order."""
    rest = iter(printed.splitlines())
    for line in filter(str.strip, wanted.splitlines()):
        pattern = re.compile(r"\s+".join(".*".join(map(re.escape, word.split("…"))) for word in line.split()))
        if line.strip() != "…":
            assert any(pattern.fullmatch(found.strip()) for found in rest), f"{line!r} was not printed, but:\n{printed}"
