"""The root of the command line, run as a user runs it: as a process."""

from __future__ import annotations

import base64
import subprocess
import sys

import pytest

from ottla.cli.main import COMMANDS
from tests.cli.processes import environment, ottla


def test_help_names_every_command() -> None:
    done = ottla("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


def test_help_imports_no_command() -> None:
    """What makes the start slow is imports: the help of the root must need none of rich, asyncio or the commands' modules."""
    script = (
        "import sys\n"
        "sys.argv = ['ottla', '--help']\n"
        "try:\n    import ottla.__main__\nexcept SystemExit:\n    pass\n"
        "print(sorted(m for m in sys.modules if m in {'rich', 'asyncio', 'ottla.cli.storage', 'numpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_command_has_help() -> None:
    from click.testing import CliRunner

    from ottla.cli.main import root

    for name in COMMANDS:
        result = CliRunner().invoke(root, [name, "--help"], prog_name="ottla")
        assert result.exit_code == 0, (name, result.output)
        assert result.output.startswith(f"Usage: ottla {name}")


def test_a_mistyped_command_is_answered_with_the_nearest() -> None:
    done = ottla("storge")
    assert done.returncode == 2
    assert "did you mean 'storage'?" in done.stderr


def test_random_uuid_is_sixteen_bytes_and_no_option() -> None:
    done = ottla("storage", "random-uuid")
    assert done.returncode == 0
    text = done.stdout.strip()
    assert len(base64.urlsafe_b64decode(text + "==")) == 16
    assert not text.startswith("-")


def test_a_shell_completes_commands_options_and_choices() -> None:
    def completed(words: str) -> set[str]:
        own = environment() | {
            "_OTTLA_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        done = subprocess.run([sys.executable, "-m", "ottla"], env=own, capture_output=True, text=True, timeout=60, check=False)
        return {line.partition(",")[2] for line in done.stdout.splitlines()}

    assert completed("ottla to") == {"topics"}
    assert completed("ottla topics ") >= {"create", "list", "describe", "alter", "delete"}
    assert "--replication-factor" in completed("ottla topics create --rep")
    assert completed("ottla demo re") == {"replay"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_printed(shell: str) -> None:
    done = ottla("completion", shell)
    assert done.returncode == 0
    assert "_OTTLA_COMPLETE" in done.stdout
