"""The part of the style that a machine can check, checked: what each package may import, how long things may be, what may not be said.

An exception is a line in one of the tables below, with its reason.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
MODULES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

PURE_PACKAGES = {"model", "records", "protocol", "raft", "metadata", "replication", "groups", "transactions"}
NEVER_IN_PURE = {
    "asyncio",
    "time",
    "random",
    "os",
    "socket",
    "logging",
    "threading",
    "subprocess",
    "selectors",
    "pathlib",
    "secrets",
}

# The doors of `host` are the only way to the world. These packages stand at the edge of a process, before or beside a node: the command
# line prints and parses, the embedded cluster makes temporary folders and child processes, Spark code runs in Spark's own workers.
WORLD = {"time", "random", "socket", "os", "subprocess", "threading", "multiprocessing", "secrets"}
MAY_TOUCH_THE_WORLD = {"host", "cli", "embedded", "spark"}
# module → (what it may import all the same, why)
WORLD_EXCEPTIONS: dict[str, tuple[set[str], str]] = {}

MAX_FUNCTION_LINES = 60
# module:function → why it is one piece
LONG_FUNCTIONS: dict[str, str] = {
    "ottla/records/record.py:_decode": "the hot loop over records: a call per field would cost more than the field",
}
MAX_FILE_LINES = 600
DECLARATIONS = "ottla/protocol/messages/"
# file name → why it prints
PRINTING_SCRIPTS = {"feed.py": "of an example of `ottla pipeline init`: written out for a user, who runs it as a script"}


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def package(path: Path) -> str:
    parts = path.relative_to(SOURCE / "ottla").parts if path.is_relative_to(SOURCE / "ottla") else ()
    return parts[0] if len(parts) > 1 else ""


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0], node.lineno


def imports_against(path: Path, forbidden: set[str]) -> list[str]:
    return [
        f"{name(path)}:{line} imports {module}" for module, line in imported(ast.parse(path.read_text())) if module in forbidden
    ]


def test_pure_packages_import_nothing_of_the_world() -> None:
    found = [line for path in MODULES if package(path) in PURE_PACKAGES for line in imports_against(path, NEVER_IN_PURE)]
    assert not found, "\n".join(found)


def test_only_the_doors_and_the_edges_touch_the_world() -> None:
    found = []
    for path in MODULES:
        if package(path) and package(path) not in MAY_TOUCH_THE_WORLD:
            allowed = WORLD_EXCEPTIONS.get(name(path), (set(), ""))[0]
            found += imports_against(path, WORLD - allowed)
    assert not found, "\n".join(found)


def test_functions_fit_a_screen() -> None:
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                label = f"{name(path)}:{node.name}"
                if lines > MAX_FUNCTION_LINES and label not in LONG_FUNCTIONS:
                    found.append(f"{label} has {lines} lines")
    assert not found, "\n".join(found)


def test_files_stay_readable() -> None:
    lengths = {name(path): len(path.read_text().splitlines()) for path in MODULES if not name(path).startswith(DECLARATIONS)}
    assert not {path: length for path, length in lengths.items() if length > MAX_FILE_LINES}


def test_every_module_says_what_it_is() -> None:
    found = [name(path) for path in MODULES if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))]
    assert not found, "no docstring at the head of: " + ", ".join(found)


def test_only_the_command_line_prints() -> None:
    found = []
    for path in MODULES:
        if package(path) != "cli" and path.name not in PRINTING_SCRIPTS:
            calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
            found += [
                f"{name(path)}:{call.lineno}" for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"
            ]
    assert not found, "print in: " + ", ".join(found)


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "X" + "XX"])
def test_nothing_is_left_for_later_in_a_comment(word: str) -> None:
    found = [path.relative_to(ROOT).as_posix() for path in MODULES + TESTS if word in path.read_text()]
    assert not found, f"{word} in: " + ", ".join(found)


def test_no_path_of_one_machine_is_written_down() -> None:
    """Only tracked files count; outside a git checkout (an unpacked archive) there is nothing to look at."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout.decode().split("\0")
    roots = tuple(f"/{folder}/" for folder in ("work", "root", "farm"))
    found = []
    for file in filter(None, listed):
        try:
            text = (ROOT / file).read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if any(line.startswith(root) or f" {root}" in line or f'"{root}' in line or f"'{root}" in line for root in roots):
                found.append(f"{file}:{number}")
    assert not found, ", ".join(found)
