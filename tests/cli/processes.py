"""`ottla` as a process of its own, as a user has it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_S = 60.0


def ottla(*arguments: str, stdin: str = "", bootstrap: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"OTTLA_BOOTSTRAP": bootstrap} if bootstrap else {})
    return subprocess.run(
        [sys.executable, "-m", "ottla", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment,
    )


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that serves: the process, and the bootstrap it printed. It is killed in the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready bootstrap="), (
            line,
            process.stderr.read() if process.stderr and process.poll() is not None else "",
        )
        yield process, line.removeprefix("ready bootstrap=").strip()
    finally:
        process.kill()
        process.communicate()
