"""Child processes that surely end with us: a server that outlives its test would disturb all that follow."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Self

SOURCE = Path(__file__).resolve().parents[2] / "src"
STOP_LIMIT_S = 20.0
_PR_SET_PDEATHSIG = 1


class Running:
    """Processes that run for as long as a `with` does."""

    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> object:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()


def _die_with_parent() -> None:
    """Linux only: the kernel kills the child when we are gone, however we went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def environment() -> dict[str, str]:
    """For a node of this source tree. It keeps its bytecode, whatever we were told of ours: an installed ottla has it, and without it
    most of a start would be compiling."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(SOURCE)}


def start(command: list[str], output: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a server whose output goes to a file."""
    with output.open("ab") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=_fd(file), stderr=subprocess.STDOUT, preexec_fn=_die_with_parent, **options
        )


def _fd(file: IO[bytes]) -> int:
    return file.fileno()


def stop(process: subprocess.Popen[bytes]) -> int:
    """Ask it to end, then make it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()
