"""What the system lets a process have."""

from __future__ import annotations

import os

MAX_OPEN_FILES = 65_536


def raise_open_files(wanted: int = MAX_OPEN_FILES) -> int:
    """Lift the soft limit on open files as far as allowed, and say what it is now.

    Most systems start a process with 1,024, which a thousand clients use up by themselves; a JVM lifts it, too.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return soft if soft != resource.RLIM_INFINITY else wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return target


def process_id() -> int:
    return os.getpid()
