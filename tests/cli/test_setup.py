"""The first use of a checkout: `./ottla` and `./test` make `.venv`, or say in one sentence why they cannot."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import LIMIT_S
from tests.compatibility.wire import free_port, wait_until

ROOT = Path(__file__).resolve().parents[2]
INSTALL_LIMIT_S = 600.0
COMMANDS = pytest.mark.parametrize("command", ["ottla", "test"])


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What git has of this checkout and `pip install .` reads, without `.venv`."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("LICENSE", "README.md", "ottla", "pyproject.toml", "requirements", "src", "test"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, copy / name)
    yield copy
    shutil.rmtree(copy)


def python(folder: Path, twist: str) -> str:
    """A Python like the one that runs this, but for what `twist` does before anything else."""
    (folder / "sitecustomize.py").write_text(twist)
    shim = folder / "python"
    shim.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    return str(shim)


def first_use(checkout: Path, command: str, **environment: str) -> list[str]:
    """The lines on standard error of a use that ends with 1 and prints nothing."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "OTTLA_"))}
    done = subprocess.run(
        [str(checkout / command), "--help"],
        capture_output=True,
        text=True,
        timeout=INSTALL_LIMIT_S,
        check=False,
        cwd=checkout.parent,
        env=ours | {"PIP_CONFIG_FILE": os.devnull} | environment,
    )
    assert (done.returncode, done.stdout) == (1, ""), done
    return done.stderr.splitlines()


@COMMANDS
def test_a_python_that_is_too_old_is_one_sentence(checkout: Path, tmp_path: Path, command: str) -> None:
    old = python(tmp_path, "import sys\nsys.version_info = (3, 10, 14, 'final', 0)\n")
    [sentence] = first_use(checkout, command, OTTLA_PYTHON=old)
    assert sentence.startswith("ottla: Python 3.11 or newer is needed")
    assert "OTTLA_PYTHON" in sentence


@COMMANDS
def test_no_python_at_all_is_one_sentence(checkout: Path, command: str) -> None:
    [sentence] = first_use(checkout, command, OTTLA_PYTHON="no-such-python")
    assert sentence.startswith("ottla: Python 3.11 or newer is needed")


@COMMANDS
@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_python_without_venv_is_one_sentence_that_says_what_to_install(
    checkout: Path, tmp_path: Path, command: str, module: str
) -> None:
    bare = python(tmp_path, f"import sys\nsys.modules[{module!r}] = None\n")
    _, sentence = first_use(checkout, command, OTTLA_PYTHON=bare)
    assert sentence.startswith("ottla: the Python at ")
    assert "lacks venv or ensurepip" in sentence
    assert "python3-venv" in sentence


@pytest.mark.parametrize("registry", ["https://127.0.0.1:{port}/simple", "https://no-such-registry.invalid/simple"])
def test_a_registry_that_cannot_be_reached_is_one_sentence(checkout: Path, registry: str) -> None:
    address = registry.format(port=free_port())
    _, sentence = first_use(checkout, "ottla", OTTLA_PYTHON=sys.executable, PIP_INDEX_URL=address, PIP_NO_CACHE_DIR="1")
    assert sentence.startswith("ottla: the package registry could not be reached")
    assert "pip install" in (checkout / ".venv" / "setup.log").read_text()  # pip's own words are kept


@pytest.mark.slow
def test_pip_install_gives_the_same_command(checkout: Path, tmp_path: Path) -> None:
    """From the registry that this environment knows, as a user has it, and away from the checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OTTLA_"))}
    bin = tmp_path / "venv" / "bin"

    def run(*command: str | Path, limit_s: float = LIMIT_S) -> str:
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            cwd=tmp_path,
            env=environment,
        )
        assert done.returncode == 0, done
        return done.stdout

    run(sys.executable, "-m", "venv", tmp_path / "venv", limit_s=INSTALL_LIMIT_S)
    run(bin / "python", "-m", "pip", "install", "--quiet", checkout, limit_s=INSTALL_LIMIT_S)
    assert str(tmp_path) in run(bin / "python", "-c", "import ottla; print(ottla.__file__)")
    for words in (["--help"], ["up", "--help"], ["topics", "create", "--help"]):
        assert run(bin / "ottla", *words) == run(ROOT / ".venv" / "bin" / "python", "-m", "ottla", *words)
    data = tmp_path / "data"
    with subprocess.Popen(
        [str(bin / "ottla"), "up", "--port", "0", "--data", str(data)], stdout=subprocess.PIPE, text=True, env=environment
    ) as up:
        try:
            assert up.stdout is not None
            bootstrap = up.stdout.readline().removeprefix("ready bootstrap=").strip()
            run(bin / "ottla", "topics", "create", "orders", "--bootstrap", bootstrap)
            wait_until("the topic has a folder", lambda: (data / "node-1" / "orders-0").is_dir())
        finally:
            up.terminate()
        assert up.wait(LIMIT_S) == 0
