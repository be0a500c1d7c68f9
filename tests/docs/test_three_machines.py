"""docs/howto/three-machines.md: its files and commands, with its three machines on three ports of this one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.processes import LIMIT_S, environment
from tests.compatibility.wire import free_port

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "three-machines.md"
MACHINES = ("alpha", "beta", "gamma")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def here(tmp_path: Path) -> dict[str, str]:
    """What the page says → what it is on this machine."""
    ports = {f"{machine}:{port}": f"127.0.0.1:{free_port()}" for machine in MACHINES for port in (9092, 9093)}
    return ports | {"/var/lib/ottla": str(tmp_path / "MACHINE")}


def translated(text: str, here: dict[str, str]) -> str:
    for written, meant in here.items():
        text = text.replace(written, meant)
    return text


def commands() -> Iterator[str]:
    for block in blocks("sh"):
        yield from (line for line in block.splitlines() if line.startswith("ottla "))


def run(folder: Path, command: str, bootstrap: str) -> str:
    words = [sys.executable, "-m", "ottla", *command.split()[1:]]
    done = subprocess.run(
        words, cwd=folder, env=environment(bootstrap), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_page_makes_a_cluster_of_three(tmp_path: Path, here: dict[str, str]) -> None:
    files = blocks("properties")
    assert [text.split()[1].rstrip(":") for text in files] == list(MACHINES)
    with ExitStack() as stack:
        nodes = []
        for machine, text in zip(MACHINES, files, strict=True):
            folder = tmp_path / machine
            folder.mkdir()
            (folder / "server.properties").write_text(translated(text, here).replace("MACHINE", f"{machine}/data"))
            [formatting] = [command for command in commands() if "storage format" in command]
            run(folder, formatting, "")
            nodes.append(stack.enter_context(serving(folder)))
        for node in nodes:
            assert node.stdout is not None
            assert node.stdout.readline().startswith("ready bootstrap=127.0.0.1:")
        asked = [command for command in commands() if not command.startswith(("ottla storage", "ottla server"))]
        [bootstrap] = re.findall(r"OTTLA_BOOTSTRAP=(\S+)", "".join(blocks("sh")))
        shown = {command: run(tmp_path, command, translated(bootstrap, here)) for command in asked}
        assert "created orders" in shown["ottla topics create orders --partitions 3 --replication-factor 3"]
        assert "orders" not in shown["ottla topics describe --under-replicated"]
        for node in nodes:  # one after the other, as the page says
            node.send_signal(signal.SIGTERM)
            assert node.wait(LIMIT_S) == 0


def serving(folder: Path) -> subprocess.Popen[str]:
    [command] = [command for command in commands() if command.startswith("ottla server")]
    words = [sys.executable, "-m", "ottla", *command.split()[1:]]
    return _Ended(words, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


class _Ended(subprocess.Popen[str]):
    """A process that does not outlive its test."""

    def __exit__(self, *error: object) -> None:
        self.kill()
        super().__exit__(*error)  # type: ignore[arg-type]
