from __future__ import annotations

import subprocess
import sys

PROBE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
from ottla.host.limits import raise_open_files
said = raise_open_files({wanted})
assert said == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
print(said)
"""


def probe(hard: int, wanted: int) -> int:
    """In a process of its own: a limit once lowered stays so."""
    code = PROBE.format(hard=hard, wanted=wanted)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    return int(done.stdout)


def test_the_limit_on_open_files_is_lifted_as_far_as_wanted_and_allowed() -> None:
    assert probe(hard=1000, wanted=500) == 500
    assert probe(hard=1000, wanted=5000) == 1000
    assert probe(hard=1000, wanted=100) == 256
