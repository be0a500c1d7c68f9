"""`ottla` as a process of its own, as a user has it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from ottla.cli.main import main

LIMIT_S = 60.0
SOURCE = Path(__file__).resolve().parents[2] / "src"


def environment(bootstrap: str | None = None) -> dict[str, str]:
    """This checkout first, wherever the command is started."""
    more = {"OTTLA_BOOTSTRAP": bootstrap} if bootstrap else {}
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))} | more


def ottla(
    *arguments: str, stdin: str = "", bootstrap: str | None = None, limit_s: float = LIMIT_S, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """`before`: a program, with its arguments, that prepares the surroundings and then becomes the command."""
    return subprocess.run(
        [*before, sys.executable, "-m", "ottla", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env=environment(bootstrap),
    )


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ottla", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that serves: the process, and the address it printed. It is killed in the end if it still runs."""
    process = start(*arguments)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(("ready bootstrap=", "ready controller=")), (
            line,
            process.stderr.read() if process.stderr and process.poll() is not None else "",
        )
        yield process, line.partition("=")[2].strip()
    finally:
        process.terminate()
        try:
            process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def here(*arguments: str, stdin: str = "", bootstrap: str | None = None) -> subprocess.CompletedProcess[str]:
    """The same command inside this process: ten times as fast, for tests that run many."""
    output, errors = io.StringIO(), io.StringIO()
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin.encode())))  # type: ignore[arg-type]
    code: object = 0
    try:
        with redirect_stdout(output), redirect_stderr(errors), _environment("OTTLA_BOOTSTRAP", bootstrap):
            main(list(arguments))
    except SystemExit as done:
        code = done.code
    finally:
        sys.stdin = before
    assert isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
