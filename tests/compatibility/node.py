"""An ottla node as a child process, started the way a user starts it: `ottla up`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.compatibility import process
from tests.compatibility.wire import address_of, free_port, serves, wait_until

START_LIMIT_S = 60.0


class OttlaNode(process.Running):
    """One node on a port that stays the same over restarts, so that clients find it again."""

    name = "ottla"

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.output = folder / "output.log"
        self.settings = {"group.initial.rebalance.delay.ms": "0"} | dict(settings or {})
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        return address_of(self.bootstrap)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def log_directory(self, node: int = 1) -> Path:
        return self.data / f"node-{node}"

    @property
    def command(self) -> list[str]:
        run = [sys.executable, "-P", "-m", "ottla", "up"]
        options = [part for name, value in self.settings.items() for part in ("--set", f"{name}={value}")]
        return [*run, "--port", str(self.port), "--data", str(self.data), *options]

    def start(self) -> Self:
        seen = self.log_text().count("ready bootstrap=")
        self.process = process.start(self.command, self.output, env=process.environment(), cwd=self.folder)
        running = self.process
        try:
            wait_until(
                "an ottla node saying it is ready",
                lambda: self.log_text().count("ready bootstrap=") > seen and serves(self.address),
                limit_s=START_LIMIT_S,
                alive=lambda: running.poll() is None,
            )
        except AssertionError as error:
            self.stop()
            raise AssertionError(f"{error}; it said:\n{self.log_text()[-3000:]}") from None
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log_text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def tracebacks(self) -> list[str]:
        """A node must never print one: a user could not do anything with it."""
        return re.findall(r"Traceback \(most recent call last\).*?(?=\n\S|\Z)", self.log_text(), re.DOTALL)

    def kill(self) -> None:
        """As a power cut would: no chance to close anything."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        return process.stop(self.process) if self.process is not None else 0
